"""A Timeline as a picture: nodes and loss over time, with the events."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties
from matplotlib.patches import Patch
from matplotlib.textpath import TextPath
from matplotlib.ticker import MaxNLocator

from launcher.common import pictures
from launcher.common.text_table import clipped
from launcher.common.texts import counted
from launcher.timeline.values import Event, Step, Timeline

_WIDTH, _LEFT, _RIGHT, _BOTTOM, _TOP = 10.0, 0.62, 0.25, 0.82, 0.42
_NODES_HEIGHT, _LOSS_HEIGHT, _GAP, _LANE = 1.1, 2.3, 0.12, 0.2
"""Lengths in inches."""
_POINTS = 72
_LABEL_SIZE = 8.0
_LABEL_LENGTH = 36
_MOST_DOTS = 400
"""Number of steps above which dots would only blur the curve."""
_LABEL_SPACE = 9.0
"""Points between two labels of a row."""

_NODES, _LOSS, _LOST, _AGAIN = "#4c8bc4", "#24292f", "#d1495b", "#f2b84b"
_STOPPED, _STARTING = "#eccfd0", "#f6ead0"


@dataclass(frozen=True, slots=True)
class _Flag:
    """A label over the panels: its row from below; the places of its line and text, in points from the left."""

    event: Event
    words: str
    x: float
    begin: float
    end: float
    lane: int = 0


def draw(timeline: Timeline, path: Path) -> None:
    """Draw a timeline to a file whose suffix names the format. The same timeline gives the same bytes."""
    pictures.save(path, "timeline", lambda: _figure(timeline))


def _figure(timeline: Timeline) -> Figure:
    flags = _flags(timeline)
    lanes = max((flag.lane for flag in flags), default=-1) + 1
    losses = [step for step in timeline.steps if step.loss is not None]
    loss_height = _LOSS_HEIGHT + _GAP if losses else 0.0
    height = _BOTTOM + loss_height + _NODES_HEIGHT + lanes * _LANE + _TOP
    figure = Figure(figsize=(_WIDTH, height), dpi=150, facecolor="white")
    nodes = _panel(figure, _BOTTOM + loss_height, _NODES_HEIGHT, timeline)
    panels = [nodes]
    _draw_nodes(nodes, timeline)
    if losses:
        loss = _panel(figure, _BOTTOM, _LOSS_HEIGHT, timeline)
        _draw_loss(loss, losses)
        nodes.tick_params(labelbottom=False, length=0)
        panels.append(loss)
    panels[-1].set_xlabel("seconds since the launch")
    for axes in panels:
        for begin, end, color in _idle_spans(timeline):
            axes.axvspan(begin, end, color=color, linewidth=0, zorder=0.5)
        for flag in flags:
            axes.axvline(flag.event.time_s, color=pictures.QUIET, linewidth=0.7, zorder=3.5)
    _draw_flags(nodes, flags)
    left = _LEFT / _WIDTH
    figure.text(left, 1 - 0.24 / height, _caption(timeline), fontsize=9.5, fontweight="bold", ha="left")
    figure.legend(
        handles=_legend(timeline), loc="lower left", bbox_to_anchor=(left - 0.008, 0.0), ncols=6, frameon=False
    )
    return figure


def _panel(figure: Figure, bottom: float, height: float, timeline: Timeline) -> Axes:
    total = figure.get_figheight()
    width = _WIDTH - _LEFT - _RIGHT
    axes = figure.add_axes((_LEFT / _WIDTH, bottom / total, width / _WIDTH, height / total))
    axes.set_xlim(0, _end(timeline))
    axes.spines[["top", "right"]].set_visible(False)
    return axes


def _end(timeline: Timeline) -> float:
    return max(timeline.wall_s, 1.0)


def _draw_nodes(axes: Axes, timeline: Timeline) -> None:
    for attempt in timeline.attempts:
        work = attempt.ended_s if attempt.first_step_s is None else attempt.first_step_s
        axes.fill_between((work, attempt.ended_s), attempt.nodes, color=_NODES, alpha=0.75, linewidth=0, zorder=2)
        span = (attempt.started_s, attempt.ended_s)
        axes.plot(span, (attempt.nodes,) * 2, color=_NODES, linewidth=1.8, solid_capstyle="butt", zorder=3)
    top = max([attempt.nodes for attempt in timeline.attempts], default=1)
    axes.set_ylim(0, top * 1.18)
    axes.yaxis.set_major_locator(MaxNLocator(integer=True, nbins=5))
    axes.set_ylabel("nodes")


def _draw_loss(axes: Axes, steps: list[Step]) -> None:
    dot = "." if len(steps) <= _MOST_DOTS else ""
    for number in sorted({step.attempt for step in steps}):
        _draw_attempt(axes, [step for step in steps if step.attempt == number], dot)
    axes.grid(axis="y", color="#e6e8eb", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.margins(y=0.08)
    axes.set_ylabel("loss")


def _draw_attempt(axes: Axes, steps: list[Step], dot: str) -> None:
    again = [step for step in steps if step.samples_redone]
    kept = [step for step in steps if step.kept]
    lost = [step for step in steps if not step.kept]
    lost = kept[-1:] + lost if lost else []  # connected to the curve
    axes.plot(*_points(again), color=_AGAIN, linewidth=6, solid_capstyle="round", zorder=3)
    axes.plot(*_points(lost), color=_LOST, linewidth=1.3, marker=dot, markersize=4, zorder=4)
    axes.plot(*_points(kept), color=_LOSS, linewidth=1.3, marker=dot, markersize=2.5, zorder=5)


def _points(steps: list[Step]) -> tuple[list[float], list[float]]:
    return [step.time_s for step in steps], [math.nan if step.loss is None else step.loss for step in steps]


def _idle_spans(timeline: Timeline) -> Iterator[tuple[float, float, str]]:
    """Yield the times without training: from a stop to the next start, and from there to the first step."""
    attempts = timeline.attempts
    for index, attempt in enumerate(attempts):
        first = attempt.ended_s if attempt.first_step_s is None else attempt.first_step_s
        yield attempt.started_s if index else 0.0, first, _STARTING
    for attempt, following in pairwise(attempts):
        yield attempt.ended_s, following.started_s, _STOPPED
    if attempts and timeline.state:
        yield attempts[-1].ended_s, timeline.wall_s, _STOPPED


def _flags(timeline: Timeline) -> tuple[_Flag, ...]:
    """Return the labels, packed into rows: no text covers another's text, nor its line but at the left edge.

    A text is to the right of its line, or to the left where the picture ends or where it would cover the line of such
    a label. Placed first from the right and then from the left, every label finds a row. Where the left edge would
    cut a text, it is to the right and covers lines.
    """
    width = (_WIDTH - _LEFT - _RIGHT) * _POINTS
    font = FontProperties(family="DejaVu Sans")
    limit = width + _RIGHT * _POINTS
    rightward: list[_Flag] = []
    leftward: list[_Flag] = []
    messages = {event.message for event in timeline.events}
    # A fault gets no label if its cause is an event itself.
    shown = [event for event in timeline.events if event.kind != "fault" or event.cause not in messages]
    for event in sorted(shown, key=lambda event: -event.time_s):
        words = clipped(event.message.partition("\n")[0] or event.kind, _LABEL_LENGTH)
        length = TextPath((0, 0), words, size=_LABEL_SIZE, prop=font).get_extents().width + _LABEL_SPACE
        x = event.time_s / _end(timeline) * width
        if x + length <= limit or x - length < -_LEFT * _POINTS:
            rightward.append(_Flag(event, words, x, x, x + length))
        else:
            leftward.insert(0, _Flag(event, words, x, x - length, x))
            limit = x
    placed: list[_Flag] = []
    for flag in (*rightward, *leftward):
        placed.append(_lowest(flag, placed))
    return tuple(placed)


def _lowest(flag: _Flag, placed: list[_Flag]) -> _Flag:
    """Return `flag` in the lowest row where its text meets no other flag and its line no other text, or no text."""

    def is_free(lane: int, lines: bool) -> bool:
        for other in placed:
            texts_meet = flag.begin < other.end and other.begin < flag.end
            line_meets = other.begin < flag.x < other.end and other.lane < lane
            is_crossed = flag.begin < other.x < flag.end and other.lane > lane
            if (lines and (line_meets or is_crossed)) or (texts_meet and other.lane == lane):
                return False
        return True

    tries = ((lane, lines) for lines in (True, False) for lane in range(len(placed) + 1))
    return replace(flag, lane=next(lane for lane, lines in tries if is_free(lane, lines)))


def _draw_flags(axes: Axes, flags: tuple[_Flag, ...]) -> None:
    for flag in flags:
        # In points from the panel's upper left corner: the panel's own units end at its edge.
        up = (flag.lane + 0.25) * _LANE * _POINTS
        coords = {"xycoords": ("data", "axes fraction"), "textcoords": "offset points"}
        place: dict[str, Any] = {**coords, "annotation_clip": False}
        line = {"arrowstyle": "-", "color": pictures.QUIET, "linewidth": 0.7, "shrinkA": 0, "shrinkB": 0}
        axes.annotate("", (flag.event.time_s, 1), (0, up + 7), arrowprops=line, **place)
        side, away = ("left", 3) if flag.begin == flag.x else ("right", -3)
        look: dict[str, Any] = {"ha": side, "fontsize": _LABEL_SIZE, "zorder": 4}  # above the lines that it covers
        behind = {"facecolor": "white", "edgecolor": "none", "pad": 0.5}
        axes.annotate(flag.words, (flag.event.time_s, 1), (away, up), bbox=behind, **look, **place)


def _caption(timeline: Timeline) -> str:
    work = f"{timeline.num_steps} steps in {timeline.wall_s:.0f} s, {counted(timeline.restarts, 'restart')}"
    words = f"{work}, goodput {100 * timeline.goodput:.0f} %"
    return f"{words}   ({timeline.state})" if timeline.state else words


def _legend(timeline: Timeline) -> list[Patch]:
    patches = [Patch(color=_NODES, alpha=0.75, label="training"), Patch(color=_STARTING, label="starting")]
    if any(color == _STOPPED for *_, color in _idle_spans(timeline)):
        patches.append(Patch(color=_STOPPED, label="stopped"))
    if any(not step.kept for step in timeline.steps):
        patches.append(Patch(color=_LOST, label="steps lost"))
    if timeline.samples_redone:
        patches.append(Patch(color=_AGAIN, label="trained again"))
    return patches
