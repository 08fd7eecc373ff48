"""Files that are written atomically, even if the machine stops."""

import os
import secrets
from pathlib import Path


def sync(path: Path) -> None:
    """Make the content of a file, or the names in a folder, survive a power loss."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_text(path: Path, text: str) -> None:
    """Replace the content of `path` atomically: a reader sees either the old text or the new one."""
    # A unique name: otherwise, of two concurrent writers, the first would rename the other's file.
    partial = path.with_name(f".{path.name}.{secrets.token_hex(8)}.partial")
    try:
        with partial.open("x", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)
    sync(path.parent)
