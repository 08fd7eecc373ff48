"""The charts of the page: SVG that is well-formed, small and harmless, whatever the values are."""

import math
import re
import xml.etree.ElementTree as ElementTree

import hypothesis
import pytest
from conftest import ANY_LOAD, ROOT
from hypothesis import strategies

from launcher.timeline.values import Attempt, Event, StartParts, Transition
from launcher.ui import chart_parts, charts

HOSTILE = "</title><script>alert(1)</script>\"' & \x1b[31m\x00\ud800\u202e"
CURVE = [(step, 2 + math.sin(step / 7) + step % 3 / 10) for step in range(600)]
NAN, INF = math.nan, math.inf


def attempt(number, nodes, started_s, first_step_s, ended_s):
    return Attempt(number, nodes, nodes * 8, started_s, first_step_s, ended_s, None, None, "")


def transition(reason="scale-up", *, wait_s=None, stop_s=None, regroup_s=None, restart_s=None, parts=None):
    return Transition(
        reason,
        2,
        4,
        "",
        0.0,
        0.0,
        None,
        wait_s,
        stop_s,
        regroup_s,
        restart_s,
        None,
        parts,
        None,
        None,
        None,
        None,
        False,
        1,
        0,
        0,
    )


ATTEMPTS = [attempt(0, 2, 0.0, 12.0, 300.0), attempt(1, 4, 305.0, 330.0, 900.0), attempt(2, 8, 905.0, None, 1000.0)]
DRAWN = {
    "lines": lambda text: charts.lines(text, [charts.Line(text, CURVE), charts.Line(text, CURVE)], x=text, y=text),
    "sizes": lambda text: charts.sizes(
        text, ATTEMPTS, [Event(5.0, text, text), Event(9.0, "fault", text)], 1000, (2, 4)
    ),
    "restarts": lambda text: charts.restarts(text, [transition(text, wait_s=2.0, stop_s=1.0)]),
    "plan": lambda text: charts.plan(
        text, [charts.PlanSize(2, 8, 8, True, True), charts.PlanSize(3, 6, 5.3, False, False)]
    ),
    "scatter": lambda text: charts.scatter(
        text, [charts.Dot(1, 2, text, True), charts.Dot(2, 2, text, False)], x=text, y=text
    ),
}
EMPTY = {
    "lines": lambda: charts.lines("a<b", [charts.Line("a", [(1, NAN)])], x="step", y="loss"),
    "sizes": lambda: charts.sizes("a<b", [], [], 10.0, (1, 2)),
    "restarts": lambda: charts.restarts("a<b", [transition()]),
    "plan": lambda: charts.plan("a<b", []),
    "scatter": lambda: charts.scatter("a<b", [charts.Dot(NAN, 1, "a", False)], x="a", y="b"),
}


def parsed(chart):
    return ElementTree.fromstring(str(chart))


def numbers_of(chart):
    return [float(each) for path in re.findall(r' d="([^"]*)"', chart) for each in re.findall(r"-?\d*\.?\d+", path)]


@pytest.mark.parametrize("kind", DRAWN)
def test_hostile_texts_are_escaped(kind):
    chart = str(DRAWN[kind](HOSTILE))
    root = parsed(chart)
    assert {each.tag for each in root.iter()} <= {
        *("svg", "title", "desc", "g", "path", "text", "tspan", "circle", "defs", "pattern")
    }
    assert not any(sign in chart for sign in "\x1b\x00\ud800\u202e")
    chart.encode("utf-8")


@pytest.mark.parametrize("kind", DRAWN)
def test_a_chart_is_a_titled_picture_without_styles(kind):
    chart = str(DRAWN[kind]("Title"))
    root = parsed(chart)
    assert root.get("role") == "img" and f"chart-{kind}" in root.get("class")
    assert [each.tag for each in root[:2]] == ["title", "desc"] and all(each.text for each in root[:2])
    assert "style" not in chart and " on" not in re.sub(r">[^<]*<", "><", chart)


@pytest.mark.parametrize("kind", EMPTY)
def test_no_values_are_a_text(kind):
    text = str(EMPTY[kind]())
    assert "<svg" not in text and "a<b" not in text and 'class="empty' in text


def test_classes_have_rules():
    css = (ROOT / "templates/ui/charts.css").read_text(encoding="utf-8")
    drawn = "".join(str(draw("text")) for draw in DRAWN.values())
    used = {name for names in re.findall(r'class="([^"]*)"', drawn) for name in names.split()}
    assert {name for name in used if f".{name}" not in css} <= {"d0"}, "a line without dashes needs none"
    assert "prefers-color-scheme: dark" in css


