"""Jobs whose workers stay in their processes while nodes come, go and fail."""

import json
import os
import random
import signal
import subprocess
import sys

import pytest
from background import await_true
from conftest import ROOT
from test_rehearsal import EPOCHS, NUM_SAMPLES, PACED, STEPS, assert_every_sample_once_an_epoch, events, sizes_of
from whole_jobs import (
    ARGS,
    bundle_of,
    finish,
    graceful_stops,
    hold_until,
    left_behind,
    losses_in_the_model,
    program_of,
    records,
    run,
    start,
    trained_alone,
)

pytest.importorskip("hyperpod_elastic_agent", reason="pip install --no-deps hyperpod-elastic-agent==1.1.3")
pytestmark = [pytest.mark.whole_job, pytest.mark.usefixtures("store")]

IN_PLACE = "recipes.elastic_policy.resize=in_place"
SEEDS = int(os.environ.get("RECIPES_IN_PLACE_SEEDS", "2"))
"""How many random courses of faults are run."""


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """Return the losses of the same training in a single process."""
    return trained_alone(tmp_path_factory, "rehearsal", *PACED, f"{ARGS}.min_step_seconds=0")


def starts_of(folder):
    return records(bundle_of(folder) / "run" / "starts.jsonl")


def rows_of(folder):
    return json.loads((bundle_of(folder) / "run" / "timeline.json").read_text())["transitions"]


def run_dir(folder):
    return bundle_of(folder) / "run"


def assert_trained_as_alone(folder, alone):
    assert_every_sample_once_an_epoch(folder)
    assert losses_in_the_model(run_dir(folder)) == pytest.approx(alone, abs=1e-5)
    assert left_behind(folder) == []


@pytest.mark.sample
def test_a_script_goes_on_in_its_process_and_trains_what_the_plain_one_trains(tmp_path):
    """`elastic.run` calls its function at each size; the function makes everything anew, the job brings the state."""
    text = (ROOT / "examples" / "train_elastic.py").read_text()
    slow = text.replace("optimizer.step()", "optimizer.step(); __import__('time').sleep(0.1)")
    chain = events("{at:{step:30},capacity:2}", "{at:{step:60},capacity:1}")
    size = ("recipes.trainer.num_nodes=1", "recipes.trainer.devices=1", "++recipes.scale_config=auto")
    words = (program_of(slow, tmp_path), chain, IN_PLACE, *size)
    job = start(*words, cwd=tmp_path)
    try:
        for number, step in enumerate((30, 60)):
            hold_until(tmp_path, step, lambda number=number: graceful_stops(tmp_path) > number)
        code, out, err = finish(job)
    finally:
        job.kill()
    assert code == 0, err
    assert [start["kept_by"] for start in starts_of(tmp_path)] == [None, 1, 1], out
    plain = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--standalone", str(ROOT / "examples" / "train_ddp.py")],
        cwd=tmp_path,
        env=os.environ | {"GLOO_SOCKET_IFNAME": "lo"},
        capture_output=True,
        text=True,
        check=True,
    )
    expected = [float(line.rpartition(" ")[2]) for line in plain.stdout.splitlines() if line.startswith("step ")]
    assert losses_in_the_model(run_dir(tmp_path)) == pytest.approx(expected, abs=1e-5)


def test_a_cancelled_job_saves_its_last_step(tmp_path):
    job = start(*PACED, IN_PLACE, events("{at:{step:10},capacity:1}"), "recipes.trainer.num_nodes=2", cwd=tmp_path)
    try:
        await_true(
            lambda: list(tmp_path.glob("results/*/run/starts.jsonl")) and len(starts_of(tmp_path)) == 2,
            "the smaller size",
        )
        job.send_signal(signal.SIGINT)
        code, out, _ = finish(job)
    finally:
        job.kill()
    assert code == 130 and "2 of 2 ranks kept it" in out
    last = records(run_dir(tmp_path) / "metrics.jsonl")[-1]["step"]
    assert records(run_dir(tmp_path) / "checkpoints.jsonl")[-1]["step"] == last
    assert left_behind(tmp_path) == []


