"""Curves of a growing metrics file: bounded in memory, and exact in their extremes."""

import json
import math
import time
import tracemalloc
from collections import defaultdict

import hypothesis
import pytest
from conftest import ANY_LOAD
from hypothesis import strategies

from launcher.ui import series as module
from launcher.ui.charts import Line
from launcher.ui.series import MOST_ATTEMPTS, MOST_BUCKETS, MOST_NAMES, Series


def line(step, loss=1.0, attempt=0, **more):
    return json.dumps({"step": step, "loss": loss, "attempt": attempt, **more}) + "\n"


@pytest.fixture
def file(tmp_path):
    return tmp_path / "metrics.jsonl"


def read_all(series):
    while series.read():
        pass


def points(series, name="loss"):
    (found,) = series.lines(name, per_attempt=False)
    return list(found.points)


def test_a_missing_file_has_no_curves(file):
    series = Series(file)
    assert not series.read() and series.names() == [] and series.lines("loss", per_attempt=False) == []
    assert series.last("loss") is None and series.count("loss") == 0


def test_a_growing_file_is_read_on(file):
    series = Series(file)
    file.write_text(line(1, 3.0) + line(2, 2.0) + '{"step": 3, "lo')
    assert series.read() and not series.read()
    assert points(series) == [(1, 3.0), (2, 2.0)]
    with file.open("a") as end:
        end.write('ss": 1.5}\n' + line(4, 1.0))
    assert series.read() and not series.read()
    assert points(series) == [(1, 3.0), (2, 2.0), (3, 1.5), (4, 1.0)]
    assert series.last("loss") == 1.0 and series.count("loss") == 4


def test_names_are_those_of_steps_first(file):
    file.write_text(
        line(1, None, further={"eval/loss": 2.0, "loss": 9.0})
        + line(2, samples_per_s=4.0, learning_rate=1e-5, further={"accuracy": 0.5})
    )
    series = Series(file)
    series.read()
    assert series.names() == ["loss", "samples_per_s", "learning_rate", "eval/loss", "accuracy"]
    assert points(series) == [(2, 1.0)] and points(series, "eval/loss") == [(1, 2.0)]


@pytest.mark.parametrize(
    "content", ["", line(1, 7.0), line(1, 7.0) + line(2, 6.0) * 500], ids=["empty", "short", "long"]
)
def test_a_truncated_or_replaced_file_is_read_anew(file, content):
    file.write_text("".join(line(step) for step in range(1, 101)))
    series = Series(file)
    read_all(series)
    file.write_text(content)
    assert series.read()
    read_all(series)
    assert series.names() == (["loss"] if content else [])
    assert series.count("loss") == content.count("\n")
    file.unlink()
    assert series.read() == bool(content) and series.names() == []
    assert not series.read()


DAMAGE = "x" * 600 + "\n"


@pytest.mark.parametrize(
    ("first", "second", "losses"),
    [
        (line(1, 3.0) + DAMAGE + line(2, 2.0), line(1, 4.0) + DAMAGE + line(2, 2.0), [4.0, 2.0]),  # the same end
        (line(1, 3.0) + DAMAGE + line(2, 2.0), line(1, 3.0) + DAMAGE + line(2, 9.0), [3.0, 9.0]),  # the same begin
        (line(1, 3.0) + line(2, 2.0), line(1, 3.0) + line(2, 2.0)[:-1], [3.0]),  # shorter by one byte
        (line(1, 3.0) + line(2, 2.0), line(1, 3.0) + line(3, 2.0) + line(4, 1.0), [3.0, 2.0, 1.0]),
    ],
    ids=["begin", "end", "cut", "longer"],
)
def test_a_file_that_differs_in_its_begin_or_its_end_is_another_one(file, first, second, losses):
    file.write_text(first)
    series = Series(file)
    assert series.read()
    file.write_text(second)
    assert series.read()
    assert [loss for _, loss in points(series)] == losses
    assert not series.read()


def test_a_path_below_a_file_is_a_missing_file(tmp_path):
    (tmp_path / "file").write_text(line(1))
    assert not Series(tmp_path / "file" / "metrics.jsonl").read()
    with pytest.raises(IsADirectoryError):
        Series(tmp_path).read()


def test_reading_continues_until_a_time(file):
    file.write_text("".join(line(step) for step in range(100)))
    series = Series(file, most_bytes=1024)
    assert series.read_until(time.monotonic() - 1)
    assert series.count("loss") == 1024 // len(line(10))
    assert not series.read_until(time.monotonic() + 60)
    assert series.count("loss") == 100


