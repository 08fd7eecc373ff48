"""Charts as SVG text: of given values only, without styles, scripts or files of their own; `charts.css` colours them.

Colour never carries a meaning alone: lines differ in their dashes, marks in their shapes. Each chart has a title and
a description for those who do not see it, and each part a title that a browser shows under the pointer.
"""

import math
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from markupsafe import Markup

from launcher.api.timelines import Attempt, Event, Transition
from launcher.common.texts import counted
from launcher.ui import chart_parts as svg

_MOST_POINTS = 1200
"""Points of all lines of a chart, about two for each of its columns. More are thinned to the extremes of a column."""
_MOST_DASHED = 100
"""Points of a line with dashes. In a longer one, which may be noisy, they would look like gaps: it has more marks."""
_MOST_DESCRIBED = 8
_MOST_ATTEMPTS = 400
_MOST_TRANSITIONS = 20
_MOST_HAIRS = 40
"""Marks of events with a line down to the time axis; of more, the lines would hide the attempts."""
_MOST_DOTS = 1000
_MOST_JOINED = 5
"""Messages in the title of a mark that stands for several events."""
_BEST = "m0-8l2.4 4.9 5.4.8-3.9 3.8.9 5.3-4.8-2.5-4.8 2.5.9-5.3-3.9-3.8 5.4-.8z"
_KINDS = {
    "scenario": (svg.TRIANGLE, "c4"),
    "request": (svg.DIAMOND, "c3"),
    "fault": (svg.CROSS, "c1"),
    "operator": (svg.SQUARE, "c5"),
    "other": (svg.CIRCLE, "c2"),
}
"""The mark of each kind of events, from the top; "other" has those that this module does not know."""
_WAIT, _RESTART = 0, 8
_PHASES = (
    ("wait", "seg c5 light"),
    ("stop", "seg c1"),
    ("regroup", "seg c3"),
    ("spawn", "seg c0"),
    ("imports", "seg c0 light"),
    ("rendezvous", "seg c4"),
    ("restore", "seg c2"),
    ("first step", "seg c2 light"),
    ("restart", "seg c5"),
)
"""The phases of a transition with their classes, in their order; the last is what is not known in parts."""


@dataclass(frozen=True, slots=True)
class Line:
    """A named line of (x, y) points; a NaN or infinite value is a gap."""

    name: str
    points: Sequence[tuple[float, float]]


@dataclass(frozen=True, slots=True)
class Dot:
    """A labelled point of a scatter chart."""

    x: float
    y: float
    label: str
    is_best: bool


@dataclass(frozen=True, slots=True)
class PlanSize:
    """A size of a plan.

    Args:
        largest_share: Samples of a step that the busiest rank trains.
        equal_share: The same if all ranks could train equally many: a fraction.
        is_even: Whether they do.
        is_start: Whether the job starts at this size.
    """

    nodes: int
    largest_share: float
    equal_share: float
    is_even: bool
    is_start: bool

    @classmethod
    def every(cls, plan: Mapping[str, Any]) -> "list[PlanSize]":
        """Return the sizes of a plan, as `recipes plan --json` prints it, that have a batch."""
        return [
            cls(
                scale["nodes"],
                share["large"],
                scale["samples_per_step"] / scale["data_parallel_size"],
                share["small"] == share["large"],
                scale["nodes"] == plan["initial_nodes"],
            )
            for scale in plan["scales"]
            if (share := scale["samples_per_rank"])
        ]


