"""Single steps of the operator's state machine in full: the state after them, and every command and event."""

import dataclasses

import pytest
from test_local_state_machine import CHECKPOINT, NOW, POLICY, machine, observation, report

from launcher.model.job_spec import JobState
from launcher.operator.state_machine import advance, begin, progress_step
from launcher.operator.types import (
    GONE,
    AgentState,
    Cause,
    DropNodes,
    Event,
    Fault,
    KillNodes,
    MachineState,
    Observation,
    Phase,
    Policy,
    Report,
    SpawnNodes,
    StartWorkers,
    StopWorkers,
)

READY, RUNNING, COMPLETED = AgentState.READY, AgentState.RUNNING, AgentState.COMPLETED
STOPPING, FAULTED = AgentState.STOPPING, AgentState.FAULTED
replace = dataclasses.replace


def transition(reason, before, after, cause_s, text):
    return Event("transition", text, {"reason": reason, "from_nodes": before, "to_nodes": after}, cause_s)


def stopping_event(nodes=(0, 1), *, attempt=0, graceful=True):
    return Event("stopping", "", {"attempt": attempt, "nodes": nodes, "graceful": graceful})


def fault_event(node, cause, *, detail="", is_own=True, warming=False):
    """Return the event of a fault; a job's own fault names no node."""
    where = {} if node < 0 else {"node": node}
    fields = {**where, "cause": str(cause), "is_own": is_own, "warming": warming}
    return Event("fault", str(Fault(node, cause, detail)), fields)


LOST_1 = fault_event(1, Cause.LOST)
GROW = transition("scale-up", 2, 4, NOW, "scale-up: 2 → 4 nodes")
SHRINK = transition("scale-down", 2, 1, NOW, "scale-down: 2 → 1 node")


# Values


@pytest.mark.parametrize("num_nodes", [0, 3])
def test_a_job_begins_without_a_past(num_nodes):
    nodes = tuple(range(num_nodes))
    phase = Phase.PREPARING if num_nodes else Phase.WAITING
    first, commands = begin(num_nodes, NOW)
    assert first == MachineState(phase, nodes, 0, NOW, new_node=num_nodes, size=num_nodes)
    assert commands == ((SpawnNodes(nodes),) if num_nodes else ())


def test_states_and_observations_begin_with_nothing():
    assert Report(True, None) == Report(True, None, silent_s=0.0)
    assert Observation(NOW, {}) == Observation(
        NOW, {}, interrupts=0, failed_commands=(), capacity=1, step=0, is_stuck=False, hang=""
    )
    assert Policy((2,), None) == Policy((2,), None, scaling_timeout_s=0, faulty_timeout_s=0, snooze_s=0)
    empty = MachineState(Phase.WAITING, (), 0, NOW)
    assert (empty.new_node, empty.size, empty.target, empty.fault_step, empty.faults_without_progress) == (
        0,
        0,
        0,
        0,
        0,
    )


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


@pytest.mark.parametrize(("fault_since_s", "entitled_nodes"), [(None, 2), (0.0, 4)], ids=["trains", "recovers"])
def test_a_job_claims_the_nodes_it_had_while_it_recovers(fault_since_s, entitled_nodes):
    assert machine(Phase.RUNNING, 0, 1, size=4, fault_since_s=fault_since_s).entitled_nodes == entitled_nodes


# Start


def test_a_start_forgets_the_fault_and_the_wish_that_led_to_it():
    faults = (Fault(1, Cause.LOST),)
    before = machine(
        Phase.PREPARING, size=4, attempt=2, scale_up_requested_at_s=1.0, fault_since_s=2.0, faults=faults
    )
    after, commands = advance(before, observation(report(READY, progress=CHECKPOINT), READY), POLICY)
    assert after == machine(Phase.RUNNING, attempt=2, since_s=NOW, progress=CHECKPOINT)
    fields = {"attempt": 2, "nodes": (0, 1), "size": 2}
    assert commands == (Event("starting", "starting on 2 nodes", fields), StartWorkers((0, 1), 2, CHECKPOINT))


def test_nodes_lost_before_the_start_are_waited_for():
    before = machine(Phase.PREPARING, size=4)
    after, commands = advance(before, observation(READY, GONE, capacity=1), POLICY)
    lost = (Fault(1, Cause.LOST),)
    assert after == machine(Phase.WAITING, 0, new_node=2, size=2, since_s=NOW, fault_since_s=NOW, faults=lost)
    assert commands == (LOST_1,)