def test_a_copy_that_has_grown_is_read_on(file, tmp_path):
    file.write_text(line(1) + line(2))
    series = Series(file)
    read_all(series)
    (tmp_path / "copy").write_text(line(1) + line(2) + line(3))
    (tmp_path / "copy").replace(file)
    read_all(series)
    assert series.count("loss") == 3


def test_one_call_reads_a_bounded_part(file):
    file.write_text("".join(line(step) for step in range(1000)))
    series, calls = Series(file, most_bytes=4096), 0
    while series.read():
        calls += 1
        assert series.count("loss") <= calls * 4096 / len(line(1))
    assert series.count("loss") == 1000 and calls >= file.stat().st_size / 4096


def test_a_line_longer_than_a_call_reads_is_left_out(file):
    file.write_text(
        line(1) + "x" * 10_000 + "\n" + line(2) + json.dumps({"step": 3, "loss": 1, "x": "y" * 9000}) + "\n"
    )
    series = Series(file, most_bytes=1024)
    read_all(series)
    assert points(series) == [(1, 1.0), (2, 1.0)]


def test_a_call_reads_8_mib_unless_told_otherwise(file):
    for size, is_read in ((8 * 1024 * 1024 - 1, False), (8 * 1024 * 1024, True)):
        with file.open("wb") as empty:
            empty.truncate(size)
        assert Series(file).read() is is_read  # of a line without an end, as much as a call reads


def test_the_longest_line_that_is_parsed_has_256_kib(file):
    rows = [line(step, x="y" * (262_144 - len(line(1, x="")) + 1 + longer)) for step, longer in ((1, 0), (2, 1))]
    assert [len(row) - 1 for row in rows] == [262_144, 262_145]
    file.write_text("".join(rows))
    series = Series(file)
    read_all(series)
    assert points(series) == [(1, 1.0)]


def test_a_call_that_ends_within_a_line_leaves_it_for_the_next(file):
    file.write_text("x" * 50 + line(9) + line(1) + line(2))
    series = Series(file, most_bytes=50)  # the first call has no line feed, the second one the rest of that line
    assert series.read() and series.names() == []
    assert series.read() and series.names() == []
    assert series.read() and series.count("loss") == 1
    assert series.read() and series.count("loss") == 2
    assert not series.read()


DAMAGED = [
    *(
        "",
        "{",
        "[]",
        "1",
        "null",
        '"text"',
        "\x00",
        '{"loss": 1}',
        '{"step": "1", "loss": 1}',
        '{"step": true, "loss": 1}',
    ),
    *('{"step": -1, "loss": 1}', '{"step": 1.5, "loss": 1}', '{"step": 1e400, "loss": 1}', "[" * 5000),
    *(
        f'{{"step": {10**30}, "loss": 1}}',
        '{"step": 1, "loss": "1"}',
        '{"step": 1, "loss": true}',
        '{"step": 1, "loss": []}',
    ),
    *(
        '{"step": 1, "further": [1]}',
        '{"step": 1, "further": {"a": {"b": 1}}}',
        '{"step": 1, "loss": 1' + "0" * 5000 + "}",
    ),
    *(
        '{"step": 1, "loss": null, "attempt": {}}',
        '{"step": NaN, "loss": 1}',
        f'{{"step": 1, "further": {{"{"n" * 201}": 1}}}}',
        f'{{"step": {1 << 53}, "loss": 1}}',
    ),
]


@pytest.mark.parametrize("damaged", DAMAGED, ids=lambda text: text[:32])
def test_a_damaged_line_is_left_out(file, damaged):
    file.write_text(line(1) + damaged + "\n" + line(2))
    series = Series(file)
    read_all(series)
    assert series.names() == ["loss"] and points(series) == [(1, 1.0), (2, 1.0)]


@pytest.mark.parametrize("value", ["NaN", "Infinity", "-Infinity", "1" + "0" * 400], ids=lambda text: text[:9])
def test_a_value_that_is_not_finite_is_a_gap(file, value):
    file.write_text(line(1) + f'{{"step": 2, "loss": {value}}}\n' + line(3))
    series = Series(file)
    read_all(series)
    assert [math.isnan(y) for _, y in points(series)] == [False, True, False] and series.count("loss") == 3


def test_values_of_each_kind_of_number_are_read(file):
    most = (1 << 53) - 1
    name = "n" * 200
    file.write_text(line(0, 2) + line(most, 1e308, further={name: 7, "big": 10**400, "small": -(10**400)}))
    series = Series(file)
    read_all(series)
    assert points(series) == [(0, 2.0), (most, 1e308)] and points(series, name) == [(most, 7.0)]
    assert [series.last(each) for each in ("loss", name, "big", "small")] == [1e308, 7.0, math.inf, -math.inf]
    assert type(series.last(name)) is float


