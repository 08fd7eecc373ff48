"""Sweeps of real jobs on this machine: killed, interrupted and resumed, pruned, tracked under one MLflow run."""

import signal

import pytest
from background import await_true
from test_api_jobs import processes_of
from whole_jobs import finish, run, start

import launcher
from launcher import JobState, ProblemsFound

pytest.importorskip("hyperpod_elastic_agent")
pytest.importorskip("optuna")
pytestmark = pytest.mark.whole_job

PROGRAM = """
import json, os, pathlib, time
run, point = pathlib.Path(os.environ["RECIPES_RUN_DIR"]), float(os.environ["POINT"])
if os.environ["RANK"] == "0":
    with open(run / "metrics.jsonl", "a") as file:
        for step in (1, 2, 3):
            file.write(json.dumps({"step": step, "loss": (point - 0.3) ** 2 * (1 + 1 / step)}) + "\\n")
    while point > float(os.environ["WAITS_ABOVE"]) and not os.path.exists(os.environ["GO"]):
        time.sleep(0.05)
"""
"""Writes a loss that depends on its point at once, and beyond a bound waits for a file."""


@pytest.fixture
def base(tmp_path, monkeypatch):
    """Return the overrides of a job that runs PROGRAM as one process."""
    monkeypatch.chdir(tmp_path)
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    return {
        **{"cluster.command": [str(program)], "trainer.num_nodes": 1, "trainer.devices": 1},
        **{"env_vars": {"WAITS_ABOVE": 9, "GO": str(tmp_path / "go")}},
        "elastic_policy.is_elastic": False,
    }


def bundles(folder):
    return sorted(path.parent for path in folder.glob("results/*/bundle.json"))


def runs(folder):
    from mlflow import MlflowClient

    client = MlflowClient(tracking_uri=f"sqlite:///{folder}/results/mlflow.db")
    return client.search_runs([each.experiment_id for each in client.search_experiments()])


def states(sweep):
    return [row["state"] for row in sweep.trials]


def test_a_sweep_that_is_killed_and_interrupted_resumes_without_running_a_trial_twice(base, tmp_path):
    base["env_vars"]["WAITS_ABOVE"] = 0
    words = launcher.compile("tiny_lm_cpu", base).overrides
    search = ("hydra/sweeper=optuna", "hydra/sweeper/sampler=grid", "hydra.sweeper.objective=loss")
    command = ("--multirun", *words, *search, "hydra.sweeper.n_jobs=2", "hydra.sweeper.study_name=mine")
    command += ("++env_vars.POINT=0.1,0.2,0.4",)
    process = start(*command, cwd=tmp_path)

    def running():
        return (tmp_path / "results/mine/trials.jsonl").exists() and states(launcher.attach_sweep("mine")).count(
            "running"
        )

    await_true(lambda: running() == 2, "two trials")
    process.kill()
    finish(process)
    process = start(*command, cwd=tmp_path)
    assert "3 trials, 2 at a time" in process.stdout.readline()
    process.send_signal(signal.SIGINT)
    code, _, err = finish(process)
    assert code == 130, err
    assert "2 jobs keep running" in err and "recipes sweep --resume results/mine" in err
    (tmp_path / "go").touch()
    code, out, err = run("sweep", "--resume", "mine", cwd=tmp_path, module=True)
    assert code == 0, err
    assert "best: trial 1" in out and "++env_vars.POINT=0.2" in out
    sweep = launcher.attach_sweep("mine")
    assert states(sweep) == ["succeeded"] * 3
    assert sweep.is_finished
    assert [row["job"] for row in sweep.trials] == [
        each.name for each in sorted(bundles(tmp_path), key=lambda folder: (folder / "bundle.json").stat().st_mtime)
    ]
    for folder in bundles(tmp_path):
        assert sum("step" in line for line in (folder / "run/metrics.jsonl").open()) == 3  # launched once
    (parent,) = [each for each in runs(tmp_path) if each.info.run_name == "mine"]
    children = [each for each in runs(tmp_path) if each.data.tags.get("mlflow.parentRunId") == parent.info.run_id]
    assert {each.info.run_name for each in children} == {folder.name for folder in bundles(tmp_path)}
    assert parent.info.status == "FINISHED"
    assert parent.data.tags["best.env_vars.POINT"] == "0.2"
    assert parent.data.metrics["loss"] == pytest.approx(0.01 * 4 / 3)
    code, out, err = run(*command, cwd=tmp_path)  # nothing is left
    assert (code, len(bundles(tmp_path))) == (0, 3), err


def test_a_sampler_runs_trials_side_by_side_and_a_bad_one_is_cancelled(base, tmp_path):
    base["env_vars"]["WAITS_ABOVE"] = 0.5  # such a job never ends by itself
    plan = launcher.compile("tiny_lm_cpu", base)
    grid = {"env_vars.POINT": [0.3, 0.9]}
    sweep = launcher.sweep(plan, grid, objective="loss", pruner="median", startup_trials=1, name="pruned").wait(500)
    good, bad = sweep.trials
    assert (good["state"], good["loss"]) == ("succeeded", 0)
    assert bad["state"] == "pruned" and "worse than the median" in bad["reason"]
    job = launcher.attach(bad["job"])
    assert job.status.state is JobState.CANCELLED
    await_true(lambda: not processes_of(job.folder), "the processes of the pruned job to end")
    assert sweep.best.job.name == good["job"]
    space = {"env_vars.POINT": "interval(0,0.4)"}
    sweep = launcher.sweep(plan, space=space, objective="loss", trials=3, parallel=2, name="space").wait(500)
    assert states(sweep) == ["succeeded"] * 3
    assert sweep.best.value == min(row["loss"] for row in sweep.trials)
    assert len({row["env_vars.POINT"] for row in sweep.trials}) == 3


def test_a_sweep_stops_at_an_objective_that_no_job_writes_and_is_cancelled(base, tmp_path):
    base["env_vars"]["WAITS_ABOVE"] = 0.5
    plan = launcher.compile("tiny_lm_cpu", base | {"training_config.mlflow.enabled": False})
    grid = {"env_vars.POINT": [0.9, 0.1, 0.2]}
    sweep = launcher.sweep(plan, grid, objective="accuracy", parallel=2, name="mine")
    with pytest.raises(ProblemsFound, match=r"E724[\s\S]*wrote no metric accuracy; it wrote loss"):
        sweep.wait(500)
    assert states(sweep) == ["running", "failed"]
    assert run("sweep", "--cancel", "mine", cwd=tmp_path, module=True)[0] == 0
    assert states(sweep) == ["cancelled", "failed"]
    await_true(lambda: not processes_of(tmp_path / "results"), "the processes of the jobs to end")
