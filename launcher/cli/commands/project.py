"""Commands about the program itself: its schemas, its codes, and the files that are generated from it."""

import textwrap
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import click
import typer

from launcher.api.files import writing
from launcher.cli.commands.arguments import AsJson, beginning
from launcher.cli.output import print_json
from launcher.common import console, paths
from launcher.common.problems import fail
from launcher.common.suggestions import did_you_mean
from launcher.common.texts import first_of

if TYPE_CHECKING:
    from launcher.api.generated.codes import Code

_WIDTH = 100
"""Columns of a reason without a terminal."""
_INDENT = " " * 6
_MOST_FILES = 8

Check = Annotated[bool, typer.Option("--check", help="Write nothing; exit code 2 if a file is out of date.")]


def _complete_model_type(incomplete: str) -> list[str]:
    from launcher.api.offers import families

    return beginning(incomplete, families())


def schema(
    model_type: Annotated[
        str | None,
        typer.Argument(metavar="[MODEL_TYPE]", help="Default: list all.", autocompletion=_complete_model_type),
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="FILE", help="Write it to a file.", dir_okay=False)
    ] = None,
) -> None:
    """Print the JSON Schema of a recipe file. With it, editors show each key's meaning, unit and default."""
    from launcher.api.offers import families

    known = families()
    allowed = ", ".join(known)
    if model_type is None:
        if out is not None:
            message = "a file holds the schema of one recipe family"
            raise fail("E801", "recipes schema", message, allowed=allowed, remedy="recipes schema tiny_lm")
        console.say_lines(known)
        return
    if model_type not in known:
        remedy = did_you_mean(model_type, known)
        raise fail("E104", "MODEL_TYPE", "no such recipe family", value=model_type, allowed=allowed, remedy=remedy)
    from launcher.api.generated.schema import schema_file

    text = schema_file(model_type)
    if out is None:
        print(text, end="")
        return
    with writing(out):
        out.write_text(text, encoding="utf-8")
    console.say(f"schema {console.shown_path(out)}")


def rules(
    words: Annotated[
        list[str] | None,
        typer.Argument(metavar="[CODE|WORD]...", help="Only these codes, or those that mention a word."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """List every code, its reason and its source."""
    from launcher.api.generated.codes import all_codes

    found = [code for code in all_codes() if not words or any(_is_about(code, word) for word in words)]
    if not found:
        raise fail("E802", " ".join(words or ()), "no code matches or mentions it", remedy="recipes rules lists all")
    if as_json:
        keys = ("code", "subject", "reason", "source", "cluster")
        print_json([{key: getattr(code, key) for key in keys} for code in found])
        return
    width, subject = console.width() or _WIDTH, ""
    for code in found:
        if code.subject != subject:
            console.say(("\n" if subject else "") + code.subject, "bold")
            subject = code.subject
        only = f" ({code.cluster} only)" if code.cluster else ""
        reason = textwrap.wrap(f"{code.code}  {code.reason}{only}", width, subsequent_indent=_INDENT)
        source = textwrap.wrap(code.source, width, initial_indent=_INDENT, subsequent_indent=_INDENT)
        console.say_all([*((line, "") for line in reason), *((line, "dim") for line in source)])


def _is_about(code: "Code", word: str) -> bool:
    """Return whether a word begins a code or, if it looks like none, is in what the code is about."""
    if word[:1].upper() in ("E", "N") and word[1:].isdigit():
        return code.code.startswith(word.upper())
    return word.lower() in f"{code.subject} {code.reason} {code.source}".lower()


def scripts(check: Check = False) -> None:
    """Write launcher_scripts/, a script for each recipe."""
    from launcher.api.generated import scripts as made

    _generate(check, "scripts", made.FOLDER, made.stale, made.write)


def docs(ctx: typer.Context, check: Check = False) -> None:
    """Write the generated pages of docs/. Recipes, keys, codes and commands."""
    from launcher.api.generated import reference

    group = ctx.find_root().command  # an import of the commands, which this is one of, would be a circle
    assert isinstance(group, click.Group)
    _generate(check, "docs", "", lambda root: reference.stale(root, group), lambda root: reference.write(root, group))


def _generate(
    check: bool,
    command: str,
    folder: str,
    stale: Callable[[Path], Sequence[Path]],
    write: Callable[[Path], Sequence[Path]],
) -> None:
    """Write the stale files below a folder of the checkout, or with `check` refuse them."""
    if paths.CHECKOUT is None:
        message = "the package is installed; these files are generated in a checkout only"
        raise fail("E805", f"recipes {command}", message)
    if check:
        found = [str(Path(folder, path)) for path in stale(paths.CHECKOUT / folder)]
        if found:
            message = f"differ from what the code generates: {first_of(found, _MOST_FILES)}"
            remedy = f"recipes {command}, then commit the written files"
            raise fail("E804", f"recipes {command}", message, remedy=remedy)
        console.say(f"{command} are current")
        return
    with writing():
        written = write(paths.CHECKOUT / folder)
    for path in written:
        console.say(str(Path(folder, path)))
    console.say(f"{len(written)} written" if written else f"{command} are current")