def test_a_curve_has_at_most_600_buckets(file):
    file.write_text("".join(line(step) for step in range(600)))
    series = Series(file)
    read_all(series)
    assert points(series) == [(step, 1.0) for step in range(600)]
    with file.open("a") as end:
        end.write(line(600))
    read_all(series)
    assert points(series) == [(step, 1.0) for step in range(0, 601, 2)]


def test_a_full_curve_keeps_the_extremes_of_pairs_of_steps(file, monkeypatch):
    monkeypatch.setattr(module, "MOST_BUCKETS", 3)
    series = Series(file)

    def grown(*rows):
        with file.open("a") as end:
            end.writelines(line(*row) for row in rows)
        read_all(series)
        return points(series)

    assert grown((0, 5.0), (1, 1.0), (2, 3.0)) == [(0, 5.0), (1, 1.0), (2, 3.0)]
    assert grown((3, 4.0)) == [(0, 5.0), (1, 1.0), (2, 3.0), (3, 4.0)]  # buckets of two steps
    assert grown((4, math.nan), (5, 2.0), (5, 2.0))[-1:] == [(5, 2.0)]
    # buckets of four steps: of equal values, the first
    assert grown((6, 2.0), (7, 2.0)) == [(0, 5.0), (1, 1.0), (5, 2.0)]
    assert grown((8, 9.0)) == [(0, 5.0), (1, 1.0), (5, 2.0), (8, 9.0)]
    assert (series.count("loss"), series.last("loss")) == (10, 9.0)


def test_every_attempt_keeps_a_bucket_however_few_there_may_be(file, monkeypatch):
    monkeypatch.setattr(module, "MOST_BUCKETS", 2)
    file.write_text("".join(line(step, float(step), attempt) for attempt in range(3) for step in range(4)))
    series = Series(file)
    read_all(series)
    found = {each.name: list(each.points) for each in series.lines("loss", per_attempt=True)}
    assert found == {f"attempt {attempt}": [(0, 0.0), (3, 3.0)] for attempt in range(3)}


def test_the_oldest_attempts_are_one_line(file, monkeypatch):
    monkeypatch.setattr(module, "MOST_ATTEMPTS", 2)
    rows = [(1, 1.0, 0), (2, 2.0, 0), (2, 5.0, 1), (3, 3.0, 1), (4, 4.0, 2), (2, 0.5, 0)]
    file.write_text("".join(line(*row) for row in rows[:-1]))
    series = Series(file)
    read_all(series)
    found = {each.name: list(each.points) for each in series.lines("loss", per_attempt=True)}
    assert found == {"up to attempt 1": [(1, 1.0), (2, 2.0), (2, 5.0), (3, 3.0)], "attempt 2": [(4, 4.0)]}
    file.write_text("".join(line(*row) for row in rows))
    read_all(series)
    found = {each.name: list(each.points) for each in series.lines("loss", per_attempt=True)}
    older = [(1, 1.0), (2, 2.0), (2, 5.0), (3, 3.0), (4, 4.0)]
    assert found == {"up to attempt 2": older, "launch 2, attempt 0": [(2, 0.5)]}
    assert points(series) == [(1, 1.0), (2, 0.5), (2, 5.0), (3, 3.0), (4, 4.0)]


def test_a_metric_has_lines_of_the_attempts_that_have_it(file):
    file.write_text(line(1, None) + line(2, None, 1, further={"a": 1}) + '{"step": 3, "samples_per_s": 2}\n')
    series = Series(file)
    read_all(series)
    assert series.names() == ["samples_per_s", "a"]
    assert series.lines("a", per_attempt=False) == [Line("a", [(2.0, 1.0)])]
    assert series.lines("a", per_attempt=True) == [Line("attempt 1", [(2.0, 1.0)])]
    assert series.lines("samples_per_s", per_attempt=True) == [Line("attempt 1", [(3.0, 2.0)])]
    assert series.lines("loss", per_attempt=True) == []


@pytest.mark.parametrize("attempt", ['"1"', "true", "-1", "1e9", "null", str(10**30), str(1 << 53)])
def test_a_hostile_attempt_counts_to_the_one_before(file, attempt):
    file.write_text(line(1, attempt=2) + f'{{"step": 2, "loss": 1, "attempt": {attempt}}}\n')
    series = Series(file)
    read_all(series)
    assert [each.name for each in series.lines("loss", per_attempt=True)] == ["attempt 2"]


