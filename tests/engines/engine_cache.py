"""Where the scripts of this folder keep what they make; the scripts compute the same path."""

import hashlib
import os
from pathlib import Path

_HERE = Path(__file__).parent


def root() -> Path:
    """Return the folder of what is kept, which tests of the scripts may set."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "recipe-launcher"


def cached(script: str, name: str) -> Path:
    """Return the path of what a script makes: one for each version of the script, so that a changed one runs anew."""
    return root() / f"{name}-{hashlib.sha256((_HERE / script).read_bytes()).hexdigest()[:12]}"
