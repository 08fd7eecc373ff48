"""Real jobs through random schedules: each ends, with every sample of every epoch in the model once.

RECIPES_SCHEDULES says how many schedules; schedule n is always the same.
"""

import json
import os
import random
from collections import Counter
from dataclasses import dataclass

import pytest
from whole_jobs import (
    ARGS,
    bundle_of,
    curve,
    finish,
    left_behind,
    losses_in_the_model,
    mlflow_run,
    samples_in_the_model,
    start,
    trained_alone,
)

pytest.importorskip("hyperpod_elastic_agent", reason="pip install --no-deps hyperpod-elastic-agent==1.1.3")
pytestmark = [pytest.mark.whole_job, pytest.mark.usefixtures("store")]

NUM_SCHEDULES = int(os.environ.get("RECIPES_SCHEDULES", "1"))
NUM_SAMPLES, EPOCHS, STEPS, SAMPLES_PER_STEP = 400, 8, 100, 32
MAX_NODES = 4
JOB_TIMEOUT_S = 280

# One process a node. 32 samples do not divide over 3 ranks: 10 on one and 11 on two.
THREE_NODES = "recipes.scale_config.3.training_config.training_args.uneven_batch"
JOB = (
    "recipes.trainer.devices=1",
    f"{THREE_NODES}.num_dp_groups_with_small_batch_size=1",
    f"{THREE_NODES}.small_local_batch_size=10",
    f"{THREE_NODES}.large_local_batch_size=11",
    f"{ARGS}.max_epochs={EPOCHS}",
    f"{ARGS}.save_steps=10",
    f"{ARGS}.log_samples=true",
    "recipes.elastic_policy.graceful_shutdown_timeout=4",
    "recipes.elastic_policy.faulty_timeout=2",
)
TIERS = "++recipes.elastic_policy.preemption={base_priority_class:high-priority,elastic_priority_class:low-priority}"


@dataclass(frozen=True, slots=True)
class Schedule:
    """What happens to one job.

    Args:
        num_nodes: Nodes it starts with, which are all that the cluster has at first.
        strategy: ddp or fsdp2.
        has_tiers: Whether its first node outranks the others.
        events: What happens to it.
    """

    num_nodes: int
    strategy: str
    has_tiers: bool
    events: tuple[dict, ...]

    def overrides(self):
        events = json.dumps(self.events, separators=(",", ":")).replace('"', "")
        tiers = (TIERS,) if self.has_tiers else ()
        return (f"recipes.trainer.num_nodes={self.num_nodes}", f"{ARGS}.strategy={self.strategy}", *tiers) + (
            f"+cluster.events={events}",
        )


def some_time(rng):
    """Return a moment: steps and samples come while the job trains, seconds also while it restarts or waits."""
    step = rng.randint(2, STEPS * 7 // 10)
    return rng.choice(
        [{"step": step}, {"step": step}, {"samples": step * SAMPLES_PER_STEP}, {"seconds": 5 + step / 3}]
    )


def while_it_trains(rng):
    """Return a moment after the first step: a worker that falls before it fails the job, and rightly."""
    return {"step": rng.randint(2, STEPS * 7 // 10)}


def draw_comings_and_goings(rng):
    step, priority = rng.randint(2, STEPS // 2), rng.choice(["low-priority", "normal-priority", "high-priority"])
    other = {"name": "other", "nodes": rng.randint(1, 3), "priority": priority}
    leaves_at = {"step": step + rng.randint(5, 30)}
    return [{"at": {"step": step}, "job_arrives": other}, {"at": leaves_at, "job_leaves": "other"}]


def draw_node_loss(rng):
    loss = {"node": rng.randrange(3)}
    if rng.random() < 0.5:
        loss["replacement_after"] = rng.choice([0, 1, 4])
    return [{"at": while_it_trains(rng), "node_loss": loss}]


# No more than three of them are faults: a fourth without a step in between fails the job, and rightly.
DRAWS = (
    lambda rng: [{"at": some_time(rng), "capacity": rng.randint(0, MAX_NODES)}],
    lambda rng: [{"at": some_time(rng), "capacity": rng.randint(1, MAX_NODES)}],
    lambda rng: [{"at": some_time(rng), "preempt": rng.randint(1, 2)}],
    draw_comings_and_goings,
    lambda rng: [{"at": while_it_trains(rng), "worker_crash": {"rank": rng.randrange(3)}}],
    lambda rng: [{"at": while_it_trains(rng), "agent_crash": {"node": rng.randrange(3)}}],
    draw_node_loss,
    lambda rng: [{"at": some_time(rng), "replacement_node": rng.randint(1, 2)}],
    lambda rng: [{"at": some_time(rng), "slow_checkpoint": {"seconds": rng.choice([1, 2, 8])}}],
    lambda rng: [{"at": some_time(rng), "operator_restart": {"down": rng.choice([0.5, 1, 3])}}],
)


def draw_schedule(seed):
    rng = random.Random(seed)
    events = [event for draw in rng.sample(DRAWS, rng.randint(4, 6)) for event in draw(rng)]
    # Time alone brings capacity back, also beside another job that has not left: no job waits for ever.
    others = sum(event["job_arrives"]["nodes"] for event in events if "job_arrives" in event)
    capacity = others + rng.randint(1, MAX_NODES)
    events += [{"at": {"seconds": seconds}, "capacity": capacity} for seconds in range(25, JOB_TIMEOUT_S, 20)]
    return Schedule(
        num_nodes=rng.randint(1, MAX_NODES),
        strategy=rng.choice(["ddp", "fsdp2"]),
        has_tiers=rng.random() < 0.3,
        events=tuple(events),
    )


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """Return the losses of the same training in a single process."""
    return trained_alone(tmp_path_factory, "random-schedules", *JOB)


@pytest.mark.timeout(3 * JOB_TIMEOUT_S)  # with the time that the reference takes, on a busy machine
@pytest.mark.parametrize("seed", range(NUM_SCHEDULES))
def test_a_job_ends_with_every_sample_of_every_epoch_once(tmp_path, alone, seed):
    schedule = draw_schedule(seed)
    print(f"schedule {seed}: {schedule}")
    job = start(*JOB, *schedule.overrides(), cwd=tmp_path)
    try:
        code, out, err = finish(job)
    finally:
        job.kill()
        run_dir = bundle_of(tmp_path) / "run"
        print((run_dir / "events.jsonl").read_text())
    print(out)
    assert code == 0, err
    samples = samples_in_the_model(run_dir)
    for epoch in range(EPOCHS):
        assert Counter(samples[epoch * NUM_SAMPLES : (epoch + 1) * NUM_SAMPLES]) == Counter(range(NUM_SAMPLES))
    assert len(samples) == EPOCHS * NUM_SAMPLES
    assert losses_in_the_model(run_dir) == pytest.approx(alone, abs=1e-5)
    assert sorted(step for step, _ in curve(tmp_path)) == list(range(1, STEPS + 1))
    assert mlflow_run(tmp_path)[1].info.status == "FINISHED"
    assert left_behind(tmp_path) == []
