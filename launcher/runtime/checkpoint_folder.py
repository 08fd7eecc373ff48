"""The folder of a training run's checkpoints: their names, the pointer to the newest, and progress.json.

progress.json makes a folder a checkpoint, and describes the files beside it.
"""

import errno
import json
import os
import re
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from launcher.runtime.checkpoint_search import Damaged, Unavailable
from launcher.runtime.checksums import checksum, of_json
from launcher.runtime.durable import delete, write_text

METADATA = ".metadata"
"""File of torch.distributed.checkpoint that holds the place of each piece. Source: FileSystemWriter."""

PROGRESS = "progress.json"

LATEST = "latest"
"""File that names the checkpoint published last, with a checksum of the name."""

LAUNCH = "launch"
"""File beside the pointer that names the launch that took the folder last."""

PARTIAL_PREFIX = ".partial-"
REMOVED_PREFIX = ".removed-"

_NAME = re.compile(r"step-(\d{8})")
_LEFTOVER_NAME = re.compile(rf"({re.escape(PARTIAL_PREFIX)}|{re.escape(REMOVED_PREFIX)}){_NAME.pattern}")
_OWN_FILE = re.compile(rf"__\d+_\d+\.distcp|{re.escape(METADATA)}|{re.escape(PROGRESS)}")

WRONG_KIND = (errno.ENOTDIR, errno.EISDIR, errno.ELOOP, errno.ENXIO)
"""Errors that show a file of the wrong kind: a file in place of a folder, or the reverse, a loop of links, a socket.

A refused permission is not among them: it shows nothing about the data. Source: errno(3).
"""


@dataclass(frozen=True, slots=True)
class Progress:
    """The progress of training, as `world_size` ranks wrote it.

    Args:
        step: Optimizer steps done.
        cursor: Samples consumed since the start of training, over all epochs.
        num_samples, seed: Of the cursor's dataset and its order; None if not recorded.
    """

    step: int = 0
    cursor: int = 0
    world_size: int = 0
    num_samples: int | None = None
    seed: int | None = None


@dataclass(frozen=True, slots=True)
class Published:
    """The content of progress.json.

    Args:
        metadata_checksum: Of `.metadata`; None in a checkpoint of a version without checksums.
    """

    progress: Progress
    metadata_checksum: bytes | None

    @property
    def is_verifiable(self) -> bool:
        return self.metadata_checksum is not None


def sealed(folder: Path, progress: Progress) -> str:
    """Return the text of progress.json for the other files of `folder`."""
    stated = asdict(progress) | {
        "files": {path.name: path.stat().st_size for path in sorted(folder.iterdir()) if path.name != PROGRESS},
        "metadata": checksum((folder / METADATA).read_bytes()).hex(),
    }
    return json.dumps(stated | {"checksum": of_json(stated)})


def published(folder: Path, step: int) -> Published:
    """Return the content of a checkpoint's progress.json, after comparing it with the files beside it.

    Raises:
        Damaged: It is missing or changed, or a file is missing or not of the size written.
    """
    with outcomes(is_first=True):
        size(folder / PROGRESS)  # of a pipe, reading would never end
        data = (folder / PROGRESS).read_bytes()
    try:
        stated = json.loads(data)
        seal = stated.pop("checksum", None)
        metadata = stated.pop("metadata", None)
        files = dict(stated.pop("files"))
        progress = Progress(**stated)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise Damaged(f"{PROGRESS} is not readable") from error
    sealed_part = asdict(progress) | {"files": files, "metadata": metadata}
    # A version before checksums wrote neither; one without the other is damage.
    if (seal is None) != (metadata is None) or (seal and seal != of_json(sealed_part)):
        raise Damaged(f"{PROGRESS} is changed")
    if progress.step != step:
        raise Damaged(f"{PROGRESS} is of step {progress.step}")
    if wrong := sorted(name for name, written in files.items() if _size_now(folder / name) != written):
        raise Damaged(f"{', '.join(wrong)} missing or not of the size written")
    return Published(progress, bytes.fromhex(metadata) if metadata else None)


def size(path: Path) -> int:
    """Return the size of a file in bytes; Damaged if it is not a regular file, nor a link to one."""
    found = path.stat()
    if stat.S_ISDIR(found.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if not stat.S_ISREG(found.st_mode):
        raise Damaged(f"{path.name} is not a file")
    return found.st_size


def _size_now(path: Path) -> int | None:
    """Return the size of a file in bytes; None if it does not exist, or is not a file."""
    try:
        with outcomes(is_first=True):
            return size(path)
    except Damaged:
        return None


def missing(reason: str, is_first: bool) -> Damaged | Unavailable:
    """Return the outcome of a missing part of a published checkpoint.

    Args:
        is_first: Whether this is the first rank, which checks every file first. A file missing on another rank then
            exists, but that rank's file system does not show it yet.
    """
    return Damaged(reason) if is_first else Unavailable(f"{reason} here, while the first rank found it")


@contextmanager
def outcomes(is_first: bool) -> Iterator[None]:
    """Raise errors of the file system as Damaged, if something is `missing` or of a wrong kind, or as Unavailable."""
    try:
        yield
    except FileNotFoundError as error:
        raise missing(f"{Path(error.filename).name} is missing", is_first) from error
    except OSError as error:
        if error.errno in WRONG_KIND:
            raise missing(f"{Path(error.filename or '').name}: {error.strerror}", is_first) from error
        raise Unavailable(str(error)) from error


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
