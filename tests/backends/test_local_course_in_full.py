"""Single steps of the operator's state machine in full: the state after them, and every command and event."""

import dataclasses

import pytest
from test_local_course import CHECKPOINT, NOW, POLICY, course, report, sight

from launcher.backends.local.operator_types import (
    GONE,
    AgentState,
    Cause,
    Course,
    DropNodes,
    Fault,
    KillNodes,
    Note,
    Phase,
    Policy,
    Report,
    Sight,
    SpawnNodes,
    StartWorkers,
    StopWorkers,
)
from launcher.backends.local.state_machine import advance, begin, progress_step
from launcher.model.job_spec import JobState

READY, RUNNING, COMPLETED = AgentState.READY, AgentState.RUNNING, AgentState.COMPLETED
STOPPING, FAULTED = AgentState.STOPPING, AgentState.FAULTED
replace = dataclasses.replace


def transition(reason, before, after, cause_s, text):
    return Note("transition", text, {"reason": reason, "from_nodes": before, "to_nodes": after}, cause_s)


def stopping_note(nodes=(0, 1), *, attempt=0, graceful=True):
    return Note("stopping", "", {"attempt": attempt, "nodes": nodes, "graceful": graceful})


def fault_note(node, cause, *, detail="", is_own=True, warming=False):
    """Return the event of a fault; a job's own fault names no node."""
    where = {} if node < 0 else {"node": node}
    fields = {**where, "cause": str(cause), "is_own": is_own, "warming": warming}
    return Note("fault", str(Fault(node, cause, detail)), fields)


LOST_1 = fault_note(1, Cause.LOST)
GROW = transition("scale-up", 2, 4, NOW, "scale-up: 2 → 4 nodes")
SHRINK = transition("scale-down", 2, 1, NOW, "scale-down: 2 → 1 node")


# Values


@pytest.mark.parametrize("num_nodes", [0, 3])
def test_a_job_begins_without_a_past(num_nodes):
    nodes = tuple(range(num_nodes))
    phase = Phase.PREPARING if num_nodes else Phase.WAITING
    first, orders = begin(num_nodes, NOW)
    assert first == Course(phase, nodes, 0, NOW, new_node=num_nodes, size=num_nodes)
    assert orders == ((SpawnNodes(nodes),) if num_nodes else ())


def test_states_and_observations_begin_with_nothing():
    assert Report(True, None) == Report(True, None, silent_s=0.0)
    assert Sight(NOW, {}) == Sight(NOW, {}, interrupts=0, refusals=(), capacity=1, step=0, is_stuck=False, hang="")
    assert Policy((2,), None) == Policy((2,), None, scaling_timeout_s=0, faulty_timeout_s=0, snooze_s=0)
    empty = Course(Phase.WAITING, (), 0, NOW)
    assert (empty.new_node, empty.size, empty.target, empty.fault_step, empty.barren_faults) == (0, 0, 0, 0, 0)


def test_a_checkpoint_s_step_is_the_newest_that_any_agent_counts():
    entries = {"a": {"progressCount": 4}, "b": {"progressCount": "9"}}
    assert progress_step(entries) == 9 and progress_step({}) == -1


@pytest.mark.parametrize(
    ("fault", "text", "is_own"),
    [
        (Fault(3, Cause.LOST), "node 3: its agent ended", True),
        (Fault(-1, Cause.HANG, "no new step for 9 s"), "hang: no new step for 9 s", True),
        (Fault(0, Cause.WORKER, "Local Rank 1 exited with code 1"), "node 0: a worker failed (local rank 1 ", False),
        (Fault(0, Cause.WORKER, "Local Rank 1 exited with code -9"), "node 0: a worker failed (local rank 1 ", True),
    ],
    ids=["lost", "hang", "exited", "killed"],
)
def test_a_fault_names_its_node_and_workers_and_whose_it_is(fault, text, is_own):
    assert str(fault).startswith(text) and fault.is_own is is_own
    assert ("(" in str(fault)) == (fault.cause is Cause.WORKER)


@pytest.mark.parametrize(("fault_since_s", "claim"), [(None, 2), (0.0, 4)], ids=["trains", "recovers"])
def test_a_job_claims_the_nodes_it_had_while_it_recovers(fault_since_s, claim):
    assert course(Phase.RUNNING, 0, 1, size=4, fault_since_s=fault_since_s).claim == claim


# Start