def test_a_line_of_600_points_is_small_and_rounded():
    chart = str(charts.lines("Loss", [charts.Line("loss", CURVE)], x="step", y="loss"))
    assert len(chart.encode()) <= 12_000
    assert all(abs(value * 10 - round(value * 10)) < 1e-6 for value in numbers_of(chart))


@pytest.mark.slow
def test_many_points_are_thinned_to_their_extremes():
    points = [(step, 5.0 if step == 41_234 else -3.0 if step == 70_000 else step % 2) for step in range(100_000)]
    chart = str(charts.lines("Loss", [charts.Line("loss", points)], x="step", y="loss"))
    assert len(chart.encode()) <= 14_000
    thinned = chart_parts.thinned(list(points), 1200)
    assert len(thinned) <= 1202 and (41_234, 5.0) in thinned and (70_000, -3.0) in thinned


@pytest.mark.parametrize("gap", [NAN, INF, -INF, 10**400, None, "x"], ids=str)
def test_a_value_that_is_not_finite_is_a_gap(gap):
    points = [(1, 1.0), (2, 2.0), (3, gap), (4, 3.0), (5, 2.0)]
    (line,) = re.findall(
        r'class="line" d="([^"]*)"', charts.lines("Loss", [charts.Line("loss", points)], x="x", y="y")
    )
    assert line.count("M") == 2


def test_a_path_is_relative_and_ends_where_its_points_end():
    points = [(10.04, 3.0), (10.5, 2.25), (9.0, 2.25), None, (4.0, 4.0)]
    assert chart_parts.path(points) == "M10 3h0l.5-.8-1.5 0M4 4h0"


@pytest.mark.slow
@ANY_LOAD
@hypothesis.given(
    strategies.lists(strategies.tuples(*[strategies.floats() | strategies.integers()] * 2), max_size=30),
    strategies.booleans(),
)
def test_any_numbers_are_drawn_within_the_chart(points, is_log):
    dots = [charts.Dot(x, y, "dot", x == y) for x, y in points]
    for chart in (
        charts.lines("Any", [charts.Line("any", points)], x="x", y="y"),
        charts.scatter("Any", dots, x="x", y="y", is_log_x=is_log),
    ):
        if chart.startswith("<svg"):
            root = parsed(chart)
            _, _, width, height = map(float, root.get("viewBox").split())
            for each in root.iter("text"):
                assert -1 <= float(each.get("x")) <= width + 1 and -1 <= float(each.get("y")) <= height + 1
            assert len(list(root.iter("text"))) < 40


@pytest.mark.parametrize(
    ("value", "step", "text"),
    [
        (0.0, 1.0, "0"),
        (1200.0, 200.0, "1.2k"),
        (3e6, 1e6, "3M"),
        (5e-5, 1e-5, "5e-5"),
        (0.30000000000000004, 0.1, "0.3"),
        (1_000_100.0, 100.0, "1.0001M"),
        (-2500.0, 500.0, "-2.5k"),
        (1e18, 1e17, "1e18"),
        (100.0, 20.0, "100"),
        (1.23456, None, "1.23"),
    ],
    ids=str,
)
def test_numbers_are_short(value, step, text):
    assert chart_parts.short(value, step) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0"), (0.5, "0.5 s"), (30, "30 s"), (90, "1 min 30 s"), (300, "5 min"), (7200, "2 h"), (90_000, "1 d 1 h")],
    ids=str,
)
def test_durations_are_short(seconds, text):
    assert chart_parts.span(seconds) == text


def test_time_axes_have_ticks_that_people_count_in():
    chart = charts.sizes("Nodes", ATTEMPTS, [], 5400.0, ())
    labels = [each.text for each in parsed(chart).iter("text") if each.get("class") == "tick"]
    assert {"15 min", "1 h", "1 h 15 min"} <= set(labels)


def test_several_lines_have_a_legend_and_differ_in_more_than_colour():
    every = [charts.Line(f"line {i}", [(0, i), (1, i + 1)]) for i in range(40)]
    chart = charts.lines("Lines", every, x="x", y="y")
    looks = re.findall(r'<g class="(c\d d\d)"><title>', chart)
    assert len(looks) == 40 and len(set(looks)) == 36
    assert ">line 11<" in chart and ">and 28 more<" in chart
    assert 'class="legend"' not in charts.lines("Line", every[:1], x="x", y="y")


def test_the_description_names_first_last_lowest_and_highest():
    chart = charts.lines("Loss", [charts.Line("loss", [(1, 2.5), (2, 3.0), (3, 0.5), (4, 1.25)])], x="step", y="loss")
    words = parsed(chart).find("desc").text
    assert words == "loss: first 2.5 at step 1, last 1.25 at step 4; lowest 0.5, highest 3."