def test_the_first_attempt_is_number_0(file):
    file.write_text('{"step": 1, "loss": 2}\n' + line(2, 3.0, 0))
    series = Series(file)
    read_all(series)
    assert series.lines("loss", per_attempt=True) == [Line("attempt 0", [(1.0, 2.0), (2.0, 3.0)])]


def test_attempts_have_lines_of_their_own(file):
    file.write_text(
        "".join(line(step, 1.0, 0) for step in (1, 2, 3))
        + "".join(line(step, 2.0, 1) for step in (2, 3))
        + line(1, 3.0, 0)
    )
    series = Series(file)
    read_all(series)
    found = {each.name: list(each.points) for each in series.lines("loss", per_attempt=True)}
    assert found == {
        "attempt 0": [(1, 1.0), (2, 1.0), (3, 1.0)],
        "attempt 1": [(2, 2.0), (3, 2.0)],
        "launch 2, attempt 0": [(1, 3.0)],
    }
    assert points(series) == [(1, 1.0), (1, 3.0), (2, 1.0), (2, 2.0), (3, 1.0), (3, 2.0)]


def test_names_and_attempts_are_bounded(file):
    with file.open("w") as out:
        for step in range(300):
            out.write(line(step, float(step), attempt=step, further={f"metric {step % 50}": step, f"m{step}": 1}))
    series = Series(file)
    read_all(series)
    found = series.lines("loss", per_attempt=True)
    assert len(series.names()) == MOST_NAMES == 32 and len(found) == MOST_ATTEMPTS == 64
    assert found[0].name == "up to attempt 236" and found[-1].name == "attempt 299"
    assert sum(len(each.points) for each in found) == 300
    assert points(series) == [(step, float(step)) for step in range(300)]


def test_a_name_too_many_leaves_out_no_known_one(file):
    known = {f"metric {number}": 1 for number in range(31)}  # and the loss
    file.write_text(line(1, further=known) + line(2, further={"more": 2, "metric 0": 2}))
    series = Series(file)
    read_all(series)
    assert series.names() == ["loss", *known]
    assert points(series, "metric 0") == [(1, 1.0), (2, 2.0)]


@pytest.mark.slow
@ANY_LOAD
@hypothesis.given(
    strategies.lists(
        strategies.tuples(
            strategies.integers(0, 5000),
            strategies.floats(allow_nan=False, allow_infinity=False),
            strategies.integers(0, 70),
        ),
        min_size=1,
        max_size=300,
    ),
    strategies.integers(2, 20),
)
def test_extremes_are_those_of_all_values(tmp_path_factory, rows, most):
    file = tmp_path_factory.mktemp("series") / "metrics.jsonl"
    file.write_text("".join(line(*row) for row in rows))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "MOST_BUCKETS", most)
        series = Series(file, most_bytes=1 << 14)
        read_all(series)
        num_attempts = len(series.lines("loss", per_attempt=True))
    width = series._curves["loss"].width
    naive = defaultdict(list)
    for step, value, _ in rows:
        naive[step // width].append(value)
    found = defaultdict(list)
    for step, value in points(series):
        found[step // width].append(value)
        assert (step, value) in {row[:2] for row in rows}
    assert {k: (min(v), max(v)) for k, v in found.items()} == {k: (min(v), max(v)) for k, v in naive.items()}
    assert len(naive) <= max(most, num_attempts)
    assert (series.count("loss"), series.last("loss")) == (len(rows), rows[-1][1])


@pytest.mark.slow
def test_a_long_file_stays_in_bounded_memory(file):
    def write(first, last):
        with file.open("a") as out:
            out.writelines(line(step, step % 97 / 7, further={"a": 1.0, "b": step}) for step in range(first, last))

    write(0, 20_000)
    series = Series(file, most_bytes=1 << 19)
    tracemalloc.start()
    read_all(series)
    before, _ = tracemalloc.get_traced_memory()
    write(20_000, 60_000)
    tracemalloc.reset_peak()
    read_all(series)
    after, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert series.count("loss") == 60_000
    # Every value kept would be 6 MB; the rest is for threads of other tests, whose memory is counted too.
    assert after < before + (1 << 20) and peak < after + (6 << 20)
    assert MOST_BUCKETS / 2 <= len(points(series, "b")) / 2 <= MOST_BUCKETS
    assert points(series, "b")[-1] == (59_999, 59_999)


def test_changing_attempts_cost_no_more_than_others(file):
    file.write_text("".join(line(step, attempt=step % 2) for step in range(5000)))
    series = Series(file)
    read_all(series)
    assert len(series.lines("loss", per_attempt=True)) == MOST_ATTEMPTS
    assert sum(len(each.points) for each in series.lines("loss", per_attempt=True)) <= 2 * MOST_BUCKETS
