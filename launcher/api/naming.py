"""Recipes, one size of a recipe, and bundles, as a user names them."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from launcher.api import arguments
from launcher.common.paths import COLLECTION
from launcher.common.problems import fail
from launcher.common.suggestions import nearest, question
from launcher.config.collection import ALL_RECIPES, ENDINGS, recipe_names
from launcher.config.overrides import written

__all__ = ["CHOICE", "ENDINGS", "Target", "choose", "folders", "full_name", "known_jobs", "recipe_names"]

_SIZED = re.compile(r"(.+)@([1-9][0-9]{0,5})", re.S)
CHOICE = "recipes="
"""What stands before a recipe's name where it is an override; a recipe may be named so everywhere."""


@dataclass(frozen=True, slots=True)
class Target:
    """A recipe, or a bundle, as a user names it, and the size after the `@`; None for all sizes."""

    name: str
    nodes: int | None

    @classmethod
    def read(cls, text: str) -> "Target":
        """Parse `NAME` or `NAME@NODES`."""
        text = text_of(text).removeprefix(CHOICE)
        if match := _SIZED.fullmatch(text):
            return cls(match[1], int(match[2]))
        name, at, size = text.rpartition("@")
        if at and "/" not in size and not text.endswith(ENDINGS):
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


def text_of(name: object) -> str:
    """Return what a program gives as a recipe, a text or a path, as text."""
    return arguments.text_of(name, "E005", "recipes", ALL_RECIPES)


def choose(name: str, overrides: Sequence[str] | None = None) -> list[str]:
    """Return the words of a launch: the override that chooses a recipe, as `full_name` finds it, then `overrides`."""
    overrides = overrides or ()
    return [f"recipes={written(full_name(name, overrides))}", *overrides]


def known_jobs() -> list[str]:
    """Return the names of the jobs under `results/`, those that users gave included."""
    from launcher.bundle import store  # start-up time

    return store.job_names()


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
    word = text_of(word).removeprefix(CHOICE)
    if match := _SIZED.fullmatch(word):
        raise fail("E803", word, "no size can be given here: all sizes are used", remedy=match[1])
    if word.endswith(ENDINGS) or "/" in word:
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
