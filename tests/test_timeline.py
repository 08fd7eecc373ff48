"""The course of a job, from the records that it leaves."""

import json
import sys
from dataclasses import replace
from itertools import pairwise

import pytest
from launch_records import LAUNCHED, SAMPLES, Job, grow, lose, rehearse, shrink

from launcher import timeline
from launcher.api import timelines
from launcher.common.locks import lock
from launcher.common.problems import ProblemsFound
from launcher.timeline.build import build, preserved
from launcher.timeline.records import Launch, LaunchReader, parse_event


@pytest.fixture
def run_dir(tmp_path):
    return tmp_path / "run"


def first_attempt(run_dir, nodes=1, steps=10, **options):
    """Return a job that has trained `steps` steps on `nodes` nodes."""
    job = Job(run_dir, nodes=nodes, **options)
    job.now += 3
    job.start(range(nodes))
    job.train(steps - 1)
    return job


def scaled(run_dir):
    return [each for each in timeline.read(run_dir).transitions if each.reason != "start"]


def test_a_graceful_scale_up_is_told_part_by_part_and_loses_nothing(run_dir):
    job = first_attempt(run_dir)
    came = job.event("scenario", message="capacity becomes 2 nodes") - LAUNCHED
    job.decide("scale-up", 2, job.now, 0.3)
    job.event("spawned", nodes=[1])
    job.train(10)
    job.event("prewarmed", nodes=[1])
    job.stop(seconds=0.9)
    job.start([0, 1], parts=(2.0, 3.0, 0.5, 0.4, 0.2))
    (up,) = scaled(run_dir)
    assert (up.reason, up.from_nodes, up.to_nodes, up.attempt) == ("scale-up", 1, 2, 1)
    assert (up.cause, up.graceful, up.saved) == ("capacity becomes 2 nodes", True, True)
    assert (up.samples_lost, up.samples_redone) == (0, 0)
    seconds = (up.came_s, up.decided_s, up.prewarmed_s, up.wait_s, up.stop_s, up.regroup_s, up.restart_s, up.total_s)
    assert seconds == pytest.approx((came, came + 0.3, came + 2.3, 2.3, 0.9, 0.0, 6.1, 9.3), abs=1e-5)
    parts = (up.parts.spawn_s, up.parts.import_s, up.parts.rendezvous_s, up.parts.restore_s, up.parts.first_step_s)
    assert parts == pytest.approx((2.0, 3.0, 0.5, 0.4, 0.2), abs=1e-5)
    assert up.wait_s + up.stop_s + up.regroup_s + up.restart_s == pytest.approx(up.total_s)
    assert sum(parts) == pytest.approx(up.restart_s)


def test_a_change_after_which_ranks_kept_the_state_is_told_by_its_own_parts_and_compared_with_a_restart(run_dir):
    job = Job(run_dir, nodes=1)
    job.now += 3
    job.start([0], parts=(0.0, 0.0, 0.1, 0.1, 0.2), ready_s=2.5)
    job.train(8)
    job.save()
    job.decide("scale-up", 2, job.now, 0.3)
    stop = job.event("stopping", nodes=[0], attempt=0, graceful=True)
    job.train(1)  # the step that was begun
    job.event("stopped", 0.1, attempt=0, saved=False)
    job.start([0, 1], parts=(0.0, 0.0, 0.02, 0.3, 0.2), ready_s=2.5, kept_by=2, moved_bytes=8_400_000)
    line = timeline.read(run_dir)
    (up,) = scaled(run_dir)
    parts = (up.stay.finish_s, up.stay.leave_s, up.stay.join_s, up.stay.move_s, up.stay.first_step_s)
    assert parts == pytest.approx((0.2, 0.1, 0.02, 0.3, 0.2), abs=1e-5)
    assert (up.stay.blocked_s, up.stay.moved_bytes) == pytest.approx((0.42, 8_400_000), abs=1e-5)
    assert (up.kept_by, up.samples_lost, stop > 0) == (2, 0, True)
    assert line.restart_s == pytest.approx(2.5 + 2 * 0.4)
    assert (
        "A change in place blocked training for 0.4 s (leave 0.1, join 0.0, move 0.3); "
        "8.4 MB moved. Restarts would have taken about 3.3 s more each."
    ) in told(line)
    assert "1 restart (1 in place), " in told(line) and "restart, order to first step" not in told(line)


def test_a_state_in_memory_is_on_no_disk(run_dir):
    """What a job continues with in memory is not what its next launch would resume from."""
    job = first_attempt(run_dir, steps=10)
    job.save()
    job.train(5)
    job.stop(saved=False)
    job.start([0, 1], kept_by=1)
    assert preserved(LaunchReader(run_dir).read()) == 10 * SAMPLES


def test_a_fault_loses_what_came_after_the_checkpoint_and_trains_it_again(run_dir):
    job = first_attempt(run_dir, nodes=3, steps=10)
    lose(job, 1, "node 1 is lost", checkpoint=8)
    job.train(9)
    job.end()
    line = timeline.read(run_dir)
    (down,) = scaled(run_dir)
    assert (down.reason, down.from_nodes, down.to_nodes, down.cause) == ("scale-down", 3, 2, "node 1 is lost")
    assert down.graceful is False
    assert down.samples_lost == down.samples_redone == line.samples_lost == line.samples_redone == 2 * SAMPLES
    assert [(s.step, s.attempt, s.kept, s.samples_redone) for s in line.steps[7:13]] == [
        (8, 0, True, 0), (9, 0, False, 0), (10, 0, False, 0),
        (9, 1, True, SAMPLES), (10, 1, True, SAMPLES), (11, 1, True, 0),
    ]  # fmt: skip
    assert line.last_step == 18 and line.samples == 18 * SAMPLES


