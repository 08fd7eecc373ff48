"""Sweeps on the page: their list, the trials in any order, the best one, pictures, forecasts, bad records."""

import html
import json
import re
import shutil
from dataclasses import replace

import pytest
from result_folders import a_job
from starlette.exceptions import HTTPException
from starlette.testclient import TestClient

import launcher
from launcher.api.sweeps import sweep as sweep_values
from launcher.api.sweeps.record import (
    CANCELLED,
    FAILED,
    PRUNED,
    RUNNING,
    SUCCEEDED,
    SWEEP_FILE,
    TRIALS_FILE,
    Description,
    SweepFolder,
    Trial,
)
from launcher.config import search_space
from launcher.ui import sweeps
from launcher.ui.app import app_of
from launcher.ui.state import Ui

RATE = "training_config.training_args.learning_rate"
WORDS = (f"recipes.{RATE}=tag(log, interval(1e-5, 1e-2))", "recipes.training_config.training_args.optimizer=adam,sgd")
HOSTILE = "\"><img src=x onerror=alert(1)><script>alert(2)</script>\x1b]0;owned\x07'"


def description(**changed) -> Description:
    settings = {
        **{"overrides": ("recipes=tiny_lm_cpu",), "cwd": "/", "is_grid": False, "objective": "loss", "trials": 6},
        **{"direction": "minimize", "parallel": 2, "sampler": "tpe", "seed": 0, "pruner": "median"},
        **{"startup_trials": 0, "warmup_steps": 0, "dimensions": search_space.dimensions(WORDS)},
    }
    return Description(**settings | changed)


def trial(number, rate, state=SUCCEEDED, value=None, **fields) -> Trial:
    overrides = (f"recipes.{RATE}={rate}", "recipes.training_config.training_args.optimizer=adam")
    return Trial(number, (rate, "adam"), overrides, state, value, None if value is None else 100, **fields)


TRIALS = (
    trial(0, 1e-5, value=3.0),
    trial(1, 1e-3, value=1.25),
    trial(2, 5e-4, PRUNED, 2.0, reason="worse than the median"),
    trial(3, 1e-2, FAILED, reason="rank 0 failed"),
    trial(4, 2e-3, value=1.5),
)


@pytest.fixture
def results(tmp_path):
    (tmp_path / "results").mkdir()
    return tmp_path / "results"


@pytest.fixture
def client(results):
    return TestClient(app_of(Ui.of(results, may_write=False)))


def written(results, name="mine", trials=TRIALS, **changed) -> SweepFolder:
    folder = SweepFolder(results / name)
    folder.describe(description(**changed))
    for each in trials:
        folder.note(each)
    return folder


def shown(client, path="/sweeps/mine") -> str:
    reply = client.get(path)
    assert reply.status_code == 200, reply.text
    return reply.text


def plain(text: str) -> str:
    return " ".join(html.unescape(re.sub(r"<[^>]*>", " ", text)).split())


def order(text: str) -> list[int]:
    return [int(each) for each in re.findall(r'<th scope="row" class="num">(\d+)', text)]


def test_the_list_has_every_sweep_with_its_counts_and_best(client, results):
    written(results)
    written(results, "other", (), objective=None, is_grid=True, sampler="grid")
    text = plain(shown(client, "/sweeps"))
    assert "succeeded 3" in text
    assert "5 of 6 ended" in text
    assert "minimize loss 1.25" in text
    assert f"recipes.{RATE}=0.001" in text
    assert "0 of 6 ended" in text


def test_an_empty_results_folder_says_how_to_start_one(client, results):
    assert "No sweep yet" in shown(client, "/sweeps")
    results.rmdir()
    assert "No sweep yet" in shown(client, "/sweeps")


