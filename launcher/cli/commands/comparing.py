"""The command that compares two recipes, sizes or bundles."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from launcher.cli.commands.arguments import Overrides, Target, choose, complete_recipe
from launcher.common import console
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

    if new is not None and "=" in new:  # an override: `recipes diff BUNDLE KEY=VALUE` has nothing to apply it to
        raise fail("E801", new, "missing second argument: overrides follow two recipes or bundles")
    sides = _with_now(old) if new is None else _sides(old, new, overrides or ())
    lines = diffs.changes(*sides)
    for notice in dict.fromkeys(notice for side in sides for notice in side.notices):
        console.show_notice(notice, stderr=True)
    styles = {"-": "red", "+": "green"}
    if lines:
        heads = [(f"--- {sides[0].title}", "bold"), (f"+++ {sides[1].title}", "bold")]
        console.say_all([*heads, *((line, styles[line[0]]) for line in lines)])
    else:
        console.say("no difference", "dim", stderr=True)
    if lines and exit_code:
        raise typer.Exit(_DIFFERENT)


def _with_now(name: str) -> tuple["Side", "Side"]:
    """Return a bundle, and what its overrides compose to now."""
    from launcher.bundle import store
    from launcher.cli import diff as diffs

    if (folder := store.find(name)) is None:
        is_folder = os.path.isdir(name)
        message = "is not a bundle directory" if is_folder else "missing second argument: what to compare with"
        raise fail("E801", name, message, remedy="recipes diff A B, or recipes diff BUNDLE")
    return diffs.again(folder)


def _sides(old: str, new: str, overrides: Sequence[str]) -> tuple["Side", "Side"]:
    """Return both sides, or raise the Problems of both, each once."""
    from launcher.bundle import store
    from launcher.cli import diff as diffs

    # A bundle whose name ends like a size is that bundle.
    targets = [Target(name, None) if store.find(name) else Target.read(name) for name in (old, new)]
    is_sized = any(target.nodes is not None for target in targets)
    folders = [store.find(target.name) for target in targets]
    bundles = [folder for folder in folders if folder]
    args, suffix = list(overrides), None
    if bundles:
        bundle, cluster = store.read(bundles[0])
        args, suffix = [f"cluster={cluster}", *overrides], diffs.suffix_of(bundle)

    def side(title: str, target: Target, folder: Path | None) -> "Side":
        if folder:
            return diffs.of_bundle(folder, target.nodes, is_sized=is_sized)
        return diffs.of_recipe(title, choose(target.name, args), target.nodes, is_sized=is_sized, suffix=suffix)

    sides: list[Side] = []
    problems: list[Problem] = []
    for each in zip((old, new), targets, folders, strict=True):
        try:
            sides.append(side(*each))
        except ProblemsFound as error:
            problems += [problem for problem in error.problems if problem not in problems]
    if problems:
        raise ProblemsFound(tuple(problems))
    if len(bundles) == 1 and not is_sized:
        sides = [diffs.without_launch(side) for side in sides]
    return sides[0], sides[1]
