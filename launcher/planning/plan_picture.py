"""A picture of a plan: samples per rank, idle time and learning rate over nodes.

matplotlib is imported when one is drawn.
Colours are from the palette of Okabe and Ito, which remain distinct for colour-blind readers; shapes differ too.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from launcher.common import pictures
from launcher.model.job_spec import JobSpec
from launcher.planning import plan_report

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_WIDTH, _HEIGHT = 9.0, 6.2
"""Inches."""
_EVEN, _UNEVEN, _QUIET = "#0072B2", "#E69F00", pictures.QUIET
_SHARES, _RATE = plan_report.COLUMNS[2], plan_report.COLUMNS[4]
_MOST_TICKS = 24
"""Maximum number of sizes with a label each on the axis."""
_DOT = 5.0


def draw(job: JobSpec, path: Path) -> None:
    """Draw a job's plan to a file whose suffix names the format. The same plan yields the same bytes.

    Raises:
        ProblemsFound: It cannot be saved there, see `pictures.save`.
    """
    pictures.save(path, "plan", lambda: _figure(job))


def svg(job: JobSpec) -> str:
    """Return the picture of a job's plan as an SVG element.

    Raises:
        ProblemsFound: matplotlib is missing (E709).
    """
    return pictures.svg("plan", lambda: _figure(job))


def _figure(job: JobSpec) -> Any:
    figure = pictures.figure(_WIDTH, _HEIGHT, layout="constrained")
    rates = {point.nodes: rate for point in job.scales if (rate := point.learning_rate) is not None}
    heights = (3, 2, 1) if rates else (3, 2)
    share, idle, *rest = every = figure.subplots(len(heights), sharex=True, height_ratios=heights)
    figure.suptitle(f"{job.name}   {plan_report.kind(job)}", x=0.01, ha="left", fontsize=10)
    nodes = [point.nodes for point in job.scales]
    _draw_shares(share, job, nodes)
    _draw_idle(idle, job, nodes)
    for axes in rest:
        marker = "o" if len(rates) <= _MOST_TICKS else None
        axes.plot(list(rates), list(rates.values()), marker=marker, color=_EVEN, markersize=4, linewidth=1.0)
        axes.set_ylabel(_RATE)
        axes.set_ylim(0, 1.35 * max(rates.values()))
    every[-1].set_xlabel("nodes")
    if len(nodes) <= _MOST_TICKS:
        every[-1].set_xticks(nodes, [str(n) for n in nodes])
    for axes in every:
        axes.axvline(job.initial_nodes, color=_QUIET, linewidth=0.8, linestyle=":", zorder=0)
        pictures.bare(axes, grid="y")
    return figure


def _draw_shares(axes: "Axes", job: JobSpec, nodes: list[int]) -> None:
    """Draw the largest share of each size beside the share if all were equal."""
    equal = [(point.samples_per_step or 0) / point.data_parallel_size for point in job.scales]
    label = "equal shares: samples ÷ ranks"
    axes.plot(nodes, equal, color=_QUIET, linewidth=1.0, linestyle="--", label=label, zorder=1)
    axes.plot([], [], color=_QUIET, linewidth=0.8, linestyle=":", label=f"starts on {job.initial_nodes}")
    for is_even, colour, marker, label in (
        (True, _EVEN, "o", "even"),
        (False, _UNEVEN, "s", "uneven: the larger share"),
    ):
        splits = {point.nodes: point.batch.split for point in job.scales if point.batch}
        shares = {n: split.large for n, split in splits.items() if split.is_even is is_even}
        if shares:
            xs, ys = list(shares), list(shares.values())
            axes.plot(xs, ys, marker, color=colour, markersize=_size(job), label=label, zorder=2 + is_even)
    axes.set_ylabel(_SHARES)
    if len(nodes) > 1 and max(equal) > 8 * min(equal):
        axes.set_yscale("log", base=2)
        axes.yaxis.set_major_formatter(lambda share, _: f"{share:g}" if share >= 1 else "")
    else:
        pictures.count_axis(axes.yaxis)
    axes.legend(frameon=False)


def _draw_idle(axes: "Axes", job: JobSpec, nodes: list[int]) -> None:
    """Draw the fraction of all ranks' time spent waiting; hollow if a smaller size is as fast."""
    is_useful = [other is None for other in plan_report.as_fast_as(job)]
    values = [100 * (point.idle or 0) for point in job.scales]
    axes.vlines(nodes, 0, values, color="#c8cdd2", linewidth=1.0)
    for is_shown, face, label in ((True, _EVEN, "faster than every smaller size"), (False, "white", "no faster")):
        chosen = [(x, y) for x, y, useful in zip(nodes, values, is_useful, strict=True) if useful is is_shown]
        if chosen:
            xs, ys = zip(*chosen, strict=True)
            colours: dict[str, Any] = {"markerfacecolor": face, "markeredgecolor": _EVEN}
            axes.plot(xs, ys, "o", label=label, zorder=2 + is_shown, markersize=_size(job), **colours)
    axes.set_ylabel(f"{plan_report.IDLE} (%)")
    axes.set_ylim(-0.05 * (top := max(25, 1.3 * max(values))), top)
    axes.legend(frameon=False, loc="upper left")


def _size(job: JobSpec) -> float:
    """Return a dot's diameter in points: smaller if there are many sizes."""
    return _DOT if len(job.scales) <= 4 * _MOST_TICKS else 1.5
