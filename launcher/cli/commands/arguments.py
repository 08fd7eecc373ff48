"""Command-line arguments: recipes, one size of a recipe, overrides; and their shell completion."""

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from launcher.common.paths import COLLECTION
from launcher.common.problems import ProblemsFound, fail
from launcher.common.suggestions import nearest
from launcher.config.collection import recipe_names

if TYPE_CHECKING:
    from launcher.model.composition import Composition

_PLAIN = re.compile(r"(?!(?:null|true|false|nan|inf)$)[a-z][\w./-]*", re.ASCII | re.IGNORECASE)
_SIZED = re.compile(r"(.+)@([1-9][0-9]{0,5})", re.S)
_FILES = (".yaml", ".yml")
FLAGS = (
    "--name",
    "--version",
    "--multirun",
    "--config-dir",
    "--cfg",
    "--package",
    "--resolve",
    "--info",
    "--help",
    "--hydra-help",
)
"""Flags of `recipes run`: the launcher's two, and those of Hydra's that it takes."""


@dataclass(frozen=True, slots=True)
class Target:
    """A recipe, or a bundle, as a user names it, and the requested size.

    Args:
        name: The name without its size.
        nodes: The size after the `@`; None for all sizes.
    """

    name: str
    nodes: int | None

    @classmethod
    def read(cls, text: str) -> "Target":
        """Parse `NAME` or `NAME@NODES`.

        Raises:
            ProblemsFound: The text after the `@` is not a number of nodes.
        """
        if match := _SIZED.fullmatch(text):
            return cls(match[1], int(match[2]))
        name, at, size = text.rpartition("@")
        if at and "/" not in size and not text.endswith(_FILES):
            raise fail("E803", text, "a size must be a number of nodes", value=f"@{size}", remedy=f"{name}@3")
        return cls(text, None)

    def among(self, sizes: Sequence[int]) -> int | None:
        """Return the requested size in nodes, which must be one of `sizes`; None if none is requested.

        Raises:
            ProblemsFound: The recipe has no such size.
        """
        if self.nodes is not None and self.nodes not in sizes:
            allowed = ", ".join(map(str, sizes))
            remedy = f"recipes.trainer.num_nodes={self.nodes}" if len(sizes) == 1 else None
            text = f"{self.name}@{self.nodes}"
            raise fail("E803", text, "the recipe has no such size", allowed=allowed, remedy=remedy)
        return self.nodes


def choice(name: str, overrides: Sequence[str] = ()) -> str:
    """Return the override that chooses a recipe: a path under recipes/, its unique last word, or a file.

    Args:
        name: As the user named it.
        overrides: The arguments after it; `hydra.searchpath` among them adds folders.

    Raises:
        ProblemsFound: No recipe ends in that word, or several do.
    """
    full = full_name(name, overrides)
    if _PLAIN.fullmatch(full):
        return f"recipes={full}"
    from launcher.config.overrides import quoted

    return f"recipes={quoted(full)}"


def folders(overrides: Sequence[str]) -> list[Path]:
    """Return the collection and the folders that `hydra.searchpath` adds, in search order.

    Raises:
        ProblemsFound: It is not a list of folders, or one does not exist.
    """
    if not any("hydra.searchpath" in word for word in overrides):
        return [COLLECTION]  # importing Hydra takes longer than a listing
    from launcher.config.overrides import search_path

    return [COLLECTION, *search_path(overrides)]


def full_name(word: str, overrides: Sequence[str] = ()) -> str:
    """Return the path under recipes/ of a recipe that is named by its last word; paths and files are unchanged.

    Args:
        word: As the user named it.
        overrides: The arguments after it; `hydra.searchpath` among them adds folders.

    Raises:
        ProblemsFound: No recipe ends in that word, or several do; or a size follows it.
    """
    if match := _SIZED.fullmatch(word):
        raise fail("E803", word, "no size can be given here: all sizes are used", remedy=match[1])
    if word.endswith(_FILES) or "/" in word:
        return word
    known = list(dict.fromkeys(name for folder in folders(overrides) for name in recipe_names(folder)))
    if word in known:
        return word
    return _named_by_last_word(word, known)


def _named_by_last_word(word: str, known: Sequence[str]) -> str:
    found = [name for name in known if name.rpartition("/")[2] == word]
    if len(found) > 1:
        raise fail("E802", word, "several recipes have this name", allowed=", ".join(found))
    if not found:
        near = nearest(word, [name.rpartition("/")[2] for name in known], cutoff=0.5)
        remedy = f"did you mean {' or '.join(near)}?" if near else "list all: recipes list"
        raise fail("E005", "recipes", "no recipe has that name", value=word, remedy=remedy)
    return found[0]


def split_args(args: Sequence[str] | None) -> tuple[list[str], list[str]]:
    """Split arguments into names and overrides."""
    names = [arg for arg in args or () if _is_file(arg) or ("=" not in arg and not arg.startswith("~"))]
    return names, [arg for arg in args or () if arg not in names]


def _is_file(arg: str) -> bool:
    return arg.endswith(_FILES) and os.path.isfile(arg)


def composed(name: str, overrides: Sequence[str] | None) -> "Composition":
    """Compose a recipe that a user named, with its overrides.

    Raises:
        ProblemsFound: It cannot be composed.
    """
    from launcher.config.compose import compose

    return compose([choice(name, overrides or ()), *(overrides or ())], Path.cwd())


def say_unknown_instance(composition: "Composition") -> None:
    """Print a notice if a configuration has an instance type that the table lacks."""
    from launcher.common import console
    from launcher.rules import hardware

    for notice in hardware.unknown(composition):
        console.show_notice(notice, stderr=True)


def complete_recipe(incomplete: str) -> list[str]:
    """Return completions of a recipe: paths, or last words if no path matches."""
    names = recipe_names()
    paths = [name for name in names if name.startswith(incomplete)]
    return paths or [name for word in names if (name := word.rpartition("/")[2]).startswith(incomplete)]


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
    keys = ["recipes="] if "recipes=".startswith(incomplete) else []
    for given in (overrides, ()):
        try:
            return keys + completion.complete(compose(given, Path.cwd()), incomplete)
        except ProblemsFound:
            continue
    return keys


def complete_key(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return completions of a key: full paths, or last words if no path matches."""
    from launcher.cli.commands import completion

    found = _composed_before(ctx.params)
    keys = list(completion.keys(found)) if found else []
    paths = [key for path in keys for key in (path, path.removeprefix("recipes."))]
    full = list(dict.fromkeys(path for path in paths if path.startswith(incomplete)))
    return full or sorted({w for key in keys if (w := key.rpartition(".")[2]).startswith(incomplete)})


def complete_job(incomplete: str) -> list[str]:
    """Return completions of a job under results/."""
    from launcher.bundle.store import job_names

    return [name for name in job_names() if name.startswith(incomplete)]


def _composed_before(params: dict[str, Any]) -> "Composition | None":
    """Compose the recipe of a command line with the overrides so far, without invalid ones; None if that fails."""
    names, overrides = split_args(params.get("words"))
    name = params.get("recipe") or next(iter(names), None)
    if not name:
        return None
    for given in (params.get("overrides") or overrides, ()):
        try:
            return composed(Target.read(name).name, given)
        except ProblemsFound:
            continue
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
