"""A Timeline as text for people and as plain data for programs."""

import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import Field, asdict, fields
from statistics import median
from typing import Any

from launcher.common import text_table
from launcher.common.text_table import clipped
from launcher.common.texts import counted
from launcher.timeline.values import StartParts, StayParts, Timeline, Transition

_PAGE = 100
"""Maximum columns of the sentences."""

_HEAD = ("at", "nodes", "cause", "wait", "stop", "", "regroup", "restart", "total", "lost")
_CAUSE = 2
_NUMBERS = (0, 3, 4, 6, 7, 8, 9)
"""Columns that are right-aligned."""
_MIN_CAUSE = 8
_BLOCKING = ("leave_s", "join_s", "move_s")
"""Parts of a change in place between the last step before it and the moment from which ranks train again."""


def text(timeline: Timeline, width: int | None = None) -> str:
    """Return one row per transition, and the totals as sentences, in `width` columns; None for no limit."""
    page = min(width or _PAGE, _PAGE)
    rows = [_row(transition) for transition in timeline.transitions]
    lines = textwrap.wrap(f"{_sizes(timeline)} (times in seconds, lost in samples)", page)
    lines += _table([_HEAD, *rows], width) if rows else []
    lines += textwrap.wrap(_totals(timeline), page)
    for sentence in (_typical_restart(timeline), _typical_stay(timeline)):
        lines += textwrap.wrap(sentence, page) if sentence else []
    for heading, said in timeline.failure.lines() if timeline.failure else ():
        lines += textwrap.wrap(f"{heading}: {said}", page)
    never = [f"never came: {message}" for message in timeline.unfired]
    lines += [clipped(line, width) for line in never] if width else never
    return "\n".join(lines) + "\n"


def to_json(timeline: Timeline) -> dict[str, object]:
    """Return the timeline as plain data: the fields of the values, with times to 0.1 ms, and the totals."""
    totals = ("useful_s", "data_s", "goodput", "samples", "samples_lost", "samples_redone", "num_steps", "last_step")
    data = asdict(timeline)
    lists = {name: data.pop(name) for name in ("transitions", "attempts", "events", "unfired", "steps")}
    values = data | {name: getattr(timeline, name) for name in totals} | lists
    return {name: _rounded(value, name) for name, value in values.items()}


def _rounded(value: Any, key: str = "") -> Any:
    if isinstance(value, dict):
        return {name: _rounded(each, name) for name, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_rounded(each, key) for each in value]
    return round(value, 4) if isinstance(value, float) and key != "loss" else value


def _row(transition: Transition) -> tuple[str, ...]:
    return (
        f"{transition.came_s:.1f}",
        f"{transition.from_nodes} -> {transition.to_nodes}",
        transition.cause.splitlines()[0] if transition.cause else transition.reason,
        *map(_seconds, (transition.wait_s, transition.stop_s)),
        _manner(transition),
        *map(_seconds, (transition.regroup_s, transition.restart_s, transition.total_s)),
        str(transition.samples_lost),
    )


def _seconds(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}"


def _manner(transition: Transition) -> str:
    """Return the way the workers were stopped."""
    if transition.graceful is None:
        return "given up" if transition.given_up else ""
    if transition.kept_by is not None:
        return "in place"
    if not transition.graceful:
        return "killed"
    return "unsaved" if transition.saved is False else "graceful"


def _table(rows: Sequence[tuple[str, ...]], width: int | None) -> list[str]:
    """Return rows as aligned lines; the cause gets the columns that the others leave."""
    if width is not None:
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        others = sum(widths) - widths[_CAUSE] + 2 * (len(_HEAD) - 1) + 1
        room = max(_MIN_CAUSE, width - others)
        rows = [(*cells[:_CAUSE], clipped(cells[_CAUSE], room), *cells[_CAUSE + 1 :]) for cells in rows]
    return text_table.table(rows, _NUMBERS)


def _sizes(timeline: Timeline) -> str:
    sizes = [str(attempt.nodes) for attempt in timeline.attempts]
    if not sizes:
        return "no workers were started"
    return f"{' -> '.join(sizes)} node{'' if sizes == ['1'] else 's'}"


def _totals(timeline: Timeline) -> str:
    state = timeline.state or ("still running" if timeline.is_running else "its operator died")
    steps = counted(timeline.num_steps, "step")
    if timeline.num_steps != timeline.last_step:  # earlier launches did the others
        steps += f" up to step {timeline.last_step}"
    num_stays = sum(each.stay is not None for each in timeline.transitions)
    restarts = counted(timeline.restarts, "restart") + (f" ({num_stays} in place)" if num_stays else "")
    head = f"{state} after {timeline.wall_s:.1f} s, {restarts}, {steps}."
    if not timeline.steps:
        return f"{head} No step was reported."
    skipped = f" {counted(timeline.skipped_steps, 'step')} skipped, not finite." if timeline.skipped_steps else ""
    return (
        f"{head} Goodput {100 * timeline.goodput:.0f} %: {timeline.useful_s:.1f} s went into steps that count,"
        f" {timeline.data_s:.1f} s into waiting for their data."
        f" {counted(timeline.samples_lost, 'sample')} lost, {timeline.samples_redone} trained again.{skipped}"
    )


def _typical_restart(timeline: Timeline) -> str | None:
    """Return the median restart and the medians of its parts, which need not add up."""
    restarts = [each for each in timeline.transitions if each.reason != "start" and each.parts and not each.stay]
    totals = [each.restart_s for each in restarts if each.restart_s is not None]
    if not totals:
        return None
    kind = "The restart" if len(totals) == 1 else f"The median of {len(totals)} restarts"
    parts = ", ".join(_medians([each.parts for each in restarts if each.parts], fields(StartParts)))
    return f"{kind}, order to first step: {median(totals):.1f} s ({parts})."


def _typical_stay(timeline: Timeline) -> str | None:
    """Return how long changes blocked training after which ranks continued with their state, and a restart would."""
    stays = [each.stay for each in timeline.transitions if each.stay]
    blocked = [each.blocked_s for each in stays if each.blocked_s is not None]
    if not blocked:
        return None
    kind = "A change in place" if len(blocked) == 1 else f"{len(blocked)} changes in place"
    times = f"{median(blocked):.1f} s" if len(blocked) == 1 else f"{median(blocked):.1f} s each, in the median"
    parts = ", ".join(_medians(stays, [each for each in fields(StayParts) if each.name in _BLOCKING]))
    moved = sum(each.moved_bytes for each in stays) / 1e6
    sentence = f"{kind} blocked training for {times} ({parts}); {moved:,.1f} MB moved."
    if timeline.restart_s is not None:
        sentence += f" Restarts would have taken about {timeline.restart_s:.1f} s more each."
    return sentence


def _medians(starts: Sequence[StartParts | StayParts], parts: Sequence[Field[Any]]) -> Iterator[str]:
    for field in parts:
        values = [value for each in starts if (value := getattr(each, field.name)) is not None]
        if values:
            yield f"{field.name.removesuffix('_s').replace('_', ' ')} {median(values):.1f}"
