"""What users name on the command line: recipes, one size of a recipe, overrides; and what a shell completes."""

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from launcher.common.paths import COLLECTION
from launcher.common.problems import fail
from launcher.common.suggestions import nearest
from launcher.config.collection import recipe_names

if TYPE_CHECKING:
    from launcher.model.composition import Composition

_PLAIN = re.compile(r"(?!(?:null|true|false|nan|inf)$)[a-z][\w./-]*", re.ASCII | re.IGNORECASE)
_SIZED = re.compile(r"(.+)@([1-9][0-9]{0,5})", re.S)
_FILES = (".yaml", ".yml")


@dataclass(frozen=True, slots=True)
class Target:
    """A recipe, or a bundle, as a user names it, and the one size that is asked for.

    Args:
        name: Without its size.
        nodes: After the `@`; None for the whole.
    """

    name: str
    nodes: int | None

    @classmethod
    def read(cls, text: str) -> "Target":
        """Read `NAME` or `NAME@NODES`.

        Raises:
            ProblemsFound: What follows the `@` is no number of nodes.
        """
        if match := _SIZED.fullmatch(text):
            return cls(match[1], int(match[2]))
        name, at, size = text.rpartition("@")
        if at and "/" not in size and not text.endswith(_FILES):
            raise fail("E803", text, "a size is a number of nodes", value=f"@{size}", remedy=f"{name}@3")
        return cls(text, None)

    def among(self, sizes: Sequence[int]) -> int | None:
        """Return the size that is asked for, in nodes, which has to be one of `sizes`; None where none is asked for.

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
    """Return the override that chooses a recipe: a path under recipes/, its last word if only one has it, or a file.

    Args:
        name: As the user named it.
        overrides: What follows it; `hydra.searchpath` among them adds folders.

    Raises:
        ProblemsFound: No recipe, or several, end in that word.
    """
    full = full_name(name, overrides)
    if _PLAIN.fullmatch(full):
        return f"recipes={full}"
    from launcher.config.override_text import quoted

    return f"recipes={quoted(full)}"


def folders(overrides: Sequence[str]) -> list[Path]:
    """Return the collection and the folders that `hydra.searchpath` adds, in the order they are looked in.

    Raises:
        ProblemsFound: It is no list of folders, or one is not there.
    """
    if not any("hydra.searchpath" in word for word in overrides):
        return [COLLECTION]  # without Hydra, which takes longer to import than a listing
    from launcher.config.parsed_overrides import search_path

    return [COLLECTION, *search_path(overrides)]


def full_name(word: str, overrides: Sequence[str] = ()) -> str:
    """Return the path under recipes/ of a recipe that is named by its last word; a path or a file is itself.

    Args:
        word: As the user named it.
        overrides: What follows it; `hydra.searchpath` among them adds folders.

    Raises:
        ProblemsFound: No recipe, or several, end in that word; or a size follows it.
    """
    if match := _SIZED.fullmatch(word):
        raise fail("E803", word, "takes no size here: every size is looked at", remedy=match[1])
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
        remedy = f"did you mean {' or '.join(near)}?" if near else "recipes list shows all"
        raise fail("E005", "recipes", "there is no recipe of that name", value=word, remedy=remedy)
    return found[0]


def parted(words: Sequence[str] | None) -> tuple[list[str], list[str]]:
    """Return names and overrides of a command line that holds both."""
    names = [word for word in words or () if _is_file(word) or ("=" not in word and not word.startswith("~"))]
    return names, [word for word in words or () if word not in names]


def _is_file(word: str) -> bool:
    return word.endswith(_FILES) and os.path.isfile(word)


def composed(name: str, overrides: Sequence[str] | None) -> "Composition":
    """Compose a recipe that a user named, with its overrides.

    Raises:
        ProblemsFound: A stage before the types refuses.
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
    """Return the recipes that a word may become: paths, or last words where no path begins so."""
    names = recipe_names()
    paths = [name for name in names if name.startswith(incomplete)]
    return paths or [name for word in names if (name := word.rpartition("/")[2]).startswith(incomplete)]


def complete_override(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return what a word may become as an override of the recipe before it: its keys, then a key's values."""
    from launcher.cli.commands import completion

    found = _composed_before(ctx.params)
    return completion.complete(found, incomplete) if found else []


def complete_recipe_or_override(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return the recipes that a word may become, and the keys once a recipe was named."""
    names, _ = parted(ctx.params.get("words"))
    keys = complete_override(ctx, incomplete) if names else []
    return [*complete_recipe(incomplete), *keys]


def complete_key(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return the keys that a word may become: whole paths, or last words where no path begins so."""
    from launcher.cli.commands import completion

    found = _composed_before(ctx.params)
    keys = list(completion.keys(found)) if found else []
    paths = [key for path in keys for key in (path, path.removeprefix("recipes."))]
    whole = list(dict.fromkeys(path for path in paths if path.startswith(incomplete)))
    return whole or sorted({w for key in keys if (w := key.rpartition(".")[2]).startswith(incomplete)})


def complete_job(incomplete: str) -> list[str]:
    """Return the jobs under results/ that a word may become."""
    from launcher.bundle.store import job_names

    return [name for name in job_names() if name.startswith(incomplete)]


def _composed_before(params: dict[str, Any]) -> "Composition | None":
    """Return the recipe that a command line names, with the overrides so far; None while it is faulty."""
    from launcher.cli.commands import completion

    names, overrides = parted(params.get("words"))
    name = params.get("recipe") or next(iter(names), None)
    return completion.composed(name, params.get("overrides") or overrides) if name else None


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
    typer.Argument(metavar="[KEY=VALUE]...", help="Overrides, as for main.py.", autocompletion=complete_override),
]
GivenName = Annotated[
    str | None,
    typer.Option("--name", metavar="NAME", help="What you call the job; every command about jobs takes it."),
]
BundleName = Annotated[
    str,
    typer.Argument(metavar="BUNDLE", help="Its folder, or a job's name under results/.", autocompletion=complete_job),
]
JobName = Annotated[
    str,
    typer.Argument(
        metavar="JOB", help="Its name, under results/, or its bundle's folder.", autocompletion=complete_job
    ),
]
AsLines = Annotated[bool, typer.Option("--json", help="Print a JSON object a line.")]
Picture = Annotated[
    Path | None, typer.Option("--picture", metavar="FILE", help="Draw it, as .png or .svg.", dir_okay=False)
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
