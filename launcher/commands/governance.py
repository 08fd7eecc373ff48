"""The command for whoever runs the cluster: what a team gets."""

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from launcher.commands.names import AsJson
from launcher.problems import fail

if TYPE_CHECKING:
    from collections.abc import Mapping

Out = Annotated[
    Path | None,
    typer.Option("--out", metavar="DIR", help="Write a file for each subject there.", file_okay=False),
]


def governance(
    words: Annotated[
        list[str] | None,
        typer.Argument(metavar="KEY=VALUE...", help="team, instance_type, nodes; docs/governance.md has all."),
    ] = None,
    out: Out = None,
    as_json: AsJson = False,
) -> None:
    """Print what a team gets. Namespace, quotas, rights, queue and priorities; kubectl apply -f - takes it."""
    from launcher import console, teams, yamlio

    team = teams.read(words or ())
    files = teams.files(team)
    if as_json:
        items = [each for text in files.values() for each in yamlio.load_documents(text)]
        print(json.dumps({"apiVersion": "v1", "kind": "List", "items": items}, indent=2))
    elif out is None:
        sys.stdout.write("---\n".join(files.values()))
    else:
        write(out, files)
        for name, text in files.items():
            names = [f"{each['kind']} {each['metadata']['name']}" for each in yamlio.load_documents(text)]
            console.say(f"{console.shown_path((out / name).absolute())}   {', '.join(names)}")
    for notice in teams.notices(team):
        console.show_notice(notice, stderr=True)


def write(folder: Path, files: "Mapping[str, str]") -> None:
    """Write files, relative path to text, below a folder that holds none of other content.

    Raises:
        ProblemsFound: A file of that name says something else, or the folder refuses.
    """
    try:
        for name, text in files.items():
            path = folder / name
            if path.exists() and path.read_text(encoding="utf-8") != text:
                message = "exists and says something else; it is never overwritten"
                raise fail("E805", str(path), message, remedy="another folder, or remove it")
        for name, text in files.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
            path.chmod(0o755 if text.startswith("#!") else 0o644)
    except (OSError, UnicodeDecodeError) as error:
        raise fail("E805", str(folder), f"cannot be written: {error}") from error
