"""The parts of charts: axes and their ticks, numbers as short texts, paths, marks, legends, and the frame."""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from markupsafe import Markup, escape

from launcher.common.redaction import masked
from launcher.common.texts import printable

_LARGEST, _SMALLEST = 1e300, 1e-300
"""Bounds of the numbers that are drawn: the difference of two of them is a number, too."""
MOST_IN_LEGEND = 12
_LETTER = 7.8
"""Width of a letter that a legend allows for: wide enough for the larger letters of small screens."""
_LONGEST_TITLE, _LONGEST_DESCRIPTION = 700, 2000
_MASKED = 2 * _LONGEST_DESCRIPTION
"""Characters of a text in which secrets are looked for: more than can be shown, since the last one must be whole."""
CIRCLE, SQUARE, TRIANGLE, DIAMOND, CROSS, PLUS = range(6)
_SHAPES = (
    "m-4 0a4 4 0 1 0 8 0a4 4 0 1 0-8 0z",
    "m-3.5-3.5h7v7h-7z",
    "m0-4.5l4.5 8h-9z",
    "m0-5l5 5-5 5-5-5z",
    "m-3.6-3.6l7.2 7.2m0-7.2l-7.2 7.2",
    "m-4.5 0h9m-4.5-4.5v9",
)
_TIMES_S = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10_800, 21_600, 43_200, 86_400)
_UNITS = ((86_400, "d", 3600, "h"), (3600, "h", 60, "min"), (60, "min", 1, "s"))


@dataclass(frozen=True, slots=True)
class Axis:
    """Values from low to high on pixels from start to end, and its ticks with their labels."""

    low: float
    high: float
    start: float
    end: float
    ticks: tuple[tuple[float, str], ...]
    is_log: bool = False

    def at(self, value: float) -> float:
        low, high, value = (
            map(math.log10, (self.low, self.high, value)) if self.is_log else (self.low, self.high, value)
        )
        return self.start + (value - low) / (high - low) * (self.end - self.start)


def axis(
    values: Sequence[float],
    start: float,
    end: float,
    *,
    most: int,
    is_time: bool = False,
    is_log: bool = False,
    is_tight: bool = False,
) -> Axis:
    """Return an axis that shows all values, with at most about `most` ticks; a tight one has no room beyond them."""
    low, high = float(min(values)), float(max(values))
    if is_log:
        return _log_axis(low, high, start, end, most)
    if high - low < max(_SMALLEST, 1e-12 * max(abs(low), abs(high))):
        room = max(abs(low), abs(high)) * 0.1
        low, high = (low - room, high + room) if room > _SMALLEST else (low - 1, high + 1)
    elif not is_tight:
        room = (high - low) * 0.06
        low, high = (low if low == 0 else 0.0 if 0 < low < 0.25 * high else low - room), high + room
    return Axis(low, high, start, end, tuple(_ticks(low, high, most, is_time=is_time)))


def _ticks(low: float, high: float, most: int, *, is_time: bool = False) -> Iterator[tuple[float, str]]:
    step = _nice((high - low) / most)
    if is_time and step >= 1:
        least = (high - low) / most
        step = next((each for each in _TIMES_S if each >= least), 86_400 * _nice(least / 86_400))
    for i in range(math.ceil(low / step), math.floor(high / step) + 1):
        yield i * step, span(i * step, step) if is_time else short(i * step, step)


def _log_axis(low: float, high: float, start: float, end: float, most: int) -> Axis:
    room = max((high / low) ** 0.05, 1.05) if high / low < _LARGEST else 1.0
    low, high = max(low / room, _SMALLEST), min(high * room, _LARGEST)
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    stride = max(1, math.ceil((last - first) / most))
    factors = (1,) if last - first > 3 else (1, 2, 5)
    found = [m * 10.0**power for power in range(first, last + 1, stride) for m in factors]
    ticks = [(tick, short(tick)) for tick in found if low <= tick <= high]
    return Axis(low, high, start, end, tuple(ticks if len(ticks) > 1 else _ticks(low, high, most)), is_log=True)


def node_axis(
    sizes: Sequence[int], first: Iterable[int], start: float, end: float, *, gap: float = 15, is_across: bool = False
) -> Axis:
    """Return an axis of numbers of nodes, whose ticks are sizes with room for their labels, those of `first` before.

    One from left to right is logarithmic if the sizes differ much; one from below begins at 0.
    """
    first = set(first)
    every = sorted({*sizes, *first})
    low, high = (every[0], every[-1]) if is_across else (0, every[-1])
    is_log = is_across and low > 0 and high >= 8 * low
    if low == high:
        low, high = low - 1, high + 1
    axis = Axis(low, high, start, end, (), is_log)
    kept: list[int] = []
    for size in sorted(every, key=lambda size: (size not in first, -size)):
        if all(abs(axis.at(size) - axis.at(other)) >= gap for other in kept):
            kept.append(size)
    return Axis(low, high, start, end, tuple((size, str(size)) for size in sorted(kept)), is_log)


