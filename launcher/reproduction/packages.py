"""Versions of Python and of installed packages, read from the names of their folders: metadata takes much longer."""

import os
import platform
import re
import sys
from collections.abc import Collection

PROGRAMS = (
    *("accelerate", "amzn-sagemaker-checkpointing", "hyperpod-elastic-agent", "mlflow-skinny", "numpy", "peft"),
    *("pyarrow", "safetensors", "tokenizers", "torch", "transformers", "verl"),
)
"""Packages that determine what the launcher's own programs compute."""
_INSTALLED = re.compile(r"(?P<name>.+?)-(?P<version>[^-]+)(-py[\d.]+)?\.(dist|egg)-info")
"""Source: PyPA, Recording installed projects."""
_IS_PACKAGE_S = re.compile(r"[/\\](site|dist)-packages[/\\].")
"""A folder of packages that a package brings itself, and adds to the path once it is imported, as ray does."""


def versions(wanted: Collection[str] | None) -> dict[str, str]:
    """Return the version of Python, and of each package that is installed.

    Args:
        wanted: Their names; None for all.
    """
    names = None if wanted is None else {_normal(name) for name in wanted}
    found: dict[str, str] = {}
    for folder in sys.path:
        if _IS_PACKAGE_S.search(folder):
            continue
        try:
            entries = sorted(os.listdir(folder or "."))
        except OSError:  # an archive, or a folder that does not exist
            continue
        for entry in entries:
            if match := _INSTALLED.fullmatch(entry):
                name = _normal(match["name"])
                if names is None or name in names:
                    found.setdefault(name, match["version"])
    return {"python": platform.python_version(), **{name: found[name] for name in sorted(found)}}


def _normal(name: str) -> str:
    """Source: PyPA, Names and normalization."""
    return re.sub(r"[-_.]+", "-", name).lower()