def test_every_kept_step_is_counted_once_whatever_was_lost_on_the_way(run_dir):
    job = first_attempt(run_dir, nodes=2, steps=20)
    lose(job, 1, "node 1 is lost", checkpoint=16, replaced_by=2)
    job.train(2)  # and falls again before it has caught up
    lose(job, 2, "node 2 is lost", checkpoint=16, replaced_by=3)
    job.train(9)
    job.end()
    line = timeline.read(run_dir)
    kept = [step.step for step in line.steps if step.kept]
    assert kept == list(range(1, 27))
    assert [each.samples_lost for each in scaled(run_dir)] == [4 * SAMPLES, 3 * SAMPLES]
    assert [each.samples_redone for each in scaled(run_dir)] == [3 * SAMPLES, 4 * SAMPLES]
    assert line.useful_s == pytest.approx(26 * 0.2)
    assert line.goodput == pytest.approx(26 * 0.2 / line.wall_s)


def test_without_a_checkpoint_everything_is_lost(run_dir):
    job = first_attempt(run_dir, nodes=2, steps=5)
    lose(job, 1, "node 1 is lost", checkpoint=0)
    job.end()
    line = timeline.read(run_dir)
    assert line.samples_lost == 5 * SAMPLES and line.samples_redone == SAMPLES
    assert [step.kept for step in line.steps] == [False] * 5 + [True]


def test_waiting_for_data_is_no_goodput(run_dir):
    job = first_attempt(run_dir, steps=1)
    job.train(9, data_s=0.15)
    job.end()
    line = timeline.read(run_dir)
    assert (line.useful_s, line.data_s) == pytest.approx((0.2 + 9 * 0.05, 9 * 0.15))
    assert line.goodput == pytest.approx(line.useful_s / line.wall_s)
    assert "0.7 s went into steps that count, 1.3 s into waiting for their data." in told(line)


def told(line):
    return " ".join(timeline.text(line).split())


@pytest.mark.parametrize("ending", ["failed", "cancelled", "killed"])
def test_work_after_the_last_checkpoint_of_a_job_that_did_not_succeed_is_lost(run_dir, ending):
    job = first_attempt(run_dir, steps=10)
    job.save()
    job.train(18)
    if ending != "killed":
        job.end(ending)
    line = timeline.read(run_dir)
    assert [step.step for step in line.steps if step.kept] == list(range(1, 11))
    assert (line.samples_lost, line.samples_lost_at_end, line.num_steps) == (18 * SAMPLES, 18 * SAMPLES, 10)
    assert line.useful_s == pytest.approx(10 * 0.2)
    assert "576 samples lost" in told(line)


def test_a_relaunch_reports_the_same_loss_as_the_launch_that_failed(run_dir):
    job = first_attempt(run_dir, steps=10)
    job.save()
    job.train(18)
    job.end("failed")
    failed = timeline.read(run_dir)
    again = Job(run_dir, launched=job.now + 1000)
    again.step, again.cursor = 10, 10 * SAMPLES
    again.start([0])
    again.end("failed")  # it has saved nothing: its own step is lost too
    line = timeline.read(run_dir)
    assert line.transitions[0].samples_lost == failed.samples_lost == 18 * SAMPLES
    assert (line.samples_lost_at_end, line.useful_s) == (SAMPLES, 0.0)


def test_without_a_checkpoint_a_failed_job_has_no_goodput(run_dir):
    job = first_attempt(run_dir, steps=10)
    job.end("failed")
    line = timeline.read(run_dir)
    assert (line.goodput, line.samples_lost) == (0.0, 10 * SAMPLES)


def test_steps_of_a_running_job_count_until_it_fails(run_dir):
    first_attempt(run_dir, steps=10)
    with lock(run_dir):
        assert timeline.read(run_dir).num_steps == 10
    assert timeline.read(run_dir).num_steps == 0


@pytest.mark.parametrize(("tier", "kept"), [("persistent", 28), ("memory", 20), ("replica", 20)])
def test_a_checkpoint_in_the_memory_of_nodes_does_not_outlive_the_job(run_dir, tier, kept):
    job = first_attempt(run_dir, nodes=2, steps=20)
    job.save("persistent")
    job.train(8)
    job.save(tier)
    lose(job, 1, "node 1 is lost", checkpoint=28, replaced_by=2)
    load = {"time": job.now - 0.1, "event": "loaded", "step": 28, "tier": tier}
    job.append("checkpoints.jsonl", **load)
    job.end("failed")
    line = timeline.read(run_dir)
    assert [step.step for step in line.steps if step.kept] == list(range(1, kept + 1))
    assert line.samples_lost == (29 - kept) * SAMPLES


@pytest.mark.parametrize("event", ["broken", "cleared"])
def test_a_job_whose_checkpoints_are_all_lost_has_no_goodput(run_dir, event):
    job = first_attempt(run_dir, steps=10)
    job.save()
    job.append("checkpoints.jsonl", time=job.now + 0.1, event=event, step=0, tier="folder")
    job.end("failed")
    line = timeline.read(run_dir)
    assert (line.goodput, line.last_step, line.samples_lost) == (0.0, 0, 10 * SAMPLES)


def test_what_is_saved_after_a_loss_counts(run_dir):
    job = first_attempt(run_dir, steps=10)
    job.save()
    job.append("checkpoints.jsonl", time=job.now + 0.1, event="broken", step=0, tier="folder")
    job.train(5)
    job.save()
    job.end("failed")
    assert timeline.read(run_dir).last_step == 15


def test_a_resume_from_an_older_checkpoint_discards_the_newer_one(run_dir):
    job = first_attempt(run_dir, steps=10)
    job.save()
    job.train(10)
    job.save()
    lose(job, 0, "the newest checkpoint is damaged", checkpoint=10, replaced_by=1)
    job.end("failed")
    assert timeline.read(run_dir).last_step == 10


