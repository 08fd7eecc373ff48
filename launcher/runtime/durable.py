"""Files that are written atomically, even if the machine stops, or line by line; how they are read and deleted."""

import json
import os
import secrets
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, BinaryIO


def sync(path: Path) -> None:
    """Make the content of a file, or the names in a folder, survive a power loss."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_text(path: Path, text: str) -> None:
    """Replace the content of `path` atomically: a reader sees either the old text or the new one."""
    write_atomically(path, lambda file: file.write(text.encode()))


def read_object(path: Path) -> dict[str, Any]:
    """Return the JSON object of a file; an empty one if the file is missing or damaged, or holds something else."""
    try:
        found = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def append_json(path: Path, record: Mapping[str, object]) -> None:
    """Add an object to a file that has one in each line; first end a line that a killed process has left, or a full
    disk."""
    with path.open("ab+") as file:
        is_ended = not file.seek(0, os.SEEK_END) or (file.seek(-1, os.SEEK_END), file.read(1))[1] == b"\n"
        file.write(b"" if is_ended else b"\n")
        file.write(json.dumps(record).encode() + b"\n")


def write_atomically(path: Path, write: Callable[[BinaryIO], object]) -> None:
    """Replace the content of `path` atomically by what `write` writes."""
    # A unique name: otherwise, of two concurrent writers, the first would rename the other's file.
    partial = path.with_name(f".{path.name}.{secrets.token_hex(8)}.partial")
    try:
        with partial.open("xb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)
    sync(path.parent)


def delete(path: Path) -> None:
    """Delete a folder with its content, or a file; a link, not its target.

    Raises:
        OSError: It does not exist, or the file system refuses.
    """
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink()