def test_a_smaller_capacity_before_the_start_takes_nodes_away():
    after, commands = advance(machine(Phase.PREPARING), observation(READY, None, capacity=1), POLICY)
    assert after == machine(Phase.PREPARING, 0, new_node=2, size=2, since_s=NOW)
    assert commands == (SHRINK, Event("dropped", "", {"nodes": (1,)}), DropNodes((1,)))


@pytest.mark.parametrize(("seconds", "is_late"), [(120.0, False), (120.5, True)], ids=["in_time", "late"])
def test_agents_have_120_seconds_to_be_ready(seconds, is_late):
    first = advance(machine(Phase.PREPARING), observation(READY, None, now_s=100.0 + seconds), POLICY)
    if not is_late:
        assert first == (machine(Phase.PREPARING), ())
        return
    fault = Fault(1, Cause.UNREADY)
    ended = machine(
        Phase.ENDED, since_s=220.5, verdict=JobState.FAILED, faults=(fault,), faults_without_progress=1
    )  # fmt: skip
    assert first == (ended, (fault_event(1, Cause.UNREADY),))


def test_a_late_agent_of_a_restart_is_replaced():
    after, commands = advance(machine(Phase.PREPARING, attempt=1), observation(READY, None, now_s=221.0), POLICY)
    assert after == machine(Phase.PREPARING, 0, 2, attempt=1, since_s=221.0, size=2, faults_without_progress=1)
    assert commands == (fault_event(1, Cause.UNREADY), KillNodes((1,)), SpawnNodes((2,)))


def test_late_and_lost_agents_are_replaced_in_the_order_of_their_ranks():
    before = machine(Phase.PREPARING, 0, 1, 2, attempt=1)
    after, commands = advance(before, observation(None, GONE, None, capacity=4, now_s=221.0), POLICY)
    causes = ((0, Cause.UNREADY), (1, Cause.LOST), (2, Cause.UNREADY))
    assert after.nodes == (3, 4, 5)
    assert commands == (*(fault_event(*each) for each in causes), KillNodes((0, 1, 2)), SpawnNodes((3, 4, 5)))


def test_the_fourth_fault_without_a_new_step_is_the_last():
    before = machine(Phase.PREPARING, attempt=1, faults_without_progress=2)
    assert advance(before, observation(READY, GONE), POLICY)[0].phase is Phase.PREPARING
    after, commands = advance(replace(before, faults_without_progress=3), observation(READY, GONE), POLICY)
    assert (after.phase, after.faults_without_progress, after.since_s, commands) == (Phase.ENDED, 4, NOW, (LOST_1,))


@pytest.mark.parametrize("phase", [Phase.PREPARING, Phase.WAITING], ids=str)
def test_an_interrupt_before_the_start_ends_the_job_now(phase):
    after, commands = advance(machine(phase), observation(READY, None, interrupts=1), POLICY)
    assert (after, commands) == (machine(Phase.ENDED, since_s=NOW, verdict=JobState.CANCELLED), ())


def test_a_job_that_has_ended_stays_as_it_is():
    ended = machine(Phase.ENDED, verdict=JobState.FAILED)
    assert advance(ended, observation(READY, GONE, interrupts=1, capacity=4), POLICY) == (ended, ())


# While it trains


def test_an_interrupt_stops_every_agent_gracefully():
    after, commands = advance(machine(Phase.RUNNING), observation(RUNNING, RUNNING, interrupts=1), POLICY)
    assert after == machine(Phase.STOPPING, since_s=NOW, verdict=JobState.CANCELLED)
    assert commands == (stopping_event(), StopWorkers((0, 1), 30))


def test_a_completed_job_ends_when_it_was_seen():
    after, commands = advance(machine(Phase.RUNNING), observation(COMPLETED, COMPLETED), POLICY)
    assert (after, commands) == (machine(Phase.ENDED, since_s=NOW, verdict=JobState.SUCCEEDED), ())


def test_a_scale_down_stops_for_its_target():
    after, commands = advance(machine(Phase.RUNNING), observation(RUNNING, RUNNING, capacity=1), POLICY)
    assert after == machine(Phase.STOPPING, since_s=NOW, target=1)
    assert commands == (SHRINK, stopping_event(), StopWorkers((0, 1), 30))
    after, commands = advance(after, observation(READY, READY, capacity=1, now_s=NOW + 3, step=5), POLICY)
    assert after == machine(Phase.PREPARING, 0, new_node=2, size=2, since_s=NOW + 3, target=1, attempt=1)
    stopped = Event("stopped", "", {"attempt": 0, "saved": False})
    assert commands == (stopped, Event("dropped", "", {"nodes": (1,)}), DropNodes((1,)))


