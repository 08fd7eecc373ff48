"""Locations of the launcher's own files: next to the package in a checkout, inside it when installed."""

import os
from pathlib import Path

from launcher.common import variables

_PACKAGE = Path(__file__).resolve().parent.parent
HOME = str(_PACKAGE.parent)
"""The folder from which Python imports the launcher."""


def _data(name: str) -> Path:
    installed = _PACKAGE / name
    return installed if installed.is_dir() else _PACKAGE.parent / name


CHECKOUT = None if (_PACKAGE / "recipes_collection").is_dir() else _PACKAGE.parent
"""The folder of a checkout; None if the package is installed."""

COLLECTION = _data("recipes_collection")
TEMPLATES = _data("templates")


def python_path() -> dict[str, str]:
    """Return the variable that lets child processes import this launcher from a checkout."""
    import sysconfig  # only a launch on this machine needs it

    # PYTHONPATH comes before the standard library: an installed launcher must not put its neighbours there.
    if HOME in sysconfig.get_paths().values():
        return {}
    return {"PYTHONPATH": os.pathsep.join(filter(None, (HOME, variables.current().get("PYTHONPATH"))))}
