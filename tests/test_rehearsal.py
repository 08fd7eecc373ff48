"""Elastic jobs as a user rehearses them: real agents scale, are preempted, crash and recover."""

import json
import os
import signal
from collections import Counter

import pytest
from background import await_true
from whole_jobs import (
    ARGS,
    bundle_of,
    curve,
    finish,
    graceful_stops,
    hold_until,
    left_behind,
    listening_addresses,
    losses_in_the_model,
    mlflow_run,
    program_of,
    records,
    run,
    samples_in_the_model,
    start,
    trained_alone,
)

pytest.importorskip("hyperpod_elastic_agent", reason="pip install --no-deps hyperpod-elastic-agent==1.1.3")
pytestmark = [pytest.mark.whole_job, pytest.mark.usefixtures("store")]

NUM_SAMPLES, EPOCHS, STEPS = 400, 8, 100
SAVE_STEPS, SAMPLES_PER_STEP = 10, 32
# Within some 30 steps of 0.2 s the agents of new nodes are ready, on a machine that has nothing else to do.
PACE = f"{ARGS}.min_step_seconds"
PACED = (
    "recipes.training_config.model_config.hidden_size=32",
    f"{PACE}=0.2",
    f"{ARGS}.max_epochs={EPOCHS}",
    f"{ARGS}.save_steps={SAVE_STEPS}",
    f"{ARGS}.log_samples=true",
    "recipes.elastic_policy.faulty_timeout=2",
)
ALIVE = (f"{ARGS}.max_epochs=400", f"{PACE}=0.05")
"""A job that only has to run: most of the time its ranks wait for the end of a step."""


def events(*happenings):
    return f"+cluster.events=[{','.join(happenings)}]"


def timeline_of(folder):
    return json.loads((bundle_of(folder) / "run" / "timeline.json").read_text())


def sizes_of(folder):
    return [(each["from_nodes"], each["to_nodes"]) for each in timeline_of(folder)["transitions"]]


def assert_every_sample_once_an_epoch(folder):
    samples = samples_in_the_model(bundle_of(folder) / "run")
    for epoch in range(EPOCHS):
        assert Counter(samples[epoch * NUM_SAMPLES : (epoch + 1) * NUM_SAMPLES]) == Counter(range(NUM_SAMPLES))
    assert len(samples) == EPOCHS * NUM_SAMPLES


def assert_one_whole_run(folder):
    client, tracked = mlflow_run(folder)
    assert tracked.info.status == "FINISHED"
    assert sorted(step for step, _ in curve(folder)) == list(range(1, STEPS + 1))
    assert {file.path for file in client.list_artifacts(tracked.info.run_id, "timeline")} == {
        f"timeline/timeline.{suffix}" for suffix in ("txt", "json", "svg")
    }
    assert left_behind(folder) == []


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """Return the losses of the same training in a single process."""
    return trained_alone(tmp_path_factory, "rehearsal", *PACED, f"{PACE}=0")


@pytest.mark.parametrize(
    ("resize", "strategy"),
    [
        pytest.param("restart", "ddp", marks=pytest.mark.sample),
        ("restart", "fsdp2"),
        ("in_place", "ddp"),
        ("in_place", "fsdp2"),
    ],
)
def test_up_up_node_lost_and_down_train_what_one_process_trains(tmp_path, alone, strategy, resize):
    """1 → 2 → 3 nodes, where the batch is uneven, → one lost → 2 → 1."""
    chain = events(
        "{at:{step:2},capacity:2}",
        "{at:{step:35},capacity:3}",
        "{at:{step:60},node_loss:{node:1}}",
        "{at:{step:75},capacity:1}",
    )
    mode = (f"{ARGS}.strategy={strategy}", f"recipes.elastic_policy.resize={resize}")
    job = start(*PACED, chain, *mode, cwd=tmp_path)
    try:
        for number, step in enumerate((2, 35, 75)):
            hold_until(tmp_path, step, lambda number=number: graceful_stops(tmp_path) > number)
        code, out, err = finish(job)
    finally:
        job.kill()
    assert code == 0, err
    assert sizes_of(tmp_path) == [(0, 1), (1, 2), (2, 3), (3, 2), (2, 1)]
    assert_every_sample_once_an_epoch(tmp_path)
    assert losses_in_the_model(bundle_of(tmp_path) / "run") == pytest.approx(alone, abs=1e-5)
    assert_one_whole_run(tmp_path)
    keeps_all = (resize, strategy) == ("in_place", "ddp")
    assert ("ranks kept it" in out) == (resize == "in_place")
    by_size = {each["to_nodes"]: each for each in timeline_of(tmp_path)["transitions"]}
    lost = [each["samples_lost"] for each in timeline_of(tmp_path)["transitions"]]
    assert lost[:3] == [0, 0, 0] and lost[4] == 0
    assert 0 <= lost[3] <= (0 if keeps_all else SAVE_STEPS * SAMPLES_PER_STEP)
    assert by_size[3]["reason"] == "scale-up"
    assert set(value for _, value in curve(tmp_path, "world_size")) == {2.0, 4.0, 6.0}
    assert "event  node 1 is lost" in out