def test_a_resume_from_amid_another_size_s_steps_counts_samples_not_steps(run_dir):
    job = first_attempt(run_dir, steps=2)
    job.decide("recover", 1, job.now)
    job.stop(graceful=False, saved=False)
    job.event("starting", attempt=1, nodes=[0], size=1)
    twice = dict(step=2, loss=1.0, nodes=1, world_size=2, samples=2 * SAMPLES, samples_per_s=100.0, attempt=1)
    job.append("metrics.jsonl", **twice, time=job.now + 1, cursor=3 * SAMPLES)
    job.end(after_s=2)
    line = timeline.read(run_dir)
    assert (line.samples_lost, line.samples_redone, line.samples) == (SAMPLES, SAMPLES, 3 * SAMPLES)


def test_a_replacement_node_is_waited_for_between_stop_and_start(run_dir):
    job = first_attempt(run_dir, nodes=2)
    lose(job, 1, "rank 2 crashes", checkpoint=8, replaced_by=2)
    (again,) = scaled(run_dir)
    assert (again.reason, again.from_nodes, again.to_nodes) == ("recover", 2, 2)
    assert (again.wait_s, again.stop_s, again.regroup_s) == pytest.approx((1.601, 0.7, 3.1), abs=1e-5)


def test_a_fault_that_nothing_foretold_is_its_own_cause(run_dir):
    job = first_attempt(run_dir, nodes=2)
    job.event("scenario", message="capacity becomes 4 nodes")
    job.train(100)  # the capacity is of no use to this job
    came = job.event("fault", node=1, cause="a worker failed", message="node 1: a worker failed")
    job.decide("recover", 2, came - 0.001, 1.0)
    (again,) = scaled(run_dir)
    assert (again.cause, again.came_s) == ("node 1: a worker failed", came - LAUNCHED)


def test_events_of_one_look_each_lead_to_their_own_change(run_dir):
    job = first_attempt(run_dir, nodes=2)
    capacity = job.event("scenario", message="the cluster has 3 nodes from now on, 2 before", fault=False)
    crash = job.event("scenario", 0.001, message="worker 1 crashes", fault=True)
    job.decide("scale-up", 3, job.now + 0.01, 0.3)
    job.event("spawned", nodes=[2])
    seen = job.event("fault", 0.2, node=0, cause="a worker failed", message="node 0: a worker failed")
    job.decide("recover", 2, seen - 0.001, 1.0)
    job.stop(graceful=False, saved=False)
    job.start([0, 1], step=8)
    job.decide("scale-up", 3, job.now, 0.3)  # what the fault has put off
    job.stop()
    job.start([0, 1, 2])
    up, recovery, again = scaled(run_dir)
    assert (up.cause, up.came_s) == ("the cluster has 3 nodes from now on, 2 before", capacity - LAUNCHED)
    assert (recovery.cause, recovery.came_s) == ("worker 1 crashes", crash - LAUNCHED)
    assert (up.given_up, recovery.given_up, again.given_up, again.cause) == (True, False, False, up.cause)


@pytest.mark.parametrize("first", [0, 1], ids=["lost-first", "lost-last"])
def test_the_node_that_is_gone_is_the_cause_and_not_the_workers_that_miss_it(run_dir, first):
    job = first_attempt(run_dir, nodes=2)
    faults = [(1, "its agent ended", True), (0, "a worker failed", False)]
    for node, cause, is_own in faults if first == 0 else faults[::-1]:
        job.event("fault", 0.001, node=node, cause=cause, message=f"node {node}: {cause}", is_own=is_own)
    job.decide("recover", 2, job.now - 0.003, 1.0)
    (again,) = scaled(run_dir)
    assert (again.cause, again.came_s) == ("node 1: its agent ended", pytest.approx(job.now - 1.001 - LAUNCHED))


def test_each_of_two_faults_at_one_moment_has_its_event_with_its_own_cause(run_dir):
    job = first_attempt(run_dir, nodes=4)
    crash = job.event("scenario", 0.001, message="worker 1 crashes", fault=True, node=0)
    job.event("scenario", 0.001, message="node 2 is lost", fault=True, node=2)
    job.event("fault", 0.5, node=2, cause="its agent ended", message="node 2: its agent ended", is_own=True)
    killed = "node 0: a worker failed (local rank 1 was killed by SIGKILL)"
    job.event("fault", 0.3, node=0, cause="a worker failed", message=killed, is_own=True)
    job.event("fault", 0.3, node=1, cause="a worker failed", message="node 1: a worker failed", is_own=False)
    job.event("fault", 0.1, node=3, cause="its agent ended", message="node 3: its agent ended", is_own=True)
    job.decide("recover", 4, job.now - 0.5, 0.1)
    (again,) = scaled(run_dir)
    assert again.cause == "worker 1 crashes; node 2 is lost; node 3: its agent ended"
    assert again.came_s == crash - LAUNCHED
    events = timeline.read(run_dir).events
    assert [(event.kind, event.message.partition(":")[0], event.cause) for event in events] == [
        ("scenario", "worker 1 crashes", ""),
        ("scenario", "node 2 is lost", ""),
        ("fault", "node 2", "node 2 is lost"),
        ("fault", "node 0", "worker 1 crashes"),
        ("fault", "node 1", "node 2 is lost"),  # it missed that node
        ("fault", "node 3", "its agent ended"),
    ]


def test_a_new_node_that_failed_is_no_cause_of_a_later_recovery_and_ends_no_attempt(run_dir):
    job = first_attempt(run_dir, nodes=1)
    job.decide("scale-up", 2, job.event("scenario", message="the cluster has 2 nodes"))
    job.event("scenario", 0.5, message="node 1 is lost", fault=True, node=1)
    lost = "node 1: its agent ended"
    job.event("fault", 0.1, node=1, cause="its agent ended", message=lost, is_own=True, warming=True)
    job.event("abandoned", message="a new node failed before it took part", nodes=[1])
    job.train(5)
    seen = job.event("fault", 0.1, node=0, cause="a worker failed", message="node 0: a worker failed", is_own=False)
    job.decide("recover", 1, seen, 1.0)
    job.stop(graceful=False, saved=False)
    job.start([0], step=8)
    up, again = scaled(run_dir)
    assert (up.given_up, again.cause) == (True, "node 0: a worker failed")
    first = timeline.read(run_dir).attempts[0]
    assert first.ended_s == pytest.approx(seen - LAUNCHED)


