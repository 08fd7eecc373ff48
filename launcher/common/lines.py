"""Lines of growing files, and lines that are written in blocks."""

import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Self

_MOST = 20_000
"""Lines that wait to be written; whoever puts more waits too."""
_PAUSE_S = 0.02
"""How long lines are collected before they are written together; people do not notice it."""


class LineReader:
    """Reads a growing file, which need not exist yet, line by line."""

    def __init__(self, path: Path):
        self._path = path
        self._offset = 0

    def new_lines(self, *, complete_only: bool) -> Iterator[str]:
        """Yield the lines written since the last call; with `complete_only`, without an unfinished one."""
        if not self._path.exists():
            return
        with self._path.open("rb") as file:
            file.seek(self._offset)
            for line in file:
                if complete_only and not line.endswith(b"\n"):
                    return
                self._offset += len(line)
                yield line.decode("utf-8", errors="replace").rstrip("\r\n")


class LineWriter:
    """Writes lines in blocks, a line at once if few arrive, many together if many do, from a thread of its own.

    At the end of its block, all lines that were put are written.

    Args:
        write: Writes lines. What it raises is raised again by the next `put`, or at the end of the block.
    """

    def __init__(self, write: Callable[[Sequence[str]], None]):
        self._write = write
        self._failure: Exception | None = None
        self._lines: deque[str] = deque()
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

    def put(self, line: str) -> None:
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