STEPS_ALONE = """
import itertools, json, os, time
with open(os.path.join(os.environ["RECIPES_RUN_DIR"], "metrics.jsonl"), "a", buffering=1) as metrics:
    for step in itertools.count(1):
        if os.environ["RANK"] == "0":
            metrics.write(json.dumps({"time": time.time(), "step": step, "cursor": step, "attempt": 0}) + "\\n")
        time.sleep(0.1)
"""
"""A program whose steps train nothing: it starts without torch, where it is the operator that is tested."""


@pytest.fixture
def steps(tmp_path):
    """Return the override that runs steps without end."""
    return program_of(STEPS_ALONE, tmp_path)


def running_on(folder, num_nodes):
    """Return the job's attempts once it trains on `num_nodes`."""
    happened = records(bundle_of(folder) / "run" / "events.jsonl")
    sizes = [event["size"] for event in happened if event["kind"] == "running"]
    return sizes if sizes and sizes[-1] == num_nodes else None


def operator_pid(folder):
    return json.loads((bundle_of(folder) / "run" / "state.json").read_text())["pid"]


def began(folder):
    """Return whether the job under `folder` trains."""
    return (folder / "results").exists() and list(folder.glob("results/*/run/metrics.jsonl"))


def test_a_running_job_is_scaled_from_another_shell_and_leaves_nothing_when_its_operator_is_killed(tmp_path):
    job = start(*ALIVE, cwd=tmp_path)
    try:
        await_true(lambda: began(tmp_path), "the first step")
        name = bundle_of(tmp_path).name
        code, _, err = run("scale", name, "--nodes", "7", cwd=tmp_path, module=True)
        assert code == 2 and "E413" in err and "1, 2, 3, 4" in err
        code, out, _ = run("scale", name, "--nodes", "2", cwd=tmp_path, module=True)
        assert code == 0 and "requested 2 nodes" in out
        await_true(lambda: running_on(tmp_path, 2), "two nodes")
        assert listening_addresses(tmp_path) == {"127.0.0.1"}
        run("scale", name, "--nodes", "1", cwd=tmp_path, module=True)
        state = bundle_of(tmp_path) / "run" / "state.json"
        await_true(lambda: "scaling" in state.read_text() or running_on(tmp_path, 1), "a scale event")
        os.kill(operator_pid(tmp_path), signal.SIGKILL)
        code, _, err = finish(job)
        assert code == 3 and "operator died" in err and "Traceback" not in err
        await_true(lambda: left_behind(tmp_path) == [], "the end of every process")
        code, _, err = run("scale", name, "--nodes", "2", cwd=tmp_path, module=True)
        assert code == 2 and "E412" in err
    finally:
        job.kill()


@pytest.mark.parametrize("removed", ["run", "bundle", "results"])
def test_a_job_whose_folder_is_removed_ends_with_a_problem_after_its_processes(tmp_path, steps, removed):
    job = start(*(ALIVE if removed == "results" else (steps,)), cwd=tmp_path)
    try:
        await_true(lambda: began(tmp_path), "the first step")
        folder = {"run": bundle_of(tmp_path) / "run", "bundle": bundle_of(tmp_path), "results": tmp_path / "results"}
        folder[removed].rename(tmp_path / "aside")
        code, _, err = finish(job)
        assert left_behind(tmp_path) == []
        assert (code, "Traceback" in err) == (3, False), err
        assert "E418" in err and "was removed while the job ran" in err and "remedy: " in err
    finally:
        job.kill()


def test_ctrl_c_ends_a_job_that_waits_for_nodes(tmp_path, steps):
    nothing = events("{at:{step:2},capacity:0}", "{at:{seconds:600},capacity:1}")
    job = start(steps, nothing, cwd=tmp_path)
    try:
        await_true(lambda: began(tmp_path), "the first step")
        state = bundle_of(tmp_path) / "run" / "state.json"
        await_true(lambda: json.loads(state.read_text())["message"] == "waiting for nodes", "the suspension")
        job.send_signal(signal.SIGINT)
        code, _, err = finish(job)
        assert code == 130 and "Traceback" not in err
        await_true(lambda: left_behind(tmp_path) == [], "the end of every process")
        assert mlflow_run(tmp_path)[1].info.status == "KILLED"
    finally:
        job.kill()


def test_a_job_that_nothing_can_resume_fails_and_says_so(tmp_path):
    code, _, err = run(*ALIVE, events("{at:{step:2},capacity:0}"), cwd=tmp_path)
    assert code == 3
    assert "failed  the job waits for nodes, and no remaining event can bring them" in err.splitlines()
    assert err.splitlines()[-1] == "remedy      Add an event with a larger capacity to cluster.events."
