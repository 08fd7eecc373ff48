"""Command-line arguments: recipes, one size of a recipe, overrides, jobs; and their shell completion."""

import contextlib
import os
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from launcher.common import console
from launcher.common.paths import COLLECTION
from launcher.common.problems import ProblemsFound, fail
from launcher.common.suggestions import nearest, question
from launcher.config.collection import recipe_names

if TYPE_CHECKING:
    from launcher.jobs.registry import JobRecord
    from launcher.model.backend import Backend
    from launcher.model.composition import Composition

_PLAIN = re.compile(r"(?!(?:null|true|false|nan|inf)$)[a-z][\w./-]*", re.ASCII | re.IGNORECASE)
_SIZED = re.compile(r"(.+)@([1-9][0-9]{0,5})", re.S)
_FILES = (".yaml", ".yml")
FLAGS = (
    *("--name", "--version"),
    *("--multirun", "--config-dir", "--cfg", "--package", "--resolve", "--info", "--help", "--hydra-help"),
)
"""Flags of `recipes run`: the launcher's two, and those of Hydra's that it takes."""


@dataclass(frozen=True, slots=True)
class Target:
    """A recipe, or a bundle, as a user names it, and the size after the `@`; None for all sizes."""

    name: str
    nodes: int | None

    @classmethod
    def read(cls, text: str) -> "Target":
        """Parse `NAME` or `NAME@NODES`."""
        if match := _SIZED.fullmatch(text):
            return cls(match[1], int(match[2]))
        name, at, size = text.rpartition("@")
        if at and "/" not in size and not text.endswith(_FILES):
            raise fail("E803", text, "a size must be a number of nodes", value=f"@{size}", remedy=f"{name}@3")
        return cls(text, None)

    def among(self, sizes: Sequence[int]) -> int | None:
        """Return the requested size in nodes, which must be one of `sizes`; None if none is requested."""
        if self.nodes is not None and self.nodes not in sizes:
            allowed = ", ".join(map(str, sizes))
            remedy = f"recipes.trainer.num_nodes={self.nodes}" if len(sizes) == 1 else None
            text = f"{self.name}@{self.nodes}"
            raise fail("E803", text, "the recipe has no such size", allowed=allowed, remedy=remedy)
        return self.nodes


def choose(name: str, overrides: Sequence[str] | None = None) -> list[str]:
    """Return the words of a launch: the override that chooses a recipe, as `full_name` finds it, then `overrides`."""
    overrides = overrides or ()
    full = full_name(name, overrides)
    if not _PLAIN.fullmatch(full):
        from launcher.config.overrides import quoted

        full = quoted(full)
    return [f"recipes={full}", *overrides]


def folders(overrides: Sequence[str]) -> list[Path]:
    """Return the collection and the folders that `hydra.searchpath` adds, in search order."""
    if not any("hydra.searchpath" in word for word in overrides):
        return [COLLECTION]  # importing Hydra takes longer than a listing
    from launcher.config.parsing import search_path

    return [COLLECTION, *search_path(overrides)]


def full_name(word: str, overrides: Sequence[str] = ()) -> str:
    """Return the path under recipes/ of a recipe that is named by its last word; paths and files are unchanged.

    `hydra.searchpath` among the overrides, the arguments after it, adds folders.
    """
    if match := _SIZED.fullmatch(word):
        raise fail("E803", word, "no size can be given here: all sizes are used", remedy=match[1])
    if word.endswith(_FILES) or "/" in word:
        return word
    known = list(dict.fromkeys(name for folder in folders(overrides) for name in recipe_names(folder)))
    if word in known:
        return word
    found = [name for name in known if name.rpartition("/")[2] == word]
    if len(found) > 1:
        raise fail("E802", word, "several recipes have this name", allowed=", ".join(found))
    if not found:
        near = nearest(word, [name.rpartition("/")[2] for name in known], cutoff=0.5)
        remedy = question(near) or "list all: recipes list"
        raise fail("E005", "recipes", "no recipe has that name", value=word, remedy=remedy)
    return found[0]


def split_args(args: Sequence[str] | None) -> tuple[list[str], list[str]]:
    """Split arguments into names, of recipes or existing files, and overrides."""

    def is_name(arg: str) -> bool:
        return (arg.endswith(_FILES) and os.path.isfile(arg)) or ("=" not in arg and not arg.startswith("~"))

    names = list(filter(is_name, args or ()))
    return names, [arg for arg in args or () if arg not in names]


def composed(name: str, overrides: Sequence[str] | None) -> "Composition":
    """Compose a recipe that a user named, with its overrides."""
    from launcher.config.compose import compose

    return compose(choose(name, overrides), Path.cwd())


def say_unknown_instance(composition: "Composition") -> None:
    """Print a notice if a configuration has an instance type that the table lacks."""
    from launcher.rules import hardware

    for notice in hardware.unknown(composition):
        console.show_notice(notice, stderr=True)


def opened(name: str) -> tuple["Backend", "JobRecord"]:
    """Return a submitted job that a user names, and its backend."""
    from launcher.bundle import store
    from launcher.jobs.registry import submitted
    from launcher.model import backend_registry

    record = submitted(store.locate_job(name))
    return backend_registry.load_backend(record.handle.backend), record


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
    from launcher.cli.commands import completion
    from launcher.config.compose import compose

    overrides = [word for word in ctx.params.get("words") or () if not word.startswith("-")]
    found = _without_invalid(overrides, lambda given: compose(given, Path.cwd()))
    return beginning(incomplete, ["recipes="]) + (completion.complete(found, incomplete) if found else [])


def complete_key(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return completions of a key: full paths, or last words if no path matches."""
    from launcher.cli.commands import completion

    found = _composed_before(ctx.params)
    keys = list(completion.keys(found)) if found else []
    paths = dict.fromkeys(key for path in keys for key in (path, path.removeprefix("recipes.")))
    return beginning(incomplete, paths) or sorted(beginning(incomplete, {key.rpartition(".")[2] for key in keys}))


def complete_job(incomplete: str) -> list[str]:
    """Return completions of a job under results/."""
    from launcher.bundle.store import job_names

    return beginning(incomplete, job_names())


def _composed_before(params: dict[str, Any]) -> "Composition | None":
    """Compose the recipe of a command line with the overrides so far; None if that fails."""
    names, overrides = split_args(params.get("words"))
    name = params.get("recipe") or next(iter(names), None)
    if not name:
        return None
    return _without_invalid(
        params.get("overrides") or overrides, lambda given: composed(Target.read(name).name, given)
    )


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
