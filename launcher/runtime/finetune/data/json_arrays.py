"""Elements of a file that is one JSON array, read in pieces: the complete array is never in memory."""

import codecs
import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from launcher.runtime.finetune.data.errors import DataError

_READ_BYTES = 1 << 20
_MAX_ELEMENT = 64 << 20
"""Characters of an element, at most."""
_SPACE = " \t\n\r"
"""Source: RFC 8259, section 2."""


def is_array(file: Path) -> bool:
    """Return whether the first character of a file, spaces aside, begins an array."""
    with file.open("rb") as stream:
        while data := stream.read(_READ_BYTES):
            if found := data.removeprefix(codecs.BOM_UTF8).lstrip():
                return found.startswith(b"[")
    return False


def elements(file: Path) -> Iterator[tuple[int, bytes]]:
    """Yield number, from 1, and JSON text of each element of a file's array.

    Raises:
        DataError: The file is not one valid array.
    """
    text = _Text(file)
    text.skip("[")
    number = 0
    while not text.is_next("]"):
        number += 1
        if number > 1:
            text.skip(",")
        yield number, text.element(number).encode("utf-8", "surrogatepass")
    text.skip("]")
    if not text.at_end():
        raise DataError(
            f"{file}: text follows the end of the JSON array. A .json file is one array, or one object per line."
        )


class _Text:
    """The text of a file from a position that moves forward."""

    def __init__(self, file: Path):
        self._file = file
        self._pieces = _pieces(file)
        self._text, self._start = "", 0
        self._decoder = json.JSONDecoder()

    def is_next(self, sign: str) -> bool:
        """Return whether `sign` is the next character after spaces."""
        return not self.at_end() and self._text[self._start] == sign

    def at_end(self) -> bool:
        """Return whether only spaces are left; else move to the next other character."""
        while True:
            while self._start < len(self._text) and self._text[self._start] in _SPACE:
                self._start += 1
            if self._start < len(self._text):
                return False
            if not self._read():
                return True

    def skip(self, sign: str) -> None:
        """Move behind `sign`."""
        if not self.is_next(sign):
            raise DataError(f"{self._file}: not a valid JSON array: {sign!r} is missing")
        self._start += 1

    def element(self, number: int) -> str:
        """Return the JSON text of the next element and move behind it."""
        self.at_end()
        while True:
            try:
                _, stop = self._decoder.raw_decode(self._text, self._start)
            except (ValueError, RecursionError) as error:
                if len(self._text) - self._start < _MAX_ELEMENT and self._read():
                    continue  # the rest of the element
                raise DataError(f"{self._file}:{number}: not valid JSON ({error})") from error
            if stop == len(self._text) and self._read():
                continue  # the number may have more digits
            found = self._text[self._start : stop]
            self._start = stop
            return found

    def _read(self) -> bool:
        """Append the next piece of the file; return whether there was one."""
        piece = next(self._pieces, None)
        if piece is None:
            return False
        self._text, self._start = self._text[self._start :] + piece, 0
        return True


def _pieces(file: Path) -> Iterator[str]:
    with file.open("rb") as stream:
        try:
            yield from codecs.iterdecode(iter(partial(stream.read, _READ_BYTES), b""), "utf-8-sig")
        except UnicodeDecodeError as error:
            raise DataError(f"{file}: not valid UTF-8: {error}") from error
