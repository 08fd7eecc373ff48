"""The command that examines a job before its launch."""

from typing import Annotated, Any

import typer

from launcher.cli.commands.arguments import AsJson, complete_recipe_or_override, split_args
from launcher.cli.output import print_json
from launcher.common import console
from launcher.common.problems import fail
from launcher.common.process import USER_ERROR

_STYLES = {"ok": "green", "warning": "yellow", "failure": "bold red", "unknown": "dim"}


def doctor(
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="RECIPE... [KEY=VALUE]...",
            help="Recipes, and overrides for all of them.",
            autocompletion=complete_recipe_or_override,
        ),
    ] = None,
    timeout: Annotated[
        float, typer.Option("--timeout", min=0.1, metavar="SECONDS", help="Time limit of all questions of a recipe.")
    ] = 30.0,
    as_json: AsJson = False,
) -> None:
    """Examine the place where a recipe would run. Prints one line for each subject, with the remedy, and creates
    nothing. Exit code 2 if the job would fail."""
    names, overrides = split_args(words)
    if not names:
        raise fail("E801", "recipes doctor", "names no recipe", remedy="recipes doctor RECIPE [KEY=VALUE]...")
    found = {name: _examined(name, overrides, timeout) for name in names}
    if as_json:
        print_json(
            [{"recipe": name, "would_fail": fails, "findings": lines} for name, (lines, fails) in found.items()]
        )
    else:
        for name, (lines, _) in found.items():
            if len(names) > 1:
                console.say(name, "bold")
            _show(lines)
    if any(fails for _, fails in found.values()):
        raise typer.Exit(USER_ERROR)


def _examined(name: str, overrides: list[str], timeout_s: float) -> tuple[tuple[Any, ...], bool]:
    """Return what is found about a recipe, and whether its job would fail; on a terminal, show the progress."""
    from launcher.api.plan import compile as compiled

    plan = compiled(name, overrides, strict=False)
    with console.progress("questions answered") as show:
        lines = plan.doctor(timeout_s, show)
    return lines, any(line.state == "failure" for line in lines)


def _show(lines: tuple[Any, ...]) -> None:
    rows = [
        (str(line.state), line.subject, line.message + (f"; remedy: {line.remedy}" if line.remedy else ""))
        for line in lines
    ]
    console.show_table(("state", "subject", "finding"), rows, [_STYLES[line.state] for line in lines])
