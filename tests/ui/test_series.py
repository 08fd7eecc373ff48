"""Curves of a growing metrics file: bounded in memory, and exact in their extremes."""

import json
import math
import tracemalloc
from collections import defaultdict

import hypothesis
import pytest
from conftest import ANY_LOAD
from hypothesis import strategies

from launcher.ui import series as module
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
        f'{{"step": 1, "further": {{"{"n" * 300}": 1}}}}',
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


@pytest.mark.parametrize("attempt", ['"1"', "true", "-1", "1e9", "null", str(10**30)])
def test_a_hostile_attempt_counts_to_the_one_before(file, attempt):
    file.write_text(line(1, attempt=2) + f'{{"step": 2, "loss": 1, "attempt": {attempt}}}\n')
    series = Series(file)
    read_all(series)
    assert [each.name for each in series.lines("loss", per_attempt=True)] == ["attempt 2"]


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
    assert len(series.names()) == MOST_NAMES and len(found) == MOST_ATTEMPTS
    assert found[0].name == "up to attempt 236" and found[-1].name == "attempt 299"
    assert sum(len(each.points) for each in found) == 300
    assert points(series) == [(step, float(step)) for step in range(300)]


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
    assert after < before + 200_000 and peak < after + (6 << 20)
    assert MOST_BUCKETS / 2 <= len(points(series, "b")) / 2 <= MOST_BUCKETS
    assert points(series, "b")[-1] == (59_999, 59_999)


def test_changing_attempts_cost_no_more_than_others(file):
    file.write_text("".join(line(step, attempt=step % 2) for step in range(5000)))
    series = Series(file)
    read_all(series)
    assert len(series.lines("loss", per_attempt=True)) == MOST_ATTEMPTS
    assert sum(len(each.points) for each in series.lines("loss", per_attempt=True)) <= 2 * MOST_BUCKETS