HANG = {"node": -1, "cause": "hang", "message": "hang: no new step for 60 s; rank 1 lags", "is_own": True}


@pytest.mark.parametrize(
    ("leads_to", "fault", "cause"),
    [
        ("hang", HANG, "worker 1 hangs"),
        ("", HANG, "hang: no new step for 60 s"),
        (
            "hang",
            {"node": 0, "cause": "its agent ended", "message": "node 0 is gone", "is_own": True},
            "node 0 is gone",
        ),
        (
            "hang",
            {"node": 0, "cause": "a worker failed", "message": "node 0 failed", "is_own": False},
            "worker 1 hangs",
        ),
        ("", {"node": 0, "cause": "a worker failed", "message": "node 0 failed", "is_own": False}, "node 0 failed"),
    ],
    ids=["hang", "of-something-else", "own-fault", "missed-it", "nothing-led"],
)
def test_a_hang_is_caused_by_the_event_that_hung_a_worker_however_long_ago(run_dir, leads_to, fault, cause):
    job = first_attempt(run_dir, nodes=2)
    job.event("scenario", message="worker 1 hangs", fault=True, node=1, leads_to=leads_to)
    job.decide("recover", 2, job.event("fault", 60.0, **fault))
    assert scaled(run_dir)[0].cause == cause


def test_a_start_after_an_event_that_hung_a_worker_ends_its_effect(run_dir):
    job = first_attempt(run_dir, nodes=2)
    job.event("scenario", message="worker 1 hangs", fault=True, node=1, leads_to="hang")
    job.stop(graceful=False, saved=False)
    job.start([0, 1], step=8)
    job.decide("recover", 2, job.event("fault", 60.0, **HANG))
    assert scaled(run_dir)[-1].cause == "hang: no new step for 60 s"


@pytest.mark.parametrize(("after_s", "is_cause"), [(4.9, True), (5.1, False)])
def test_an_event_is_the_cause_of_what_comes_within_five_seconds(run_dir, after_s, is_cause):
    job = first_attempt(run_dir, nodes=2)
    came = job.event("scenario", message="node 1 is lost", fault=True, node=1)
    seen = job.event("fault", after_s, node=1, cause="its agent ended", message="node 1: its agent ended")
    job.decide("recover", 2, seen)
    (again,) = scaled(run_dir)
    assert (again.cause, again.came_s) == (
        ("node 1 is lost", came - LAUNCHED) if is_cause else ("node 1: its agent ended", seen - LAUNCHED)
    )


def test_samples_before_all_that_was_trained_are_not_trained_again(run_dir):
    job = Job(run_dir)
    job.step, job.cursor = 5, 5 * SAMPLES
    job.start([0])
    job.train(4)
    job.decide("recover", 1, job.now)
    job.stop(graceful=False, saved=False)
    job.start([0], step=3)
    job.train(3)
    job.end()
    redone = [step.samples_redone for step in timeline.read(run_dir).steps if step.attempt == 1]
    assert redone == [0, 0, SAMPLES, SAMPLES]


def test_rows_show_the_sizes_that_were_started(run_dir):
    """4 -> 1 -> 3 within a second: the decision is overtaken before anything is started at 1."""
    job = first_attempt(run_dir, nodes=4)
    job.decide("scale-down", 1, job.event("scenario", message="the cluster has 1 node"))
    job.event("stopping", nodes=job.nodes, attempt=job.attempt, graceful=True)
    overtaken = job.event("scenario", 0.4, message="the cluster has 3 nodes")
    job.decide("scale-down", 3, overtaken + 0.5, 0.5)
    job.event("stopped", attempt=job.attempt, saved=True)
    job.start(job.nodes[:3])
    job.train(5)
    job.nodes = job.nodes[:2]  # what the operator prepared last, and never started
    job.decide("scale-down", 1, job.event("scenario", message="the cluster has 1 node again"))
    job.stop()
    job.start([0])
    rows = timeline.read(run_dir).transitions
    assert [(each.from_nodes, each.to_nodes) for each in rows] == [(0, 4), (4, 3), (3, 1)]
    causes = ["the cluster has 1 node; the cluster has 3 nodes", "the cluster has 1 node again"]
    assert [each.cause for each in rows[1:]] == causes


def test_a_fault_of_an_earlier_attempt_is_not_the_cause_of_the_next_recovery(run_dir):
    job = first_attempt(run_dir, nodes=2)
    lose(job, 1, "node 1 is lost", checkpoint=8, replaced_by=2)
    seen = job.event("fault", 0.001, node=0, cause="a worker failed", message="node 0: a worker failed")
    job.decide("recover", 2, seen - 0.001, 1.0)
    assert [each.cause for each in scaled(run_dir)] == ["node 1 is lost", "node 0: a worker failed"]


def test_a_job_that_arrives_is_the_cause_and_not_the_nodes_it_takes(run_dir):
    job = first_attempt(run_dir, nodes=2)
    job.event("scenario", message="job a arrives")
    job.event("scenario", 0.0002, message="job a takes 1 node")
    job.decide("scale-down", 1, job.now + 0.001, 0.1)
    (down,) = scaled(run_dir)
    assert down.cause == "job a arrives"


def test_a_wish_that_waits_is_named_by_what_woke_it_and_timed_from_when_it_could_be_met(run_dir):
    job = first_attempt(run_dir, nodes=2)
    lose(job, 1, "node 1 is lost", checkpoint=8)
    job.event("scenario", message="a node comes back")
    job.train(100)
    job.decide("scale-up", 2, job.now, 0.3)
    _, up = scaled(run_dir)
    assert (up.cause, up.came_s) == ("a node comes back", pytest.approx(job.now - 0.3 - LAUNCHED, abs=1e-5))


