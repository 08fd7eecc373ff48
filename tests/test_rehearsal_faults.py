"""Faults that a scenario injects into a real job, and what the timeline reports of them.

A job costs seconds to start, so each one has many faults, far enough apart to be distinguished.
"""

import pytest
from test_rehearsal import (
    PACE,
    PACED,
    SAMPLES_PER_STEP,
    SAVE_STEPS,
    assert_every_sample_once_an_epoch,
    assert_one_whole_run,
    events,
    sizes_of,
    timeline_of,
)
from whole_jobs import bundle_of, finish, hold_until, losses_in_the_model, records, run, start, trained_alone

pytest.importorskip("hyperpod_elastic_agent", reason="pip install --no-deps hyperpod-elastic-agent==1.1.3")
pytestmark = [pytest.mark.whole_job, pytest.mark.usefixtures("store")]

PATIENT = "recipes.elastic_policy.faulty_timeout=600"
RESTART = "recipes.elastic_policy.resize=restart"
"""These tests are of checkpoints; `test_faults_in_place` is of workers that stay."""


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """Return the losses of the same training in a single process: those of the other rehearsals."""
    return trained_alone(tmp_path_factory, "rehearsal", *PACED, f"{PACE}=0")


def faults_of(folder):
    return [each for each in timeline_of(folder)["events"] if each["kind"] == "fault"]


def happened(folder, *kinds):
    return [event for event in records(bundle_of(folder) / "run" / "events.jsonl") if event["kind"] in kinds]


def assert_trained_as_alone(folder, alone):
    assert losses_in_the_model(bundle_of(folder) / "run") == pytest.approx(alone, abs=1e-5)
    assert_every_sample_once_an_epoch(folder)
    assert_one_whole_run(folder)


def test_hang_faults_operator_away_late_checkpoint_and_partial_preemption_train_what_one_process_trains(
    tmp_path, alone
):
    """Two tiers on 2 nodes: what is reclaimed is the elastic part; what breaks is started again."""
    chain = events(
        "{at:{step:14},hang:{rank:1}}",  # a save, at each tenth step, is given more time
        "{at:{step:26},worker_crash:{rank:0}}",
        "{at:{step:26},node_loss:{node:1,replacement_after:1}}",
        "{at:{step:38},operator_restart:{down:1}}",
        "{at:{step:51},agent_crash:{node:1}}",
        "{at:{step:63},slow_checkpoint:{seconds:60}}",
        "{at:{step:68},job_arrives:{name:batch,nodes:1,priority:normal-priority}}",
        "{at:{step:83},job_arrives:{name:more,nodes:1,priority:normal-priority}}",
    )
    tiers = (
        "++recipes.elastic_policy.preemption={base_priority_class:high-priority,elastic_priority_class:low-priority}"
    )
    timeout = "recipes.elastic_policy.graceful_shutdown_timeout=3"
    limit = "+cluster.hang={expectedRecurringFrequencyInSeconds:20}"
    two_nodes = "recipes.trainer.num_nodes=2"
    code, out, err = run(*PACED, PATIENT, RESTART, two_nodes, tiers, timeout, limit, chain, cwd=tmp_path)
    assert code == 0, err
    assert_trained_as_alone(tmp_path, alone)
    assert sizes_of(tmp_path) == [(0, 2), (2, 2), (2, 2), (2, 2), (2, 1)]
    # Each fault has its event and its cause, two at one moment too.
    first, second = timeline_of(tmp_path)["transitions"][1:3]
    assert (first["reason"], first["cause"]) == ("recover", "worker 1 hangs")
    assert second["cause"] == "worker 0 crashes; node 1 is lost; a replacement comes 1 s later"
    causes = {fault["cause"] for fault in faults_of(tmp_path)}
    assert causes >= {"worker 1 hangs", "worker 0 crashes", "node 1 is lost; a replacement comes 1 s later"}
    (hang,) = [fault for fault in faults_of(tmp_path) if fault["cause"] == "worker 1 hangs"]
    assert hang["message"].startswith("hang: no new step for 2")
    assert "fault  hang: no new step for" in out
    assert "event  the operator is down for 1 s" in out
    assert "event  job more (normal-priority) arrives and waits: it needs 1 node and can have 0" in out
    (late,) = [event for event in happened(tmp_path, "stopping") if event["graceful"]]
    ended = next(event for event in happened(tmp_path, "stopped") if event["attempt"] == late["attempt"])
    assert ended["saved"] is False
    assert 3 <= ended["time"] - late["time"] < 60  # it is killed, not waited for


def is_on_its_way_to_two_nodes(folder):
    last = happened(folder, "starting", "stopping")[-1]
    return last["kind"] == "stopping" or last["size"] == 2


def test_a_capacity_that_overtakes_a_stop_and_then_a_checkpoint_that_rots_in_silence(tmp_path, alone):
    """3 -> 1 -> 2 within a second, then bytes of the newest checkpoint change: nothing of it may be loaded."""
    chain = events(
        "{at:{step:10},capacity:1}",
        "{at:{step:12},capacity:2}",
        # Both at one step: no later checkpoint is saved between them.
        "{at:{step:65},bit_rot:{num_bytes:2000}}",
        "{at:{step:65},worker_crash:{rank:1}}",
    )
    job = start(*PACED, PATIENT, RESTART, "recipes.trainer.num_nodes=3", chain, cwd=tmp_path)
    try:
        hold_until(tmp_path, 30, lambda: is_on_its_way_to_two_nodes(tmp_path))
        code, _, err = finish(job)
    finally:
        job.kill()
    assert code == 0, err
    assert_trained_as_alone(tmp_path, alone)
    timeline = timeline_of(tmp_path)
    # Whatever was decided on the way, rows show what was started.
    started = [row for row in timeline["transitions"] if row["attempt"] is not None]
    sizes = [event["size"] for event in happened(tmp_path, "starting")]
    assert [row["to_nodes"] for row in started] == [attempt["nodes"] for attempt in timeline["attempts"]] == sizes
    assert [row["from_nodes"] for row in started] == [0, *sizes[:-1]]
    assert (sizes[0], *sizes_of(tmp_path)[-1]) == (3, 2, 2)
    # A crash goes back to the checkpoint before the rotten one, and the lost steps are done again.
    first, *_, restart = records(bundle_of(tmp_path) / "run" / "starts.jsonl")
    loads = records(bundle_of(tmp_path) / "run" / "checkpoints.jsonl")
    (loaded,) = [each for each in loads if each["event"] == "loaded" and each["detail"]]
    damaged = int(loaded["detail"].removeprefix("step ").split()[0])
    assert first["step"] == 0 and restart["step"] == loaded["step"] == damaged - SAVE_STEPS
    assert "is changed in the" in loaded["detail"]
    *_, before, after = timeline["attempts"]
    assert before["last_step"] >= 65 and 0 < after["resumed_step"] == restart["step"] < 60
    lost = [row["samples_lost"] for row in timeline["transitions"]]
    # More than an interval: the work that the damaged checkpoint held, and what came after it.
    assert SAVE_STEPS * SAMPLES_PER_STEP <= lost[-1] <= timeline["samples_redone"] == sum(lost)
    assert timeline["samples_lost"] == sum(lost) and timeline["goodput"] < 1
