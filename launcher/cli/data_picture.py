"""Lengths of samples as a picture: a histogram of their tokens."""

from pathlib import Path
from typing import Any

from launcher.cli.data_report import bins
from launcher.common import pictures
from launcher.runtime.finetune.data.report import Summary

_WIDTH, _HEIGHT, _DPI = 7.2, 3.2, 150
"""Inches and dots per inch."""
_COLOUR = "#0072B2"
"""Source: the palette of Okabe and Ito, which colour-blind people can distinguish."""


def draw(found: Summary, max_len: int, title: str, path: Path) -> None:
    """Draw the lengths of samples to a file whose suffix names the format. The same lengths give the same bytes.

    Raises:
        ProblemsFound: It cannot be drawn there; see `pictures.save`.
    """
    pictures.save(path, "data", lambda: _figure(found, max_len, title))


def _figure(found: Summary, max_len: int, title: str) -> Any:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(_WIDTH, _HEIGHT), dpi=_DPI, facecolor="white", layout="constrained")
    counts = found.counts
    axes = figure.subplots()
    dropped = sum(counts.dropped.values())
    axes.set_title(
        f"{title}   {counts.kept} samples kept, {dropped} dropped, {counts.cut} cut", loc="left", fontsize=10
    )
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
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", color="#eaecef", linewidth=0.8)
    axes.set_axisbelow(True)
    return figure