def test_a_sweep_shows_its_trials_its_best_and_its_pictures(client, results):
    job = a_job(results, "job-1")
    rows = list(TRIALS)
    rows[1] = replace(rows[1], job=str(job))
    rows[4] = replace(rows[4], job="/elsewhere/removed-job")
    written(results, trials=rows)
    text = shown(client)
    assert "Best: loss 1.25 of trial 1" in text
    assert len(re.findall('class="best"', text)) == 1
    assert '<a href="/jobs/job-1">job-1</a>' in text
    assert "removed-job" in text
    assert 'href="/jobs/removed-job"' not in text
    assert "worse than the median" in text
    assert text.count("<svg") - text.count('aria-hidden="true"') == 2  # by trial, over the rate; not over texts
    assert "best so far" in text
    assert "5 of 6 trials ended, 1 not chosen yet" in plain(text)
    assert order(text) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("sort=value", [1, 4, 2, 0, 3]),
        ("sort=value&down=1", [0, 2, 4, 1, 3]),
        ("sort=number&down=1", [4, 3, 2, 1, 0]),
        (f"sort={RATE}", [0, 2, 1, 4, 3]),
        ("sort=nothing", [0, 1, 2, 3, 4]),
        ("sort=__class__&down=yes", [0, 1, 2, 3, 4]),
    ],
)
def test_the_address_sorts_the_trials_those_without_a_value_last(client, results, query, expected):
    written(results)
    assert order(shown(client, f"/sweeps/mine?{query}")) == expected


def test_the_head_of_the_sorted_column_turns_its_order(client, results):
    written(results)
    text = shown(client, "/sweeps/mine?sort=value")
    assert 'aria-sort="ascending"><a href="?sort=value&amp;down=1"' in text
    assert 'aria-sort="descending"><a href="?sort=value"' in shown(client, "/sweeps/mine?sort=value&down=1")


def test_the_best_is_the_largest_where_larger_is_better_and_as_the_api_has_it(client, results):
    written(results, direction="maximize")
    assert "Best: loss 3 of trial 0" in shown(client)
    assert sweep_values.Sweep(results / "mine").best.number == 0


def test_the_rest_is_forecast_once_three_trials_took_a_known_time(client, results):
    rows = []
    for number in range(4):
        job = a_job(results, f"job-{number}")
        if number:
            (job / "run").mkdir()
            (job / "run" / "timeline.json").write_text(json.dumps({"wall_s": 100.0 * number, "goodput": 0.5}))
        rows.append(trial(number, 1e-3, value=1.0, job=str(job)))
    written(results, trials=rows[:3])
    assert "the others take about" not in shown(client)
    SweepFolder(results / "mine").note(rows[3])
    SweepFolder(results / "mine").describe(description(trials=7, parallel=2))
    assert "the others take about 6 min 40 s" in shown(client)  # three are left, two at a time, 200 s each
    SweepFolder(results / "mine").describe(description(trials=4))
    assert "the others take about" not in shown(client)


def test_a_view_follows_its_records_until_the_sweep_is_removed(results):
    ui = Ui.of(results, may_write=False)
    folder = written(results, trials=TRIALS[:1])
    view = sweeps.SweepView(ui, "mine")
    before = view.version()
    assert before == view.version()
    folder.note(TRIALS[1])
    assert view.version() != before
    (name,) = view.parts()
    assert name == "live-sweep"
    assert "of trial 1" in view.parts()[name]
    shutil.rmtree(folder.path)
    with pytest.raises(HTTPException):
        view.version()


@pytest.mark.parametrize("name", ["nothing", "..", "%2e%2e", "..%2fresults", "%2fetc", ".hidden", "job", "a%07"])
def test_only_a_sweep_of_the_results_folder_has_a_page(client, results, name):
    written(results.parent, "results-beside")
    written(results, ".hidden")
    written(results, "a\a")
    a_job(results, "job")
    reply = client.get(f"/sweeps/{name}", follow_redirects=False)
    assert reply.status_code in (303, 404)


BAD_TRIALS = [
    "{",
    "null",
    "[]",
    "3",
    '{"number": "x", "values": [], "overrides": []}',
    '{"number": 9, "values": [1], "overrides": []}',
    '{"number": 9, "values": [[], {}], "overrides": []}',
    '{"number": 9, "values": [1, 2], "overrides": [], "value": "low"}',
    '{"number": 9, "values": [1, 2], "overrides": [], "state": ["x"]}',
    '{"number": 9, "values": [1, 2], "overrides": [], "job": 3}',
    '{"number": 9, "values": [1, 2], "overrides": [], "nothing": 3}',
    "\udcff\udcfe",
]


