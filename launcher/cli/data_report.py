"""What becomes of a file of samples, as lines of text, as JSON, and as a picture.

The picture is a histogram of the lengths of the samples that are kept; of the others, a bar for each reason.
"""

import dataclasses
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from launcher.common import pictures
from launcher.common.texts import in_line, start_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from launcher.api.samples import Shown, Summary

TRAINED, UNTRAINED = "▌ ", "  "
"""Start of a line that is trained, and of one that is not."""
_LINES, _COLUMNS = 24, 160
"""Most lines of a part of a sample, and letters of a line."""
_BINS, _BAR = 12, 40
_NICE = (1, 2, 5)
_MOST_LETTERS = 100
_WIDTH, _HEIGHT, _REASON = 7.2, 3.2, 0.4
"""Inches: the picture without reasons, and the bar of a reason."""
_COLOUR, _DROPPED = "#0072B2", "#D55E00"
"""Source: the palette of Okabe and Ito, which colour-blind people can distinguish."""

Line = tuple[str, str]


def lines(found: "Summary", name: str) -> Iterator[Line]:
    """Yield the lines of a report, each with its style."""
    counts = found.counts
    for sample in found.samples:
        yield from _sample(sample)
        yield "", ""
    if found.samples:
        yield f"{TRAINED}is trained; the other lines are not. ↵ ends a line of the sample.", "dim"
        yield "", ""
    if found.lengths:
        yield "tokens       samples", "bold"
        bars = bins(found.lengths)
        most = max(number for _, _, number in bars)
        for first, last, number in bars:
            yield f"{f'{first}–{last}':>12} {'█' * -(-number * _BAR // most)} {number}".rstrip(), ""
        yield "", ""
    share = f"{100 * counts.targets / counts.tokens:.0f} %" if counts.tokens else "none"
    yield f"{in_line(name)}: {counts.read} samples read; {counts.tokens} tokens kept, {share} trained", "bold"
    yield f"  {found.num_train} to train on, {found.num_validation} held out for evaluation", ""
    for note in found.notes:
        yield f"  {note}", "yellow"
    yield from ((f"    {in_line(place)}  {reason}", "") for place, reason in found.dropped)
    if (others := sum(counts.dropped.values()) - len(found.dropped)) > 0:
        yield f"    and {others} more; the first {len(found.dropped)} are listed", ""


def as_json(found: "Summary") -> str:
    """Return a report as JSON; `lengths` holds the number of samples by tokens, `counts.losses` those not trained."""
    text = json.dumps(dataclasses.asdict(found), indent=2, ensure_ascii=False, default=str)
    # JSON allows control characters above 0x7f, which a terminal would follow.
    return "".join(each if each.isprintable() or each == "\n" else json.dumps(each)[1:-1] for each in text)


def bins(lengths: Mapping[int, int]) -> list[tuple[int, int, int]]:
    """Return a histogram: the first and last length of each bar, and its number of samples."""
    longest = max(lengths)
    width = next(step for power in range(19) for nice in _NICE if (step := nice * 10**power) * _BINS > longest)
    found = [0] * (longest // width + 1)
    for length, number in lengths.items():
        found[length // width] += number
    first = min(lengths) // width
    return [(i * width, (i + 1) * width - 1, found[i]) for i in range(first, len(found))]


def _sample(sample: "Shown") -> Iterator[Line]:
    if sample.dropped:
        yield f"{in_line(sample.place)}  dropped: {sample.dropped}", "bold yellow"
        return
    yield f"{in_line(sample.place)}  {sample.num_tokens} tokens, {sample.num_targets} trained", "bold"
    for piece in sample.pieces:
        yield from _part(piece.text, is_trained=piece.is_trained)
    if sample.rejected is not None:
        yield "the rejected answer, which is trained against:", "dim"
        yield from _part(sample.rejected, is_trained=True, style="red")


def _part(text: str, *, is_trained: bool, style: str = "green") -> Iterator[Line]:
    mark = TRAINED if is_trained else UNTRAINED
    found = text.split("\n")
    wrapped = [
        row[start : start + _COLUMNS]
        for row in [*(f"{row}↵" for row in found[:-1]), *([found[-1]] if found[-1] else [])]
        for start in range(0, max(1, len(row)), _COLUMNS)
    ]
    for row in wrapped[:_LINES]:
        yield mark + in_line(row), style if is_trained else ""
    if len(wrapped) > _LINES:
        yield f"{mark}… {len(wrapped) - _LINES} further lines", "dim"


def draw(found: "Summary", max_len: int, title: str, path: Path) -> None:
    """Draw the lengths of samples by `pictures.save`."""
    pictures.save(path, "data", lambda: _figure(found, max_len, title))


def _figure(found: "Summary", max_len: int, title: str) -> Any:
    counts = found.counts
    heights = [_HEIGHT, *([_REASON * (len(counts.dropped) + 1)] if counts.dropped else [])]
    figure = pictures.figure(_WIDTH, sum(heights), layout="constrained")
    axes, *below = figure.subplots(len(heights), squeeze=False, height_ratios=heights)[:, 0]
    dropped = sum(counts.dropped.values())
    summary = f"{counts.kept} samples kept, {dropped} dropped, {counts.cut} cut"
    axes.set_title(f"{title}   {summary}", loc="left", fontsize=10)
    _draw_lengths(axes, found, max_len)
    pictures.bare(axes, grid="y")
    for each in below:
        _draw_dropped(each, counts.dropped)
        pictures.bare(each)
    for each in (axes, *below):
        pictures.count_axis(each.xaxis)
    return figure


def _draw_lengths(axes: "Axes", found: "Summary", max_len: int) -> None:
    bars = bins(found.lengths) if found.lengths else []
    axes.bar(
        [first for first, _, _ in bars],
        [number for _, _, number in bars],
        width=[last + 1 - first for first, last, _ in bars],
        align="edge",
        color=_COLOUR,
        edgecolor="white",
    )
    if bars and bars[-1][1] >= max_len:
        axes.axvline(max_len, color=pictures.INK, linestyle="--", linewidth=1)
        axes.annotate(
            "max_len", (max_len, axes.get_ylim()[1]), textcoords="offset points", xytext=(-4, -10), ha="right"
        )
    axes.set_xlabel("tokens of a sample")
    axes.set_ylabel("samples")
    pictures.count_axis(axes.yaxis)


def _draw_dropped(axes: "Axes", dropped: Mapping[str, int]) -> None:
    """Draw the number of dropped samples for each reason, the most frequent one at the top."""
    rows = sorted(dropped.items(), key=lambda row: (row[1], row[0]))
    axes.barh(range(len(rows)), [number for _, number in rows], height=0.5, color=_DROPPED)
    for row, (reason, number) in enumerate(rows):
        text = f"{number}  {start_of(reason, _MOST_LETTERS)}"
        axes.annotate(text, (0, row + 0.27), textcoords="offset points", xytext=(2, 1), fontsize=8)
    axes.set_yticks([])
    axes.set_ylim(-0.5, len(rows))
    axes.set_xlim(0, 1.05 * max(number for _, number in rows))
    axes.set_xlabel("dropped samples")