def test_nodes_that_are_not_there_yet_delay_the_start_and_are_no_transition(run_dir):
    job = Job(run_dir, nodes=0)
    job.decide("resume", 2, job.now, 4.0)
    job.event("spawned", nodes=[0, 1])
    job.now += 3
    job.start([0, 1])
    (start,) = timeline.read(run_dir).transitions
    assert (start.reason, start.from_nodes, start.to_nodes, start.cause) == ("start", 0, 2, "launched")
    assert start.wait_s == pytest.approx(7.0, abs=1e-5)


def test_nodes_that_are_not_needed_any_more_are_a_transition_that_did_not_come(run_dir):
    job = first_attempt(run_dir, nodes=1)
    job.decide("scale-up", 2, job.event("scenario", message="capacity becomes 2 nodes"))
    job.event("spawned", nodes=[1])
    job.event("abandoned", 1.0, message="the new nodes are no longer needed", nodes=[1])
    job.train(5)
    job.stop()
    job.end("cancelled")
    (up,) = scaled(run_dir)
    assert (up.given_up, up.attempt, up.wait_s, up.stop_s, up.graceful) == (True, None, None, None, None)
    assert " given up " in timeline.text(timeline.read(run_dir))


@pytest.mark.parametrize("end", ["fault", "cancel"])
def test_a_change_that_stopped_nothing_before_the_next_or_the_end_is_given_up(run_dir, end):
    job = first_attempt(run_dir, nodes=2)
    job.decide("scale-up", 3, job.event("scenario", message="capacity becomes 3 nodes"))
    job.event("spawned", nodes=[2])
    assert not scaled(run_dir)[0].given_up  # it may still come
    if end == "fault":
        lose(job, 1, "node 1 is lost", checkpoint=8)
    else:
        job.event("stopping", nodes=job.nodes, attempt=0, graceful=True)
        job.end("cancelled")
    up, *others = scaled(run_dir)
    assert (up.given_up, up.attempt, up.total_s) == (True, None, None)
    assert [each.given_up for each in others] == [False] * (end == "fault")
    assert timeline.text(timeline.read(run_dir)).count(" given up ") == 1


def test_a_checkpoint_that_outlasts_its_timeout_is_told_as_unsaved(run_dir):
    job = first_attempt(run_dir, nodes=2)
    job.decide("scale-down", 1, job.now)
    job.stop(graceful=True, saved=False, seconds=5)
    job.start([0], step=8)
    (down,) = scaled(run_dir)
    assert (down.graceful, down.saved, down.samples_lost) == (True, False, 2 * SAMPLES)
    assert " unsaved " in timeline.text(timeline.read(run_dir))


def test_a_suspended_job_has_no_start_until_it_resumes(run_dir):
    job = first_attempt(run_dir, nodes=2)
    job.decide("suspend", 0, job.event("scenario", message="a higher-priority job arrives"))
    job.stop()
    job.event("dropped", nodes=[0, 1])
    job.nodes = []
    came = job.event("scenario", 20, message="it leaves")
    job.decide("resume", 2, came)
    job.event("prewarmed", 3, nodes=[2, 3])
    job.start([2, 3])
    suspend, resume = scaled(run_dir)
    assert (suspend.to_nodes, suspend.attempt, suspend.restart_s, suspend.total_s) == (0, None, None, None)
    assert suspend.stop_s == pytest.approx(0.9, abs=1e-5)
    assert (resume.from_nodes, resume.stop_s, resume.graceful, resume.samples_lost) == (0, None, None, 0)
    assert (resume.wait_s, resume.total_s) == pytest.approx((3.0, 9.1), abs=1e-5)
    line = timeline.read(run_dir)
    assert [attempt.ending for attempt in line.attempts] == ["suspend (a higher-priority job arrives)", ""]
    assert line.restarts == 1


def test_a_transition_that_another_overtakes_has_no_first_step(run_dir):
    job = first_attempt(run_dir, nodes=2)
    job.decide("scale-up", 3, job.event("request", nodes=3, message="3 nodes are asked for"))
    job.stop()
    job.start([0, 1, 2], reports=False)
    lose(job, 2, "node 2 is lost", checkpoint=10)
    up, down = scaled(run_dir)
    assert (up.attempt, up.restart_s, up.total_s, up.cause) == (1, None, None, "3 nodes are asked for")
    assert (down.attempt, down.from_nodes, down.samples_lost) == (2, 3, 0)
    assert [attempt.last_step for attempt in timeline.read(run_dir).attempts] == [10, None, 11]


def test_an_attempt_that_ends_before_its_first_step_keeps_its_parts(run_dir):
    job = first_attempt(run_dir)
    job.decide("recover", 1, job.now)
    job.stop(graceful=False, saved=False)
    job.start([0], step=8, has_first_step=False)
    job.event("fault", 1.0, node=0, cause="a worker failed", message="node 0: a worker failed")
    job.end("failed")
    (again,) = scaled(run_dir)
    assert again.parts.restore_s == pytest.approx(0.4, abs=1e-5) and again.parts.first_step_s is None
    assert (again.restart_s, again.samples_lost, again.samples_redone) == (None, 2 * SAMPLES, 0)
    assert timeline.read(run_dir).state == "failed"


def test_a_cancelled_job_s_stop_is_no_transition_s(run_dir):
    job = first_attempt(run_dir)
    job.stop(seconds=1.0)
    job.end("cancelled")
    line = timeline.read(run_dir)
    (start,) = line.transitions
    assert (start.reason, start.stop_s, start.wait_s) == ("start", None, pytest.approx(3.0))
    assert (line.state, line.restarts, line.has_scaled) == ("cancelled", 0, False)
    assert line.attempts[0].ended_s == pytest.approx(3 + 5.9 + 10 * 0.2 + 0.2, abs=1e-5)  # at the order to stop


