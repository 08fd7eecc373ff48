"""The command that compares two recipes, sizes or bundles."""

import os
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from launcher.cli.commands.arguments import Overrides, Target, choice, complete_recipe
from launcher.common.problems import Problem, ProblemsFound, fail

if TYPE_CHECKING:
    from launcher.cli.diff import Side

_DIFFERENT = 1
"""Exit code of a diff with --exit-code if there are differences. Source: diff(1), git-diff(1) --exit-code."""


def diff(
    old: Annotated[
        str,
        typer.Argument(
            metavar="RECIPE[@NODES]|BUNDLE", help="A recipe, or a bundle's folder.", autocompletion=complete_recipe
        ),
    ],
    new: Annotated[
        str | None,
        typer.Argument(
            metavar="[RECIPE[@NODES]|BUNDLE]",
            help="The same; default: what the bundle's overrides compose to now.",
            autocompletion=complete_recipe,
        ),
    ] = None,
    overrides: Overrides = None,
    exit_code: Annotated[bool, typer.Option("--exit-code", help="Exit with 1 if anything differs.")] = False,
) -> None:
    """Compare two recipes, sizes or bundles. A single bundle is compared with what its overrides compose to now."""
    from launcher.cli import diff as diffs
    from launcher.common import console

    if new is not None and "=" in new:  # an override: `recipes diff BUNDLE KEY=VALUE` has nothing to apply it to
        raise fail("E801", new, "missing second argument: overrides follow two recipes or bundles")
    sides = _with_now(old) if new is None else _sides(old, new, overrides or ())
    lines = diffs.changes(*sides)
    for notice in dict.fromkeys(notice for side in sides for notice in side.notices):
        console.show_notice(notice, stderr=True)
    styles = {"-": "red", "+": "green"}
    if lines:
        console.say_all([(f"--- {sides[0].title}", "bold"), (f"+++ {sides[1].title}", "bold")])
        console.say_all((line, styles[line[0]]) for line in lines)
    else:
        console.say("no difference", "dim", stderr=True)
    if lines and exit_code:
        raise typer.Exit(_DIFFERENT)


def _with_now(name: str) -> tuple["Side", "Side"]:
    """Return a bundle, and what its overrides compose to now.

    Raises:
        ProblemsFound: It is not a bundle, or its overrides no longer compose.
    """
    from launcher.cli import diff as diffs

    if (folder := _bundle(name)) is None:
        message = (
            "is not a bundle directory" if os.path.isdir(name) else "missing second argument: what to compare with"
        )
        raise fail("E801", name, message, remedy="recipes diff A B, or recipes diff BUNDLE")
    return diffs.again(folder)


def _sides(old: str, new: str, overrides: Sequence[str]) -> tuple["Side", "Side"]:
    from launcher.cli import diff as diffs

    targets = [_target(old), _target(new)]
    is_sized = any(target.nodes is not None for target in targets)
    folders = [_bundle(target.name) for target in targets]
    bundles = [folder for folder in folders if folder]
    args = [*(f"cluster={diffs.cluster_of(folder)}" for folder in bundles[:1]), *overrides]
    suffix = diffs.suffix_of(bundles[0]) if bundles else None

    def side(name: str, target: Target, folder: Path | None) -> "Side":
        if folder:
            return diffs.of_bundle(folder, target.nodes, is_sized=is_sized)
        chosen = [choice(target.name, args), *args]
        return diffs.of_recipe(name, chosen, target.nodes, is_sized=is_sized, suffix=suffix)

    sides = _every(partial(side, *each) for each in zip((old, new), targets, folders, strict=True))
    if len(bundles) == 1 and not is_sized:
        sides = [diffs.without_launch(side) for side in sides]
    return sides[0], sides[1]


def _every(tasks: Iterable[Callable[[], "Side"]]) -> list["Side"]:
    """Return what every task returns.

    Raises:
        ProblemsFound: Those of all tasks, each once.
    """
    results: list[Side] = []
    problems: list[Problem] = []
    for task in tasks:
        try:
            results.append(task())
        except ProblemsFound as error:
            problems += [problem for problem in error.problems if problem not in problems]
    if problems:
        raise ProblemsFound(tuple(problems))
    return results


def _target(text: str) -> Target:
    """Parse a name; a bundle whose name ends like a size is that bundle."""
    return Target(text, None) if _bundle(text) else Target.read(text)


def _bundle(name: str) -> Path | None:
    """Return the folder of a bundle of this name; None if there is none."""
    from launcher.bundle import store as bundles

    return bundles.find(name)
