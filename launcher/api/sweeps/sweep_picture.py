"""A picture of a sweep: one line for each trial through the values of its dimensions to its objective.

matplotlib is imported when one is drawn. Colours are matplotlib's `viridis`, which grows evenly in lightness.
"""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from launcher.api.sweeps.record import PRUNED, Description, Trial, short
from launcher.common import pictures
from launcher.common.texts import bounded

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_WIDTH_OF_AXIS, _HEIGHT, _LEAST_WIDTH = 2.2, 4.2, 6.0
"""Inches."""
_MOST_TICKS, _TICK_LETTERS = 12, 22
_MARGIN = 0.03


def draw(description: Description, trials: Sequence[Trial], path: Path) -> None:
    """Draw a sweep to a file whose suffix names the format. The same trials yield the same bytes.

    Raises:
        ProblemsFound: It cannot be saved there, see `pictures.save`.
    """
    pictures.save(path, "sweep", lambda: _figure(description, trials))


def svg(description: Description, trials: Sequence[Trial]) -> str:
    """Return the picture of a sweep as an SVG element.

    Raises:
        ProblemsFound: matplotlib is missing (E709).
    """
    return pictures.svg("sweep", lambda: _figure(description, trials))


def _figure(description: Description, trials: Sequence[Trial]) -> Any:
    import matplotlib
    from matplotlib.colors import Normalize

    measured = [trial for trial in trials if trial.value is not None]
    count = len(description.dimensions) + 1
    figure = pictures.figure(max(_LEAST_WIDTH, _WIDTH_OF_AXIS * count), _HEIGHT, layout="constrained")
    axes = figure.subplots()
    axes.set_xlim(-0.25, count - 0.6)
    axes.set_ylim(-2 * _MARGIN, 1 + 2 * _MARGIN)
    axes.set_yticks([])
    axes.spines[["top", "right", "left", "bottom"]].set_visible(False)
    scales = [_dimension_scale(each, measured, i) for i, each in enumerate(description.dimensions)]
    objective = [trial.value for trial in measured if trial.value is not None]
    scales.append(_number_scale(objective, is_log=False))
    labels = [*short([each.label for each in description.dimensions]), description.objective or ""]
    axes.set_xticks(range(count), labels)
    axes.tick_params(axis="x", length=0, pad=8)
    for place, (_, ticks) in enumerate(scales):
        _draw_axis(axes, place, ticks)
    good = [description.sign * value for value in objective]
    norm = Normalize(min(good, default=0), max(good, default=1))
    colours = matplotlib.colormaps["viridis"]
    order = sorted(measured, key=lambda trial: -description.sign * (trial.value or 0))
    for rank, trial in enumerate(order, 1):
        values = (*trial.values, trial.value)
        ys = [scale(value) for (scale, _), value in zip(scales, values, strict=True)]
        is_best = rank == len(order)
        style = ":" if trial.state == PRUNED else "-"
        colour = colours(norm(description.sign * (trial.value or 0)))
        axes.plot(range(count), ys, style, color=colour, linewidth=2.6 if is_best else 1.2, zorder=2 + rank)
    pruned = "   dotted: pruned" if any(trial.state == PRUNED for trial in measured) else ""
    title = f"{len(measured)} of {len(trials)} trials   thick: best{pruned}"
    figure.suptitle(title, x=0.01, ha="left", fontsize=10)
    return figure


def _dimension_scale(each: Any, trials: Sequence[Trial], i: int) -> tuple[Any, list[tuple[float, str]]]:
    if not each.choices:
        return _number_scale([float(each.low), float(each.high)], is_log=each.is_log)
    last = max(1, len(each.choices) - 1)
    places = {choice: number / last for number, choice in enumerate(each.choices)}
    ticks = [(y, bounded(choice)[:_TICK_LETTERS]) for choice, y in places.items()]
    return places.__getitem__, ticks[:: 1 + len(ticks) // _MOST_TICKS]


def _number_scale(values: Sequence[float], *, is_log: bool) -> tuple[Any, list[tuple[float, str]]]:
    """Return what maps a number to 0 to 1, and labels of five places."""
    low, high = min(values, default=0.0), max(values, default=1.0)
    if is_log:
        start, width = math.log(low), math.log(high) - math.log(low)
        at = lambda value: (math.log(value) - start) / (width or 1)  # noqa: E731
        ticks = [(i / 4, f"{math.exp(start + width * i / 4):.3g}") for i in range(5)]
    else:
        at = lambda value: (value - low) / ((high - low) or 1)  # noqa: E731
        ticks = [(i / 4, f"{low + (high - low) * i / 4:.4g}") for i in range(5)]
    return at, ticks if high > low else [(0.0, f"{low:.4g}")]


def _draw_axis(axes: "Axes", place: int, ticks: Sequence[tuple[float, str]]) -> None:
    axes.axvline(place, _MARGIN, 1 - _MARGIN, color="#c8cdd2", linewidth=1.0, zorder=1)
    box = {"facecolor": "white", "alpha": 0.8, "edgecolor": "none", "pad": 0.5}
    for y, text in ticks:
        axes.plot([place], [y], "_", color=pictures.QUIET, markersize=7, zorder=1)
        axes.text(place + 0.04, y, text, va="center", fontsize=8, color=pictures.QUIET, bbox=box, zorder=10_000)
