"""A job that hangs is found: how long a step may take, and what else rank 0 may do meanwhile."""

import json

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from test_local_state_machine import NOW, POLICY, READY, RUNNING, machine, observation

from launcher.backends.local.fault_injection import damage_checkpoint
from launcher.common.names import ACTIVITY_FILE, EXIT_NOT_FINITE, METRICS_FILE
from launcher.model.job_spec import JobState
from launcher.operator.hang_detector import (
    FACTOR,
    LEAST_LIMIT_S,
    RECENT_STEPS,
    START_CUT_OFF_S,
    DoneStep,
    HangDetector,
    Overdue,
    StepReader,
    StepTimer,
)
from launcher.operator.job_request import HangLimits, collective_timeout_s
from launcher.operator.snapshot import Attempt
from launcher.operator.state_machine import MAX_FAULTS_WITHOUT_PROGRESS, SETTLE_S, advance
from launcher.operator.types import Cause, Event, Fault, Phase, StopWorkers
from launcher.operator.worker_logs import explain
from launcher.runtime.checkpoint_folder import point_to


class Watched:
    """A job whose clock is moved by hand."""

    def __init__(self, *, stays=False, **limits):
        self.stays = stays
        self.watch = StepTimer(HangLimits(**limits))
        self.now, self.attempt, self.done, self.activity = 0.0, 0, DoneStep(), {}
        self.recent, self.longest_ever, self.longest_s = [], 0.0, {}
        self.after(0)

    def after(self, seconds):
        """Return whether the job hangs when nothing has happened for some seconds; set whether it is slow."""
        self.now += seconds
        overdue = self.watch.overdue(self.now, self.attempt, self.done, self.activity, stays=self.stays)
        self.is_slow = overdue is not None
        return self.is_slow and overdue.is_hang

    def step(self, seconds=1.0):
        self.recent = [*self.recent, seconds][-RECENT_STEPS:]
        self.longest_ever = max(self.longest_ever, seconds)
        hangs = self.after(seconds)
        self.done = DoneStep(self.done.step + 1, 0, self.attempt, max(self.recent), self.longest_ever)
        return self.after(0) or hangs

    def announce(self, what, **longest_s):
        self.longest_s |= longest_s
        self.activity = {"what": what, "time": self.now, "attempt": self.attempt, "longest_s": dict(self.longest_s)}
        return self.after(0)

    def restart(self):
        self.attempt += 1
        return self.after(0)


@pytest.mark.parametrize(
    ("step_s", "limit_s"),
    [(0.05, LEAST_LIMIT_S), (1.0, LEAST_LIMIT_S), (20.0, 20.0 * FACTOR), (70.0, 70.0 * FACTOR)],
    ids=["short", "second", "long", "longer than the least limit"],
)
@pytest.mark.parametrize("steps", [1, 5])
def test_a_step_is_slow_after_ten_times_the_steps_seen_and_hangs_after_the_timeout_of_collectives(
    step_s, limit_s, steps
):
    job = Watched(collective_timeout_s=500.0)
    assert not any(job.step(step_s) for _ in range(steps))
    assert not job.after(limit_s - 0.1) and not job.is_slow
    assert job.after(0.2) is (limit_s > 500) and job.is_slow
    assert not job.after(max(0, 499 - limit_s)) or limit_s > 500
    assert job.after(2)


def test_a_job_that_shows_nothing_is_slow_after_twenty_minutes_and_its_shortest_steps_after_one():
    job = Watched()
    assert not job.after(1200.0) and not job.is_slow
    assert not job.after(0.5) and job.is_slow
    job.step(0.01)
    assert not job.after(60.0) and not job.is_slow
    assert not job.after(0.5) and job.is_slow


def test_a_later_start_counts_from_its_own_order():
    job = Watched()
    job.step(1.0)
    job.after(500.0), job.restart()
    for _ in range(RECENT_STEPS + 1):
        job.step(1.0)
    job.restart()
    assert not job.after(START_CUT_OFF_S - 1)
    assert job.after(2), "the longest start took a second, at 500 s of the clock"


def test_workers_that_stay_start_anew_within_a_minute_or_ten_times_the_longest_start():
    job = Watched(stays=True, collective_timeout_s=30.0)
    job.after(3.0), job.step(1.0)
    job.restart()
    assert not job.after(LEAST_LIMIT_S) and job.after(0.5)
    job = Watched(stays=True, collective_timeout_s=30.0)
    job.after(8.0), job.step(1.0)
    job.restart()
    assert not job.after(9.0 * FACTOR) and job.after(0.5)


def test_a_wait_that_lasts_exactly_its_limit_is_within_it():
    job = Watched(collective_timeout_s=100.0)
    job.step(1.0)
    assert not job.after(100.0)
    job.restart(), job.step(1.0)
    assert not job.after(100.0) and job.after(0.5), "the time is not doubled"


