"""Sweeps as values: what is refused before anything is written, what choosers remember, how trials are measured."""

import dataclasses
import json
import math
import os
import types

import pytest

import launcher
from launcher import ProblemsFound
from launcher.api.sweeps import checking, choosing, engine, measuring, sweep, sweep_picture
from launcher.api.sweeps.record import FAILED, RUNNING, SUCCEEDED, Description, SweepFolder, Trial
from launcher.cli import run_command, searches
from launcher.common import pictures, problems
from launcher.common.names import METRICS_FILE, RUN_DIR
from launcher.config import dimensions, search_space

ARGS = "training_config.training_args"
RATE = f"{ARGS}.learning_rate"


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def description(*words, **changed):
    settings = {
        **{"overrides": ("recipes=tiny_lm_cpu",), "cwd": "/", "is_grid": False, "objective": "loss", "trials": 4},
        **{"direction": "minimize", "parallel": 1, "sampler": "random", "seed": 0, "pruner": None},
        **{"startup_trials": 0, "warmup_steps": 0},
    }
    return Description(dimensions=search_space.dimensions(words), **settings | changed)


def refused(found) -> set[str]:
    return {f"{problem.code} {problem.path}" for problem in found.value.problems}


@pytest.mark.parametrize(
    ("arguments", "problems"),
    [
        ({"grid": {}}, {"E725 grid"}),
        ({"grid": {"a": [1]}, "space": {"a": [1]}}, {"E725 launcher.sweep"}),
        ({"grid": {RATE: []}}, {f"E725 {RATE}"}),
        ({"grid": {RATE: 1, "bad key": [1]}}, {f"E725 {RATE}", "E001 bad key"}),
        ({"grid": {RATE: "interval(0,1)"}}, {f"E002 {RATE}"}),
        ({"grid": {RATE: [1e-3, 1e-2], f"{ARGS}.unknown": [1, 2]}}, {f"E101 recipes.{ARGS}.unknown"}),
        ({"grid": {RATE: [1e-3, "fast"]}}, {f"E102 recipes.{RATE}"}),
        ({"grid": {f"{ARGS}.seed": "range(1001)"}}, {f"E002 ++recipes.{ARGS}.seed=range(1001)"}),
        ({"grid": {f"{ARGS}.seed": "range(100)", RATE: "range(1,100)"}}, {"E002 grid"}),
        ({"grid": {RATE: [1e-3]}, "trials": 3}, {"E725 trials"}),
        ({"grid": {RATE: [1e-3]}, "pruner": "median"}, {"E725 objective"}),
        (
            {"grid": {RATE: [1e-3]}, "seed": 9, "warmup_steps": 5},
            {"E725 seed", "E725 warmup_steps"},
        ),
        ({"space": {RATE: "interval(0,1)"}, "objective": "loss", "startup_trials": 3}, {"E725 startup_trials"}),
        ({"grid": {"cluster": ["local", "slurm"]}, "parallel": 0}, {"E725 cluster", "E725 parallel"}),
        ({"space": {RATE: "interval(1,0)"}}, {f"E002 ++recipes.{RATE}=interval(1,0)"}),
        ({"space": {RATE: "interval(-1,1)"}, "objective": "loss"}, {f"E102 recipes.{RATE}"}),
        (
            {"space": {RATE: "interval(1e-5,1e-3)"}, "sampler": "best", "direction": "up", "trials": True},
            {"E725 sampler", "E725 direction", "E725 trials", "E725 objective"},
        ),
        ({"grid": {RATE: [1e-3]}, "objective": "a;b"}, {"E725 objective"}),
        *(
            ({"grid": {RATE: [1e-3]}, "name": name}, {"E725 name"})
            for name in ("../out", ".x", "", "a\0", "n" * 300, 3)
        ),
        ({"grid": {RATE: [1e-3]}, "objective": "loss", "trials": 0}, {"E725 trials"}),
        ({"space": {f"{ARGS}.seed": "interval(1,9)"}, "objective": "loss"}, {f"E102 recipes.{ARGS}.seed"}),
        ({"space": {RATE: "interval(0,1)"}, "objective": "loss", "trials": 0}, {"E725 trials"}),
        ({"space": {RATE: "interval(0,1)"}, "objective": "loss", "sampler": "grid"}, {"E725 sampler"}),
        ({"grid": {RATE: [1e-3], f"recipes.{RATE}": [1e-2]}}, {f"E002 {RATE}"}),
    ],
)
def test_a_faulty_sweep_is_refused_and_writes_nothing(here, arguments, problems):
    with pytest.raises(ProblemsFound) as found:
        launcher.sweep(launcher.compile("tiny_lm_cpu"), **arguments)
    assert problems <= refused(found)
    assert not list(here.iterdir())


