"""Growing files, line by line."""

from collections.abc import Iterator
from pathlib import Path


class LineReader:
    """Reads a growing file line by line.

    Args:
        path: Of the file, which need not exist yet.
    """

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