def test_a_stop_that_kills_says_so():
    policy = replace(POLICY, graceful_timeout_s=None)
    _, commands = advance(machine(Phase.RUNNING, attempt=3), observation(RUNNING, RUNNING, capacity=1), policy)
    assert commands == (SHRINK, stopping_event(attempt=3, graceful=False), StopWorkers((0, 1), None))


def test_a_scale_up_is_dated_from_the_wish_and_warms_from_now():
    before = machine(Phase.RUNNING, scale_up_requested_at_s=80.0)
    after, commands = advance(before, observation(RUNNING, RUNNING, capacity=4), POLICY)
    assert after == machine(Phase.RUNNING, warming=(2, 3), new_node=4, scale_up_requested_at_s=NOW)
    wish = replace(GROW, cause_s=80.0)
    assert commands == (wish, Event("spawned", "", {"nodes": (2, 3)}), SpawnNodes((2, 3)))


def test_prewarmed_nodes_stop_the_others_for_the_larger_size():
    before = machine(Phase.RUNNING, warming=(2, 3), new_node=4, scale_up_requested_at_s=NOW)
    after, commands = advance(
        before, observation(RUNNING, RUNNING, READY, READY, capacity=4, now_s=NOW + 120), POLICY
    )
    assert after == replace(before, phase=Phase.STOPPING, since_s=NOW + 120, target=4)
    warmed = Event("prewarmed", "", {"nodes": (2, 3)})
    assert commands == (warmed, stopping_event(), StopWorkers((0, 1), 30))


def test_a_job_snoozes_for_exactly_its_seconds():
    policy = replace(POLICY, snooze_s=60)
    before = machine(Phase.RUNNING, attempt=1, scale_up_requested_at_s=0.0)
    assert advance(before, observation(RUNNING, RUNNING, capacity=4, now_s=160.0), policy)[0].warming == (2, 3)


@pytest.mark.parametrize(
    ("seen", "faults", "scale_up_requested_at_s"),
    [
        (observation(RUNNING, RUNNING, READY, None), (), None),
        (observation(RUNNING, RUNNING, READY, GONE, capacity=4), ((3, Cause.LOST),), NOW),
        (observation(RUNNING, RUNNING, FAULTED, None, capacity=4), ((2, Cause.WORKER),), NOW),
        (observation(RUNNING, RUNNING, READY, None, capacity=4, now_s=220.5), ((3, Cause.UNREADY),), 220.5),
        (
            observation(RUNNING, RUNNING, GONE, None, capacity=4, now_s=220.5),
            ((2, Cause.LOST), (3, Cause.UNREADY)),
            220.5,
        ),
    ],
    ids=["capacity_gone", "lost", "worker_failed", "late", "lost_and_late"],
)
def test_new_nodes_are_given_up_with_the_fault_of_each(seen, faults, scale_up_requested_at_s):
    before = machine(Phase.RUNNING, warming=(2, 3), new_node=4, scale_up_requested_at_s=100.0)
    after, commands = advance(before, seen, POLICY)
    assert after == replace(before, warming=(), scale_up_requested_at_s=scale_up_requested_at_s)
    why = "a new node failed before it took part" if faults else "the new nodes are no longer needed"
    noted = [fault_event(node, cause, is_own=cause is not Cause.WORKER, warming=True) for node, cause in faults]
    assert commands == (*noted, Event("abandoned", why, {"nodes": (2, 3)}), DropNodes((2, 3)))


def test_new_nodes_that_are_not_ready_have_120_seconds():
    before = machine(Phase.RUNNING, warming=(2, 3), new_node=4, scale_up_requested_at_s=100.0)
    seen = observation(RUNNING, RUNNING, READY, None, capacity=4, now_s=220.0)
    assert advance(before, seen, POLICY) == (before, ())


# Faults


@pytest.mark.parametrize(("silent_s", "is_silent"), [(60.0, False), (60.5, True)])
def test_an_agent_may_be_silent_for_60_seconds(silent_s, is_silent):
    seen = observation(RUNNING, Report(True, None, silent_s), GONE, capacity=4)
    after, _ = advance(machine(Phase.RUNNING, 0, 1, 2), seen, POLICY)
    silent = (Fault(1, Cause.SILENT),) if is_silent else ()
    assert after.faults == (Fault(2, Cause.LOST), *silent)