def test_a_second_launch_of_a_bundle_stands_alone(run_dir):
    job = first_attempt(run_dir, nodes=2)
    lose(job, 1, "node 1 is lost", checkpoint=8)
    job.end("cancelled")
    again = Job(run_dir, launched=job.now + 1000, nodes=2)
    again.step, again.cursor = 9, 9 * SAMPLES
    again.now += 3
    again.start([0, 1])
    again.train(4)
    again.end()
    line = timeline.read(run_dir)
    assert [attempt.number for attempt in line.attempts] == [0]
    assert line.launched == job.now + 1000 and line.events == ()
    assert (line.attempts[0].resumed_step, line.attempts[0].last_step) == (9, 14)
    # The first launch had trained step 10 too, and lost it to the fault.
    assert (line.samples, line.samples_lost, line.samples_redone) == (5 * SAMPLES, 0, SAMPLES)
    assert line.useful_s == pytest.approx(1.0)
    assert "succeeded after" in timeline.text(line) and ", 5 steps up to step 14." in timeline.text(line)


def test_what_a_killed_launch_had_trained_is_lost_and_trained_again_by_the_next(run_dir):
    job = first_attempt(run_dir, steps=28)
    again = Job(run_dir, launched=job.now + 1000)
    again.step, again.cursor = 10, 10 * SAMPLES
    again.start([0])
    again.train(24)
    again.end()
    line = timeline.read(run_dir)
    assert (line.samples_lost, line.samples_redone) == (18 * SAMPLES, 18 * SAMPLES)
    assert (line.transitions[0].samples_lost, line.num_steps, line.last_step) == (18 * SAMPLES, 25, 35)
    assert [step.kept for step in line.steps] == [True] * 25