def test_a_tour_loses_no_step(tmp_path):
    job = start(IN_PLACE, "cluster.scenario=tour", f"{ARGS}.log_samples=true", cwd=tmp_path)
    try:
        # A job that ends before it is stopped starts once more, from its last checkpoint.
        hold_until(tmp_path, 366, lambda: is_stopped_for(tmp_path, "the cluster has 1 node"))
        code, out, err = finish(job)
    finally:
        job.kill()
    assert code == 0, err
    rows, starts = rows_of(tmp_path), starts_of(tmp_path)
    summary = "\n".join(line for line in out.splitlines() if not line.lstrip().startswith("step "))
    assert [row["samples_lost"] for row in rows] == [0] * len(rows), summary
    assert all(start["kept_by"] for start in starts[1:]), f"{starts}\n{summary}"
    assert rows[-1]["to_nodes"] == 1, summary
    saved = records(run_dir(tmp_path) / "checkpoints.jsonl")
    assert all(each["step"] % 20 == 0 for each in saved), "a stop saved: also that of an operator that restarted"


def is_stopped_for(folder, message):
    """Return whether the workers are stopped after an event of the scenario."""
    happened = records(run_dir(folder) / "events.jsonl")
    after = [number for number, event in enumerate(happened) if event["message"].startswith(message)]
    return bool(after) and any(event["kind"] == "stopping" for event in happened[after[-1] :])


def test_a_sharded_job_goes_on_with_its_neighbours_copies(tmp_path, alone):
    """Rank 0 is lost, so that every other rank has another number afterwards; then a worker, then a node leaves."""
    chain = events(
        "{at:{step:22},node_loss:{node:0,replacement_after:1}}",
        "{at:{step:50},worker_crash:{rank:1}}",
        "{at:{step:70},capacity:2}",
    )
    words = (f"{ARGS}.strategy=fsdp2", f"{ARGS}.save_steps=1000", "++recipes.checkpointing.copy_every=4")
    code, out, err = run(*PACED, *words, chain, "recipes.trainer.num_nodes=3", cwd=tmp_path)
    assert code == 0, err
    starts = starts_of(tmp_path)
    assert [start["kept_by"] for start in starts] == [None, 4, 4, 4], out
    assert [start["step"] % 4 for start in starts[1:3]] == [0, 0]
    assert [row["samples_lost"] for row in rows_of(tmp_path)][-1] == 0
    assert_trained_as_alone(tmp_path, alone)


def test_a_rank_that_hangs_is_replaced_and_healed(tmp_path, alone):
    limit = "+cluster.hang={expectedRecurringFrequencyInSeconds:20}"
    chain = events("{at:{step:34},hang:{rank:1}}")
    code, _, err = run(*PACED, IN_PLACE, limit, chain, "recipes.trainer.num_nodes=2", cwd=tmp_path)
    assert code == 0, err
    assert [start["kept_by"] for start in starts_of(tmp_path)] == [None, 2]
    assert_trained_as_alone(tmp_path, alone)


@pytest.mark.parametrize("seed", range(SEEDS))
def test_random_faults_lose_no_sample_and_change_no_loss(tmp_path, alone, seed):
    """Nodes and workers are lost, also two at once, during changes of size and right after them."""
    chance = random.Random(seed)
    course, step = [], 8
    while step < STEPS - 10:
        fault = chance.choice(
            [
                f"node_loss:{{node:{chance.randrange(3)},replacement_after:1}}",
                f"worker_crash:{{rank:{chance.randrange(6)}}}",
                f"agent_crash:{{node:{chance.randrange(3)}}}",
                f"capacity:{chance.randrange(1, 4)}",
            ]
        )
        course.append(f"{{at:{{step:{step}}},{fault}}}")
        step += chance.choice([0, 1, 6, 12])
    code, out, err = run(*PACED, IN_PLACE, events(*course), "recipes.trainer.num_nodes=3", cwd=tmp_path)
    assert code == 0, (course, out, err)
    assert sizes_of(tmp_path)
    assert_trained_as_alone(tmp_path, alone)
    assert max(line["cursor"] for line in records(run_dir(tmp_path) / "metrics.jsonl")) == NUM_SAMPLES * EPOCHS