def test_only_a_plan_is_swept(here):
    with pytest.raises(ProblemsFound, match=r"E725 plan[\s\S]*launcher\.compile"):
        launcher.sweep("tiny_lm_cpu", {RATE: [1e-3]})


def test_every_value_that_a_plan_takes_is_swept_and_is_listed_as_a_value():
    import numpy

    keys = (f"{ARGS}.max_norm", RATE, f"{ARGS}.adam_betas", f"{ARGS}.load_checkpoint")
    given = ([None, 1], numpy.geomspace(1e-4, 1e-2, 3), [[0.9, 0.95]], [True, numpy.bool_(False), True])
    found = checking.dimensions(dict(zip(keys, given, strict=True)), None)
    assert [each.choices for each in found] == [
        *(("null", "1"), ("0.0001", "0.001", "0.01"), ("[0.9,0.95]",)),
        ("true", "false"),
    ]
    assert [each.label for each in found] == [*keys]
    wanted = dataclasses.replace(description("a=1,2"), dimensions=found)
    row = sweep._row(wanted, Trial(0, ("1", "0.001", "[0.9,0.95]", "true"), ()))
    assert [row[key] for key in keys] == [1, 0.001, "[0.9,0.95]", True]
    assert [dimensions.typed(text) for text in ("'1'", "inf", "1e-3", "x", "null", 2.5)] == [
        *("'1'", "inf", 0.001, "x", "null"),
        2.5,
    ]


def test_a_sweep_that_would_not_be_launched_is_refused(here, capsys):
    words = ["--multirun", "hydra/sweeper=optuna", "hydra/sweeper/sampler=grid", "dry_run=true"]
    assert run_command.run([*words, f"recipes.{RATE}=1e-3,1e-2"]) == 2
    assert "E725 dry_run" in capsys.readouterr().err
    assert run_command.run([*words[:2], "hydra.sweeper.storage=x", f"recipes.{RATE}=interval(0,1)"]) == 2
    assert "E009 hydra.sweeper.storage" in capsys.readouterr().err
    assert not list(here.iterdir())


def test_without_optuna_a_search_is_refused_and_a_grid_is_not(here, monkeypatch):
    monkeypatch.setattr(choosing.importlib.util, "find_spec", lambda name: None)
    for wanted in (description("a=interval(0,1)"), description("a=1,2", is_grid=True, pruner="median")):
        (problem,) = choosing.problems(wanted)
        assert (problem.code, problem.path) == ("E723", "sweep")
        assert problem.remedy == "pip install 'recipe-launcher[sweep]'"
    assert not choosing.problems(description("a=1,2", is_grid=True))


def test_a_grid_gives_its_combinations_in_order_and_goes_on_after_the_last_on_record(tmp_path):
    grid = choosing.chooser(description("a=1,2", "b=x,y", is_grid=True), tmp_path)
    combinations = [("1", "x"), ("1", "y"), ("2", "x"), ("2", "y")]
    assert [grid.ask() for _ in range(5)] == [*enumerate(combinations), None]
    grid.restore({number: Trial(number, combinations[number], ()) for number in (0, 1)})
    assert [grid.ask() for _ in range(3)] == [(2, ("2", "x")), (3, ("2", "y")), None]
    grid.restore({})
    assert grid.ask() == (0, ("1", "x"))
    assert grid.prunes(0, [(1, 2.0)]) is False
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_a_dimension_is_a_distribution_of_optuna():
    optuna = pytest.importorskip("optuna")
    of = optuna.distributions
    expected = {
        "a=x,y": of.CategoricalDistribution(("x", "y")),
        "a=range(1,9)": of.IntDistribution(1, 8),
        "a=range(1,10,2)": of.IntDistribution(1, 9, step=2),
        "a=int(interval(1,5))": of.IntDistribution(1, 5),
        "a=tag(log, range(1,9))": of.IntDistribution(1, 8, log=True),
        "a=interval(0,1)": of.FloatDistribution(0.0, 1.0),
        "a=tag(log, interval(1e-5,1))": of.FloatDistribution(1e-5, 1.0, log=True),
        "a=range(0.5,2,0.5)": of.FloatDistribution(0.5, 1.5, step=0.5),
    }
    found = {word: choosing._distribution(optuna, search_space.dimensions([word])[0]) for word in expected}
    assert found == expected


