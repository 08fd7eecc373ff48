"""Command-line arguments: recipes, one size of a recipe, overrides, jobs; and their shell completion."""

import contextlib
import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from launcher.api.naming import CHOICE, ENDINGS, Target, choose, known_jobs, recipe_names
from launcher.common import console
from launcher.common.problems import ProblemsFound

if TYPE_CHECKING:
    from launcher.api.composed import Composed, Composition

FLAGS = (
    *("--name", "--version"),
    *("--multirun", "--config-dir", "--cfg", "--package", "--resolve", "--info", "--help", "--hydra-help"),
)
"""Flags of `recipes run`: the launcher's two, and those of Hydra's that it takes."""


def split_args(args: Sequence[str] | None) -> tuple[list[str], list[str]]:
    """Split arguments into names, of recipes or existing files, and overrides."""

    def is_name(arg: str) -> bool:
        is_file = arg.endswith(ENDINGS) and os.path.isfile(arg)
        return is_file or arg.startswith(CHOICE) or ("=" not in arg and not arg.startswith("~"))

    names = list(filter(is_name, args or ()))
    return [name.removeprefix(CHOICE) for name in names], [arg for arg in args or () if arg not in names]


def composed(recipe: str, overrides: Sequence[str] | None) -> "Composed":
    """Compose a recipe, or one size of it, and print its notices."""
    from launcher.api import composed as composing

    found = composing.composed(recipe, overrides)
    console.show_notice(*found.notices, stderr=True)
    return found


def beginning(incomplete: str, words: Iterable[str]) -> list[str]:
    """Return the words that complete one."""
    return [word for word in words if word.startswith(incomplete)]


def complete_recipe(incomplete: str) -> list[str]:
    """Return completions of a recipe: paths, or last words if no path matches."""
    names = recipe_names()
    return beginning(incomplete, names) or beginning(incomplete, [name.rpartition("/")[2] for name in names])


def complete_override(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return completions of an override of the preceding recipe: its keys, then a key's values."""
    from launcher.cli.commands import completion

    found = _composed_before(ctx.params)
    return completion.complete(found, incomplete) if found else []


def complete_recipe_or_override(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return completions of a recipe, and of keys once a recipe is named."""
    names, _ = split_args(ctx.params.get("words"))
    keys = complete_override(ctx, incomplete) if names else []
    return [*complete_recipe(incomplete), *keys]


def complete_run(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return completions of an override of `recipes run`: the choice of a recipe, its keys, then a key's values."""
    from launcher.api.composed import compose
    from launcher.cli.commands import completion

    overrides = [word for word in ctx.params.get("words") or () if not word.startswith("-")]
    found = _without_invalid(overrides, lambda given: compose(given, Path.cwd()))
    return beginning(incomplete, ["recipes="]) + (completion.complete(found, incomplete) if found else [])


def complete_key(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return completions of a key: full paths, or last words if no path matches."""
    from launcher.api.offers import keys as keys_of

    found = _composed_before(ctx.params)
    keys = list(keys_of(found)) if found else []
    paths = dict.fromkeys(key for path in keys for key in (path, path.removeprefix("recipes.")))
    return beginning(incomplete, paths) or sorted(beginning(incomplete, {key.rpartition(".")[2] for key in keys}))


def complete_job(incomplete: str) -> list[str]:
    """Return completions of a job under results/."""
    return beginning(incomplete, known_jobs())


def _composed_before(params: dict[str, Any]) -> "Composition | None":
    """Compose the recipe of a command line with the overrides so far; None if that fails."""
    names, overrides = split_args(params.get("words"))
    name = params.get("recipe") or next(iter(names), None)
    if not name:
        return None
    from launcher.api.composed import compose

    def composed(given: Sequence[str]) -> "Composition":
        return compose(choose(Target.read(name).name, given), Path.cwd())

    return _without_invalid(params.get("overrides") or overrides, composed)


def _without_invalid(
    overrides: Sequence[str], compose: Callable[[Sequence[str]], "Composition"]
) -> "Composition | None":
    """Compose overrides, none of them if one is invalid; None if that fails too."""
    for given in (overrides, ()):
        with contextlib.suppress(ProblemsFound):
            return compose(given)
    return None


Recipe = Annotated[
    str,
    typer.Argument(
        metavar="RECIPE", help="Path under recipes/, its last word, or a YAML file.", autocompletion=complete_recipe
    ),
]
SizedRecipe = Annotated[
    str,
    typer.Argument(
        metavar="RECIPE[@NODES]",
        help="Path under recipes/, its last word, or a YAML file; one size of it.",
        autocompletion=complete_recipe,
    ),
]
Overrides = Annotated[
    list[str] | None,
    typer.Argument(metavar="[KEY=VALUE]...", help="Overrides, as for recipes run.", autocompletion=complete_override),
]
GivenName = Annotated[
    str | None,
    typer.Option("--name", metavar="NAME", help="Your name for the job; every command about jobs accepts it."),
]
BundleName = Annotated[
    str,
    typer.Argument(metavar="BUNDLE", help="Its folder, or a job's name under results/.", autocompletion=complete_job),
]
BundleNames = Annotated[
    list[str],
    typer.Argument(
        metavar="BUNDLE...", help="Their folders, or jobs' names under results/.", autocompletion=complete_job
    ),
]
JobName = Annotated[
    str,
    typer.Argument(
        metavar="JOB", help="Its name, under results/, or its bundle's folder.", autocompletion=complete_job
    ),
]
AsLines = Annotated[bool, typer.Option("--json", help="Print one JSON object per line.")]
Picture = Annotated[
    Path | None, typer.Option("--picture", metavar="FILE", help="Draw it as .png or .svg.", dir_okay=False)
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