def test_sizes_show_attempts_starts_and_events():
    events = [Event(310.0, "fault", "node 1 lost"), Event(311.0, "fault", "node 2 lost"), Event(600.0, "odd", "odd")]
    chart = charts.sizes("Nodes", ATTEMPTS, events, 1000.0, (2, 4, 8, 16, 32))
    titles = [each.text for each in parsed(chart).iter("title")]
    assert "attempt 1: 4 nodes, 5 min 5 s to 15 min, first step after 25 s" in titles
    assert any("attempt 2: 8 nodes" in title and "no step" in title for title in titles)
    assert "5 min 10 s: node 1 lost\n5 min 11 s: node 2 lost" in titles
    assert chart.count('fill="url(#hatch-') == 1 + len(ATTEMPTS)
    assert re.findall(r'text-anchor="end">(\d+)<', chart) == ["2", "4", "8", "16"]
    words = parsed(chart).find("desc").text
    assert words == (
        "2 nodes first, 8 last, 2 at least, 8 at most, in 3 attempts until 16 min 40 s. Events: fault: 2; other: 1."
    )


def test_sizes_of_many_attempts_and_events_stay_small():
    attempts = [attempt(i, 1 + i % 5, 10.0 * i, 10.0 * i + 2, 10.0 * i + 10) for i in range(2000)]
    events = [Event(2.0 * i, "fault", "x" * 1000) for i in range(10_000)]
    assert len(charts.sizes("Nodes", attempts, events, 20_000.0, tuple(range(1, 1000))).encode()) < 400_000
    sixty = charts.sizes("Nodes", attempts[:60], events[:60], 600.0, (1, 2, 4))
    assert len(sixty.encode()) < 45_000


@pytest.mark.parametrize("until_s", [NAN, INF, 0.0, -1.0, 1e-9, 1e12], ids=str)
def test_sizes_take_any_end(until_s):
    assert charts.sizes("Nodes", ATTEMPTS, [], until_s, ()).startswith("<svg")


def test_restarts_show_the_phases_of_the_last_20():
    parts = StartParts(1.0, 4.0, 2.0, None, 3.0)
    every = [transition(f"n{i}", wait_s=1.0, stop_s=0.5, restart_s=10.0, parts=parts) for i in range(25)]
    chart = charts.restarts("Restarts", every)
    titles = [each.text for each in parsed(chart).iter("title")]
    assert titles.count("imports: 4 s") == 20 and titles.count("stop: 0.5 s") == 20
    assert "restore" not in chart and "n4<" not in chart and "n24<" in chart
    assert "restart: 9 s" not in titles  # the parts are the restart


def test_restarts_without_parts_are_one_phase_and_a_rest_is_shown():
    (whole,) = re.findall(r"<title>(restart: [^<]*)", charts.restarts("R", [transition(restart_s=7.0)]))
    parts = StartParts(1.0, None, NAN, -4.0, None)
    (rest,) = re.findall(r"<title>(restart: [^<]*)", charts.restarts("R", [transition(restart_s=7.0, parts=parts)]))
    assert (whole, rest) == ("restart: 7 s", "restart: 6 s")


def test_a_long_wait_is_shortened_with_a_break():
    chart = charts.restarts("R", [transition(wait_s=9000.0, restart_s=20.0), transition(wait_s=1.0, restart_s=10.0)])
    assert chart.count('class="break"') == 1 and "wait: 2 h 30 min" in chart


def test_a_plan_tells_even_from_uneven_by_shape():
    sizes = [charts.PlanSize(n, -(-24 // n), 24 / n, 24 % n == 0, n == 4) for n in range(1, 7)]
    chart = charts.plan("Plan", sizes)
    marks = dict(re.findall(r'<path class="mark [^"]*" d="([^"]*)"><title>(\d+) node', chart))
    shapes = {int(nodes): "a4 4" in path for path, nodes in marks.items()}
    assert shapes == {1: True, 2: True, 3: True, 4: True, 5: False, 6: True}
    assert chart.count('class="ring"') == 1 and ">start<" in chart
    assert "5 nodes: 5 samples, uneven; equal shares would be 4.8" in chart


def test_a_scatter_shows_the_label_of_the_best():
    dots = [charts.Dot(10.0**-i, i, f"job-{i}", i == 3) for i in range(1, 6)]
    chart = charts.scatter("Sweep", dots, x="rate", y="loss", is_log_x=True)
    assert re.findall(r'class="value"[^>]*>([^<]*)<', chart) == ["job-3"]
    assert ">1e-4<" in chart and "job-5: rate 1e-5, loss 5" in chart
