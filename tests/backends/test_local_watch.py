"""A job that hangs is found: how long a step may take, and what else rank 0 may do meanwhile."""

import json

import pytest
from test_local_state_machine import NOW, POLICY, READY, RUNNING, machine, observation

from launcher.backends.local.fault_injection import damage_checkpoint
from launcher.common.names import ACTIVITY_FILE
from launcher.model.job_spec import JobState
from launcher.operator.failure_cause import explain
from launcher.operator.hang_detector import HangDetector, StepTimer
from launcher.operator.hang_limits import FACTOR, LEAST_LIMIT_S, START_CUT_OFF_S, HangLimits
from launcher.operator.snapshot import Attempt
from launcher.operator.state_machine import MAX_FAULTS_WITHOUT_PROGRESS, SETTLE_S, advance
from launcher.operator.step_reader import DoneStep
from launcher.operator.types import Cause, Event, Fault, Phase, StopWorkers


class Watched:
    """A job whose clock is moved by hand."""

    def __init__(self, **limits):
        self.watch = StepTimer(HangLimits(**limits))
        self.now, self.attempt, self.done, self.activity = 0.0, 0, DoneStep(), {}

    def after(self, seconds):
        """Return whether the job hangs when nothing has happened for some seconds."""
        self.now += seconds
        return bool(self.watch.overdue(self.now, self.attempt, self.done, self.activity))

    def step(self, seconds=1.0):
        self.done = DoneStep(self.done.step + 1, 0, self.attempt)
        return self.after(seconds)

    def announce(self, what):
        self.activity = {"what": what, "time": self.now, "attempt": self.attempt}
        return self.after(0)


@pytest.mark.parametrize(
    ("step_s", "limit_s"),
    [(0.05, LEAST_LIMIT_S), (1.0, LEAST_LIMIT_S), (20.0, 20.0 * FACTOR)],
    ids=["short", "second", "long"],
)
def test_a_step_may_take_as_long_as_the_steps_seen_suggest(step_s, limit_s):
    job = Watched()
    assert not any(job.step(step_s) for _ in range(5))
    assert not job.after(limit_s - 0.1)
    assert job.after(0.2)


def test_the_longest_of_the_last_steps_counts_and_old_ones_are_forgotten():
    job = Watched()
    job.step(1.0)
    job.step(50.0)
    assert not job.after(400)
    for _ in range(60):
        job.step(1.0)
    assert job.after(LEAST_LIMIT_S + 1)


def test_steps_that_come_between_two_looks_share_the_time():
    job = Watched()
    job.step(1.0)
    job.done = DoneStep(41, 0, 0)
    assert not job.after(40.0)
    assert job.after(LEAST_LIMIT_S + 1)


def test_the_first_step_of_every_start_has_more_time():
    job = Watched()
    assert not job.after(0) and not job.after(START_CUT_OFF_S - 1)
    job.step()
    job.attempt = 1
    assert not job.after(0) and not job.after(START_CUT_OFF_S - 1)
    assert job.after(2)


OTHER_WORK = ["evaluation", "export", "after the steps"]


@pytest.mark.parametrize(
    ("what", "seconds"), [("checkpoint", START_CUT_OFF_S - 1), *((what, 1e6) for what in OTHER_WORK)]
)
def test_announced_work_between_steps_has_more_time(what, seconds):
    job = Watched()
    job.step(), job.step()
    assert not job.announce(what)
    assert not job.after(seconds)
    assert not job.announce("steps")
    assert not job.after(LEAST_LIMIT_S - 1)
    assert job.after(2)


def test_announced_work_that_does_not_end_is_a_hang():
    job = Watched(start_cut_off_s=100)
    job.step()
    job.announce("checkpoint")
    assert job.after(101)


@pytest.mark.parametrize("what", OTHER_WORK)
def test_work_of_the_script_has_the_limit_that_the_user_sets(what):
    job = Watched(other_work_s=5000)
    job.step()
    assert not job.announce(what)
    assert not job.after(4999)
    assert job.after(2)


@pytest.mark.parametrize("what", OTHER_WORK)
def test_work_that_a_restart_repeats_before_its_first_step_has_no_limit(what):
    job = Watched()
    job.step()
    job.attempt = 1
    job.after(0)
    assert not job.announce(what)
    assert not job.after(1e6)
    assert not job.announce("steps")
    assert not job.after(START_CUT_OFF_S - 1)
    assert job.after(2)


def test_what_an_earlier_start_announced_does_not_hide_a_hang():
    job = Watched()
    job.step()
    job.announce("evaluation")
    job.attempt = 1
    assert not job.after(0) and not job.after(START_CUT_OFF_S - 1)
    assert job.after(2)


def test_the_limits_of_the_setting_hold():
    job = Watched(start_cut_off_s=5, recurring_s=2)
    assert not job.after(0) and job.after(6)
    job.step(50.0), job.step(50.0)
    assert job.after(2.5)


def test_a_script_of_ones_own_is_watched_from_its_first_step_on():
    job = Watched(watches_start=False)
    assert not job.after(0) and not job.after(1e6)
    job.step()
    job.attempt = 1
    job.after(0)
    assert job.after(START_CUT_OFF_S + 1)