@pytest.mark.parametrize("name", ["events.jsonl", "metrics.jsonl", "starts.jsonl"])
def test_a_torn_last_line_is_passed_over(run_dir, name):
    rehearse(run_dir)
    before = timeline.read(run_dir)
    last = (run_dir / name).read_bytes().splitlines()[-1]
    for torn in (last[: len(last) // 2], b'\xff\xfe{"a', b"[]", b"7"):
        with (run_dir / name).open("ab") as file:
            file.write(torn)
        assert timeline.read(run_dir) == before
        with (run_dir / name).open("ab") as file:
            file.write(b"\n")


@pytest.mark.parametrize("name", ["events.jsonl", "metrics.jsonl", "starts.jsonl"])
def test_a_missing_file_costs_only_what_it_alone_tells(run_dir, name):
    rehearse(run_dir)
    whole = timeline.read(run_dir)
    (run_dir / name).unlink()
    line = timeline.read(run_dir)
    if name == "events.jsonl":
        assert line.transitions == () and line.state is None
        assert (line.samples_redone, line.useful_s) == (whole.samples_redone, pytest.approx(whole.useful_s))
    elif name == "metrics.jsonl":
        assert line.steps == () and line.goodput == 0
        assert [t.restart_s for t in line.transitions] == [t.restart_s for t in whole.transitions]
    else:
        assert {t.parts for t in line.transitions} == {None}
        assert [t.samples_lost for t in line.transitions] == [t.samples_lost for t in whole.transitions]
        assert line.wall_s == whole.wall_s
    assert timeline.text(line)


def test_a_script_that_reports_nothing_still_has_its_transitions(run_dir):
    job = Job(run_dir, nodes=1)
    job.start([0], reports=False)
    job.event("running", 7, attempt=0, size=1, step=None)
    job.end()
    line = timeline.read(run_dir)
    assert line.transitions[0].restart_s == pytest.approx(7)
    assert "No step was reported." in timeline.text(line)


def test_an_empty_folder_has_an_empty_timeline(run_dir):
    run_dir.mkdir()
    line = timeline.read(run_dir)
    assert (line.transitions, line.attempts, line.steps, line.wall_s, line.goodput) == ((), (), (), 0.0, 0.0)
    assert timeline.refresh(run_dir) is None


def test_a_cut_off_job_lasts_until_its_last_record(run_dir):
    job = first_attempt(run_dir, steps=10)
    line = timeline.read(run_dir)
    assert line.state is None and line.wall_s == pytest.approx(job.now - LAUNCHED, abs=1e-5)
    assert "its operator died after" in timeline.text(line) and not line.is_running


def test_a_job_that_runs_is_told_as_running_until_its_end_is_told(run_dir):
    job = first_attempt(run_dir, steps=10)
    with lock(run_dir):
        line = timeline.read(run_dir)
        assert line.is_running and "still running after" in timeline.text(line)
        job.end()
        assert not timeline.read(run_dir).is_running


def test_a_job_counts_as_ended_unless_a_process_of_it_is_known(run_dir):
    job = first_attempt(run_dir, steps=10)
    launch = LaunchReader(run_dir).read()
    assert not build(launch).is_running and build(launch, is_alive=True).is_running
    job.end()
    assert not build(LaunchReader(run_dir).read(), is_alive=True).is_running


def test_without_a_recorded_start_an_attempt_resumed_before_its_first_step(run_dir):
    job = Job(run_dir, nodes=2)
    job.step, job.cursor = 7, 7 * SAMPLES
    job.start([0, 1], reports=False)
    job.train(3)
    job.decide("recover", 2, job.now)
    job.stop(graceful=False, saved=False)
    job.start([0, 1], step=8, reports=False)
    job.end("failed")
    first, second = timeline.read(run_dir).attempts
    assert (first.resumed_step, first.last_step, first.nodes, first.ranks) == (7, 10, 2, 4)
    assert first.first_step_s == pytest.approx(0.2, abs=1e-5)
    assert (second.resumed_step, second.last_step, second.nodes, second.ranks) == (None, None, 2, None)
    assert (second.first_step_s, second.ending) == (None, "failed")
    assert (first.ending, timeline.read(run_dir).restarts) == ("recover (recover to 2)", 1)


def test_the_text_is_a_row_for_each_transition_as_wide_as_there_is_room(run_dir):
    job = rehearse(run_dir)
    came = job.event("scenario", message="a very long story " * 20)
    job.decide("scale-up", 4, came)
    line = timeline.read(run_dir)
    lines = timeline.text(line, 100).splitlines()
    assert max(map(len, lines)) == 100
    assert lines[0].startswith("1 -> 2 -> 3 -> 2 -> 3 -> 3 -> 1 nodes")
    assert len(lines) == 1 + 1 + len(line.transitions) + 2 + 2 + 1
    columns = lines[1].index("nodes"), lines[1].index("wait")
    assert [line[columns[0] : columns[1]].rstrip() for line in lines[5:6]] == ["3 -> 2  node 1 is lost"]
    assert lines[5].split()[-6:] == ["0.7", "killed", "0.0", "6.1", "8.4", "704"]
    assert "a very long story a very long …" in lines[9]
    assert max(map(len, timeline.text(line, 120).splitlines())) == 120
    assert "a very long story " * 20 in timeline.text(line) and "…" not in timeline.text(line)
    assert timeline.text(line, 1000) == timeline.text(line)  # no wider than it need be
    assert lines[-1] == "never came: capacity becomes 4 nodes (step 900)"
    assert "960 samples lost, 960 trained again." in " ".join(lines)


@pytest.mark.slow
def test_json_holds_what_the_values_hold_and_is_strict(run_dir):
    job = first_attempt(run_dir, steps=3)
    nan = dict(
        step=4, loss=float("nan"), nodes=1, world_size=2, samples=32, samples_per_s=100.0, attempt=0, cursor=128
    )
    job.append("metrics.jsonl", **nan, time=job.now + 0.32)
    line = timeline.write(run_dir)

    def refuse(constant):
        raise AssertionError(constant)

    data = json.loads((run_dir / "timeline.json").read_text(), parse_constant=refuse)
    assert data["steps"][-1]["loss"] is None and data["steps"][-1]["duration_s"] == 0.32
    assert data["goodput"] == pytest.approx(line.goodput, abs=1e-4)
    assert data["transitions"][0]["parts"]["import_s"] == 3.0
    assert set(data["transitions"][0]) == set(timeline.Transition.__dataclass_fields__)
    assert (run_dir / "timeline.txt").read_text() == timeline.text(line)


@pytest.fixture
def svg(run_dir):
    pytest.importorskip("matplotlib")

    def draw():
        timeline.write(run_dir)
        return (run_dir / "timeline.svg").read_text()

    return draw


@pytest.mark.slow
def test_the_picture_is_the_same_bytes_for_the_same_records(run_dir, svg):
    rehearse(run_dir)
    first = svg()
    (run_dir / "timeline.svg").unlink()
    assert svg() == first
    assert "a higher-priority job arrives" in first and "trained again" in first  # matplotlib comments each text
    assert "its agent ended" not in first  # the loss of the node is told already


@pytest.mark.slow
@pytest.mark.parametrize("steps", [0, 3, 2000], ids=["none", "few", "many"])
def test_every_job_can_be_drawn(run_dir, svg, steps):
    job = Job(run_dir, nodes=2)
    if steps:
        job.start([0, 1])
        job.train(steps)
    picture = svg()
    assert (">loss</text>" in picture) == bool(steps)
    assert len(picture) < 250_000


@pytest.mark.slow
def test_labels_of_events_close_together_do_not_meet(run_dir):
    pytest.importorskip("matplotlib")
    from launcher.timeline import picture

    job = first_attempt(run_dir, steps=100)
    for number in range(9):
        job.event("scenario", 0.4, message=f"event {number} of a cluster in the middle")
    job.train(100)
    for number in range(9):
        job.event("scenario", 0.4, message=f"event {number} of a cluster near the end")
    job.end()
    flags = picture._flags(timeline.read(run_dir))
    assert len(flags) == 18
    for one in flags:
        for other in flags:
            if one is not other:
                assert one.lane != other.lane or one.end <= other.begin or other.end <= one.begin
                assert one.lane <= other.lane or not other.begin < one.x < other.end


@pytest.mark.slow
def test_labels_of_a_job_with_events_all_along_are_complete(run_dir):
    pytest.importorskip("matplotlib")
    from launcher.timeline import picture

    job = Job(run_dir, nodes=1)
    for number in range(12):
        job.event("scenario", 0.5 if number < 3 else 4, message=f"event {number} of a cluster at some moment")
    job.start([0])
    job.train(3)
    job.end()
    flags = picture._flags(timeline.read(run_dir))
    assert len(flags) == 12
    for one in flags:
        assert one.begin >= -picture._LEFT * 72 and one.end <= (picture._WIDTH - picture._LEFT) * 72, one.words
        for other in flags:
            assert one is other or one.lane != other.lane or one.end <= other.begin or other.end <= one.begin


def test_without_matplotlib_text_and_json_are_written_and_the_old_picture_goes(run_dir, monkeypatch):
    rehearse(run_dir)
    (run_dir / "timeline.svg").write_text("of an earlier launch")
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    timeline.write(run_dir)
    assert [path.name for path in timeline.report_files(run_dir)] == ["timeline.txt", "timeline.json"]


@pytest.mark.slow
def test_a_report_is_written_anew_only_when_something_has_come_after_it(run_dir):
    job = rehearse(run_dir)
    timeline.refresh(run_dir)
    (run_dir / "timeline.txt").write_text("seen")
    timeline.refresh(run_dir)
    assert (run_dir / "timeline.txt").read_text() == "seen"
    job.event("operator", message="restarted after 3 s away")
    timeline.refresh(run_dir)
    assert (run_dir / "timeline.txt").read_text() != "seen"


def test_records_are_read_with_defaults_for_what_they_do_not_name(run_dir):
    run_dir.mkdir()
    step = dict(step=3, loss=2.5, nodes=1, world_size=2, samples=32, samples_per_s=100.0, attempt=0, cursor=96)
    lines = [
        step | {"time": 20.0},
        step | {"time": 21.0, "step": 4, "samples_per_s": 0.0, "loss": None, "further": {"skipped_steps": 1}},
        step | {"time": 22.0, "step": 5, "loss": float("inf"), "data_s": 0.25, "further": None},
        {"time": 23.0},
        [step],
    ]
    (run_dir / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    saved = {"time": 20.5, "event": "saved", "tier": "memory", "step": 3}
    (run_dir / "checkpoints.jsonl").write_text("\n".join(map(json.dumps, (saved, saved | {"cursor": 96.0}))))
    launch = LaunchReader(run_dir).read()
    assert launch.time == pytest.approx(20.0 - 0.32)
    assert [(each.duration_s, each.data_s, each.loss, each.is_skipped) for each in launch.steps] == [
        (0.32, 0.0, 2.5, False),
        (0.0, 0.0, None, True),
        (0.32, 0.25, None, False),
    ]
    assert [(each.cursor, each.outlives_job) for each in launch.checkpoints] == [(None, False), (96, False)]
    assert (launch.events, launch.starts, launch.earlier_steps) == ((), (), ())


@pytest.mark.parametrize("message", [None, "", "it ends"])
def test_an_event_may_have_no_message(message):
    event = parse_event(json.dumps({"time": 3, "kind": "ended", "message": message}))
    assert (event.time, event.kind, event.message) == (3.0, "ended", message or "")
    assert parse_event('{"kind": "ended"}') is parse_event("[]") is parse_event("{") is None


def test_a_launch_begins_with_its_last_launch_event(run_dir):
    job = first_attempt(run_dir, steps=3)
    again = Job(run_dir, launched=job.now + 10)
    again.start([0])
    launch = LaunchReader(run_dir).read()
    assert launch.time == job.now + 10
    assert [event.kind for event in launch.events] == ["launched", "starting", "running"]
    assert [len(each) for each in (launch.steps, launch.starts, launch.earlier_steps)] == [1, 1, 3]


@pytest.mark.slow
def test_an_earlier_launch_has_its_own_records(run_dir):
    job = first_attempt(run_dir, steps=3)
    job.save()
    job.end("failed")
    before = timeline.read(run_dir)
    again = Job(run_dir, launched=job.now + 10)
    again.start([0])
    again.end()
    assert timeline.read(run_dir, launch=0) == before != timeline.read(run_dir)
    assert timeline.read(run_dir, launch=1) == timeline.read(run_dir)
    written = timeline.write(run_dir, 0)
    assert written == before and not timeline.report_files(run_dir)
    assert (run_dir / "timeline-0.txt").read_text() == timeline.text(before)
    assert timelines.read(run_dir, launch=0) == before
    with pytest.raises(ProblemsFound, match="E706 --launch"):
        timelines.read(run_dir, launch=2)


def test_skipped_steps_and_single_counts_are_reported(run_dir):
    job = first_attempt(run_dir, steps=3)
    fields = dict(loss=None, nodes=1, world_size=2, samples=32, samples_per_s=100.0, attempt=0, cursor=96)
    for step in (4, 5, 5):
        job.append("metrics.jsonl", step=step, time=job.now + 0.1, further={"skipped_steps": 1}, **fields)
    job.end()
    assert "2 steps skipped, not finite." in told(timeline.read(run_dir))


def test_sentences_are_wrapped_at_a_hundred_columns_or_the_width(run_dir):
    rehearse(run_dir)
    line = timeline.read(run_dir)
    for width, columns in ((None, 100), (200, 100), (60, 60)):
        lines = timeline.text(line, width).splitlines()
        totals = next(i for i, text in enumerate(lines) if text.startswith("succeeded after"))
        wrapped = [text for text in lines[totals:] if not text.startswith("never came")]
        assert max(map(len, wrapped)) <= columns
        assert all(len(f"{one} {other.split()[0]}") > columns for one, other in pairwise(wrapped) if one[-1] != ".")
    assert max(map(len, wrapped)) > 50


def test_a_transition_without_a_cause_shows_its_reason_and_one_of_several_lines_its_first(run_dir):
    first_attempt(run_dir, steps=3)
    line = timeline.read(run_dir)
    (start,) = line.transitions
    for cause, shown in (("", "start"), ("one\ntwo", "one")):
        rows = timeline.text(replace(line, transitions=(replace(start, cause=cause),))).splitlines()
        assert rows[2].split()[4] == shown
    assert timeline.text(replace(line, attempts=())).startswith("no workers were started (times in seconds")
    assert timeline.text(line).startswith("1 node (times in seconds, lost in samples)\n")


@pytest.mark.slow
def test_numbers_of_the_data_have_four_digits_but_losses_all(run_dir):
    job = first_attempt(run_dir, steps=2)
    record = dict(step=3, nodes=1, world_size=2, samples=1, samples_per_s=3.0, attempt=0, cursor=65)
    job.append("metrics.jsonl", **record, loss=0.123456789, time=job.now + 1)
    timeline.write(run_dir)
    data = json.loads((run_dir / "timeline.json").read_text())
    assert (data["steps"][-1]["duration_s"], data["steps"][-1]["loss"]) == (0.3333, 0.123456789)


def test_without_any_record_nothing_is_preserved():
    assert preserved(Launch(0.0, (), (), ())) == 0


def test_a_load_of_another_step_or_tier_does_not_change_what_a_resume_came_from(run_dir):
    job = first_attempt(run_dir, nodes=2, steps=10)
    job.save()
    job.append("checkpoints.jsonl", time=job.now, event="saved", step=9, tier="memory")
    lose(job, 1, "node 1 is lost", checkpoint=10, replaced_by=2)
    for step, event in ((9, "loaded"), (10, "saved")):
        job.append("checkpoints.jsonl", time=job.now, event=event, step=step, tier="memory")
    job.end("failed")
    assert timeline.read(run_dir).last_step == 10


def test_the_shrinking_job_tells_what_preempted_it(run_dir):
    job = first_attempt(run_dir)
    grow(job, 3, "capacity becomes 3 nodes")
    shrink(job, 1, "a higher-priority job arrives")
    assert [attempt.ending for attempt in timeline.read(run_dir).attempts] == [
        "scale-up (capacity becomes 3 nodes)", "scale-down (a higher-priority job arrives)", "",
    ]  # fmt: skip