def test_a_message_names_the_wait_its_limit_and_the_reason():
    watch = StepTimer(HangLimits(collective_timeout_s=100.0))
    assert watch.overdue(5.0, 0, DoneStep(), {}) is None
    first = watch.overdue(1300.0, 0, DoneStep(), {})
    assert first == Overdue("no new step for 1295 s; 1200 s are unusual for a first start", is_hang=False)
    done = DoneStep(1, 8, 0, longest_s=7.0, longest_ever_s=7.0)
    assert watch.overdue(1300.0, 0, done, {}) is None
    expected = "expected: the longest of the last 50 steps took 7.0 s"
    assert watch.overdue(1380.0, 0, done, {}) == Overdue(f"no new step for 80 s; 70 s are {expected}", is_hang=False)
    assert watch.overdue(1401.0, 0, done, {}) == Overdue(f"no new step for 101 s; 100 s are {expected}", is_hang=True)


def test_recent_steps_decide_what_is_slow_and_twice_the_longest_of_all_what_hangs():
    job = Watched()
    job.step(1.0)
    job.step(900.0)
    for _ in range(RECENT_STEPS):
        job.step(1.0)
    assert not job.after(LEAST_LIMIT_S + 1) and job.is_slow
    assert not job.after(1700) and job.after(100)


@example(steps=[(186.30438531277582, False, False), (1864.0, False, False)], timeout_s=1.0)
@given(
    steps=st.lists(st.tuples(st.floats(0.01, 5000), st.booleans(), st.booleans()), min_size=1, max_size=80),
    timeout_s=st.floats(1, 600),
)
def test_no_job_hangs_whose_waits_stay_within_what_it_has_shown(steps, timeout_s):
    """Steps of any length, saves in the poll of their step, and restarts at any time."""
    job = Watched(collective_timeout_s=timeout_s)
    longest_start_s, is_start = 0.0, True
    for seconds, saves, restarts in steps:
        longest_s = FACTOR * max(job.recent, default=0.0)
        if is_start:
            bound_s = max(timeout_s, START_CUT_OFF_S, longest_s, FACTOR * longest_start_s) if job.recent else 5000.0
            longest_start_s = max(longest_start_s, min(seconds, bound_s))
        else:
            bound_s = max(timeout_s, LEAST_LIMIT_S, longest_s, 2 * job.longest_ever)
        # Times are differences of a clock's readings, which may round up.
        assert not job.step(min(seconds, bound_s - 1e-6))
        if saves:  # announced, done and over between two polls
            assert not job.announce("steps", checkpoint=seconds)
        assert not restarts or not job.restart()
        is_start = restarts


def test_steps_of_seventy_seconds_with_a_save_in_each_poll_are_neither_slow_nor_hanging():
    job = Watched()
    for _ in range(5):
        assert not job.after(69.0) and not job.is_slow
        assert not job.step(1.0 + 69.0)
        assert not job.announce("checkpoint")
        assert not job.announce("steps", checkpoint=0.5)


def test_nothing_limits_the_first_start_and_the_longest_one_the_later_ones():
    job = Watched(collective_timeout_s=600.0)
    assert not job.after(START_CUT_OFF_S - 1) and not job.is_slow
    assert not job.after(2) and job.is_slow
    assert not job.after(1e6)
    job.step()
    assert not job.restart() and not job.after(10 * 1e6) and not job.is_slow
    assert job.after(1e5)
    job = Watched()
    job.after(9), job.step()
    assert not job.restart() and not job.after(START_CUT_OFF_S - 1)
    assert job.after(2)


def test_a_job_that_counted_as_hanging_gets_twice_the_time_after_its_restart():
    job = Watched(collective_timeout_s=100.0)
    job.step(1.0)
    assert not job.after(99) and job.after(2)
    job.restart(), job.step(1.0)
    assert not job.after(199) and job.after(2)
    job.restart(), job.step(1.0)
    job.restart(), job.step(1.0)  # a restart for another reason changes nothing
    assert not job.after(399) and job.after(2)


OTHER_WORK = ["evaluation", "export", "after the steps"]


@pytest.mark.parametrize(("what", "is_slow"), [("checkpoint", True), *((what, False) for what in OTHER_WORK)])
def test_a_first_save_and_other_work_between_steps_have_no_limit(what, is_slow):
    job = Watched(collective_timeout_s=60.0)
    job.step(), job.step()
    assert not job.announce(what)
    assert not job.after(1e6)
    assert job.is_slow is is_slow
    assert not job.announce("steps")
    assert not job.after(LEAST_LIMIT_S - 1)
    assert job.after(2)


