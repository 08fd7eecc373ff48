"""Lines of growing files, and lines that are written in blocks."""

import mmap
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Generic, Self, TypeVar

Item = TypeVar("Item")

_MOST = 20_000
"""Lines that wait to be written; whoever puts more waits too."""
_PAUSE_S = 0.02
"""How long lines are collected before they are written together; people do not notice it."""


class LineReader:
    """Reads a growing file, which need not exist yet, line by line.

    What is not a regular file has no lines: a device may never end.
    """

    def __init__(self, path: Path):
        self._path = path
        self._offset = 0

    def new_lines(self, *, complete_only: bool) -> Iterator[str]:
        """Yield the lines written since the last call; with `complete_only`, without an unfinished one."""
        if not self._path.is_file():
            return
        with self._path.open("rb") as file:
            offset = file.seek(self._offset)
            try:
                for line in file:
                    if complete_only and not line.endswith(b"\n"):
                        return
                    offset += len(line)
                    yield line.decode("utf-8", "replace").rstrip("\r\n")
            finally:
                self._offset = offset


_SEARCHED = 64 << 20
"""Bytes before the end of a file in which its first error is searched."""
_ERRORS = (b"Traceback (most recent call last)", b"Error: ", b"out of memory", b" killed ")


def excerpt(path: Path, most: int) -> Iterator[str]:
    """Yield lines of a file: a part that begins with its first error, and its end, each of at most `most` bytes.

    The first error is searched in its last 64 MiB.
    """
    size = path.stat().st_size
    with path.open("rb") as file:
        if size > most:
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as text:
                first, last = max(0, size - _SEARCHED), size - most
                found = [place for each in _ERRORS if (place := text.find(each, first, last)) >= 0]
                if found:
                    first = min(found)
                    start = (
                        text.rfind(b"\n", max(0, first - most // 2), first) + 1 or first
                    )  # a line may have no begin
                    yield from _lines(text[start : min(start + most, last)])
                file.seek(text.find(b"\n", last) + 1 or last)
        yield from _lines(file.read())


def _lines(block: bytes) -> list[str]:
    return block.decode("utf-8", "replace").splitlines()


class LineWriter(Generic[Item]):
    """Writes lines in blocks, a line at once if few arrive, many together if many do, from a thread of its own.

    At the end of its block, all lines that were put are written.

    Args:
        write: Writes lines. What it raises is raised again by the next `put`, or at the end of the block.
    """

    def __init__(self, write: Callable[[Sequence[Item]], None]):
        self._write = write
        self._failure: Exception | None = None
        self._lines: deque[Item] = deque()
        self._arrived, self._is_over = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._work, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_exception: object) -> None:
        self._is_over.set()
        self._arrived.set()
        self._thread.join()
        if self._failure:
            raise self._failure

    def put(self, line: Item) -> None:
        """Write a line soon.

        Raises:
            OSError: An earlier line could not be written.
        """
        self._lines.append(line)
        if not self._arrived.is_set():
            self._arrived.set()
        while len(self._lines) > _MOST and not self._failure:
            self._is_over.wait(_PAUSE_S)
        if self._failure:
            raise self._failure

    def _work(self) -> None:
        try:
            while not self._is_over.is_set() or self._lines:
                self._arrived.wait()
                self._arrived.clear()
                if lines := [self._lines.popleft() for _ in range(len(self._lines))]:
                    self._write(lines)
                self._is_over.wait(_PAUSE_S)
        except Exception as error:
            self._failure = error