def test_the_watch_reads_what_rank_0_announces_and_ends_with_the_stop_pattern(tmp_path):
    watch = HangDetector(tmp_path, HangLimits(start_cut_off_s=100, recurring_s=10, stop_pattern=r"finished"))
    attempt, done = Attempt(0, 0, (0,), 0.0), DoneStep(1, 0, 0)
    assert watch.poll(0, attempt, done) == ""
    assert watch.poll(11, attempt, done) == "no new step for 11 s; 10 s are allowed"
    (tmp_path / ACTIVITY_FILE).write_text(json.dumps({"what": "checkpoint", "time": 1.0, "attempt": 0}))
    assert watch.poll(12, attempt, done) == watch.poll(100, attempt, done) == ""
    assert watch.poll(200, attempt, done)
    log = tmp_path / "logs" / "node-0" / "job_x" / "attempt_0" / "0" / "stdout.log"
    log.parent.mkdir(parents=True)
    log.write_text("not finished\n")
    assert watch.poll(201, attempt, done)
    with log.open("a") as file:
        file.write("finished at step 9\n")
    assert watch.poll(202, attempt, done) == watch.poll(9999, attempt, done) == ""
    assert watch.poll(10000, Attempt(1, 0, (0,), 0.0), done) == ""
    assert watch.poll(10101, Attempt(1, 0, (0,), 0.0), done)  # the next start is watched again


def test_a_hang_is_a_fault_of_its_own_name_and_the_workers_are_killed_and_started_again():
    words = "no new step for 61 s; 60 s are allowed"
    settling, commands = advance(machine(Phase.RUNNING), observation(RUNNING, RUNNING, hang=words, step=7), POLICY)
    (event,) = [order for order in commands if isinstance(order, Event)]
    assert (event.message, event.fields["cause"]) == (f"hang: {words}", Cause.HANG)
    stopping, commands = advance(settling, observation(RUNNING, RUNNING, now_s=NOW + SETTLE_S + 1, step=7), POLICY)
    assert StopWorkers((0, 1), None) in commands
    again, _ = advance(stopping, observation(READY, READY, step=7), POLICY)
    assert (again.phase, again.nodes, again.attempt) == (Phase.PREPARING, (0, 1), 1)


def test_a_node_that_failed_explains_why_no_step_comes():
    gone = observation(RUNNING, None, hang="no new step")
    settling, _ = advance(machine(Phase.RUNNING), observation(*[gone.report(0)], hang="no new step"), POLICY)
    assert [fault.cause for fault in settling.faults] == [Cause.LOST]


def test_a_job_that_hangs_again_and_again_fails_with_that_reason(tmp_path):
    fault = Fault(-1, Cause.HANG, "no new step for 61 s")
    fields = {"faults": (fault,), "fault_since_s": NOW, "since_s": NOW - SETTLE_S - 1, "fault_step": 7}
    settling = machine(Phase.SETTLING, faults_without_progress=MAX_FAULTS_WITHOUT_PROGRESS, **fields)
    ended, _ = advance(settling, observation(RUNNING, RUNNING, step=7), POLICY)
    assert ended.verdict is JobState.FAILED
    assert explain(ended.faults, tmp_path, (), 1) == "hang: no new step for 61 s"


def checkpoint(folder, step, content):
    path = folder / f"step-{step:08d}"
    path.mkdir(parents=True)
    (path / "__0_0.distcp").write_bytes(content)
    (path / "__1_0.distcp").write_bytes(b"short")
    (path / "progress.json").write_text("{}")
    return path / "__0_0.distcp"


def test_bit_rot_inverts_bytes_of_the_newest_complete_checkpoint_and_keeps_its_size(tmp_path):
    older, newest = (checkpoint(tmp_path, step, bytes(range(100))) for step in (8, 16))
    (tmp_path / ".partial-step-00000024").mkdir()
    unpublished = checkpoint(tmp_path, 24, bytes(100))
    (unpublished.parent / "progress.json").unlink()
    assert damage_checkpoint(tmp_path, 10)
    expected = bytes(range(45)) + bytes(byte ^ 0xFF for byte in range(45, 55)) + bytes(range(55, 100))
    assert newest.read_bytes() == expected
    assert older.read_bytes() == bytes(range(100)) and unpublished.read_bytes() == bytes(100)
    assert damage_checkpoint(tmp_path, 1000) and len(newest.read_bytes()) == 100


def test_bit_rot_is_of_the_checkpoint_that_was_published_last(tmp_path):
    published, later = (checkpoint(tmp_path, step, bytes(100)) for step in (8, 16))
    (tmp_path / "latest").write_text("step-00000008 0123abcd\n")
    assert damage_checkpoint(tmp_path, 10)
    assert published.read_bytes() != bytes(100) and later.read_bytes() == bytes(100)


def test_without_a_checkpoint_there_are_no_bits_to_rot(tmp_path):
    assert not damage_checkpoint(tmp_path, 10) and not damage_checkpoint(tmp_path / "missing", 10)
