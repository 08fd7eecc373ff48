"""Digests of files and folders, bounded in time: what is too large is sampled, and that is part of the digest.

Never opens anything but regular files: a FIFO would block, a device would not end.
"""

import hashlib
import io
import os
import stat
import time
from collections.abc import Callable, Iterator

COMPLETE_BYTES = 64 * 2**20
"""Size of the largest file that is read completely; of a larger one, SAMPLES blocks, its size and its time."""
TOTAL_BYTES = 512 * 2**20
"""Bytes that one record reads; beyond them every file is sampled."""
MOST_FILES = 20_000
"""Files of one record; beyond them a folder's digest covers the first ones in the order of their names."""
TIME_S = 60.0
"""Time of one record; beyond it, as beyond MOST_FILES. For trees of folders without files, and slow disks."""
SAMPLES, BLOCK = 16, 64 * 2**10
_CHUNK = 2**20


class Budget:
    """What is left of the bounds of one record."""

    def __init__(self, num_bytes: int = TOTAL_BYTES, num_files: int = MOST_FILES, time_s: float = TIME_S):
        self.num_bytes, self.num_files, self._until_s = num_bytes, num_files, time.monotonic() + time_s

    @property
    def is_spent(self) -> bool:
        """Whether no further file may be read."""
        return self.num_files <= 0 or time.monotonic() > self._until_s


def file_digest(path: str, budget: Budget) -> str:
    """Return `sha256:…` of a regular file, `sampled:…` of a large one; of anything else, what it is."""
    try:
        seen = os.stat(path)
        if not stat.S_ISREG(seen.st_mode):
            return "not a regular file"
        # O_NONBLOCK: a FIFO may have replaced it
        with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb", buffering=0) as file:
            if seen.st_size > min(COMPLETE_BYTES, budget.num_bytes):
                return _sampled(file.fileno(), seen, budget)
            budget.num_bytes -= seen.st_size
            return f"sha256:{_complete(file, seen.st_size)}"
    except OSError as error:
        return f"unreadable: {error.strerror}"


def _complete(file: io.FileIO, size: int) -> str:
    """Return the digest of a file's first `size` bytes: it may grow, and one of /proc does not end."""
    digest = hashlib.sha256()
    while size > 0 and (chunk := file.read(min(_CHUNK, size))):
        digest.update(chunk)
        size -= len(chunk)
    return digest.hexdigest()


def _sampled(descriptor: int, seen: os.stat_result, budget: Budget) -> str:
    digest = hashlib.sha256(f"{seen.st_size} {seen.st_mtime_ns}".encode())
    for i in range(SAMPLES if budget.num_bytes > 0 else 1):
        block = os.pread(descriptor, BLOCK, i * max(0, seen.st_size - BLOCK) // (SAMPLES - 1))
        budget.num_bytes -= len(block)
        digest.update(block)
    return f"sampled:{digest.hexdigest()}"


def digests(folder: str, budget: Budget, is_left_out: Callable[[str], bool] = lambda path: False) -> dict[str, str]:
    """Return the digest of each file below a folder, by relative path; links to folders are followed once.

    Args:
        folder: Absolute.
        budget: Reduced by what is read.
        is_left_out: Whether a file or folder, given its absolute path, does not belong to it.
    """
    found: dict[str, str] = {}
    for path in _files(folder, is_left_out, budget):
        if budget.is_spent:
            break
        budget.num_files -= 1
        found[os.path.relpath(path, folder)] = file_digest(path, budget)
    return found


def _files(folder: str, is_left_out: Callable[[str], bool], budget: Budget) -> Iterator[str]:
    seen: set[tuple[int, int]] = set()
    for place, folders, names in os.walk(folder, followlinks=True):
        if budget.is_spent:
            return
        known = os.stat(place)
        if (known.st_dev, known.st_ino) in seen:  # a link back
            folders[:] = []
            continue
        seen.add((known.st_dev, known.st_ino))
        folders[:] = sorted(name for name in folders if not is_left_out(os.path.join(place, name)))
        yield from (path for name in sorted(names) if not is_left_out(path := os.path.join(place, name)))


def combined(files: dict[str, str]) -> str:
    """Return one digest of a folder: over its files' names and digests."""
    digest = hashlib.sha256()
    for name in sorted(files):
        digest.update(f"{len(os.fsencode(name))} ".encode() + os.fsencode(name) + f" {files[name]}\n".encode())
    return f"sha256:{digest.hexdigest()}"