def test_a_start_forgets_the_fault_and_the_wish_that_led_to_it():
    faults = (Fault(1, Cause.LOST),)
    before = course(Phase.PREPARING, size=4, attempt=2, wish_since_s=1.0, fault_since_s=2.0, faults=faults)
    after, orders = advance(before, sight(report(READY, progress=CHECKPOINT), READY), POLICY)
    assert after == course(Phase.RUNNING, attempt=2, since_s=NOW, progress=CHECKPOINT)
    fields = {"attempt": 2, "nodes": (0, 1), "size": 2}
    assert orders == (Note("starting", "starting on 2 nodes", fields), StartWorkers((0, 1), 2, CHECKPOINT))


def test_nodes_lost_before_the_start_are_waited_for():
    before = course(Phase.PREPARING)
    after, orders = advance(before, sight(READY, GONE, capacity=1), POLICY)
    lost = (Fault(1, Cause.LOST),)
    assert after == course(Phase.WAITING, 0, new_node=2, size=2, since_s=NOW, fault_since_s=NOW, faults=lost)
    assert orders == (LOST_1,)


def test_a_smaller_capacity_before_the_start_takes_nodes_away():
    after, orders = advance(course(Phase.PREPARING), sight(READY, None, capacity=1), POLICY)
    assert after == course(Phase.PREPARING, 0, new_node=2, size=2, since_s=NOW)
    assert orders == (SHRINK, Note("dropped", "", {"nodes": (1,)}), DropNodes((1,)))


@pytest.mark.parametrize(("seconds", "is_late"), [(120.0, False), (120.5, True)], ids=["in_time", "late"])
def test_agents_have_120_seconds_to_be_ready(seconds, is_late):
    first = advance(course(Phase.PREPARING), sight(READY, None, now_s=100.0 + seconds), POLICY)
    if not is_late:
        assert first == (course(Phase.PREPARING), ())
        return
    fault = Fault(1, Cause.UNREADY)
    ended = course(
        Phase.ENDED, since_s=220.5, verdict=JobState.FAILED, faults=(fault,), barren_faults=1
    )  # fmt: skip
    assert first == (ended, (fault_note(1, Cause.UNREADY),))


def test_a_late_agent_of_a_restart_is_replaced():
    after, orders = advance(course(Phase.PREPARING, attempt=1), sight(READY, None, now_s=221.0), POLICY)
    assert after == course(Phase.PREPARING, 0, 2, attempt=1, since_s=221.0, size=2, barren_faults=1)
    assert orders == (fault_note(1, Cause.UNREADY), KillNodes((1,)), SpawnNodes((2,)))


def test_the_fourth_fault_without_a_new_step_is_the_last():
    before = course(Phase.PREPARING, attempt=1, barren_faults=2)
    assert advance(before, sight(READY, GONE), POLICY)[0].phase is Phase.PREPARING
    after, orders = advance(replace(before, barren_faults=3), sight(READY, GONE), POLICY)
    assert (after.phase, after.barren_faults, after.since_s, orders) == (Phase.ENDED, 4, NOW, (LOST_1,))


@pytest.mark.parametrize("phase", [Phase.PREPARING, Phase.WAITING], ids=str)
def test_an_interrupt_before_the_start_ends_the_job_now(phase):
    after, orders = advance(course(phase), sight(READY, None, interrupts=1), POLICY)
    assert (after, orders) == (course(Phase.ENDED, since_s=NOW, verdict=JobState.CANCELLED), ())


def test_a_job_that_has_ended_stays_as_it_is():
    ended = course(Phase.ENDED, verdict=JobState.FAILED)
    assert advance(ended, sight(READY, GONE, interrupts=1, capacity=4), POLICY) == (ended, ())


# While it trains


def test_an_interrupt_stops_every_agent_gracefully():
    after, orders = advance(course(Phase.RUNNING), sight(RUNNING, RUNNING, interrupts=1), POLICY)
    assert after == course(Phase.STOPPING, since_s=NOW, verdict=JobState.CANCELLED)
    assert orders == (stopping_note(), StopWorkers((0, 1), 30))


def test_a_completed_job_ends_when_it_was_seen():
    after, orders = advance(course(Phase.RUNNING), sight(COMPLETED, COMPLETED), POLICY)
    assert (after, orders) == (course(Phase.ENDED, since_s=NOW, verdict=JobState.SUCCEEDED), ())


