"""Samples as a picture: a histogram of the lengths of those that are kept; of the others, a bar for each reason."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from launcher.cli.data_report import bins
from launcher.common import pictures
from launcher.runtime.finetune.data.report import Summary

_MOST_LETTERS = 100
_WIDTH, _HEIGHT, _DPI = 7.2, 3.2, 150
"""Inches and dots per inch."""
_COLOUR = "#0072B2"
_DROPPED = "#D55E00"
"""Source of both: the palette of Okabe and Ito, which colour-blind people can distinguish."""
_BAR = 0.4
"""Height in inches of the bar of a reason."""


def draw(found: Summary, max_len: int, title: str, path: Path) -> None:
    """Draw the lengths of samples to a file whose suffix names the format. The same lengths give the same bytes.

    Raises:
        ProblemsFound: It cannot be drawn there; see `pictures.save`.
    """
    pictures.save(path, "data", lambda: _figure(found, max_len, title))


def _figure(found: Summary, max_len: int, title: str) -> Any:
    from matplotlib.figure import Figure

    counts = found.counts
    height = _BAR * len(counts.dropped) + (_BAR if counts.dropped else 0)
    figure = Figure(figsize=(_WIDTH, _HEIGHT + height), dpi=_DPI, facecolor="white", layout="constrained")
    axes, *below = figure.subplots(
        2 if height else 1, squeeze=False, height_ratios=[_HEIGHT, *filter(None, (height,))]
    )[:, 0]
    dropped = sum(counts.dropped.values())
    axes.set_title(
        f"{title}   {counts.kept} samples kept, {dropped} dropped, {counts.cut} cut", loc="left", fontsize=10
    )
    _draw_lengths(axes, found, max_len)
    for each in below:
        _draw_dropped(each, counts.dropped)
    for each in (axes, *below):
        pictures.count_axis(each.xaxis)
        each.spines[["top", "right"]].set_visible(False)
        each.set_axisbelow(True)
    return figure


def _draw_lengths(axes: Any, found: Summary, max_len: int) -> None:
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
    axes.grid(axis="y", color="#eaecef", linewidth=0.8)


def _draw_dropped(axes: Any, dropped: Mapping[str, int]) -> None:
    """Draw the number of dropped samples for each reason, the most frequent one at the top."""
    rows = sorted(dropped.items(), key=lambda row: (row[1], row[0]))
    axes.barh(range(len(rows)), [number for _, number in rows], height=0.5, color=_DROPPED)
    for row, (reason, number) in enumerate(rows):
        text = reason if len(reason) <= _MOST_LETTERS else f"{reason[:_MOST_LETTERS]}…"
        axes.annotate(f"{number}  {text}", (0, row + 0.27), textcoords="offset points", xytext=(2, 1), fontsize=8)
    axes.set_yticks([])
    axes.set_ylim(-0.5, len(rows))
    axes.set_xlim(0, 1.05 * max(number for _, number in rows))
    axes.set_xlabel("dropped samples")
