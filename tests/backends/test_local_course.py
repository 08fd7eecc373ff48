import dataclasses

import pytest

from launcher.backends.local.agent import AgentState, AgentStatus
from launcher.backends.local.course import (
    READY_TIMEOUT_S,
    SETTLE_S,
    SILENCE_TIMEOUT_S,
    STOP_MARGIN_S,
    Cause,
    Course,
    Fault,
    Phase,
    Report,
    Sight,
    StartWorkers,
    StopWorkers,
    advance,
)
from launcher.specs import JobState

READY, RUNNING, COMPLETED = AgentState.READY, AgentState.RUNNING, AgentState.COMPLETED
STOPPING, FAULTED = AgentState.STOPPING, AgentState.FAULTED
DEAD = Report(alive=False, status=None)


def course(phase, graceful_timeout_s=30, **fields):
    return Course(phase, (0, 1), 0, 100.0, graceful_timeout_s, **fields)


def report(state, message="", silent_s=0.0):
    return Report(True, AgentStatus(state, message) if state else None, silent_s)


def sight(*reports, now_s=100.5, **fields):
    seen = [each if isinstance(each, Report) else report(each) for each in reports]
    return Sight(now_s, dict(enumerate(seen)), **fields)


def test_workers_start_once_every_agent_is_ready():
    waiting, orders = advance(course(Phase.PREPARING), sight(READY, None))
    assert (waiting.phase, orders) == (Phase.PREPARING, ())
    running, orders = advance(waiting, sight(READY, READY, now_s=103.0))
    assert running.phase is Phase.RUNNING
    assert running.since_s == 103.0
    assert orders == (StartWorkers((0, 1), 0),)


def test_an_agent_that_dies_before_it_is_ready_fails_the_job():
    ended, orders = advance(course(Phase.PREPARING), sight(READY, DEAD))
    assert (ended.phase, ended.verdict, orders) == (Phase.ENDED, JobState.FAILED, ())
    assert ended.faults == (Fault(1, Cause.LOST),)


def test_an_agent_that_is_never_ready_fails_the_job():
    late = sight(READY, None, now_s=100.0 + READY_TIMEOUT_S + 1)
    assert advance(course(Phase.PREPARING), late)[0].faults == (Fault(1, Cause.UNREADY),)


def test_a_job_is_completed_only_when_every_agent_says_so():
    going, _ = advance(course(Phase.RUNNING), sight(COMPLETED, RUNNING))
    assert going.phase is Phase.RUNNING
    ended, _ = advance(going, sight(COMPLETED, COMPLETED))
    assert (ended.phase, ended.verdict) == (Phase.ENDED, JobState.SUCCEEDED)


def test_a_fault_waits_for_the_other_agents_to_notice_theirs():
    first = report(FAULTED, "first")
    settling, _ = advance(course(Phase.RUNNING), sight(first, RUNNING))
    assert settling.phase is Phase.SETTLING
    both = sight(first, report(FAULTED, "second"), now_s=settling.since_s + SETTLE_S)
    ended, _ = advance(settling, both)
    assert (ended.phase, ended.verdict) == (Phase.ENDED, JobState.FAILED)
    assert [fault.detail for fault in ended.faults] == ["first", "second"]


def test_a_node_that_was_only_silent_for_too_long_is_still_named():
    silent = Report(True, None, SILENCE_TIMEOUT_S + 1)
    settling, _ = advance(course(Phase.RUNNING), sight(RUNNING, silent))
    ended, _ = advance(settling, sight(RUNNING, RUNNING, now_s=settling.since_s + SETTLE_S))
    assert ended.faults == (Fault(1, Cause.SILENT),)


def test_a_refused_start_fails_the_job():
    refusal = Fault(0, Cause.DISOBEDIENT, "no effect")
    ended, _ = advance(course(Phase.RUNNING), sight(READY, RUNNING, refusals=(refusal,)))
    assert (ended.verdict, ended.faults) == (JobState.FAILED, (refusal,))


@pytest.mark.parametrize("graceful_timeout_s", [None, 30], ids=["at-once", "graceful"])
def test_an_interrupt_stops_all_nodes_together(graceful_timeout_s):
    stopping, orders = advance(course(Phase.RUNNING, graceful_timeout_s), sight(RUNNING, RUNNING, interrupts=1))
    assert (stopping.phase, stopping.verdict) == (Phase.STOPPING, JobState.CANCELLED)
    assert orders == (StopWorkers((0, 1), graceful_timeout_s),)


def test_completed_agents_do_not_complete_a_job_that_is_being_stopped():
    stopping = course(Phase.STOPPING, verdict=JobState.CANCELLED)
    still, _ = advance(stopping, sight(COMPLETED, COMPLETED, interrupts=1))
    assert still.phase is Phase.STOPPING


@pytest.mark.parametrize(
    "seen",
    [
        sight(READY, READY, interrupts=1),
        sight(READY, DEAD, interrupts=1),
        sight(STOPPING, STOPPING, interrupts=2),
        sight(STOPPING, READY, interrupts=1, now_s=100.0 + 30 + STOP_MARGIN_S + 1),
    ],
    ids=["all-ready", "one-dead", "second-interrupt", "out-of-time"],
)
def test_stopping_ends_cancelled(seen):
    ended, _ = advance(course(Phase.STOPPING, verdict=JobState.CANCELLED), seen)
    assert (ended.phase, ended.verdict) == (Phase.ENDED, JobState.CANCELLED)


def test_an_interrupt_while_agents_come_up_cancels_without_orders():
    ended, orders = advance(course(Phase.PREPARING), sight(None, None, interrupts=1))
    assert (ended.phase, ended.verdict, orders) == (Phase.ENDED, JobState.CANCELLED, ())


def test_a_course_is_a_value():
    with pytest.raises(dataclasses.FrozenInstanceError):
        course(Phase.RUNNING).attempt = 1