@pytest.mark.slow
@pytest.mark.parametrize("sampler", ["tpe", "random"])
def test_a_study_draws_as_optuna_does_with_its_seed_and_its_past(tmp_path, sampler):
    optuna = pytest.importorskip("optuna")
    wanted = description("a=interval(0,1)", sampler=sampler, seed=5)
    drawn = []
    for seed in (5, 6):
        kind = {"random": optuna.samplers.RandomSampler, "tpe": optuna.samplers.TPESampler}[sampler]
        alone = optuna.create_study(sampler=kind(seed=seed))
        drawn.append(alone.ask({"a": optuna.distributions.FloatDistribution(0.0, 1.0)}).params["a"])
    assert choosing.chooser(wanted, tmp_path).ask() == (0, (drawn[0],))
    resumed = choosing.Study(wanted, tmp_path)
    assert resumed.ask() == (1, (drawn[1],))
    assert getattr(resumed._study.sampler, "_constant_liar", True) is True


@pytest.mark.slow
def test_a_study_is_told_how_each_trial_ended(tmp_path):
    pytest.importorskip("optuna")
    study = choosing.Study(description("a=interval(0,1)", trials=6, direction="maximize"), tmp_path / "")
    ends = [(SUCCEEDED, 2.0), (SUCCEEDED, 3.0), ("pruned", 9.0), (FAILED, 9.0), (SUCCEEDED, None)]
    for state, value in ends:
        number, values = study.ask()
        study.tell(Trial(number, values, (), state, value))
    names = ["COMPLETE", "COMPLETE", "PRUNED", "FAIL", "FAIL"]
    assert [trial.state.name for trial in study._study.trials] == names
    assert (study._study.best_value, study._study.study_name) == (3.0, tmp_path.name)
    study.ask()
    assert study.ask() is None
    again = choosing.Study(description("a=interval(0,1)", trials=6, direction="maximize"), tmp_path)
    again.restore({n: Trial(n, (), (), *end) for n, end in enumerate(ends)})
    assert [trial.state.name for trial in again._study.trials] == [*names, "FAIL"]


@pytest.mark.slow
def test_a_median_pruner_has_the_numbers_of_the_sweep():
    optuna = pytest.importorskip("optuna")
    pruner = choosing._pruner(optuna, description("a=1,2", pruner="median", startup_trials=3, warmup_steps=7))
    assert (pruner._n_startup_trials, pruner._n_warmup_steps) == (3, 7)
    assert isinstance(choosing._pruner(optuna, description("a=1,2")), optuna.pruners.NopPruner)


def test_the_overrides_of_a_trial_are_its_values_and_the_first_one_has_the_lower_bounds():
    found = search_space.dimensions(["+a=x,y", "b=interval(0.5,1)", "c=range(3,9)"])
    assert choosing.texts(found, ("y", 0.75, 4)) == ("+a=y", "b=0.75", "c=4")
    assert choosing.first(found) == ("+a=x", "b=0.5", "c=3")
    with pytest.raises(ValueError, match="shorter"):
        choosing.texts(found, ("y", 0.75))


def test_the_same_call_is_the_same_sweep_and_another_one_needs_another_name(here):
    plan = launcher.compile("tiny_lm_cpu", {"training_config.mlflow.enabled": False})
    grid = {RATE: [1e-3, 1e-2]}
    first = launcher.sweep(plan, grid, objective="loss")
    again = launcher.compile("tiny_lm_cpu", {"training_config.mlflow.enabled": False})
    assert launcher.sweep(again, grid, objective="loss", parallel=3) == first
    assert first.description.parallel == 3
    assert launcher.sweep(plan, grid, objective="loss", direction="maximize") != first
    named = launcher.sweep(plan, grid, name="mine")
    assert launcher.attach_sweep("mine") == named
    with pytest.raises(ProblemsFound, match="E721"):
        launcher.sweep(plan, {RATE: [1e-3]}, name="mine")
    with pytest.raises(ProblemsFound, match="E721"):
        launcher.attach_sweep("yours")
    assert named.trials == ()
    assert named.best is None
    with SweepFolder(named.folder).driving(), pytest.raises(ProblemsFound, match="E722"):
        named.wait()