def test_a_scale_down_stops_for_its_target():
    after, orders = advance(course(Phase.RUNNING), sight(RUNNING, RUNNING, capacity=1), POLICY)
    assert after == course(Phase.STOPPING, since_s=NOW, target=1)
    assert orders == (SHRINK, stopping_note(), StopWorkers((0, 1), 30))
    after, orders = advance(after, sight(READY, READY, capacity=1, now_s=NOW + 3, step=5), POLICY)
    assert after == course(Phase.PREPARING, 0, new_node=2, size=2, since_s=NOW + 3, target=1, attempt=1)
    stopped = Note("stopped", "", {"attempt": 0, "saved": False})
    assert orders == (stopped, Note("dropped", "", {"nodes": (1,)}), DropNodes((1,)))


def test_a_stop_that_kills_says_so():
    policy = replace(POLICY, graceful_timeout_s=None)
    _, orders = advance(course(Phase.RUNNING, attempt=3), sight(RUNNING, RUNNING, capacity=1), policy)
    assert orders == (SHRINK, stopping_note(attempt=3, graceful=False), StopWorkers((0, 1), None))


def test_a_scale_up_is_dated_from_the_wish_and_warms_from_now():
    before = course(Phase.RUNNING, wish_since_s=80.0)
    after, orders = advance(before, sight(RUNNING, RUNNING, capacity=4), POLICY)
    assert after == course(Phase.RUNNING, warming=(2, 3), new_node=4, wish_since_s=NOW)
    wish = replace(GROW, cause_s=80.0)
    assert orders == (wish, Note("spawned", "", {"nodes": (2, 3)}), SpawnNodes((2, 3)))


def test_prewarmed_nodes_stop_the_others_for_the_larger_size():
    before = course(Phase.RUNNING, warming=(2, 3), new_node=4, wish_since_s=NOW)
    after, orders = advance(before, sight(RUNNING, RUNNING, READY, READY, capacity=4, now_s=NOW + 120), POLICY)
    assert after == replace(before, phase=Phase.STOPPING, since_s=NOW + 120, target=4)
    warmed = Note("prewarmed", "", {"nodes": (2, 3)})
    assert orders == (warmed, stopping_note(), StopWorkers((0, 1), 30))


def test_a_job_snoozes_for_exactly_its_seconds():
    policy = replace(POLICY, snooze_s=60)
    before = course(Phase.RUNNING, attempt=1, wish_since_s=0.0)
    assert advance(before, sight(RUNNING, RUNNING, capacity=4, now_s=160.0), policy)[0].warming == (2, 3)


@pytest.mark.parametrize(
    ("seen", "faults", "wish_since_s"),
    [
        (sight(RUNNING, RUNNING, READY, None), (), None),
        (sight(RUNNING, RUNNING, READY, GONE, capacity=4), ((3, Cause.LOST),), NOW),
        (sight(RUNNING, RUNNING, READY, None, capacity=4, now_s=220.5), ((3, Cause.UNREADY),), 220.5),
        (
            sight(RUNNING, RUNNING, GONE, None, capacity=4, now_s=220.5),
            ((2, Cause.LOST), (3, Cause.UNREADY)),
            220.5,
        ),
    ],
    ids=["capacity_gone", "lost", "late", "lost_and_late"],
)
def test_new_nodes_are_given_up_with_the_fault_of_each(seen, faults, wish_since_s):
    before = course(Phase.RUNNING, warming=(2, 3), new_node=4, wish_since_s=100.0)
    after, orders = advance(before, seen, POLICY)
    assert after == replace(before, warming=(), wish_since_s=wish_since_s)
    why = "a new node failed before it took part" if faults else "the new nodes are not needed any more"
    noted = [fault_note(*fault, warming=True) for fault in faults]
    assert orders == (*noted, Note("abandoned", why, {"nodes": (2, 3)}), DropNodes((2, 3)))


def test_new_nodes_that_are_not_ready_have_120_seconds():
    before = course(Phase.RUNNING, warming=(2, 3), new_node=4, wish_since_s=100.0)
    seen = sight(RUNNING, RUNNING, READY, None, capacity=4, now_s=220.0)
    assert advance(before, seen, POLICY) == (before, ())


# Faults


@pytest.mark.parametrize(("silent_s", "is_silent"), [(60.0, False), (60.5, True)])
def test_an_agent_may_be_silent_for_60_seconds(silent_s, is_silent):
    seen = sight(RUNNING, Report(True, None, silent_s), GONE, capacity=4)
    after, _ = advance(course(Phase.RUNNING, 0, 1, 2), seen, POLICY)
    silent = (Fault(1, Cause.SILENT),) if is_silent else ()
    assert after.faults == (Fault(2, Cause.LOST), *silent)


