"""The files of recipes that Hydra cannot look up by their names, such as `größe.yaml` and `a,b.yaml`."""

import os
import re
import unicodedata
from collections.abc import Sequence
from pathlib import Path

USER_RECIPE = "file/_recipe_"
"""Choice under `recipes` that represents a recipe given as a file outside the collection."""
SCHEME = "recipe"
"""Scheme of a place on the search path that is such a file."""
ENDINGS = (".yaml", ".yml")
PLAIN = re.compile(r"(?!(?:null|true|false|nan|inf)$)[a-z][\w./-]*", re.ASCII | re.IGNORECASE)


def user_place(file: Path) -> str:
    """Return the place on the search path that is a recipe's file."""
    return f"{SCHEME}://{file}"


def existing(name: str, cwd: Path) -> Path | None:
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
    return next((other for other in beside if _normal(other.name) == _normal(path.name)), None)


def in_folders(name: str, folders: Sequence[str]) -> Path | None:
    """Return the file of a recipe in one of these folders, if Hydra cannot look up its name itself."""
    if PLAIN.fullmatch(name):
        return None
    files = (Path(folder, "recipes", f"{name}.yaml") for folder in folders)
    return next((Path(os.path.realpath(file)) for file in files if os.path.isfile(file)), None)


def _normal(name: str) -> str:
    return unicodedata.normalize("NFC", name)
