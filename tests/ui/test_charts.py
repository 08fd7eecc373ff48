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
    assert chart_parts.path([(1, 2), (1.04, 2.01), (2, 3), (4, 4.5), (3, 4)]) == "M1 2h0l1 1 2 1.5-1-.5"


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.04, "0"), (-0.04, "0"), (0.5, ".5"), (-0.5, "-.5"), (10.0, "10"), (20.5, "20.5"), (-10.26, "-10.3")],
    ids=str,
)
def test_a_coordinate_is_short(value, text):
    assert chart_parts.n(value) == text


HEIGHTS = [3, 1, 4, 2, 9, 8, 7, 5]


@pytest.mark.parametrize(
    ("points", "most", "kept"),
    [
        # columns of 3.5: the first four, the next three, and the last
        (
            [(10 + i, y) for i, y in enumerate(HEIGHTS)],
            4,
            [(11, 1), (12, 4), (14, 9), (16, 7), (17, 5)],
        ),
        ([(10 + i, y) for i, y in enumerate(HEIGHTS)], 8, [(10 + i, y) for i, y in enumerate(HEIGHTS)]),
        ([None, (0, 1), None, None, (1, 2), (2, 3), None], 2, [(0, 1), None, (1, 2), (2, 3), None]),
        ([(5, 1), (5, 3), (5, 2), (5, 2)], 3, [(5, 1), (5, 3)]),
        ([(5, 1), (5, 3), (5, 2), (5, 2)], 4, [(5, 1), (5, 3), (5, 2), (5, 2)]),
    ],
    ids=["columns", "few", "gaps", "one-place", "few-in-one-place"],
)
def test_each_column_keeps_its_lowest_and_its_highest_point(points, most, kept):
    assert chart_parts.thinned(points, most) == kept


def test_points_without_a_number_are_gaps():
    points = [(1, 2.5), (NAN, 1), (1, "x"), (INF, INF), (3, 10)]
    assert chart_parts.usable(points) == [(1, 2.5), None, None, None, (3, 10)]


def text_at(x, y, text, anchor="middle", kind="tick"):
    return f'<text class="{kind}" x="{x}" y="{y}" text-anchor="{anchor}">{text}</text>'


def test_a_grid_has_a_line_for_each_height_and_labels_that_stay_within():
    up = chart_parts.Axis(0, 2, 110, 10, ((0, "none"), (1, "one")))
    for last, anchor in (("xyz", "middle"), ("wxyz", "end")):  # half of 4 letters is 14.4, and 14 are left
        across = chart_parts.Axis(0, 10, 50, 250, ((0, "0"), (9.5, "middle"), (10, last)))
        assert chart_parts.grid(across, up) == (
            '<path class="rules" d="M50 110H250M50 60H250"/>'
            '<path class="axis" d="M50 110H250M50 110v4M240 110v4M250 110v4"/>'
            + text_at(42, 114, "none", "end")
            + text_at(42, 64, "one", "end")
            + text_at(50, 127, "0")
            + text_at(240, 127, "middle")
            + text_at(250, 127, last, anchor)
        )
    assert chart_parts.names(across, up, "step", "y" * 41) == (
        text_at(250, 144, "step", "end", "name") + text_at(4, -2, "y" * 39 + "…", "start", "name")
    )


def test_a_legend_takes_as_many_lines_as_its_names_need():
    # a letter is 7.8 wide, a sample 22 with 20 around it: "loss" takes 73, a name of 31 letters as much as one of 30
    def drawn(*names, width, **options):
        legend, height = chart_parts.legend([("<a/>", name) for name in names], width, **options)
        assert legend.startswith('<g class="legend"><g ') and legend.endswith("</g></g>")
        found = re.findall(r'translate\((\d+ \d+)\)">(?:<a/>)?<text x="(\d+)">([^<]*)<', legend)
        return [*found, height]

    assert drawn("loss", "rate", width=196) == [("50 16", "28", "loss"), ("123 16", "28", "rate"), 20]
    assert drawn("loss", "rate", width=195) == [("50 16", "28", "loss"), ("50 36", "28", "rate"), 40]
    assert drawn("loss", width=60) == [("50 16", "28", "loss"), 20]  # on the first line, though it is too wide
    long = ("y" * 30, "y" * 29 + "…")
    assert drawn("y" * 30, "y" * 31, "z", width=700, left=8, sample_width=10) == [
        *[("8 16", "16", long[0]), ("272 16", "16", long[1]), ("536 16", "16", "z"), 20]
    ]
    *_, last, height = drawn(*"abcdefghijklm", width=1000)
    assert (last, height) == (("650 16", "28", "and 1 more"), 20)
    assert drawn(*"abcdefghijkl", width=1000)[-2][2] == "l"


