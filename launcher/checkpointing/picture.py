"""A picture of the cadence: expected goodput over intervals, and over nodes at the best interval.

Colours are from the palette of Okabe and Ito, which colour-blind people can distinguish; lines differ too.
"""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from launcher.checkpointing.forecast import GIB, MEMORY, PERSISTENT, WAITING, Forecast
from launcher.common import pictures
from launcher.common.texts import counted

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_WIDTH, _HEIGHT = 9.6, 4.2
"""Inches."""
_LOOKS = {MEMORY: ("#0072B2", "-"), PERSISTENT: ("#E69F00", "--"), WAITING: ("#D55E00", ":")}
"""Colour and line of each way; the dashed line is drawn over the solid one, which it often follows."""
_POINTS = 240
_ZOOM = 5
"""The axis of goodput shows this many times the least loss of the worst way."""
_TIMES: Mapping[float, str] = {
    **{1e-3: "1 ms", 1e-2: "10 ms", 0.1: "0.1 s", 1: "1 s", 10: "10 s", 60: "1 min", 600: "10 min"},
    **{3600: "1 h", 36000: "10 h", 86400 * 4: "4 d", 86400 * 40: "40 d", 86400 * 400: "400 d"},
}
"""Ticks of an axis of times, in seconds."""
_MOST_NODES = 4096
"""Nodes up to which the curve is drawn: twice those of the run that the failure rate is from."""


def draw(expected: Forecast, nodes: int, title: str, path: Path) -> None:
    """Draw a forecast by `pictures.save`."""
    pictures.save(path, "checkpoint", lambda: _figure(expected, nodes, title))


def _figure(expected: Forecast, nodes: int, title: str) -> Any:
    figure = pictures.figure(_WIDTH, _HEIGHT, layout="constrained")
    size = f"{expected.content.total_bytes / GIB:,.4g} GiB a checkpoint"
    figure.suptitle(f"{title}   {size}", x=0.01, ha="left", fontsize=10)
    intervals, sizes = figure.subplots(1, 2)
    _draw_intervals(intervals, expected, nodes)
    _draw_nodes(sizes, expected, nodes)
    figure.legend(*sizes.get_legend_handles_labels(), loc="outside lower center", ncols=3, frameon=False)
    for axes in (intervals, sizes):
        pictures.bare(axes, grid="both")
    return figure


def _draw_intervals(axes: "Axes", expected: Forecast, nodes: int) -> None:
    """Draw goodput over the training between two saves; a dot marks the best interval of each way."""
    savings = {way: expected.saving(way, nodes) for way in _LOOKS}
    best = [saving.interval_s for saving in savings.values()]
    low, high = min(best) / 30, max(best) * 30
    xs = [low * (high / low) ** (i / _POINTS) for i in range(_POINTS + 1)]
    for way, saving in savings.items():
        colour, line = _LOOKS[way]
        possible = [x for x in xs if x >= saving.save_s - saving.blocked_s]
        ys = [100 * saving.goodput(x) for x in possible]
        axes.plot(possible, ys, line, color=colour, linewidth=1.6)
        axes.plot([saving.interval_s], [100 * saving.goodput(saving.interval_s)], "o", color=colour, markersize=5)
    axes.set_xscale("log")
    axes.set_xlim(low, high)
    ticks = {seconds: text for seconds, text in _TIMES.items() if low <= seconds <= high}
    axes.set_xticks(list(ticks), ticks.values())
    axes.minorticks_off()
    _frame(axes, 100 - _ZOOM * (100 - min(100 * saving.goodput(saving.interval_s) for saving in savings.values())))
    axes.set_xlabel(f"training between two saves, on {counted(nodes, 'node')}")
    axes.set_ylabel("expected goodput, % of all time")


def _draw_nodes(axes: "Axes", expected: Forecast, nodes: int) -> None:
    """Draw goodput at the best interval over nodes, which all fail alike; the line marks the job's own size."""
    most = max(_MOST_NODES, 2 * nodes)
    xs = [2 ** (math.log2(most) * i / _POINTS) for i in range(_POINTS + 1)]
    sizes = sorted({round(x) for x in xs})
    lowest = 100.0
    for way, (colour, line) in _LOOKS.items():
        savings = [expected.saving(way, n) for n in sizes]
        ys = [100 * saving.goodput(saving.interval_s) for saving in savings]
        axes.plot(sizes, ys, line, color=colour, linewidth=1.6, label=f"saving to {way}")
        lowest = min(lowest, *ys)
    _frame(axes, lowest)
    axes.axvline(nodes, color=pictures.QUIET, linewidth=0.8)
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter("{x:g}")
    axes.set_xlim(1, most)
    axes.set_xlabel(f"nodes, {expected.failures_per_node_hour:.2g} failures a node-hour")


def _frame(axes: "Axes", lowest: float) -> None:
    """Start the axis of goodput, in percent, at `lowest`, with room for a dot at 100."""
    bottom = max(0.0, lowest - 0.05 * (100 - lowest))
    axes.set_ylim(bottom, 100 + 0.02 * (100 - bottom))
    axes.ticklabel_format(axis="y", useOffset=False)
