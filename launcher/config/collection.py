"""What there is to choose from: the collection, and a recipe's file of the user's own. Read without Hydra."""

import os
import re
import unicodedata
from collections.abc import Sequence
from pathlib import Path

from launcher.common.paths import COLLECTION

CONFIG = "config"
"""The file that every composition starts from."""
GROUPS = ("recipes", "cluster")
"""The choices that every launch makes."""
ALL_RECIPES = "recipes list shows all recipes"
"""The remedy where a recipe is missing."""
USER_RECIPE = "file/_recipe_"
"""Choice under `recipes` that represents a recipe given as a file outside the collection."""
SCHEME = "recipe"
"""Scheme of a place on the search path that is such a file."""
ENDINGS = (".yaml", ".yml")
PLAIN_NAME = re.compile(r"(?!(?:null|true|false|nan|inf)$)[a-z][\w./-]*", re.ASCII | re.IGNORECASE)
"""A text that Hydra's grammar takes without quotes; of a recipe, a name that Hydra can look up."""


def clusters() -> list[str]:
    """Return the clusters that a job can be compiled for, sorted."""
    return sorted(path.stem for path in (COLLECTION / "cluster").glob("*.yaml"))


def recipe_names(folder: Path = COLLECTION) -> list[str]:
    """Return the name of every recipe under `folder`, sorted. Reads no file."""
    root = folder / "recipes"
    return sorted(path.relative_to(root).with_suffix("").as_posix() for path in root.rglob("*.yaml"))


def user_place(file: Path) -> str:
    """Return the place on the search path that is a recipe's file."""
    return f"{SCHEME}://{file}"


def recipe_file(name: str, cwd: Path) -> Path | None:
    """Return the recipe's file of that name; None if there is none.

    A name that only Unicode writes differently is the same: editors and file systems compose letters or do not.
    Source: Unicode Standard Annex 15, Unicode Normalization Forms.
    """
    if not name.endswith(ENDINGS):
        return None
    path = Path(os.path.realpath(cwd / os.path.expanduser(name)))
    if os.path.lexists(path) or name.isascii():
        return path if os.path.lexists(path) else None
    try:
        beside = sorted(path.parent.iterdir())
    except OSError:
        return None
    wanted = unicodedata.normalize("NFC", path.name)
    return next((other for other in beside if unicodedata.normalize("NFC", other.name) == wanted), None)


def recipe_in(name: str, folders: Sequence[str]) -> Path | None:
    """Return the file of a recipe in one of these folders, if Hydra cannot look up its name itself."""
    if PLAIN_NAME.fullmatch(name):
        return None
    files = (Path(folder, "recipes", f"{name}.yaml") for folder in folders)
    return next((Path(os.path.realpath(file)) for file in files if os.path.isfile(file)), None)