@pytest.mark.slow
def test_a_study_agrees_with_the_trials_on_record_after_its_process_was_killed(tmp_path):
    pytest.importorskip("optuna")
    wanted = description("a=interval(0,1)", "b=x,y")
    before = choosing.chooser(wanted, tmp_path)
    asked = [before.ask() for _ in range(3)]
    # the first has ended on record, and the study does not know; the second runs; the third is not on record
    known = {n: Trial(n, values, ()) for n, values in asked[:2]}
    known[0] = Trial(0, asked[0][1], (), SUCCEEDED, 0.5)
    known[1] = Trial(1, asked[1][1], (), RUNNING)
    after = choosing.Study(wanted, tmp_path)
    after.restore(known)
    assert [trial.state.name for trial in after._study.trials] == ["COMPLETE", "RUNNING", "FAIL"]
    assert after._study.best_value == 0.5
    left = [after.ask(), after.ask()]
    assert [number for number, _ in left] == [3, 4]
    assert after.ask() is None
    assert len({values for _, values in [*asked, *left]}) == 5  # a resumed sampler does not repeat itself
    after.tell(Trial(1, (), (), SUCCEEDED, math.nan))
    after.tell(Trial(1, (), (), SUCCEEDED, 0.1))  # told once
    assert after._study.trials[1].state.name == "FAIL"


@pytest.mark.slow
def test_a_median_pruner_compares_trials_at_the_same_step_also_in_a_grid(tmp_path):
    pytest.importorskip("optuna")
    wanted = description("a=range(0,3)", is_grid=True, trials=3, pruner="median", warmup_steps=2)
    study = choosing.Study(wanted, tmp_path)
    assert study.ask() == (0, (0,))
    assert not study.prunes(0, [(step, 1.0) for step in (1, 2, 3)])
    study.tell(Trial(0, (0,), (), SUCCEEDED, 1.0))
    assert study.ask() == (1, (1,))
    assert not study.prunes(1, [(1, 9.0)])  # a warm-up step
    assert study.prunes(1, [(2, 9.0)])
    assert not study.prunes(1, [])
    assert not study.prunes(1, [(2, 9.0), (3, 0.5)])
    resumed = choosing.Study(wanted, tmp_path)
    resumed.restore({0: Trial(0, (0,), (), SUCCEEDED, 1.0), 1: Trial(1, (1,), (), FAILED)})
    assert resumed.ask() == (2, (2,))
    assert resumed.ask() is None


@pytest.mark.slow
def test_without_a_pruner_a_study_keeps_no_steps(tmp_path):
    pytest.importorskip("optuna")
    study = choosing.Study(description("a=interval(0,1)"), tmp_path)
    number, values = study.ask()
    assert not study.prunes(number, [(1, 2.0), (2, math.nan)])
    study.tell(Trial(number, values, (), SUCCEEDED, 1.0))
    assert study._study.trials[0].intermediate_values == {}
    assert study._study.best_value == 1.0


@pytest.mark.slow
def test_a_point_of_a_grid_that_was_enqueued_and_not_asked_for_is_asked_for_again(tmp_path):
    pytest.importorskip("optuna")
    wanted = description("a=range(0,3)", is_grid=True, trials=3, pruner="median")
    killed = choosing.Study(wanted, tmp_path)
    killed._study.enqueue_trial({"a": 0})
    resumed = choosing.Study(wanted, tmp_path)
    resumed.restore({})
    assert [resumed.ask() for _ in range(4)] == [(1, (0,)), (2, (1,)), (3, (2,)), None]


def test_a_line_that_a_killed_process_left_does_not_hide_the_next(tmp_path):
    folder = SweepFolder(tmp_path)
    folder.describe(description("a=1,2"))
    folder.note(Trial(0, ("1",), ("a=1",)))
    with (tmp_path / "trials.jsonl").open("a") as file:
        file.write('{"number": 1, "val')
    with folder.driving():
        folder.note(Trial(2, ("2",), ("a=2",)))
    assert list(folder.trials()) == [0, 2]
    assert folder.trials()[2].values == ("2",)
    assert folder.description == description("a=1,2")


def test_records_name_folders_that_are_not_utf8(tmp_path):
    folder, name = SweepFolder(tmp_path), os.fsdecode(b"/data/not-\xff-utf8")
    wanted, trial = dataclasses.replace(description("a=1,2"), cwd=name), Trial(0, ("1",), (f"b={name}",), job=name)
    folder.describe(wanted)
    folder.note(trial)
    assert (folder.description, folder.trials()) == (wanted, {0: trial})