def _nice(least: float) -> float:
    """Return the first of 1, 2, 5 × 10^n that is not below a number."""
    power = math.floor(math.log10(least))
    return next(step for step in (factor * 10.0**power for factor in (1, 2, 5, 10, 20)) if step >= least)


def short(value: float, step: float | None = None) -> str:
    """Return a number in few letters, exact to `step`, otherwise to three digits: 12, 0.05, 1.2k, 3M, 5e-5."""
    size = abs(value)
    step = step or size / 100
    if size < _SMALLEST or not math.isfinite(size):
        return "0" if size < _SMALLEST else str(value)
    exact = math.floor(math.log10(step) + 1e-9)
    if not 1e-3 <= size < 1e15:
        digits, power = f"{value:.{min(9, max(0, math.floor(math.log10(size)) - exact))}e}".split("e")
        return f"{_bare(digits)}e{int(power)}"
    thousands = min(4, max(0, math.floor(math.log10(size) / 3 + 1e-12)))
    return (
        _bare(f"{value / 1000**thousands:.{min(9, max(0, 3 * thousands - exact))}f}")
        + ("", "k", "M", "G", "T")[thousands]
    )


def _bare(digits: str) -> str:
    return digits.rstrip("0").rstrip(".") if "." in digits else digits


def span(seconds: float, step: float | None = None) -> str:
    """Return seconds in at most two units, exact to `step` or a tenth: 0.5 s, 30 s, 5 min, 1 h 30 min."""
    if seconds < 0:
        return f"-{span(-seconds, step)}"
    if seconds < 59.95:
        return f"{short(seconds, step or max(0.1, seconds / 100) if seconds > 1 else step)} s" if seconds else "0"
    whole = round(seconds)
    size, name, below, lower = next(unit for unit in _UNITS if whole >= unit[0])
    rest = whole % size // below
    count = whole // size
    return f"{count if count < 1000 else short(count)} {name}" + (f" {rest} {lower}" if rest else "")


def number(value: object) -> float:
    """Return a value as a number that can be drawn, the tiniest as 0; NaN for any other."""
    try:
        found = float(value)  # type: ignore[arg-type]  # a wrong type is handled
    except (TypeError, ValueError, OverflowError):
        return math.nan
    return (found if abs(found) >= _SMALLEST else 0.0) if abs(found) < _LARGEST else math.nan


def is_number(value: object) -> bool:
    return not math.isnan(number(value))


Points = list[tuple[float, float] | None]
"""Points of a line; None is a gap."""


def usable(points: Iterable[tuple[float, float]]) -> Points:
    numbers = ((number(x), number(y)) for x, y in points)
    return [None if math.isnan(x) or math.isnan(y) else (x, y) for x, y in numbers]


def thinned(points: Points, most: int) -> Points:
    """Return at most about `most` placed points: the lowest and the highest of each column."""
    if len(points) <= most:
        return points
    known = [point[0] for point in points if point is not None]
    left, width = min(known), max((max(known) - min(known)) / (most / 2), 1e-9)
    found: Points = []
    column: list[tuple[float, float]] = []

    def close() -> None:
        if column:
            low, high = (extreme(column, key=lambda point: point[1]) for extreme in (min, max))
            found.extend([low, high] if column.index(low) < column.index(high) else [high, low][low == high :])
            column.clear()

    for point in points:
        if point is None:
            close()
            if found and found[-1] is not None:
                found.append(None)
            continue
        if column and (point[0] - left) // width != (column[0][0] - left) // width:
            close()
        column.append(point)
    close()
    return found


def path(points: Points) -> str:
    """Return the commands of a line, relative and in tenths of a pixel, which is short; a lone point is a dot."""
    found: list[str] = []
    at: tuple[int, int] | None = None
    letter = ""
    for point in points:
        if point is None:
            at = None
            continue
        x, y = round(10 * point[0]), round(10 * point[1])
        if at is None:
            found.append(f"M{n(x / 10)} {n(y / 10)}h0")
            letter = "l"
        elif (x, y) != at:
            right, down = n((x - at[0]) / 10), n((y - at[1]) / 10)
            found.append(f"{letter or ('' if right[0] == '-' else ' ')}{right}{'' if down[0] == '-' else ' '}{down}")
            letter = ""
        at = x, y
    return "".join(found)


def n(value: float) -> str:
    """Return a coordinate, rounded to a tenth."""
    text = _bare(f"{value:.1f}")
    return "0" if text in ("-0", "0") else text.replace("0.", ".", 1) if text.startswith(("0.", "-0.")) else text


def chart(kind: str, title: str, words: str, size: tuple[int, int], parts: Iterable[str]) -> Markup:
    """Return a chart of SVG parts, which are escaped already; the title and the description in words are not."""
    return Markup(
        f'<svg class="chart chart-{kind}" role="img" viewBox="0 0 {size[0]} {size[1]}">'
        f"{titled(title)}<desc>{text(words, _LONGEST_DESCRIPTION)}</desc>{''.join(parts)}</svg>"
    )