def test_a_hang_is_the_job_s_own_fault_and_restarts_it():
    seen = sight(RUNNING, RUNNING, step=3, hang="no step for 40 s")
    hang = Fault(-1, Cause.HANG, "no step for 40 s")
    settling, orders = advance(course(Phase.RUNNING), seen, POLICY)
    assert settling == course(Phase.SETTLING, since_s=NOW, fault_since_s=NOW, faults=(hang,))
    noted = Note("fault", "hang: no step for 40 s", {"cause": "hang", "is_own": True, "warming": False})
    assert orders == (noted,)
    stopping, orders = advance(settling, replace(seen, now_s=NOW + 1), POLICY)
    assert stopping.phase is Phase.STOPPING
    assert orders == (
        transition("recover", 2, 2, NOW, "recover: 2 → 2 nodes"),
        stopping_note(graceful=False),
        StopWorkers((0, 1), None),
    )
    lost = advance(course(Phase.RUNNING), replace(seen, reports={0: report(RUNNING)}), POLICY)[0]
    assert lost.faults == (Fault(1, Cause.LOST),), "a node's fault explains the hang"


def test_a_hang_of_node_0_is_told_from_the_job_s():
    _, orders = advance(course(Phase.RUNNING), sight(GONE, RUNNING, step=3), POLICY)
    assert orders == (fault_note(0, Cause.LOST),)


def test_faults_settle_for_one_second_and_only_new_ones_are_noted():
    settling, _ = advance(course(Phase.RUNNING), sight(report(FAULTED, "first"), RUNNING, step=7), POLICY)
    soon = sight(report(FAULTED, "first, in full"), GONE, step=7, now_s=NOW + 0.5)
    still, orders = advance(settling, soon, POLICY)
    both = (Fault(0, Cause.WORKER, "first, in full"), Fault(1, Cause.LOST))
    assert (still, orders) == (replace(settling, faults=both), (LOST_1,))
    stopping, orders = advance(still, replace(soon, now_s=NOW + 1), POLICY)
    assert stopping == replace(
        still, phase=Phase.STOPPING, since_s=NOW + 1, nodes=(0,), barren_faults=1, fault_step=7
    )
    assert orders == (
        transition("recover", 2, 2, NOW, "recover: 2 → 2 nodes"),
        stopping_note((0,), graceful=False),
        StopWorkers((0,), None),
    )


def test_an_interrupt_while_faults_settle_kills_what_is_left():
    settling = course(Phase.SETTLING, since_s=NOW, fault_since_s=NOW, faults=(Fault(1, Cause.LOST),))
    after, orders = advance(settling, sight(RUNNING, GONE, interrupts=1, now_s=NOW + 0.5), POLICY)
    assert after == replace(settling, phase=Phase.STOPPING, since_s=NOW + 0.5, verdict=JobState.CANCELLED)
    assert orders == (StopWorkers((0,), None),)


def test_a_hopeless_fault_ends_the_job_when_it_has_settled():
    settling = course(Phase.SETTLING, since_s=NOW, fault_since_s=NOW, faults=(Fault(0, Cause.WORKER, "x"),))
    after, orders = advance(settling, sight(report(FAULTED, "x"), RUNNING, now_s=NOW + 1), POLICY)
    ended = {"phase": Phase.ENDED, "since_s": NOW + 1, "verdict": JobState.FAILED, "barren_faults": 1}
    assert (after, orders) == (replace(settling, **ended), ())


# While it stops


def test_a_stop_waits_for_the_nodes_that_are_left():
    before = course(Phase.STOPPING)
    after, orders = advance(before, sight(STOPPING, GONE), POLICY)
    assert after == replace(before, nodes=(0,), faults=(Fault(1, Cause.LOST),))
    assert orders == (LOST_1,)


@pytest.mark.parametrize(
    ("grace_s", "fault_since_s", "seconds"),
    [(30, None, 45.0), (30, 90.0, 15.0), (None, None, 15.0)],
    ids=["graceful", "recovers", "killed"],
)
def test_a_stop_has_its_grace_and_15_seconds(grace_s, fault_since_s, seconds):
    policy, before = replace(POLICY, graceful_timeout_s=grace_s), course(Phase.STOPPING, fault_since_s=fault_since_s)
    assert advance(before, sight(STOPPING, READY, now_s=100.0 + seconds), policy) == (before, ())
    after, orders = advance(before, sight(STOPPING, READY, now_s=100.5 + seconds), policy)
    assert after.faults == (Fault(0, Cause.DISOBEDIENT),) and after.attempt == 1
    assert orders[:2] == (fault_note(0, Cause.DISOBEDIENT), KillNodes((0,)))


