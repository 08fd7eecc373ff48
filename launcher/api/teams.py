"""The objects of teams on a cluster: namespaces, quotas, roles, queues and priorities."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from launcher.api import values
from launcher.api.arguments import checked, text_of
from launcher.common import yaml_io
from launcher.common.problems import Notice, Problem, fail, raise_any
from launcher.governance import cluster_wide, team_manifests
from launcher.governance.cluster_wide import Origin
from launcher.governance.team import Team
from launcher.model.backend_registry import clusters

_MADE_HERE = "app.kubernetes.io/managed-by: recipe-launcher"
"""Label, as written in the files, of every object that is generated here."""


@dataclass(frozen=True)
class Objects:
    """The objects of some teams.

    Args:
        files: For each team, relative path to text.
        notices: What its administrator should know.
    """

    files: Mapping[str, Mapping[str, str]]
    notices: tuple[Notice, ...]

    @property
    def paths(self) -> dict[str, str]:
        """Relative path to text; each of several teams has its own folder."""
        return {
            f"{team}/{name}" if len(self.files) > 1 else name: text
            for team, each in self.files.items()
            for name, text in each.items()
        }

    @property
    def texts(self) -> list[str]:
        """The text of every file, those that teams share once."""
        return list(dict.fromkeys(text for each in self.files.values() for text in each.values()))


@checked(has_texts=True)
def objects(
    words: Sequence[str], *, of_cluster: bool = False, context: str | None = None, out: Path | str | None = None
) -> Objects:
    """Return the objects of teams. Writes nothing.

    Args:
        words: `key=value`; each `team=` starts another team.
        of_cluster: Whether Kueue's version is read from the cluster, and shared objects compared with its own.
        context: The cluster's context of the kubeconfig.
        out: Where they will be written: other teams there are compared, too.

    Raises:
        ProblemsFound: A key is not valid, shared objects of teams differ, or the cluster does not fit.
    """
    teams = team_manifests.read_all(values.texts(words, "a list of texts"))
    found = _for_cluster(teams, context) if of_cluster else teams
    notices = dict.fromkeys(notice for team in found for notice in team_manifests.notices(team))
    made = Objects({team.team: team_manifests.files(team) for team in found}, tuple(notices))
    folder = None if out is None else Path(text_of(out, "E805", "out"))
    _check_differences(made.files, {(folder / path).parent.absolute() for path in made.paths} if folder else set())
    return made


def _for_cluster(teams: Sequence[Team], context: str | None) -> Sequence[Team]:
    """Return the teams with the cluster's version of Kueue.

    Raises:
        ProblemsFound: The cluster cannot be reached, lacks prerequisites, or has different objects of these names.
    """
    cluster = clusters().connect(context)
    written: list[Team] = []
    for team in teams:
        if team.kueue:
            version = cluster.kueue_version(team_manifests.KUEUE_VERSIONS, team.kueue_version)
            team = team.model_copy(update={"kueue_version": version})
        written.append(team)
    problems: list[Problem] = []
    for team in written:
        own = _objects(team_manifests.files(team))
        problems += cluster.lacks(own)
        theirs = Origin(f"the cluster ({cluster.context})", cluster.existing(own))
        problems += cluster_wide.differences(Origin(f"team {team.team}", own), [theirs])
    raise_any(dict.fromkeys(problems))
    return written


def _check_differences(files: Mapping[str, Mapping[str, str]], folders: set[Path]) -> None:
    """Raise a Problem for teams whose shared objects differ from each other's, or from those of teams on disk."""
    origins = [Origin(f"team {team}", _objects(each)) for team, each in files.items()]
    beside = _beside(folders)
    raise_any(
        problem
        for i, origin in enumerate(origins)
        for problem in cluster_wide.differences(origin, [*origins[:i], *beside])
    )


def _beside(own: set[Path]) -> list[Origin]:
    """Return the objects of other teams: generated files in folders next to the teams' own."""
    found = []
    for folder in sorted({child for each in own for child in each.parent.glob("*/")} - own):
        others: list[Mapping[str, Any]] = []
        for file in sorted(folder.glob("[0-9]-*.yaml")):
            try:
                text = file.read_text("utf-8", errors="replace")
                others += yaml_io.load_documents(text) if _MADE_HERE in text else ()
            except (OSError, yaml.YAMLError) as error:
                raise fail("E805", str(file), f"cannot be compared with these teams: {error}") from error
        found.append(Origin(str(folder), tuple(others)))
    return found


def _objects(files: Mapping[str, str]) -> tuple[Mapping[str, Any], ...]:
    return tuple(each for text in files.values() for each in yaml_io.load_documents(text))