def test_a_hang_is_the_job_s_own_fault_and_restarts_it():
    seen = observation(RUNNING, RUNNING, step=3, hang="no step for 40 s")
    hang = Fault(-1, Cause.HANG, "no step for 40 s")
    settling, commands = advance(machine(Phase.RUNNING), seen, POLICY)
    assert settling == machine(Phase.SETTLING, since_s=NOW, fault_since_s=NOW, faults=(hang,))
    noted = Event("fault", "hang: no step for 40 s", {"cause": "hang", "is_own": True, "warming": False})
    assert commands == (noted,)
    stopping, commands = advance(settling, replace(seen, now_s=NOW + 1), POLICY)
    assert stopping.phase is Phase.STOPPING
    assert commands == (
        transition("recover", 2, 2, NOW, "recover: 2 → 2 nodes"),
        stopping_event(graceful=False),
        StopWorkers((0, 1), None),
    )
    lost = advance(machine(Phase.RUNNING), replace(seen, reports={0: report(RUNNING)}), POLICY)[0]
    assert lost.faults == (Fault(1, Cause.LOST),), "a node's fault explains the hang"


def test_a_hang_of_node_0_is_told_from_the_job_s():
    _, commands = advance(machine(Phase.RUNNING), observation(GONE, RUNNING, step=3), POLICY)
    assert commands == (fault_event(0, Cause.LOST),)


def test_faults_settle_for_one_second_and_only_new_ones_are_noted():
    settling, _ = advance(machine(Phase.RUNNING), observation(report(FAULTED, "first"), RUNNING, step=7), POLICY)
    soon = observation(report(FAULTED, "first, in full"), GONE, step=7, now_s=NOW + 0.5)
    still, commands = advance(settling, soon, POLICY)
    both = (Fault(0, Cause.WORKER, "first, in full"), Fault(1, Cause.LOST))
    assert (still, commands) == (replace(settling, faults=both), (LOST_1,))
    stopping, commands = advance(still, replace(soon, now_s=NOW + 1), POLICY)
    assert stopping == replace(
        still, phase=Phase.STOPPING, since_s=NOW + 1, nodes=(0,), faults_without_progress=1, fault_step=7
    )
    assert commands == (
        transition("recover", 2, 2, NOW, "recover: 2 → 2 nodes"),
        stopping_event((0,), graceful=False),
        StopWorkers((0,), None),
    )


def test_an_interrupt_while_faults_settle_kills_what_is_left():
    settling = machine(Phase.SETTLING, since_s=NOW, fault_since_s=NOW, faults=(Fault(1, Cause.LOST),))
    after, commands = advance(settling, observation(RUNNING, GONE, interrupts=1, now_s=NOW + 0.5), POLICY)
    assert after == replace(settling, phase=Phase.STOPPING, since_s=NOW + 0.5, verdict=JobState.CANCELLED)
    assert commands == (StopWorkers((0,), None),)


def test_a_hopeless_fault_ends_the_job_when_it_has_settled():
    settling = machine(Phase.SETTLING, since_s=NOW, fault_since_s=NOW, faults=(Fault(0, Cause.WORKER, "x"),))
    after, commands = advance(settling, observation(report(FAULTED, "x"), RUNNING, now_s=NOW + 1), POLICY)
    ended = {"phase": Phase.ENDED, "since_s": NOW + 1, "verdict": JobState.FAILED, "faults_without_progress": 1}
    assert (after, commands) == (replace(settling, **ended), ())


# While it stops


def test_a_stop_waits_for_the_nodes_that_are_left():
    before = machine(Phase.STOPPING)
    after, commands = advance(before, observation(STOPPING, GONE), POLICY)
    assert after == replace(before, nodes=(0,), faults=(Fault(1, Cause.LOST),))
    assert commands == (LOST_1,)


@pytest.mark.parametrize(
    ("grace_s", "fault_since_s", "seconds"),
    [(30, None, 45.0), (30, 90.0, 15.0), (None, None, 15.0)],
    ids=["graceful", "recovers", "killed"],
)
def test_a_stop_has_its_grace_and_15_seconds(grace_s, fault_since_s, seconds):
    policy, before = replace(POLICY, graceful_timeout_s=grace_s), machine(Phase.STOPPING, fault_since_s=fault_since_s)
    assert advance(before, observation(STOPPING, READY, now_s=100.0 + seconds), policy) == (before, ())
    after, commands = advance(before, observation(STOPPING, READY, now_s=100.5 + seconds), policy)
    assert after.faults == (Fault(0, Cause.DISOBEDIENT),) and after.attempt == 1
    assert commands[:2] == (fault_event(0, Cause.DISOBEDIENT), KillNodes((0,)))


