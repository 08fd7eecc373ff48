"""What a path is besides a regular file or a folder, found without opening it: opening a FIFO blocks."""

import os
import stat
from pathlib import Path

_KINDS = (
    (stat.S_ISFIFO, "a FIFO"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)


def irregular(path: str | Path, *, follow_links: bool = True) -> str | None:
    """Return what an existing path is; None if it is a regular file, a folder, or does not exist.

    Args:
        follow_links: Whether a link counts as what it leads to; otherwise a link is accepted.
    """
    try:
        mode = os.stat(path, follow_symlinks=follow_links).st_mode
    except OSError:
        return "a link to no file" if os.path.islink(path) else None
    return next((name for is_kind, name in _KINDS if is_kind(mode)), None)


def names_irregular(folder: str | Path, names: list[str]) -> set[str]:
    """Return the names of a folder's entries that cannot be copied; links can. For `shutil.copytree`."""
    return {name for name in names if irregular(os.path.join(folder, name), follow_links=False)}
