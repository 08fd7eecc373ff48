"""Lines of a log file as they are searched and shown: bounded, masked, without control codes."""

import re
from collections.abc import Callable, Sequence
from typing import NamedTuple

from launcher.api.log_stream import LONGEST, compiled
from launcher.common import redaction
from launcher.common.texts import plain

_MOST_MARKS = 100
_BYTES_OF_SIGN = 4
"""Of a character in UTF-8, at most."""
_OF_WHOLE_LINES = re.compile(r"\\[AzQC]|\(\?[A-Za-z]*-")
"""Parts of a pattern whose meaning depends on where a text begins and ends, whatever the flags."""
_CUT = "…"
_STEPS = (0, *(1 << power for power in range(4, 14)))
"""Distances at which a cut is tried, in characters."""
_NEAR = 256
"""Characters on each side of a cut that are searched for a secret at least, and from there on up to a blank."""


class Limits(NamedTuple):
    """The sizes that bound what is read at once."""

    block: int = 64 << 10
    """Bytes of the first read; further reads are longer."""
    searched: int = 256 << 10
    """Bytes that are searched between two looks at the clock."""
    window: int = 1 << 20
    """Bytes of a window, and of a piece of a line that is longer."""
    line: int = LONGEST
    """Characters of a line."""
    context: int = 8 << 10
    """Characters around a cut in which a secret is recognized."""


class Line(NamedTuple):
    """A line of a file, or a piece of one that is longer than a window.

    Args:
        offset: Of its first byte.
        text: At most 10,000 characters; `…` stands for what is left out.
        is_complete: False for the last line of a file while it has no line feed.
    """

    offset: int
    text: str
    is_complete: bool = True


class Row(NamedTuple):
    """A line as the file has it, without its line feed."""

    offset: int
    raw: bytes
    is_complete: bool
    before: bytes
    """What precedes it in its line, if it is a piece; as much as may belong to a secret."""

    @property
    def end(self) -> int:
        return self.offset + len(self.raw) + self.is_complete


def spans(pattern: re.Pattern[str], text: str) -> tuple[tuple[int, int], ...]:
    """Return begin and end of the first matches in a line that are not empty."""
    found: list[tuple[int, int]] = []
    for match in pattern.finditer(text):
        if match.end() > match.start():
            found.append(match.span())
        if len(found) == _MOST_MARKS:
            break
    return tuple(found)


def matcher(pattern: str, limits: Limits) -> Callable[[Sequence[Row]], list[Row]]:
    """Return a function that returns those of some lines that contain a pattern."""
    search = compiled(pattern).search
    # Where no line of a text matches, neither does the text, so that few texts are searched line by line.
    in_text = None if _OF_WHOLE_LINES.search(pattern) else compiled(f"(?m:{pattern})").search

    def matching(rows: Sequence[Row]) -> list[Row]:
        if any(row.before or len(row.raw) > limits.line for row in rows):
            return [row for row in rows if search(_begin(row, limits)) is not None]
        text = plain(b"\n".join(row.raw for row in rows).decode("utf-8", "replace"))
        if in_text and in_text(text) is None:
            return []
        return [row for row, line in zip(rows, text.split("\n"), strict=True) if search(line) is not None]

    return matching


def shown(rows: Sequence[Row], limits: Limits) -> list[Line]:
    """Return lines as they are shown."""
    short = [row for row in rows if not row.before and len(row.raw) <= limits.line]
    text = plain(b"\n".join(row.raw for row in short).decode("utf-8", "replace"))
    texts = iter(redaction.masked_lines(text.split("\n")).split("\n"))
    return [
        Line(
            row.offset,
            next(texts) if not row.before and len(row.raw) <= limits.line else _shortened(row, limits),
            row.is_complete,
        )
        for row in rows
    ]


def _begin(row: Row, limits: Limits) -> str:
    """Return as many characters of a long line, or of a piece, as are searched."""
    text, before, _ = _decoded(row, limits)
    return text[len(before) :][: limits.line]


def _shortened(row: Row, limits: Limits) -> str:
    """Return a long line, or a piece of one, as it is shown: no part of a secret is left where it is cut."""
    text, before, is_all = _decoded(row, limits)
    begin, dots = 0, ""
    if before:
        begin, dots = cut_near(text, len(before), limits.context, 1), _CUT
    near = begin + limits.line
    if is_all and len(text) <= near:
        return dots + redaction.masked(text[begin:])
    if not is_all:
        near = min(near, max(begin, len(text) - limits.context))
    end = cut_near(text, near, limits.context, -1)
    return dots + redaction.masked(text[begin : max(begin, end)]) + _CUT


def _decoded(row: Row, limits: Limits) -> tuple[str, str, bool]:
    """Return the begin of a long line after what precedes it, that alone, and whether it is the whole line.

    Of a line that returns to its begin, as progress bars do, the last state counts, as for `plain`.
    """
    raw, before = row.raw.rstrip(b"\r"), row.before
    if b"\r" in raw:
        raw, before = raw.rpartition(b"\r")[2], b""
    room = _BYTES_OF_SIGN * (limits.line + limits.context)
    preceding = plain(before.decode("utf-8", "replace").replace("\r", " "))
    return preceding + plain(raw[:room].decode("utf-8", "replace")), preceding, len(raw) <= room


def cut_near(text: str, near: int, context: int, direction: int) -> int:
    """Return a place at which a text is cut without dividing a secret: at or behind another, with -1 before it."""
    for step in (*_STEPS, context):
        place = min(len(text), max(0, near + direction * min(step, context)))
        if _divides_no_secret(text, place, context):
            break
    return place


def _divides_no_secret(text: str, place: int, context: int) -> bool:
    """Return whether a text that is cut here has the same secrets as both its parts."""
    if place in (0, len(text)):
        return True
    first, last = max(0, place - context), min(len(text), place + context)
    first = max(first, text.rfind(" ", first, max(first, place - _NEAR)))
    if (blank := text.find(" ", place + _NEAR, last)) >= 0:
        last = blank
    left, right = text[first:place], text[place:last]
    return redaction.masked(left) + redaction.masked(right) == redaction.masked(left + right)