def meter(folder, objective, lines):
    (folder / RUN_DIR).mkdir(exist_ok=True)
    (folder / RUN_DIR / METRICS_FILE).write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    backend = types.SimpleNamespace(name="local")
    return measuring.Meter(types.SimpleNamespace(folder=folder, backend=backend), objective)


def test_a_repeated_step_counts_once_and_the_last_value_counts(tmp_path):
    lines = [{"step": step, "loss": loss} for step, loss in ((1, 3.0), (2, 2.0), (1, 2.9), (2, 1.9), (3, 1.5))]
    found = meter(tmp_path, "loss", lines)
    assert list(found.new_points()) == [(1, 3.0), (2, 2.0), (3, 1.5)]
    assert (found.value, found.step, found.fault()) == (1.5, 3, None)
    assert list(found.new_points()) == []


def test_a_metric_of_an_evaluation_is_found_by_both_names(tmp_path):
    lines = [{"step": 1, "loss": 3.0}, {"step": 2, "further": {"eval/loss": 2.5}}, "no object", {"step": None}]
    for name in ("eval_loss", "eval/loss"):
        assert list(meter(tmp_path, name, lines).new_points()) == [(2, 2.5)]


def test_an_objective_that_is_missing_or_not_finite_has_a_reason(tmp_path):
    found = meter(tmp_path, "accuracy", [{"step": 1, "loss": 3.0, "further": {"f1": 1}}])
    assert list(found.new_points()) == []
    assert found.fault() == "the job wrote no metric accuracy; it wrote f1, loss"
    found = meter(tmp_path, "loss", [{"step": 4, "loss": math.nan}])
    assert len(list(found.new_points())) == 1
    assert found.fault() == "loss is nan at step 4"


def test_a_pruner_sees_a_bounded_number_of_the_same_points():
    seen = [index for index in range(100_000) if measuring.is_reported(index)]
    assert seen[:100] == list(range(100)) and seen[100:103] == [100, 110, 120]
    assert len(seen) == 100 + 3 * 90


def test_a_running_trial_names_keys_with_the_same_last_word_in_full():
    row = {
        "trial": 0,
        "state": "running",
        "loss": 1.0,
        "encoder.lr": 0.1,
        "head.lr": 0.2,
        "job": None,
        "reason": None,
    }
    assert searches._line(row, "loss") == "trial 0  running  loss 1  encoder.lr=0.1  head.lr=0.2"


@pytest.mark.slow
def test_a_picture_names_keys_with_the_same_last_word_in_full():
    pytest.importorskip("matplotlib")
    text = sweep_picture.svg(description("encoder.lr=range(0,9)", "head.lr=range(0,9)", "b.c=1,2"), [])
    assert "encoder.lr" in text and "head.lr" in text and ">c<" in text


@pytest.mark.slow
def test_a_picture_shows_every_measured_trial_and_is_safe(tmp_path):
    pytest.importorskip("matplotlib")
    wanted = description("a=tag(log, interval(1e-5,1))", "b=x,'<script>'", "c=range(0,9)")
    trials = [Trial(n, (10.0**-n, "x" if n else "'<script>'", n), (), SUCCEEDED, float(n)) for n in range(3)]
    trials += [Trial(3, (0.1, "x", 3), (), "pruned", 2.0), Trial(4, (0.2, "x", 4), (), FAILED)]
    text = sweep_picture.svg(wanted, trials)
    assert "4 of 5 trials" in text and "<script>" not in text
    assert sweep_picture.svg(wanted, trials) == text
    assert "0 of 0 trials" in sweep_picture.svg(wanted, [])


@pytest.mark.slow
def test_the_best_trial_is_ready_to_paste(here, capsys):
    plan = launcher.compile("tiny_lm_cpu", {"training_config.mlflow.enabled": False})
    found = launcher.sweep(plan, {f"{ARGS}.seed": [1, 2, 3]}, objective="loss", direction="maximize", name="mine")
    words = [f"++recipes.{ARGS}.seed={seed}" for seed in (1, 2, 3)]
    folder = SweepFolder(found.folder)
    for number, (state, value) in enumerate([(SUCCEEDED, 1.0), (SUCCEEDED, 2.0), ("pruned", 9.0)]):
        folder.note(
            Trial(number, (str(number + 1),), (words[number],), state, value, 3, None, str(here / f"j{number}"))
        )
    assert found.is_finished
    assert found.best.text == words[1]
    assert launcher.compile("tiny_lm_cpu", [*found.best.overrides]).config.training_config.training_args.seed == 2
    searches.show(found)
    printed = capsys.readouterr().out
    assert words[1] in printed and "picture results/mine/sweep.svg" in printed
    assert (found.folder / "sweep.svg").exists()
    assert "<svg" in found._repr_html_()
    assert searches.as_json(found)["best"] == {"trial": 1, "value": 2.0, "overrides": (words[1],), "job": "j1"}
    assert searches.code(found) == 0