@pytest.mark.parametrize("line", BAD_TRIALS)
def test_a_damaged_line_of_a_trial_is_left_out(client, results, line):
    folder = written(results)
    with (folder.path / TRIALS_FILE).open("ab") as file:
        file.write(line.encode("utf-8", "surrogateescape") + b"\n")
    assert order(shown(client)) == [0, 1, 2, 3, 4]
    assert "minimize loss 1.25" in plain(shown(client, "/sweeps"))


@pytest.mark.parametrize(
    "change",
    [
        {"trials": "many"},
        {"trials": 0},
        {"parallel": 0},
        {"parallel": None},
        {"objective": ["loss"]},
        {"direction": 1},
        {"dimensions": 3},
        {"dimensions": [{"key": 3, "choices": []}]},
        {"dimensions": [{"nothing": 3}]},
        {"dimensions": [{"key": "a", "nothing": 3}]},
        {"nothing": 3},
        None,
    ],
    ids=repr,
)
def test_a_damaged_description_is_shown_as_a_problem(client, results, change):
    folder = written(results)
    file = folder.path / SWEEP_FILE
    file.write_text("{" if change is None else json.dumps(json.loads(file.read_text()) | change))
    assert "E721" in shown(client)
    assert "E721" in shown(client, "/sweeps")
    with pytest.raises(launcher.ProblemsFound, match="E721"):
        _ = folder.description


def test_trials_that_cannot_be_read_are_a_problem(client, results):
    folder = written(results, trials=())
    (folder.path / TRIALS_FILE).mkdir()
    assert "not read" in shown(client)
    assert "not read" in shown(client, "/sweeps")


def test_a_sweep_without_a_trial_or_an_objective_has_a_page(client, results):
    written(results, trials=())
    assert "No trial yet" in shown(client)
    written(results, "plain", [trial(0, 0.1), trial(1, 0.2, RUNNING), trial(2, 0.3, CANCELLED)], objective=None)
    text = shown(client, "/sweeps/plain")
    assert order(text) == [0, 1, 2]
    assert "Best" not in text


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf"), 1e308])
def test_values_that_no_picture_can_show_are_shown_in_the_table(client, results, value):
    written(results, trials=[*TRIALS, trial(5, value, value=value), trial(6, 0.0, value=2.0)])
    assert sorted(order(shown(client, "/sweeps/mine?sort=value"))) == [0, 1, 2, 3, 4, 5, 6]


def test_hostile_texts_are_escaped(client, results):
    rows = [replace(TRIALS[0], overrides=(HOSTILE,), reason=HOSTILE, job=f"/x/{HOSTILE[:5]}", values=(1e-5, HOSTILE))]
    name = "".join(sign for sign in HOSTILE if sign.isprintable() and sign != "/")
    written(results, name, rows, objective=HOSTILE, pruner=HOSTILE, sampler=HOSTILE)
    for path in ("/sweeps", client.get("/sweeps").text.split('<a href="/sweeps/')[1].split('"')[0]):
        text = shown(client, path if path == "/sweeps" else f"/sweeps/{path}?sort=%22%3E%3Cscript%3E")
        assert "<img" not in text
        assert "<script>" not in text
        assert "\x1b" not in text


@pytest.mark.slow
def test_a_long_sweep_is_shown_quickly(client, results):
    lines = [trial(i, 1e-5 * (i + 1), value=1 / (i + 1)) for i in range(1000)]
    folder = written(results, trials=(), parallel=4)
    (folder.path / TRIALS_FILE).write_text("".join(json.dumps(_fields(each)) + "\n" for each in lines))
    assert len(order(shown(client))) == 1000


def _fields(each: Trial) -> dict:
    names = ("number", "values", "overrides", "state", "value", "step", "reason", "job")
    return {name: getattr(each, name) for name in names}