def lines(title: str, every: Sequence[Line], *, x: str, y: str) -> Markup:
    """Draw lines over a common axis, with a legend if there are several.

    Args:
        x: Name of the horizontal axis.
        y: Name of the vertical axis.
    """
    drawn = [(each.name, svg.usable(each.points)) for each in every]
    drawn = [(name, points) for name, points in drawn if any(point is not None for point in points)]
    if not drawn:
        return svg.empty("lines", title)
    points = [point for _, line in drawn for point in line if point is not None]
    legend, top = (
        svg.legend([(svg.sample(i), name) for i, (name, _) in enumerate(drawn)], 560) if len(drawn) > 1 else ("", 0)
    )
    height = 250 + top
    across = svg.axis([px for px, _ in points], 50, 546, most=6, is_tight=True)
    up = svg.axis([py for _, py in points], height - 36, top + 26, most=5)
    allowed = max(4, _MOST_POINTS // len(drawn))
    body = []
    for i, (name, line) in enumerate(drawn):
        placed = svg.thinned([point and (across.at(point[0]), up.at(point[1])) for point in line], allowed)
        seen = [point for point in placed if point is not None]
        is_dashed = len(seen) <= _MOST_DASHED
        marked = [] if len(drawn) > svg.MOST_IN_LEGEND else seen[-1:]
        if marked and not is_dashed and len(drawn) > 1:
            marked = [seen[len(seen) * quarter // 4] for quarter in (1, 2, 3)] + marked
        body.append(
            f'<g class="{svg.look(i, is_dashed=is_dashed)}">{svg.titled(name)}'
            f'<path class="line" d="{svg.path(placed)}"/>'
            f"{''.join(svg.mark(i, *point) for point in marked)}</g>"
        )
    words = [svg.in_words(name, [point for point in line if point], x) for name, line in drawn]
    more = [f"{len(words) - _MOST_DESCRIBED} more lines."] if len(words) > _MOST_DESCRIBED else []
    return svg.chart(
        "lines",
        title,
        " ".join(words[:_MOST_DESCRIBED] + more),
        (560, height),
        [legend, svg.grid(across, up), *body, svg.names(across, up, x, y)],
    )


def sizes(
    title: str, attempts: Sequence[Attempt], events: Sequence[Event], until_s: float, allowed: tuple[int, ...]
) -> Markup:
    """Draw a job's nodes over time, with the events that changed them.

    From the start of an attempt to the end of its first step, the area is hatched. At most the last 400 attempts are
    drawn; events of a kind that would overlap share a mark.

    Args:
        until_s: End of the time axis.
        allowed: Numbers of nodes the job may have: faint lines, up to the first above those it had.
    """
    ran = [each for each in attempts if svg.is_number(each.started_s) and svg.is_number(each.ended_s)][
        -_MOST_ATTEMPTS:
    ]
    if not ran:
        return svg.empty("sizes", title)
    most = max(each.nodes for each in ran)
    until = until_s if svg.is_number(until_s) and until_s > 0 else max(each.ended_s for each in ran)
    lanes = _lanes(events, until)
    top = 34 + 17 * len(lanes)
    base = top + 200
    across = svg.axis([0, until], 66, 744, most=7, is_time=True, is_tight=True)
    shown = [size for size in allowed if 0 < size <= min((more for more in allowed if more > most), default=most)]
    up = svg.node_axis(shown, {each.nodes for each in ran}, base, top + 26)
    hatch = f"hatch-{zlib.crc32(repr((title, until, len(ran))).encode('utf-8', 'replace')):08x}"
    legend, _ = svg.legend(
        [
            ('<path class="area c0" d="M0-9h22V2H0z"/><path class="edge c0" d="M0-9h22"/>', "training"),
            (
                f'<path fill="url(#{hatch})" d="M0-9h22V2H0z"/><path class="edge starting c0" d="M0-9h22"/>',
                "start, until the first step",
            ),
        ],
        760,
        left=66,
    )
    first, last, low = ran[0].nodes, ran[-1].nodes, min(each.nodes for each in ran)
    words = (
        f"{counted(first, 'node')} first, {last} last, {low} at least, {most} at most, in"
        f" {counted(len(ran), 'attempt')} until {svg.span(until)}."
    )
    happened = "; ".join(f"{kind}: {sum(len(group) for _, group in groups)}" for kind, groups in lanes)
    return svg.chart(
        "sizes",
        title,
        f"{words} Events: {happened}." if happened else words,
        (760, base + 36),
        [
            f'<defs><pattern id="{hatch}" width="6" height="6" patternUnits="userSpaceOnUse">'
            '<path class="hatch c0" d="M-1 1l2-2M0 6l6-6M5 7l2-2"/></pattern></defs>',
            legend,
            svg.grid(across, up),
            _events(lanes, across, base),
            *_steps(ran, across, up, hatch),
            f'<path class="axis" d="M66 {base}H744"/>',
            svg.names(across, up, "time since the launch", "nodes"),
        ],
    )


def restarts(title: str, transitions: Sequence[Transition]) -> Markup:
    """Draw the last 20 transitions as bars of the seconds that each of their phases took.

    A wait that is much longer than all the rest of the transitions is drawn shortened, with a break.
    """
    rows = [(each, list(_phases(each))) for each in transitions[-_MOST_TRANSITIONS:]]
    if not any(phases for _, phases in rows):
        return svg.empty("restarts", title)
    present = [i for i in range(len(_PHASES)) if any(i == phase for _, phases in rows for phase, _ in phases)]
    legend, top = svg.legend(
        [(f'<path class="{_PHASES[i][1]}" d="M0-9h16V2H0z"/>', _PHASES[i][0]) for i in present],
        760,
        left=10,
        sample_width=16,
    )
    works = [sum(seconds for phase, seconds in phases if phase != _WAIT) for _, phases in rows]
    longest_wait = max(works) * 1.5 if max(works) > 0 else math.inf
    shown = [[(i, min(s, longest_wait) if i == _WAIT else s) for i, s in phases] for _, phases in rows]
    base = top + 14 + 24 * len(rows)
    totals = [sum(seconds for _, seconds in phases) for phases in shown]
    across = svg.axis([0, max(totals) or 1.0], 150, 690, most=6, is_time=True, is_tight=True)
    body = []
    for row, ((transition, phases), cut) in enumerate(zip(rows, shown, strict=True)):
        y, at = top + 12 + 24 * row, across.start
        change = f"{transition.from_nodes} → {transition.to_nodes}"
        body.append(f'<text class="tick" x="142" y="{y + 13}" text-anchor="end">{svg.text(change)} ')
        body.append(f'<tspan class="quiet">{svg.text(transition.reason, 12)}</tspan></text>')
        for (phase, seconds), (_, drawn) in zip(phases, cut, strict=True):
            name, look = _PHASES[phase]
            end = at + across.at(drawn) - across.start
            body.append(f"<g>{svg.titled(f'{name}: {svg.span(seconds)}')}")
            body.append(f'<path class="{look}" d="{svg.box(at, y, end, y + 18)}"/>')
            if drawn < seconds:
                body.append(f'<path class="break" d="M{svg.n((at + end) / 2 - 3)} {y + 20}l5-22m4 0l-5 22"/>')
            elif end - at > 9 * len(svg.span(seconds)):
                body.append(
                    f'<text class="inside" x="{svg.n((at + end) / 2)}" y="{y + 13}">{svg.span(seconds)}</text>'
                )
            body.append("</g>")
            at = end
        total = sum(seconds for _, seconds in phases)
        body.append(
            f'<text class="total" x="{svg.n(at + 6)}" y="{y + 13}">{svg.span(total) if phases else "no times"}</text>'
        )
    spent = [sum(seconds for _, seconds in phases) for _, phases in rows if phases]
    words = (
        f"{counted(len(rows), 'transition')}: first {svg.span(spent[0])}, last {svg.span(spent[-1])},"
        f" shortest {svg.span(min(spent))}, longest {svg.span(max(spent))}."
    )
    grid = "".join(f"M{svg.n(across.at(tick))} {top + 8}V{base}" for tick, _ in across.ticks)
    labels = [svg.label(across.at(tick), base + 15, text) for tick, text in across.ticks]
    axis = f'<path class="axis" d="M150 {top + 8}V{base}"/>'
    return svg.chart(
        "restarts",
        title,
        words,
        (760, base + 24),
        [legend, f'<path class="rules" d="{grid}"/>', *body, axis, *labels],
    )


def plan(title: str, sizes: Sequence[PlanSize]) -> Markup:
    """Draw the samples of the busiest rank over the numbers of nodes, and beside it equal shares.

    Filled circles are sizes at which all ranks train equally many samples, hollow squares the others. Both axes are
    logarithmic if the sizes differ much: equal shares are a straight line then, and small differences from it show.
    """
    known = [
        replace(each, largest_share=svg.number(each.largest_share), equal_share=svg.number(each.equal_share))
        for each in sizes
    ]
    known = [each for each in known if each.nodes > 0 and each.largest_share > 0]
    if not known:
        return svg.empty("plan", title)
    known.sort(key=lambda each: each.nodes)
    nodes = [each.nodes for each in known]
    items = [('<path class="line c5 d2" d="M0-4h22"/>', "equal shares")]
    if any(each.is_even for each in known):
        items.append((svg.mark(svg.CIRCLE, 11, -4, "c0"), "even"))
    if not all(each.is_even for each in known):
        items.append((svg.mark(svg.SQUARE, 11, -4, "c1 hollow"), "uneven"))
    legend, top = svg.legend(items, 560)
    height = 262 + top
    across = svg.node_axis(nodes, {each.nodes for each in known if each.is_start}, 66, 530, gap=30, is_across=True)
    shares = [each.largest_share for each in known] + [each.equal_share for each in known]
    shares = [each for each in shares if svg.is_number(each) and (each > 0 or not across.is_log)] or [1.0]
    low = [] if across.is_log else [0.0]
    up = svg.axis([*low, *shares], height - 36, top + 26, most=5, is_log=across.is_log)
    ideal = [(across.at(each.nodes), up.at(each.equal_share)) if each.equal_share > 0 else None for each in known]
    equal = svg.path(svg.thinned(ideal, 600))
    body = [f'<g class="c5 d2">{svg.titled("equal shares")}<path class="line" d="{equal}"/></g>']
    for each in known:
        px, py = across.at(each.nodes), up.at(each.largest_share)
        kind = "even" if each.is_even else f"uneven; equal shares would be {svg.short(each.equal_share)}"
        about = f"{counted(each.nodes, 'node')}: {svg.short(each.largest_share)} samples, {kind}"
        if each.is_start:
            body.append(f'<path class="ring" d="M{svg.n(px)} {svg.n(py)}m-9 0a9 9 0 1 0 18 0a9 9 0 1 0-18 0z"/>')
            beside = py - 14 if py > top + 44 else py + 24  # not into the name of the axis
            body.append(f'<text class="value" x="{svg.n(px)}" y="{svg.n(beside)}" text-anchor="middle">start</text>')
        shape, look = (svg.CIRCLE, "c0") if each.is_even else (svg.SQUARE, "c1 hollow")
        body.append(svg.mark(shape, px, py, look, about + (", the start" if each.is_start else "")))
    uneven = sum(not each.is_even for each in known)
    words = svg.in_words("samples of the busiest rank", [(s.nodes, s.largest_share) for s in known], "nodes")
    return svg.chart(
        "plan",
        title,
        f"{words} {uneven} of {counted(len(known), 'size')} are uneven.",
        (560, height),
        [legend, svg.grid(across, up), *body, svg.names(across, up, "nodes", "samples of the busiest rank")],
    )


def scatter(title: str, points: Sequence[Dot], *, x: str, y: str, is_log_x: bool = False) -> Markup:
    """Draw labelled points; the best are stars with their labels. Points that are not finite are left out."""
    known = [replace(each, x=svg.number(each.x), y=svg.number(each.y)) for each in points]
    known = [each for each in known if not math.isnan(each.x + each.y) and (each.x > 0 or not is_log_x)]
    known = [each for each in known if not each.is_best][-_MOST_DOTS:] + [each for each in known if each.is_best][-9:]
    if not known:
        return svg.empty("scatter", title)
    across = svg.axis([each.x for each in known], 56, 540, most=6, is_log=is_log_x)
    up = svg.axis([each.y for each in known], 236, 28, most=5)
    body = []
    for each in known:
        px, py = across.at(each.x), up.at(each.y)
        about = f"{each.label}: {x} {svg.short(each.x)}, {y} {svg.short(each.y)}"
        if each.is_best:
            side = ("end", px - 12) if px > 300 else ("start", px + 12)
            body.append(
                f'<g>{svg.titled(f"best: {about}")}<path class="mark best c1" d="M{svg.n(px)} {svg.n(py)}{_BEST}"/>'
            )
            body.append(f'<text class="value" x="{svg.n(side[1])}" y="{svg.n(py + 4)}" text-anchor="{side[0]}">')
            body.append(f"{svg.text(each.label, 28)}</text></g>")
        else:
            body.append(svg.mark(svg.CIRCLE, px, py, "c0 dot", about))
    ordered = sorted((each.x, each.y) for each in known)
    best = "".join(f" Best: {each.label} at {x} {svg.short(each.x)}." for each in known if each.is_best)
    return svg.chart(
        "scatter",
        title,
        f"{counted(len(known), 'point')}. {svg.in_words(y, ordered, x)}{best}",
        (560, 272),
        [svg.grid(across, up), *body, svg.names(across, up, x, y)],
    )


_Lane = tuple[str, list[tuple[float, list[Event]]]]
"""A kind of events, and those of about the same time together, each with the time of the first."""


def _lanes(events: Sequence[Event], until: float) -> list[_Lane]:
    known = [each for each in events if svg.is_number(each.time_s) and 0 <= each.time_s <= until]
    lanes: dict[str, list[tuple[float, list[Event]]]] = {kind: [] for kind in _KINDS}
    for event in sorted(known, key=lambda each: each.time_s):
        lane = lanes[event.kind if event.kind in lanes else "other"]
        if lane and event.time_s - lane[-1][0] < until / 70:
            lane[-1][1].append(event)
        else:
            lane.append((event.time_s, [event]))
    return [(kind, groups) for kind, groups in lanes.items() if groups]


def _events(lanes: Sequence[_Lane], across: svg.Axis, base: float) -> str:
    hairs, found = [], []
    for row, (kind, groups) in enumerate(lanes):
        y = 36 + 17 * row
        shape, colour = _KINDS[kind]
        found.append(svg.label(across.start - 8, y + 4, kind, anchor="end", kind="lane"))
        for time_s, together in groups:
            x = across.at(time_s)
            hairs.append(f"M{svg.n(x)} {y + 6}V{base}")
            about = [f"{svg.span(each.time_s)}: {each.message[:120]}" for each in together[:_MOST_JOINED]]
            if len(together) > _MOST_JOINED:
                about.append(f"and {len(together) - _MOST_JOINED} more")
            found.append(svg.mark(shape, x, y, colour, "\n".join(about)))
    hair = f'<path class="hair" d="{"".join(hairs)}"/>' if len(hairs) <= _MOST_HAIRS else ""
    return hair + "".join(found)


def _steps(ran: Sequence[Attempt], across: svg.Axis, up: svg.Axis, hatch: str) -> Iterator[str]:
    labelled_until = -math.inf
    for each in ran:
        has_stepped = not math.isnan(step_s := svg.number(each.first_step_s))
        first_s = min(step_s, each.ended_s) if has_stepped else each.ended_s
        times = (each.started_s, first_s, each.ended_s)
        start, first, end = (min(max(across.at(time), across.start), across.end) for time in times)
        end = max(end, start + 0.6)  # a short one is still seen
        y, size = up.at(each.nodes), counted(each.nodes, "node")
        took = f"first step after {svg.span(first_s - each.started_s)}" if has_stepped else "no step"
        about = f"attempt {each.number}: {size}, {svg.span(each.started_s)} to {svg.span(each.ended_s)}, {took}"
        edge = f"M{svg.n(start)} {svg.n(up.start)}V{svg.n(y)}M{svg.n(end)} {svg.n(y)}V{svg.n(up.start)}"
        yield f"<g>{svg.titled(about)}"
        if first > start:
            yield f'<path fill="url(#{hatch})" d="{svg.box(start, y, first, up.start)}"/>'
            yield f'<path class="edge starting c0" d="M{svg.n(start)} {svg.n(y)}H{svg.n(first)}"/>'
        if end > first:
            yield f'<path class="area c0" d="{svg.box(first, y, end, up.start)}"/>'
            yield f'<path class="edge c0" d="M{svg.n(first)} {svg.n(y)}H{svg.n(end)}"/>'
        yield f'<path class="side c0" d="{edge}"/>'
        name = size if end - start > 64 else str(each.nodes)
        if end - start > 9 + 8 * len(name) and (start + end) / 2 - 4 * len(name) > labelled_until:
            yield svg.label((start + end) / 2, y - 6, name, kind="value")
            labelled_until = (start + end) / 2 + 4 * len(name)
        yield "</g>"


def _phases(transition: Transition) -> Iterator[tuple[int, float]]:
    """Yield the phases that took time, as indices of `_PHASES`, with their seconds."""
    parts = transition.parts
    each = (parts.spawn_s, parts.import_s, parts.rendezvous_s, parts.restore_s, parts.first_step_s) if parts else ()
    before = (transition.wait_s, transition.stop_s, transition.regroup_s)
    took = [(phase, seconds) for phase, seconds in enumerate(map(svg.number, (*before, *each))) if seconds > 0]
    yield from took
    restart_s = svg.number(transition.restart_s)
    rest = restart_s - sum(seconds for phase, seconds in took if phase >= len(before))
    if rest > 0.01 * restart_s:
        yield _RESTART, rest