def test_a_recovering_agent_that_refused_to_stop_is_killed_again():
    refusal = Fault(1, Cause.DISOBEDIENT, "timed out")
    before = machine(Phase.STOPPING, fault_since_s=90.0)
    after, commands = advance(before, observation(STOPPING, RUNNING, failed_commands=(refusal,)), POLICY)
    assert (after, commands) == (before, (StopWorkers((1,), None),))


def test_an_interrupted_stop_ends_when_all_are_ready():
    before = machine(Phase.STOPPING, verdict=JobState.CANCELLED)
    after, commands = advance(before, observation(READY, READY, interrupts=1), POLICY)
    assert (after, commands) == (replace(before, phase=Phase.ENDED, since_s=NOW), ())


def test_a_scale_up_that_shrank_on_the_way_is_noted_with_its_real_size():
    before = machine(Phase.STOPPING, warming=(2, 3), new_node=4, target=4)
    seen = observation(READY, READY, GONE, READY, capacity=4)
    after, commands = advance(before, seen, POLICY)
    assert (after.nodes, after.warming) == ((0, 1), ())
    assert commands == (
        Event("stopped", "", {"attempt": 0, "saved": False}),
        transition("restart", 2, 2, NOW, "restart: 2 → 2 nodes"),
        fault_event(2, Cause.LOST, warming=True),
        Event("dropped", "", {"nodes": (3,)}),
        DropNodes((3, 2)),
    )


def test_what_was_warmed_takes_part_in_the_size_that_is_left():
    before = machine(Phase.STOPPING, 0, warming=(1, 2, 3), new_node=4, target=4)
    after, commands = advance(before, observation(READY, READY, GONE, GONE, capacity=4), POLICY)
    assert after.nodes == (0, 1)
    assert commands[1] == transition("scale-up", 1, 2, NOW, "scale-up: 1 → 2 nodes")


def test_a_recovering_job_waits_for_its_lost_node_from_now():
    before = machine(Phase.STOPPING, 0, new_node=2, size=2, fault_since_s=NOW)
    after, commands = advance(before, observation(READY, capacity=1), POLICY)
    assert after == replace(before, phase=Phase.WAITING, since_s=NOW, attempt=1)
    assert commands == (Event("stopped", "", {"attempt": 0, "saved": False}),)


# While it waits


def test_a_node_that_is_lost_while_the_job_waits_is_a_fault():
    before = machine(Phase.WAITING, size=4, fault_since_s=NOW, faults=(Fault(2, Cause.LOST),))
    after, commands = advance(before, observation(READY, GONE, capacity=2), POLICY)
    assert after == replace(before, nodes=(0,), since_s=NOW, faults=(Fault(2, Cause.LOST), Fault(1, Cause.LOST)))
    assert commands == (LOST_1,)


def test_a_job_that_waited_long_enough_continues_with_fewer_nodes():
    before = machine(Phase.WAITING, 0, new_node=2, size=2, fault_since_s=80.5)
    after, commands = advance(before, observation(READY, capacity=1), POLICY)
    assert after == replace(before, phase=Phase.PREPARING, since_s=NOW, fault_since_s=None)
    assert commands == (replace(SHRINK, cause_s=80.5),)


def test_a_node_is_replaced_in_a_job_that_continues_with_fewer():
    before = machine(Phase.WAITING, size=4, fault_since_s=80.5)
    after, commands = advance(before, observation(READY, GONE, capacity=2), POLICY)
    assert after.nodes == (0, 2)
    down = transition("scale-down", 4, 2, 80.5, "scale-down: 4 → 2 nodes")
    assert commands == (LOST_1, down, Event("spawned", "", {"nodes": (2,)}), SpawnNodes((2,)))


def test_a_suspended_job_resumes_when_it_is_seen_to_be_able_to():
    before = replace(machine(Phase.WAITING), nodes=())
    after, commands = advance(before, observation(capacity=2), POLICY)
    assert after == replace(before, phase=Phase.PREPARING, nodes=(2, 3), new_node=4, since_s=NOW)
    resumed = transition("resume", 0, 2, NOW, "resume: 0 → 2 nodes")
    assert commands == (resumed, Event("spawned", "", {"nodes": (2, 3)}), SpawnNodes((2, 3)))


def test_a_suspended_job_without_a_future_fails_of_the_job_s_own_fault():
    before = replace(machine(Phase.WAITING), nodes=())
    after, commands = advance(before, observation(capacity=0, is_stuck=True), POLICY)
    ended = {"since_s": NOW, "verdict": JobState.FAILED, "faults": (Fault(-1, Cause.NO_CAPACITY),)}
    assert (after, commands) == (replace(before, phase=Phase.ENDED, **ended), ())
