"""Locations of the launcher's own files: next to the package in a checkout, inside it when installed."""

from pathlib import Path

_PACKAGE = Path(__file__).resolve().parent.parent


def _data(name: str) -> Path:
    installed = _PACKAGE / name
    return installed if installed.is_dir() else _PACKAGE.parent / name


CHECKOUT = None if (_PACKAGE / "recipes_collection").is_dir() else _PACKAGE.parent
"""The folder of a checkout; None if the package is installed."""

COLLECTION = _data("recipes_collection")
TEMPLATES = _data("templates")
