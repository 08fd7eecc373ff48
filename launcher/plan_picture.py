"""A plan as a picture: local batch, balance and learning rate over nodes. matplotlib is imported when one is drawn.

Colours are from the palette of Okabe and Ito, which colour-blind people tell apart; shapes differ too.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from launcher import pictures, report
from launcher.specs import JobSpec

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_WIDTH, _HEIGHT, _DPI = 9.0, 6.2, 150
"""Inches and dots per inch."""
_EVEN, _UNEVEN, _QUIET = "#0072B2", "#E69F00", pictures.QUIET
_MOST_TICKS = 24
"""Sizes that each get a label on the axis."""
_DOT = 5.0


def draw(job: JobSpec, path: Path) -> None:
    """Draw a job's plan to a file whose suffix names the format. The same plan gives the same bytes.

    Raises:
        ProblemsFound: It cannot be drawn there, as `pictures.save` says.
    """
    pictures.save(path, "plan", lambda: _figure(job))


def _figure(job: JobSpec) -> Any:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(_WIDTH, _HEIGHT), dpi=_DPI, facecolor="white", layout="constrained")
    share, balance, rate = figure.subplots(3, sharex=True, height_ratios=(3, 2, 1))
    figure.suptitle(f"{job.name}   {report.kind(job)}", x=0.01, ha="left", fontsize=10)
    nodes = [point.nodes for point in job.scales]
    _draw_shares(share, job, nodes)
    _draw_balance(balance, job, nodes)
    _dots(rate, nodes, [point.learning_rate for point in job.scales])
    rate.set_ylabel("learning rate")
    rate.set_ylim(0, 1.35 * max(point.learning_rate for point in job.scales))
    rate.set_xlabel("nodes")
    _ticks(rate, nodes)
    for axes in (share, balance, rate):
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(axis="y", color="#eaecef", linewidth=0.8)
        axes.set_axisbelow(True)
    return figure


def _draw_shares(axes: "Axes", job: JobSpec, nodes: list[int]) -> None:
    """Draw the largest share of each size against what equal shares would be."""
    equal = [point.samples_per_step / point.data_parallel_size for point in job.scales]
    label = "equal shares: samples ÷ ranks"
    axes.plot(nodes, equal, color=_QUIET, linewidth=1.0, linestyle="--", label=label, zorder=1)
    for is_even, colour, marker, label in (
        (True, _EVEN, "o", "even"),
        (False, _UNEVEN, "s", "uneven: the larger share"),
    ):
        points = [point for point in job.scales if point.split.is_even is is_even]
        if points:
            xs, ys = [point.nodes for point in points], [point.split.large for point in points]
            axes.plot(xs, ys, marker, color=colour, markersize=_size(job), label=label, zorder=2 + is_even)
    axes.set_ylabel("samples per rank and step")
    if len(nodes) > 1 and max(equal) > 8 * min(equal):
        axes.set_yscale("log", base=2)
        axes.yaxis.set_major_formatter("{x:g}")
    axes.legend(frameon=False)


def _draw_balance(axes: "Axes", job: JobSpec, nodes: list[int]) -> None:
    """Draw how many times as long a step takes as with equal shares; hollow where a smaller size is as fast."""
    worth = [other is None for other in report.as_fast_as(job)]
    values = [report.point_balance(point) for point in job.scales]
    axes.vlines(nodes, 1, values, color="#c8cdd2", linewidth=1.0)
    for is_worth, face, label in ((True, _EVEN, "worth allowing"), (False, "white", "a smaller size is as fast")):
        chosen = [(x, y) for x, y, w in zip(nodes, values, worth, strict=True) if w is is_worth]
        if chosen:
            xs, ys = zip(*chosen, strict=True)
            style = {"markerfacecolor": face, "markeredgecolor": _EVEN, "markersize": _size(job)}
            axes.plot(xs, ys, "o", label=label, zorder=2 + is_worth, **style)
    axes.set_ylabel("balance (1: no idle rank)")
    axes.set_ylim(0.95, max(1.3, 1.1 * max(values)))
    axes.legend(frameon=False, loc="upper left")


def _dots(axes: "Axes", nodes: list[int], values: list[float]) -> None:
    axes.plot(
        nodes, values, marker="o" if len(nodes) <= _MOST_TICKS else None, color=_EVEN, markersize=4, linewidth=1.0
    )


def _size(job: JobSpec) -> float:
    """Return a dot's diameter in points: smaller where there are many sizes."""
    return _DOT if len(job.scales) <= 4 * _MOST_TICKS else 1.5


def _ticks(axes: "Axes", nodes: list[int]) -> None:
    if len(nodes) <= _MOST_TICKS:
        axes.set_xticks(nodes, [str(n) for n in nodes])
