"""Commands for administrators, which write files: the objects of teams on a cluster, and an image's build context."""

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from launcher.cli.commands.arguments import AsJson
from launcher.cli.output import print_json, write_file
from launcher.common import console, yaml_io
from launcher.common.problems import Problem, fail, raise_any

if TYPE_CHECKING:
    from launcher.governance.cluster_wide import Origin
    from launcher.governance.team import Team

Out = Annotated[
    Path | None,
    typer.Option(
        "--out",
        metavar="DIR",
        help="Write one file per subject there; with several teams, each in its own folder.",
        file_okay=False,
    ),
]
Cluster = Annotated[
    bool, typer.Option("--cluster", help="Read Kueue's version from the cluster, and compare shared objects with it.")
]
Context = Annotated[
    str | None, typer.Option("--context", metavar="NAME", help="With --cluster: a context of the kubeconfig.")
]

_MADE_HERE = "app.kubernetes.io/managed-by: recipe-launcher"
"""Label, as written in the files, of every object that this command generates."""


def governance(
    words: Annotated[
        list[str] | None,
        typer.Argument(metavar="KEY=VALUE...", help="team, instance_type, nodes; see docs/governance.md."),
    ] = None,
    out: Out = None,
    cluster: Cluster = False,
    context: Context = None,
    as_json: AsJson = False,
) -> None:
    """Print the objects of a team. Namespace, quotas, roles, queue and priorities, for kubectl apply -f -.

    Each team= starts another team. Objects that teams share must be the same for all of them.
    """
    from launcher.governance import team_manifests

    if context and not cluster:
        raise fail("E801", "--context", "selects the cluster for --cluster", value=context, remedy="add --cluster")
    teams = team_manifests.read_all(words or ())
    found = _for_cluster(teams, context) if cluster else teams
    files = {team.team: team_manifests.files(team) for team in found}
    paths = {
        f"{team}/{name}" if len(files) > 1 else name: text  # each of several teams has its own folder
        for team, each in files.items()
        for name, text in each.items()
    }
    _check_differences(files, {(out / path).parent.absolute() for path in paths} if out else set())
    if out is None or as_json:
        _print(files, as_json=as_json)
    else:
        write(out, paths)
        for path, text in paths.items():
            kinds = [f"{each['kind']} {each['metadata']['name']}" for each in yaml_io.load_documents(text)]
            console.say(f"{console.shown_path((out / path).absolute())}   {', '.join(kinds)}")
    for notice in dict.fromkeys(notice for team in found for notice in team_manifests.notices(team)):
        console.show_notice(notice, stderr=True)


def container(
    base: Annotated[str, typer.Option("--base", metavar="IMAGE", help="Base image, with python3, pip and torch.")],
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="Folder for the build.", file_okay=False)],
) -> None:
    """Write the build context of an image. It adds the agent and this launcher's runtime to yours."""
    from launcher.bundle import container as images

    write(out, images.files(base))
    console.say(f"{console.shown_path(out.absolute())}   next: docker build --tag <registry>/<name>:<tag> {out}")


def _print(files: Mapping[str, Mapping[str, str]], *, as_json: bool) -> None:
    """Print the objects of every team, those that teams share once."""
    texts = list(dict.fromkeys(text for each in files.values() for text in each.values()))
    if as_json:
        items = [each for text in texts for each in yaml_io.load_documents(text)]
        print_json({"apiVersion": "v1", "kind": "List", "items": items})
    else:
        sys.stdout.write("---\n".join(texts))


def _for_cluster(teams: "Sequence[Team]", context: str | None) -> "Sequence[Team]":
    """Return the teams with the cluster's version of Kueue.

    Raises:
        ProblemsFound: The cluster cannot be reached, lacks prerequisites, or has different objects of these names.
    """
    from launcher.governance import cluster_wide, team_manifests
    from launcher.model.backend_registry import clusters

    cluster = clusters().connect(context)
    written: list[Team] = []
    for team in teams:
        if team.kueue:
            version = cluster.kueue_version(team_manifests.KUEUE_VERSIONS, team.kueue_version)
            team = team.model_copy(update={"kueue_version": version})
        written.append(team)
    problems: list[Problem] = []
    for team in written:
        objects = _objects(team_manifests.files(team))
        problems += cluster.lacks(objects)
        theirs = cluster_wide.Origin(f"the cluster ({cluster.context})", cluster.existing(objects))
        problems += cluster_wide.differences(cluster_wide.Origin(f"team {team.team}", objects), [theirs])
    raise_any(dict.fromkeys(problems))
    return written


def _check_differences(files: Mapping[str, Mapping[str, str]], folders: set[Path]) -> None:
    """Raise a Problem for teams whose shared objects differ from each other's, or from those of teams on disk."""
    from launcher.governance import cluster_wide

    origins = [cluster_wide.Origin(f"team {team}", _objects(each)) for team, each in files.items()]
    beside = _beside(folders)
    raise_any(
        problem
        for i, origin in enumerate(origins)
        for problem in cluster_wide.differences(origin, [*origins[:i], *beside])
    )


def _beside(own: set[Path]) -> "list[Origin]":
    """Return the objects of other teams: files of this command in folders next to the teams' own."""
    import yaml

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
    return tuple(each for text in files.values() for each in yaml_io.load_documents(text))


def write(folder: Path, files: Mapping[str, str]) -> None:
    """Write files, relative path to text, below a folder; refuse to overwrite a different file."""
    try:
        for name, text in files.items():
            path = folder / name
            if os.path.exists(path) and path.read_text(encoding="utf-8") != text:
                message = "exists with other content, and is never overwritten"
                raise fail("E805", str(path), message, remedy="use another folder, or remove it")
        for name, text in files.items():
            write_file(folder / name, text)
    except (OSError, UnicodeDecodeError) as error:
        raise fail("E805", str(folder), f"cannot be written: {error}") from error
