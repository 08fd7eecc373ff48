"""Locations of the launcher's own files: next to the package in a checkout, inside it when installed."""

import os
from pathlib import Path

from launcher.common import variables

PACKAGE = Path(__file__).resolve().parent.parent
"""The launcher's own package."""
HOME = str(PACKAGE.parent)
"""The folder from which Python imports the launcher."""


def _data(name: str) -> Path:
    installed = PACKAGE / name
    return installed if installed.is_dir() else PACKAGE.parent / name


CHECKOUT = None if (PACKAGE / "recipes_collection").is_dir() else PACKAGE.parent
"""The folder of a checkout; None if the package is installed."""

COLLECTION = _data("recipes_collection")
TEMPLATES = _data("templates")


def package_files(part: str = "") -> list[Path]:
    """Return the files of the package, or of a folder in it, without what Python compiled; sorted."""
    return sorted(path for path in (PACKAGE / part).rglob("*") if path.is_file() and "__pycache__" not in path.parts)


def python_path() -> dict[str, str]:
    """Return the variable that lets child processes import this launcher from a checkout."""
    import sysconfig  # only a launch on this machine needs it

    # PYTHONPATH comes before the standard library: an installed launcher must not put its neighbours there.
    if HOME in sysconfig.get_paths().values():
        return {}
    return {"PYTHONPATH": os.pathsep.join(filter(None, (HOME, variables.current().get("PYTHONPATH"))))}
