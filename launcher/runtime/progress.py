"""progress.json: the file that makes a folder a checkpoint, and that describes the files beside it."""

import errno
import json
import os
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from launcher.runtime.checkpoint_search import Damaged, Unavailable
from launcher.runtime.checksums import checksum

METADATA = ".metadata"
"""File of torch.distributed.checkpoint that holds the place of each piece. Source: FileSystemWriter."""

PROGRESS = "progress.json"

WRONG_KIND = (errno.ENOTDIR, errno.EISDIR, errno.ELOOP, errno.ENXIO)
"""Errors that show a file of the wrong kind: a file in place of a folder, or the reverse, a loop of links, a socket.

A refused permission is not among them: it shows nothing about the data. Source: errno(3).
"""


@dataclass(frozen=True, slots=True)
class Progress:
    """The progress of training.

    Args:
        step: Optimizer steps done.
        cursor: Samples consumed since the start of training, over all epochs.
        world_size: Ranks that wrote the checkpoint.
        num_samples: Size of the cursor's dataset; None if not recorded.
        seed: Of the cursor's order, likewise.
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
        progress: Of training.
        files: Size in bytes of every other file, by name.
        metadata_checksum: Of `.metadata`; None in a checkpoint of a version without checksums.
    """

    progress: Progress
    files: Mapping[str, int]
    metadata_checksum: bytes | None

    @property
    def is_verifiable(self) -> bool:
        """Whether the checkpoint has checksums."""
        return self.metadata_checksum is not None


def sealed(folder: Path, progress: Progress) -> str:
    """Return the text of progress.json for the other files of `folder`."""
    stated = asdict(progress) | {
        "files": sizes(folder),
        "metadata": checksum((folder / METADATA).read_bytes()).hex(),
    }
    return json.dumps(stated | {"checksum": _checksum_of(stated)})


def published(folder: Path, step: int) -> Published:
    """Return the content of a checkpoint's progress.json, after comparing it with the files beside it.

    Args:
        folder: Of the checkpoint.
        step: In its name.

    Raises:
        Damaged: It is missing or changed, or a file is missing or not of the size written.
        Unavailable: The file system failed.
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
    if (seal is None) != (metadata is None) or (seal and seal != _checksum_of(sealed_part)):
        raise Damaged(f"{PROGRESS} is changed")
    if progress.step != step:
        raise Damaged(f"{PROGRESS} is of step {progress.step}")
    if wrong := sorted(name for name, written in files.items() if _size_now(folder / name) != written):
        raise Damaged(f"{', '.join(wrong)} missing or not of the size written")
    return Published(progress, files, bytes.fromhex(metadata) if metadata else None)


def sizes(folder: Path) -> dict[str, int]:
    """Return the size in bytes of each file of torch.distributed.checkpoint in `folder`, by name."""
    return {path.name: path.stat().st_size for path in sorted(folder.iterdir()) if path.name != PROGRESS}


def size(path: Path) -> int:
    """Return the size of a file in bytes.

    Raises:
        Damaged: It is not a regular file, nor a link to one.
        OSError: The file system failed, or it does not exist.
    """
    found = path.stat()
    if stat.S_ISDIR(found.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if not stat.S_ISREG(found.st_mode):
        raise Damaged(f"{path.name} is not a file")
    return found.st_size


def _size_now(path: Path) -> int | None:
    """Return the size of a file in bytes; None if it does not exist, or is not a file.

    Raises:
        Unavailable: The file system failed.
    """
    try:
        with outcomes(is_first=True):
            return size(path)
    except Damaged:
        return None


def _checksum_of(stated: Mapping[str, Any]) -> str:
    return checksum(json.dumps(stated, sort_keys=True).encode()).hex()


def missing(reason: str, is_first: bool) -> Damaged | Unavailable:
    """Return the outcome of a missing part of a published checkpoint.

    Args:
        reason: The missing part.
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
