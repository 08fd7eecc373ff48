"""Recipes whose names Hydra's grammar of overrides reads in another way, such as `größe.yaml` and `a,b.yaml`."""

import os
import re
import unicodedata
from collections.abc import Sequence
from pathlib import Path

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException

from launcher.common.paths import COLLECTION
from launcher.common.problems import ProblemsFound
from launcher.config.override_text import quoted, unreadable
from launcher.config.parsed_overrides import search_path

ENDINGS = (".yaml", ".yml")
_CHOICE = re.compile(r"(\+{0,2}recipes=)(.*)", re.S)
_PLAIN = re.compile(r"(?!(?:null|true|false|nan|inf)$)[a-z][\w./-]*", re.ASCII | re.IGNORECASE)


def spelled(overrides: Sequence[str], cwd: Path) -> tuple[str, ...]:
    """Return overrides with quotes around the name of each recipe that Hydra's grammar would read in another way.

    Args:
        overrides: As typed.
        cwd: Folder that relative recipe files are looked up in.
    """
    return tuple(_spelled(text, overrides, cwd) for text in overrides)


def _spelled(text: str, overrides: Sequence[str], cwd: Path) -> str:
    found = _CHOICE.fullmatch(text)
    if found is None or not found[2] or _PLAIN.fullmatch(found[2]) or unreadable(text):
        return text
    is_literal = existing(found[2], cwd) or in_folders(found[2], _search_path(overrides)) or not _is_readable(text)
    return f"{found[1]}{quoted(found[2])}" if is_literal else text


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
    if _PLAIN.fullmatch(name):
        return None
    files = (Path(folder, "recipes", f"{name}.yaml") for folder in folders)
    return next((Path(os.path.realpath(file)) for file in files if os.path.isfile(file)), None)


def _normal(name: str) -> str:
    return unicodedata.normalize("NFC", name)


def _search_path(overrides: Sequence[str]) -> list[str]:
    try:
        return list(map(str, (COLLECTION, *search_path(overrides))))
    except ProblemsFound:  # the composition reports it, among others
        return [str(COLLECTION)]


def _is_readable(text: str) -> bool:
    try:
        OverridesParser.create().parse_override(text)
    except (HydraException, RecursionError, ValueError):
        return False
    return True