def test_a_recovering_agent_that_refused_to_stop_is_killed_again():
    refusal = Fault(1, Cause.DISOBEDIENT, "timed out")
    before = course(Phase.STOPPING, fault_since_s=90.0)
    after, orders = advance(before, sight(STOPPING, RUNNING, refusals=(refusal,)), POLICY)
    assert (after, orders) == (before, (StopWorkers((1,), None),))


def test_an_interrupted_stop_ends_when_all_are_ready():
    before = course(Phase.STOPPING, verdict=JobState.CANCELLED)
    after, orders = advance(before, sight(READY, READY, interrupts=1), POLICY)
    assert (after, orders) == (replace(before, phase=Phase.ENDED, since_s=NOW), ())


def test_a_scale_up_that_shrank_on_the_way_is_noted_with_its_real_size():
    before = course(Phase.STOPPING, warming=(2, 3), new_node=4, target=4)
    seen = sight(READY, READY, GONE, READY, capacity=4)
    after, orders = advance(before, seen, POLICY)
    assert (after.nodes, after.warming) == ((0, 1), ())
    assert orders == (
        Note("stopped", "", {"attempt": 0, "saved": False}),
        transition("restart", 2, 2, NOW, "restart: 2 → 2 nodes"),
        fault_note(2, Cause.LOST, warming=True),
        Note("dropped", "", {"nodes": (3,)}),
        DropNodes((3, 2)),
    )


def test_what_was_warmed_takes_part_in_the_size_that_is_left():
    before = course(Phase.STOPPING, 0, warming=(1, 2, 3), new_node=4, target=4)
    after, orders = advance(before, sight(READY, READY, GONE, GONE, capacity=4), POLICY)
    assert after.nodes == (0, 1)
    assert orders[1] == transition("scale-up", 1, 2, NOW, "scale-up: 1 → 2 nodes")


def test_a_recovering_job_waits_for_its_lost_node_from_now():
    before = course(Phase.STOPPING, 0, new_node=2, size=2, fault_since_s=NOW)
    after, orders = advance(before, sight(READY, capacity=1), POLICY)
    assert after == replace(before, phase=Phase.WAITING, since_s=NOW, attempt=1)
    assert orders == (Note("stopped", "", {"attempt": 0, "saved": False}),)


# While it waits


def test_a_node_that_is_lost_while_the_job_waits_is_a_fault():
    before = course(Phase.WAITING, size=4, fault_since_s=NOW, faults=(Fault(2, Cause.LOST),))
    after, orders = advance(before, sight(READY, GONE, capacity=2), POLICY)
    assert after == replace(before, nodes=(0,), since_s=NOW, faults=(Fault(2, Cause.LOST), Fault(1, Cause.LOST)))
    assert orders == (LOST_1,)


def test_a_job_that_waited_long_enough_continues_with_fewer_nodes():
    before = course(Phase.WAITING, 0, new_node=2, size=2, fault_since_s=80.5)
    after, orders = advance(before, sight(READY, capacity=1), POLICY)
    assert after == replace(before, phase=Phase.PREPARING, since_s=NOW, fault_since_s=None)
    assert orders == (replace(SHRINK, cause_s=80.5),)


def test_a_node_is_replaced_in_a_job_that_continues_with_fewer():
    before = course(Phase.WAITING, size=4, fault_since_s=80.5)
    after, orders = advance(before, sight(READY, GONE, capacity=2), POLICY)
    assert after.nodes == (0, 2)
    down = transition("scale-down", 4, 2, 80.5, "scale-down: 4 → 2 nodes")
    assert orders == (LOST_1, down, Note("spawned", "", {"nodes": (2,)}), SpawnNodes((2,)))


def test_a_suspended_job_resumes_when_it_is_seen_to_be_able_to():
    before = replace(course(Phase.WAITING), nodes=())
    after, orders = advance(before, sight(capacity=2), POLICY)
    assert after == replace(before, phase=Phase.PREPARING, nodes=(2, 3), new_node=4, since_s=NOW)
    resumed = transition("resume", 0, 2, NOW, "resume: 0 → 2 nodes")
    assert orders == (resumed, Note("spawned", "", {"nodes": (2, 3)}), SpawnNodes((2, 3)))


def test_a_suspended_job_without_a_future_fails_of_the_job_s_own_fault():
    before = replace(course(Phase.WAITING), nodes=())
    after, orders = advance(before, sight(capacity=0, is_stuck=True), POLICY)
    ended = {"since_s": NOW, "verdict": JobState.FAILED, "faults": (Fault(-1, Cause.NO_CAPACITY),)}
    assert (after, orders) == (replace(before, phase=Phase.ENDED, **ended), ())