def test_a_mark_and_a_sample_have_the_look_of_their_line():
    assert [chart_parts.look(index) for index in (0, 5, 6, 7, 35)] == ["c0 d0", "c5 d5", "c0 d1", "c1 d2", "c5 d4"]
    assert chart_parts.look(8, is_dashed=False) == "c2"
    square = '<path class="mark" d="M3 4.5m-3.5-3.5h7v7h-7z"'
    assert chart_parts.mark(chart_parts.SQUARE, 3, 4.5) == f"{square}/>"
    assert chart_parts.mark(7, 3, 4.5, about="a<b") == f"{square}><title>a&lt;b</title></path>"
    assert chart_parts.mark(5, 0, 0, "best") == '<path class="mark best" d="M0 0m-4.5 0h9m-4.5-4.5v9"/>'
    assert chart_parts.sample(3) == (
        '<g class="c3 d3"><path class="line" d="M0-4h22"/><path class="mark" d="M11 -4m0-5l5 5-5 5-5-5z"/></g>'
    )
    assert chart_parts.box(1, 2, 3.5, 4) == "M1 2H3.5V4H1z"


def test_a_text_by_others_is_short_on_one_line_and_without_secrets():
    assert chart_parts.text("y" * 40) == "y" * 40
    assert chart_parts.text("y" * 41) == "y" * 39 + "…"
    assert chart_parts.text("abcdef", 3) == "ab…"
    assert chart_parts.text("a\nb & c") == "a b &amp; c"
    assert chart_parts.text("a\nb", lines=True) == "a\nb"
    assert chart_parts.text("with ghp_" + "a1B2" * 9) == "with …"
    assert chart_parts.text("\ud800") == "?"
    assert chart_parts.titled("y" * 701) == f"<title>{'y' * 699}…</title>"
    assert chart_parts.text("y" * 2001, 2000) == "y" * 1999 + "…"
    assert chart_parts.text("y " * 990 + "ghp_" + "a1B2" * 9, 2000) == "y " * 990 + "…"


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
        *[(999.0, None, "999"), (1000.0, None, "1k"), (1e6, None, "1M"), (2.5e9, None, "2.5G")],
        *[(9.99e14, None, "999T"), (1e15, None, "1e15"), (999_999_999_999_999.0, 1e12, "1000T")],
        *[(0.001, None, "0.001"), (9.99e-4, None, "9.99e-4"), (-2.5e-4, None, "-2.5e-4")],
        *[(1e-300, None, "1e-300"), (9e-301, None, "0"), (NAN, None, "nan"), (-INF, None, "-inf")],
        *[(0.123, 0.1, "0.1"), (1234.0, 1e5, "1k"), (1004.0, None, "1k"), (2e-5, 1.0, "2e-5")],
        *[(1.23456789012, 1e-12, "1.23456789"), (1.23456789012e-5, 1e-20, "1.23456789e-5")],
    ],
    ids=str,
)
def test_numbers_are_short(value, step, text):
    assert chart_parts.short(value, step) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        *[(0, "0"), (0.5, "0.5 s"), (30, "30 s"), (90, "1 min 30 s"), (300, "5 min"), (7200, "2 h")],
        *[(0.256, "0.256 s"), (1.26, "1.3 s"), (12.34, "12.3 s"), (59.94, "59.9 s"), (59.95, "1 min"), (60, "1 min")],
        *[(119, "1 min 59 s"), (3599, "59 min 59 s"), (3600, "1 h"), (3725, "1 h 2 min"), (86_400, "1 d")],
        *[(90_000, "1 d 1 h"), (999 * 86_400, "999 d"), (1200 * 86_400, "1.2k d"), (-90, "-1 min 30 s")],
    ],
    ids=str,
)
def test_durations_are_short(seconds, text):
    assert chart_parts.span(seconds) == text


