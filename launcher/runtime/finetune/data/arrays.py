"""Arrays of unknown length, appended to a file in numpy's format."""

from pathlib import Path
from types import TracebackType
from typing import Any

import numpy
import numpy.typing

Array = numpy.typing.NDArray[Any]


class ArrayFile:
    """An `.npy` file that grows along its first axis; `close` writes the number of rows.

    Args:
        path: File to create.
        dtype: Type of an element, such as `uint32`.
        columns: Shape of a row; empty for a flat array.
    """

    def __init__(self, path: Path, dtype: str, columns: tuple[int, ...] = ()):
        self.rows = 0
        self._dtype, self._columns = numpy.dtype(dtype), columns
        self._file = path.open("xb")
        self._write_header()

    def append(self, values: Array) -> None:
        """Write rows, shape `(n, *columns)`."""
        self._file.write(numpy.ascontiguousarray(values, self._dtype).data)
        self.rows += len(values)

    def close(self) -> None:
        """Write the header with the final number of rows, and sync the file."""
        import os

        # numpy reserves the digits of a growing axis, so that the header keeps its length.
        self._file.seek(0)
        self._write_header()
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()

    def __enter__(self) -> "ArrayFile":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close() if error is None else self._file.close()

    def _write_header(self) -> None:
        shape = (self.rows, *self._columns)
        header = {"descr": numpy.lib.format.dtype_to_descr(self._dtype), "fortran_order": False, "shape": shape}
        numpy.lib.format.write_array_header_1_0(self._file, header)


def read(path: Path) -> Array:
    """Return an array that is mapped into memory, not read.

    Raises:
        ValueError: The file does not hold the rows that its header names.
    """
    try:
        found: Array = numpy.load(path, mmap_mode="c", allow_pickle=False)
    except ValueError:
        found = numpy.load(path, allow_pickle=False)  # an array without rows cannot be mapped
    return found