def test_a_reason_of_several_lines_is_one_line_of_the_table(here, capsys):
    plan = launcher.compile("tiny_lm_cpu", {"training_config.mlflow.enabled": False})
    found = launcher.sweep(plan, {RATE: [1e-3]}, objective="loss", name="mine")
    SweepFolder(found.folder).note(Trial(0, ("0.001",), (), FAILED, None, None, "exited with code 3:\nno corpus"))
    searches.show(found)
    assert "exited with code 3:\\nno corpus" in capsys.readouterr().out
    assert "\n" not in searches._line(found.trials[0], "loss")


def test_a_sweep_is_shown_without_its_picture_where_none_can_be_drawn(here, capsys, monkeypatch):
    plan = launcher.compile("tiny_lm_cpu", {"training_config.mlflow.enabled": False})
    found = launcher.sweep(plan, {RATE: [1e-3]}, objective="loss", name="mine")
    SweepFolder(found.folder).note(Trial(0, ("0.001",), (), SUCCEEDED, 2.5, 1, None, str(here / "job")))
    monkeypatch.setattr(pictures.importlib.util, "find_spec", lambda name: None)
    searches.show(found)
    assert "best: trial 0, loss 2.5" in capsys.readouterr().out
    with pytest.raises(ProblemsFound, match="E709"):
        searches.show(found, here / "mine.svg")


@pytest.fixture
def runner(here):
    """Return the engine of a sweep whose jobs are not launched."""
    plan = launcher.compile("tiny_lm_cpu", {"training_config.mlflow.enabled": False})
    found = launcher.sweep(plan, {RATE: [1e-3]}, name="mine")
    return engine.Engine(plan, found.description, SweepFolder(found.folder))


def test_a_trial_whose_job_was_removed_has_failed(runner, here):
    seen = runner._seen(Trial(0, ("0.001",), (), RUNNING, job=str(here / "results/gone")))
    assert (seen.state, seen.reason) == (FAILED, "the records of its job were removed")


def test_a_cluster_that_has_answered_may_be_silent_for_a_while(runner, monkeypatch):
    trial, now_s, answers = Trial(0, (), (), RUNNING), 0.0, []

    def seen(_trial):
        if answer := answers.pop():
            return answer
        raise problems.fail("E507", "cluster", "does not answer")

    monkeypatch.setattr(runner, "_seen", seen)
    monkeypatch.setattr(engine.time, "monotonic", lambda: now_s)
    answers[:] = [None]
    with pytest.raises(ProblemsFound):
        runner._patiently_seen(trial)  # it never answered
    answers[:] = [None, None, trial]
    assert runner._patiently_seen(trial) is trial
    now_s = 800.0
    assert runner._patiently_seen(trial) is trial
    now_s = 1000.0
    with pytest.raises(ProblemsFound):
        runner._patiently_seen(trial)


@pytest.mark.parametrize(("num_running", "words"), [(1, "1 job keeps running"), (2, "2 jobs keep running")])
def test_jobs_that_outlive_an_interrupt_are_counted(here, monkeypatch, capsys, num_running, words):
    found = launcher.sweep(launcher.compile("tiny_lm_cpu", {"training_config.mlflow.enabled": False}), {RATE: [1e-3]})

    def interrupted(_sweep):
        raise KeyboardInterrupt

    monkeypatch.setattr(type(found), "changes", interrupted)
    monkeypatch.setattr(type(found), "trials", [{"state": "running"}] * num_running + [{"state": "succeeded"}])
    searches.follow(found)
    assert f"stopped; {words}\n" in capsys.readouterr().err


def test_a_sweep_that_another_process_runs_has_not_stopped(here):
    plan = launcher.compile("tiny_lm_cpu", {"training_config.mlflow.enabled": False})
    found = launcher.sweep(plan, {RATE: [1e-3]}, name="mine")
    with SweepFolder(found.folder).driving(), pytest.raises(ProblemsFound, match="Ctrl-C") as refusal:
        searches.follow(found)
    assert refused(refusal) == {f"E722 {found.folder}"}
    assert refusal.value.outcome is None
