"""The command of a cluster's administrator: namespaces, quotas, roles, queues and priorities of teams."""

import json
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from launcher.cli.commands.arguments import AsJson
from launcher.common.problems import ProblemsFound, fail

if TYPE_CHECKING:
    from launcher.governance.cluster_wide import Origin
    from launcher.governance.team_manifests import Team

Out = Annotated[
    Path | None,
    typer.Option(
        "--out",
        metavar="DIR",
        help="Write a file for each subject there; of several teams, in a folder of each.",
        file_okay=False,
    ),
]
Cluster = Annotated[
    bool,
    typer.Option("--cluster", help="Ask the cluster for its Kueue's version, and compare what teams share with it."),
]
Context = Annotated[
    str | None, typer.Option("--context", metavar="NAME", help="With --cluster: a context of the kubeconfig.")
]

_MADE_HERE = "app.kubernetes.io/managed-by: recipe-launcher"
"""Label, as it is written, of every object that this command makes."""


def governance(
    words: Annotated[
        list[str] | None,
        typer.Argument(metavar="KEY=VALUE...", help="team, instance_type, nodes; docs/governance.md has all."),
    ] = None,
    out: Out = None,
    cluster: Cluster = False,
    context: Context = None,
    as_json: AsJson = False,
) -> None:
    """Print the objects of a team. Namespace, quotas, roles, queue and priorities; kubectl apply -f - takes them.

    Each team= starts another team. Objects that teams share must be the same for all of them.
    """
    from launcher.common import console, yaml_io
    from launcher.governance import team_manifests

    if context and not cluster:
        raise fail("E801", "--context", "is the cluster that --cluster asks", value=context, remedy="add --cluster")
    found = (
        _of_cluster(team_manifests.read_all(words or ()), context)
        if cluster
        else team_manifests.read_all(words or ())
    )
    files = {team.team: team_manifests.files(team) for team in found}
    paths = _paths(files)
    _refuse_differences(files, {(out / path).parent.absolute() for path in paths} if out else set())
    texts = list(dict.fromkeys(text for each in files.values() for text in each.values()))
    if as_json:
        items = [each for text in texts for each in yaml_io.load_documents(text)]
        print(json.dumps({"apiVersion": "v1", "kind": "List", "items": items}, indent=2))
    elif out is None:
        sys.stdout.write("---\n".join(texts))
    else:
        write(out, paths)
        for path, text in paths.items():
            kinds = [f"{each['kind']} {each['metadata']['name']}" for each in yaml_io.load_documents(text)]
            console.say(f"{console.shown_path((out / path).absolute())}   {', '.join(kinds)}")
    for notice in dict.fromkeys(notice for team in found for notice in team_manifests.notices(team)):
        console.show_notice(notice, stderr=True)


def _paths(files: Mapping[str, Mapping[str, str]]) -> dict[str, str]:
    """Return each file's text by its path; the files of several teams are in a folder of each."""
    return {
        f"{team}/{name}" if len(files) > 1 else name: text
        for team, each in files.items()
        for name, text in each.items()
    }


def _of_cluster(found: "Sequence[Team]", context: str | None) -> "Sequence[Team]":
    """Return the teams with the cluster's version of Kueue, after comparing them with the cluster.

    Raises:
        ProblemsFound: The cluster cannot be asked, lacks what they need, or has other objects of these names.
    """
    from launcher.backends.kubernetes import governance_preflight
    from launcher.backends.kubernetes.connection import connect
    from launcher.governance import cluster_wide, team_manifests

    connection = connect(context)
    written = [
        team.model_copy(
            update={
                "kueue_version": governance_preflight.kueue_version(
                    connection, team_manifests.KUEUE_VERSIONS, team.kueue_version
                )
            }
        )
        if team.kueue
        else team
        for team in found
    ]
    problems = []
    for team in written:
        objects = _objects(team_manifests.files(team))
        problems += governance_preflight.problems(connection, objects)
        there = governance_preflight.existing(connection, objects)
        problems += cluster_wide.differences(cluster_wide.Origin(f"team {team.team}", objects), [there])
    if problems:
        raise ProblemsFound(tuple(dict.fromkeys(problems)))
    return written


def _refuse_differences(files: Mapping[str, Mapping[str, str]], folders: set[Path]) -> None:
    """Refuse teams whose shared objects differ from each other, or from those of teams beside them on disk.

    Raises:
        ProblemsFound: Some do.
    """
    from launcher.governance import cluster_wide

    origins = [cluster_wide.Origin(f"team {team}", _objects(each)) for team, each in files.items()]
    beside = _beside(folders)
    problems = []
    for i, origin in enumerate(origins):
        problems += cluster_wide.differences(origin, [*origins[:i], *beside])
    if problems:
        raise ProblemsFound(tuple(problems))


def _beside(own: set[Path]) -> "list[Origin]":
    """Return the objects of other teams: what this command wrote into folders beside the teams' own."""
    import yaml

    from launcher.common import yaml_io
    from launcher.governance import cluster_wide

    found = []
    for folder in sorted({child for each in own for child in each.parent.glob("*/")} - own):
        objects: list[Mapping[str, Any]] = []
        for file in sorted(folder.glob("[0-9]-*.yaml")):
            try:
                text = file.read_text("utf-8", errors="replace")
                objects += yaml_io.load_documents(text) if _MADE_HERE in text else ()
            except (OSError, yaml.YAMLError) as error:
                raise fail("E805", str(file), f"cannot be compared with these teams: {error}") from error
        found.append(cluster_wide.Origin(str(folder), tuple(objects)))
    return found


def _objects(files: Mapping[str, str]) -> tuple[Mapping[str, Any], ...]:
    from launcher.common import yaml_io

    return tuple(each for text in files.values() for each in yaml_io.load_documents(text))


def write(folder: Path, files: Mapping[str, str]) -> None:
    """Write files, relative path to text, below a folder that holds none of other content.

    Raises:
        ProblemsFound: A file of that name says something else, or the folder refuses.
    """
    try:
        for name, text in files.items():
            path = folder / name
            if os.path.exists(path) and path.read_text(encoding="utf-8") != text:
                message = "exists and says something else; it is never overwritten"
                raise fail("E805", str(path), message, remedy="another folder, or remove it")
        for name, text in files.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
            path.chmod(0o755 if text.startswith("#!") else 0o644)
    except (OSError, UnicodeDecodeError) as error:
        raise fail("E805", str(folder), f"cannot be written: {error}") from error
