"""The folder of a training run's checkpoints: their names, and the pointer to the one published last."""

import os
import re
from pathlib import Path

from launcher.runtime.checkpoint_search import Unavailable
from launcher.runtime.checksums import checksum
from launcher.runtime.durable import delete, write_text
from launcher.runtime.progress import METADATA, PROGRESS

LATEST = "latest"
"""File that names the checkpoint published last, with a checksum of the name."""

LAUNCH = "launch"
"""File beside the pointer that names the launch that took the folder last."""

PARTIAL_PREFIX = ".partial-"
REMOVED_PREFIX = ".removed-"

_NAME = re.compile(r"step-(\d{8})")
_LEFTOVER_NAME = re.compile(rf"({re.escape(PARTIAL_PREFIX)}|{re.escape(REMOVED_PREFIX)}){_NAME.pattern}")
_OWN_FILE = re.compile(rf"__\d+_\d+\.distcp|{re.escape(METADATA)}|{re.escape(PROGRESS)}")


def point_to(path: Path) -> None:
    """Name `path` as the checkpoint published last."""
    write_text(path.parent / LATEST, f"{path.name} {checksum(path.name.encode()).hex()}\n")


def remove_leftovers(folder: Path) -> None:
    """Remove leftovers of a killed save or removal. Only the run that saves may: it would break a running save."""
    for path in folder.glob(".*"):
        if _LEFTOVER_NAME.fullmatch(path.name):
            delete(path)


def candidates(folder: Path) -> list[Path]:
    """Return the checkpoints that may be loaded, the newest first.

    The pointer names the one published last. Those of later steps come last: they were never published, or were found
    damaged by a run that resumed from an older one.

    Raises:
        Unavailable: The folder cannot be read.
    """
    try:
        found, newest = written(folder)[::-1], pointed(folder)
    except OSError as error:
        raise Unavailable(str(error)) from error
    if newest is None:
        return found
    older = [path for path in found if path < newest]
    # Even if nothing is left of it: its loss must be reported.
    return [newest, *older, *(path for path in found if path > newest)]


def pointed(folder: Path) -> Path | None:
    """Return the checkpoint that the pointer names; None without a pointer, or with a damaged one."""
    pointer = folder / LATEST
    if not pointer.is_file():
        return None
    # A version before checksums wrote the name alone.
    name, *seal = pointer.read_text(encoding="utf-8", errors="replace").split() or [""]
    if not _NAME.fullmatch(name) or seal not in ([], [checksum(name.encode()).hex()]):
        return None
    return folder / name


def name_of(step: int) -> str:
    """Return the name of the checkpoint of a step."""
    return f"step-{step:08d}"


def step_of(path: Path) -> int:
    """Return the step that a checkpoint's name states."""
    return int(path.name.removeprefix("step-"))


def is_checkpoint_name(path: Path) -> bool:
    """Return whether a path ends with the name of a checkpoint."""
    return bool(_NAME.fullmatch(path.name))


def written(folder: Path) -> list[Path]:
    """Return the checkpoints in `folder`, published or not, intact or not, in the order of their steps."""
    # Not with glob: it treats an unreadable folder as an empty one, and training would start from scratch.
    names = os.listdir(folder) if folder.exists() else []
    paths = sorted(folder / name for name in names if _NAME.fullmatch(name))
    # Without a pointer or a progress file, nothing in the folder is ours.
    if LATEST not in names and not any((path / PROGRESS).exists() for path in paths):
        return []
    return [path for path in paths if _is_own(path)]


def _is_own(path: Path) -> bool:
    """Return whether a folder with the name of a checkpoint is one of ours, even if files are missing."""
    try:
        names = os.listdir(path) if path.is_dir() else [""]
    except FileNotFoundError:  # removed in the meantime by the run that saves here
        return False
    return PROGRESS in names or all(_OWN_FILE.fullmatch(name) for name in names)


def remove(path: Path) -> None:
    """Remove a checkpoint."""
    # Renamed first: if this is interrupted, no part remains that could be mistaken for a checkpoint.
    removed = path.with_name(f"{REMOVED_PREFIX}{path.name}")
    path.rename(removed)
    delete(removed)