def test_a_duration_is_as_exact_as_its_step():
    assert [chart_parts.span(seconds, 0.01) for seconds in (30.04, 2.345, -1.5)] == ["30.04 s", "2.35 s", "-1.5 s"]


@pytest.mark.parametrize(
    ("value", "drawn"),
    [
        *[(2, 2.0), ("2.5", 2.5), (1e-300, 1e-300), (-1e-300, -1e-300), (9e-301, 0.0), (9.9e299, 9.9e299)],
        *[(1e300, None), (-1e300, None), (INF, None), (NAN, None), ("x", None), (None, None), (10**400, None)],
    ],
    ids=lambda value: str(value)[:9],
)
def test_a_number_that_can_be_drawn(value, drawn):
    found = chart_parts.number(value)
    assert math.isnan(found) if drawn is None else found == drawn
    assert chart_parts.is_number(value) == (drawn is not None)


OF_TIME = {"is_time": True, "is_tight": True}
AXES = [
    # values, most ticks, options; then low, high and the labels of the ticks
    ([0, 10], 5, {}, 0, 10.6, "0 5 10"),
    ([1, 10], 5, {}, 0, 10.54, "0 5 10"),  # 0 is near enough to be shown
    ([2.5, 10], 5, {}, 2.05, 10.45, "4 6 8 10"),
    ([-4, 6], 5, {}, -4.6, 6.6, "0 5"),
    ([3, 7], 4, {"is_tight": True}, 3, 7, "3 4 5 6 7"),
    ([5, 5], 5, {}, 4.5, 5.5, "4.6 4.8 5 5.2 5.4"),
    ([-5, -5], 5, {"is_tight": True}, -5.5, -4.5, "-5.4 -5.2 -5 -4.8 -4.6"),
    ([1e9, 1e9 + 1e-4], 5, {}, 0.9e9, 1.1e9, "900M 950M 1G 1.05G 1.1G"),
    ([1e9, 1e9 + 1], 1, {"is_tight": True}, 1e9, 1e9 + 1, "1G 1.000000001G"),
    ([0, 0], 4, {}, -1, 1, "-1 -0.5 0 0.5 1"),
    ([1e-300, 1e-300], 4, {}, -1, 1, "-1 -0.5 0 0.5 1"),
    ([0, 40], 6, {"is_tight": True}, 0, 40, "0 10 20 30 40"),
    ([0, 2], 4, OF_TIME, 0, 2, "0 0.5_s 1_s 1.5_s 2_s"),
    ([10, 10.12], 4, OF_TIME, 10, 10.12, "10_s 10.05_s 10.1_s"),
    ([100, 160], 4, OF_TIME, 100, 160, "1_min_45_s 2_min 2_min_15_s 2_min_30_s"),
    ([0, 5400], 4, OF_TIME, 0, 5400, "0 30_min 1_h 1_h_30_min"),
    ([0, 1_036_800], 4, OF_TIME, 0, 1_036_800, "0 5_d 10_d"),
    # with room by a factor: the 20th root of high / low, at least 1.05
    ([1, 1000], 4, {"is_log": True}, 10**-0.15, 10**3.15, "10 1k"),
    ([1, 1000], 5, {"is_log": True}, 10**-0.15, 10**3.15, "1 10 100 1k"),
    ([1, 100], 4, {"is_log": True}, 10**-0.1, 10**2.1, "1 10 100"),
    ([2, 500], 4, {"is_log": True}, 2 / 250**0.05, 500 * 250**0.05, "2 5 10 20 50 100 200 500"),
    ([1, 2], 4, {"is_log": True}, 1 / 1.05, 2.1, "1 2"),
    ([1, 1.1], 4, {"is_log": True}, 1 / 1.05, 1.155, "1 1.1"),
    ([1e-300, 1e300], 4, {"is_log": True}, 1e-300, 1e300, "1e-300 1e-150 1 1e150 1e300"),
    ([1e-200, 1e150], 2, {"is_log": True}, 1e-200, 1e150, "1e-200 1e-25 1e150"),
    ([1e200, 1e299], 3, {"is_log": True}, 10**195.05, 1e300, "1e230 1e265 1e300"),
    ([1e-299, 1e-200], 2, {"is_log": True}, 1e-300, 10**-195.05, "1e-300 1e-247"),
]