def test_a_save_may_take_ten_times_the_longest_save():
    job = Watched(collective_timeout_s=60.0)
    job.step(1.0)
    job.announce("checkpoint"), job.after(2.0), job.announce("steps", checkpoint=2.0)
    job.announce("checkpoint")
    assert not job.after(LEAST_LIMIT_S - 1) and job.after(2)
    job.announce("steps", checkpoint=30.0), job.announce("checkpoint")
    assert not job.after(299) and job.after(2)


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
    job.restart()
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
    job.announce("checkpoint", checkpoint=100.0)
    assert not job.after(4) and job.after(2)


def test_a_script_of_ones_own_is_watched_from_its_first_step_on():
    job = Watched(watches_start=False)
    assert not job.after(0) and not job.after(1e6) and not job.is_slow
    job.step()
    assert not job.restart() and not job.after(1e7)
    assert job.after(100)


def test_the_watch_reads_what_rank_0_announces_and_ends_with_the_stop_pattern(tmp_path):
    watch = HangDetector(tmp_path, HangLimits(start_cut_off_s=100, recurring_s=10, stop_pattern=r"finished"))
    attempt, done = Attempt(0, 0, (0,), 0.0), DoneStep(1, 0, 0)
    assert watch.poll(0, attempt, done) is None
    assert watch.poll(11, attempt, done) == Overdue("no new step for 11 s; 10 s are allowed", is_hang=True)
    (tmp_path / ACTIVITY_FILE).write_text(json.dumps({"what": "checkpoint", "time": 1.0, "attempt": 0}))
    assert watch.poll(12, attempt, done) is watch.poll(100, attempt, done) is None
    assert watch.poll(200, attempt, done)
    log = tmp_path / "logs" / "node-0" / "job_x" / "attempt_0" / "0" / "stdout.log"
    log.parent.mkdir(parents=True)
    log.write_text("not finished\n")
    assert watch.poll(201, attempt, done)
    with log.open("a") as file:
        file.write("finished at step 9\n")
    assert watch.poll(202, attempt, done) is watch.poll(9999, attempt, done) is None
    assert watch.poll(10000, Attempt(1, 0, (0,), 0.0), done) is None
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


@pytest.mark.parametrize("code", [-(EXIT_NOT_FINITE << 8), EXIT_NOT_FINITE, -(1 << 8)])
def test_a_job_whose_values_are_not_finite_is_not_started_again(code):
    fault = Fault(1, Cause.WORKER, f"Local Rank 0 exited with code {code}")
    settling = machine(Phase.SETTLING, since_s=NOW - SETTLE_S - 1, fault_since_s=NOW, faults=(fault,))
    after, _ = advance(settling, observation(RUNNING, RUNNING, step=7), POLICY)
    assert after.verdict is (None if code == -(1 << 8) else JobState.FAILED)


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


def test_a_step_takes_what_its_record_says_or_else_the_time_since_the_step_before(tmp_path):
    def record(step, time, attempt=0, **fields):
        own = {"step": step, "cursor": 8 * step, "attempt": attempt, "time": time, **fields}
        with (tmp_path / METRICS_FILE).open("a") as file:
            file.write(json.dumps(own) + "\n")

    reader = StepReader(tmp_path, since=100.0)
    record(1, 50.0, samples=8, samples_per_s=0.001)  # of an earlier launch
    record(1, 110.0, samples=8, samples_per_s=0.1)
    assert reader.last() == DoneStep(1, 8, 0, longest_s=80.0, longest_ever_s=80.0)
    record(2, 190.0), record(3, 191.0, samples=8, samples_per_s=0.0)
    assert reader.last().longest_s == 80.0
    record(4, 391.0), record(5, 392.0, attempt=1), record(5, 999.0, samples=8, samples_per_s="x")
    assert reader.last() == DoneStep(5, 40, 1, longest_s=200.0, longest_ever_s=200.0)
    for step in range(6, 6 + RECENT_STEPS):
        record(step, 1000.0 + step, attempt=1, samples=8, samples_per_s=8.0)
    assert (reader.last().longest_s, reader.last().longest_ever_s) == (1.0, 200.0)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("30", 30.0),
        ("1e3", 1000.0),
        (None, 600.0),
        ("", 600.0),
        ("x", 600.0),
        ("-1", 600.0),
        ("0.5", 0.5),
        ("0", 600.0),
    ],
)
def test_the_least_limit_is_the_timeout_of_the_collectives_of_the_job(text, seconds):
    assert collective_timeout_s(text) == seconds


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
    point_to(published.parent)
    assert damage_checkpoint(tmp_path, 10)
    assert published.read_bytes() != bytes(100) and later.read_bytes() == bytes(100)


def test_without_a_checkpoint_there_are_no_bits_to_rot(tmp_path):
    assert not damage_checkpoint(tmp_path, 10) and not damage_checkpoint(tmp_path / "missing", 10)