def empty(kind: str, title: str) -> Markup:
    """Return what takes the place of a chart of no values."""
    return Markup(f'<p class="empty chart-empty chart-empty-{kind}">{text(title, 80)}: no values yet</p>')


def text(value: str, most: int = 40, *, lines: bool = False) -> str:
    """Return a text by others, escaped, on one line unless it may have lines, and of at most `most` characters."""
    shown = printable(masked(value[:_MASKED])[: most + 1].encode("utf-8", "replace").decode())
    shown = shown if lines else shown.replace("\n", " ")
    return str(escape(shown if len(shown) <= most else f"{shown[: most - 1]}…"))


def titled(value: str) -> str:
    """Return the title of an element."""
    return f"<title>{text(value, _LONGEST_TITLE, lines=True)}</title>"


def label(x: float, y: float, value: str, *, anchor: str = "middle", kind: str = "tick") -> str:
    """Return a text at a place."""
    return f'<text class="{kind}" x="{n(x)}" y="{n(y)}" text-anchor="{anchor}">{text(value)}</text>'


def grid(across: Axis, up: Axis) -> str:
    """Return the frame: a line for each tick of the vertical axis, the horizontal axis, and the labels of both."""
    rows = "".join(f"M{n(across.start)} {n(up.at(tick))}H{n(across.end)}" for tick, _ in up.ticks)
    ticks = "".join(f"M{n(across.at(tick))} {n(up.start)}v4" for tick, _ in across.ticks)
    left = [label(across.start - 8, up.at(tick) + 4, name, anchor="end") for tick, name in up.ticks]
    below = [
        label(
            across.at(tick),
            up.start + 17,
            name,
            anchor="end" if across.at(tick) + 3.6 * len(name) > across.end + 14 else "middle",
        )
        for tick, name in across.ticks
    ]
    axis = f"M{n(across.start)} {n(up.start)}H{n(across.end)}{ticks}"
    return f'<path class="rules" d="{rows}"/><path class="axis" d="{axis}"/>{"".join(left + below)}'


def names(across: Axis, up: Axis, x: str, y: str) -> str:
    """Return the names of the axes: one at the right below, the other at the left above."""
    right = label(across.end, up.start + 34, x, anchor="end", kind="name")
    return right + label(4, up.end - 12, y, anchor="start", kind="name")


def legend(
    items: Sequence[tuple[str, str]], width: int, *, left: int = 50, sample_width: int = 22
) -> tuple[str, int]:
    """Return the legend of samples (SVG, to the left of a base line at 0) with their names, and its height."""
    found, x, y = [], left, 16
    more = len(items) - MOST_IN_LEGEND
    for drawn, name in [*items[:MOST_IN_LEGEND], *([("", f"and {more} more")] if more > 0 else [])]:
        room = round(sample_width + 20 + _LETTER * min(len(name), 30))
        if x + room > width and x > left:
            x, y = left, y + 20
        inner = f'<text x="{sample_width + 6}">{text(name, 30)}</text>'
        found.append(f'<g transform="translate({x} {y})">{drawn}{inner}</g>')
        x += room
    return f'<g class="legend">{"".join(found)}</g>', y + 4


def look(index: int, *, is_dashed: bool = True) -> str:
    """Return the classes of a line: its colour and its dashes. 36 differ."""
    return f"c{index % 6} d{(index + index // 6) % 6}" if is_dashed else f"c{index % 6}"


def sample(index: int) -> str:
    """Return the sample of a line for a legend."""
    return f'<g class="{look(index)}"><path class="line" d="M0-4h22"/>{mark(index, 11, -4)}</g>'


def mark(shape: int, x: float, y: float, kind: str = "", about: str = "") -> str:
    """Return a mark, whose shape is one of `CIRCLE` to `PLUS`, with a title."""
    start = f'<path class="mark {kind}"'.replace(' "', '"') + f' d="M{n(x)} {n(y)}{_SHAPES[shape % len(_SHAPES)]}"'
    return f"{start}>{titled(about)}</path>" if about else f"{start}/>"


def box(left: float, top: float, right: float, bottom: float) -> str:
    """Return the commands of a rectangle."""
    return f"M{n(left)} {n(top)}H{n(right)}V{n(bottom)}H{n(left)}z"


def in_words(name: str, points: Sequence[tuple[float, float]], x: str) -> str:
    """Return the first, last, lowest and highest value of points as a sentence."""
    (start, first), (end, last) = points[0], points[-1]
    values = [value for _, value in points]
    return (
        f"{name}: first {short(first)} at {x} {start:.6g}, last {short(last)} at {x} {end:.6g};"
        f" lowest {short(min(values))}, highest {short(max(values))}."
    )