@pytest.mark.parametrize(("values", "most", "options", "low", "high", "labels"), AXES, ids=str)
def test_an_axis_has_room_and_round_ticks(values, most, options, low, high, labels):
    found = chart_parts.axis(values, 50, 550, most=most, **options)
    assert (found.low, found.high) == pytest.approx((low, high), rel=1e-12)
    assert (found.start, found.end, found.is_log) == (50, 550, options.get("is_log", False))
    assert [name for _, name in found.ticks] == [label.replace("_", " ") for label in labels.split()]
    assert all(found.low <= tick <= found.high for tick, _ in found.ticks)


def test_times_are_counted_in_round_units():
    lengths = [(1, "1 s"), (2, "2 s"), (5, "5 s"), (10, "10 s"), (15, "15 s"), (30, "30 s"), (60, "1 min")]
    lengths += [(120, "2 min"), (300, "5 min"), (600, "10 min"), (900, "15 min"), (1800, "30 min"), (3600, "1 h")]
    lengths += [(7200, "2 h"), (10_800, "3 h"), (21_600, "6 h"), (43_200, "12 h"), (86_400, "1 d"), (432_000, "5 d")]
    for seconds, name in lengths:
        assert chart_parts.axis([0, seconds], 0, 1, most=1, **OF_TIME).ticks == ((0, "0"), (seconds, name))


def test_a_value_has_a_place_on_its_axis():
    assert chart_parts.Axis(5, 15, 100, 300, ()).at(7.5) == 150
    assert chart_parts.Axis(0, 4, 100, 0, ()).at(1) == 75  # from below
    assert chart_parts.Axis(10, 1000, 40, 240, (), is_log=True).at(100) == pytest.approx(140)


@pytest.mark.parametrize(
    ("sizes", "first", "options", "low", "high", "is_log", "kept"),
    [
        ([1, 2, 4], [4], {}, 0, 4, False, [1, 2, 4]),
        ([1, 2, 3, 4], [], {"gap": 25}, 0, 4, False, [1, 2, 3, 4]),
        ([1, 2, 3, 4], [], {"gap": 26}, 0, 4, False, [2, 4]),
        ([1, 2, 3, 4], [3], {"gap": 26}, 0, 4, False, [1, 3]),
        ([1, 2], [4], {"gap": 60}, 0, 4, False, [1, 4]),
        ([100, 86, 85], [], {}, 0, 100, False, [85, 100]),
        ([1, 2, 8], [], {"is_across": True}, 1, 8, True, [1, 2, 8]),
        ([1, 7], [], {"is_across": True}, 1, 7, False, [1, 7]),
        ([0, 8], [], {"is_across": True}, 0, 8, False, [0, 8]),
        ([3], [3], {"is_across": True}, 2, 4, False, [3]),
        ([0], [], {}, -1, 1, False, [0]),
    ],
    ids=str,
)
def test_an_axis_of_nodes_labels_the_sizes_that_have_room(sizes, first, options, low, high, is_log, kept):
    expected = chart_parts.Axis(low, high, 100, 0, tuple((size, str(size)) for size in kept), is_log)
    assert chart_parts.node_axis(sizes, first, 100, 0, **options) == expected


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
