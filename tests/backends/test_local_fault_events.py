"""Each fault of a local job has an event of its own, and each change of size names the size that is started."""

import pytest
from test_local_state_machine import COMPLETED, FAULTED, NOW, READY, RUNNING, STOPPING, machine, observation, report

from launcher.operator.state_machine import READY_TIMEOUT_S, SETTLE_S, advance
from launcher.operator.types import GONE, Cause, DropNodes, Event, Phase, Policy, Report

POLICY = Policy((1, 2, 3, 4), graceful_timeout_s=30, faulty_timeout_s=20)
KILLED = "Local Rank 0 exited with code -9"


def told(commands, kind="fault"):
    return [command for command in commands if isinstance(command, Event) and command.kind == kind]


def faults(commands):
    return [(event.fields["node"], event.fields["cause"], event.fields["warming"]) for event in told(commands)]


@pytest.mark.parametrize("capacity", [1, 2], ids=["its-place-is-gone-too", "its-place-stays"])
def test_a_new_node_that_dies_while_it_gets_ready_is_a_fault(capacity):
    growing = machine(Phase.RUNNING, 0, warming=(1,), new_node=2, scale_up_requested_at_s=NOW)
    after, commands = advance(growing, observation(RUNNING, GONE, capacity=capacity), POLICY)
    assert faults(commands) == [(1, Cause.LOST, True)]
    (abandoned,) = told(commands, "abandoned")
    assert abandoned.message == "a new node failed before it took part"
    assert after.warming == () and DropNodes((1,)) in commands


def test_a_new_node_that_takes_too_long_is_a_fault_and_the_ready_one_is_none():
    growing = machine(Phase.RUNNING, 0, warming=(1, 2), new_node=3, scale_up_requested_at_s=NOW - READY_TIMEOUT_S - 1)
    _, commands = advance(growing, observation(RUNNING, READY, None, capacity=3), POLICY)
    assert faults(commands) == [(2, Cause.UNREADY, True)]


def test_new_nodes_without_capacity_are_not_needed_any_more():
    growing = machine(Phase.RUNNING, 0, warming=(1,), new_node=2, scale_up_requested_at_s=NOW)
    _, commands = advance(growing, observation(RUNNING, READY, capacity=1), POLICY)
    assert faults(commands) == []
    assert told(commands, "abandoned")[0].message == "the new nodes are no longer needed"


def test_a_new_node_that_dies_during_the_stop_is_a_fault():
    stopping = machine(Phase.STOPPING, 0, warming=(1,), new_node=2, target=2)
    _, commands = advance(stopping, observation(READY, GONE, capacity=2), POLICY)
    assert faults(commands) == [(1, Cause.LOST, True)]


def test_a_fault_that_is_seen_while_another_settles_has_its_own_event():
    seen = observation(report(FAULTED, KILLED), RUNNING, RUNNING, capacity=3)
    settling, first = advance(machine(Phase.RUNNING, 0, 1, 2), seen, POLICY)
    assert faults(first) == [(0, Cause.WORKER, False)]
    assert told(first)[0].message == "node 0: a worker failed (local rank 0 was killed by SIGKILL)"
    seen = observation(report(FAULTED, KILLED), GONE, report(FAULTED), capacity=3, now_s=NOW + SETTLE_S / 2)
    settling, second = advance(settling, seen, POLICY)
    assert faults(second) == [(1, Cause.LOST, False), (2, Cause.WORKER, False)]
    assert [event.fields["is_own"] for event in told(second)] == [True, False]
    seen = observation(report(FAULTED, KILLED), GONE, GONE, capacity=3, now_s=NOW + SETTLE_S + 1, step=7)
    stopping, third = advance(settling, seen, POLICY)
    assert stopping.phase is Phase.STOPPING and faults(third) == [(2, Cause.LOST, False)]


def test_two_nodes_that_fall_together_have_an_event_each():
    _, commands = advance(machine(Phase.RUNNING, 0, 1, 2), observation(RUNNING, GONE, GONE, capacity=1), POLICY)
    assert faults(commands) == [(1, Cause.LOST, False), (2, Cause.LOST, False)]


@pytest.mark.parametrize("phase", [Phase.STOPPING, Phase.WAITING], ids=str)
def test_a_node_that_is_lost_while_the_others_stop_or_wait_is_a_fault(phase):
    before = machine(phase, 0, 1, size=3, fault_since_s=NOW - 1, attempt=1)
    _, commands = advance(before, observation(STOPPING, GONE, capacity=1), POLICY)
    assert faults(commands) == [(1, Cause.LOST, False)]


def test_a_node_that_does_not_stop_is_a_fault():
    stopping = machine(Phase.STOPPING, 0, 1, since_s=NOW - 100)
    _, commands = advance(stopping, observation(READY, Report(True, None), capacity=2), POLICY)
    assert faults(commands) == [(1, Cause.DISOBEDIENT, False)]


@pytest.mark.parametrize(
    ("nodes", "capacity", "row"),
    [((0, 1, 2, 3), 3, ("scale-down", 4, 3)), ((0, 1), 3, ("restart", 2, 2)), ((0, 1), 1, None), ((0,), 0, None)],
    ids=["more-than-decided", "as-many-as-before", "as-decided", "suspended-as-decided"],
)
def test_a_stop_that_capacity_overtakes_names_the_size_that_is_started(nodes, capacity, row):
    decided = 1 if capacity else 0
    stopping = machine(Phase.STOPPING, *nodes, target=decided)
    after, commands = advance(stopping, observation(*[READY] * len(nodes), capacity=capacity), POLICY)
    rows = [
        tuple(event.fields[name] for name in ("reason", "from_nodes", "to_nodes"))
        for event in told(commands, "transition")
    ]
    assert rows == ([row] if row else [])
    assert len(after.nodes) == (row[2] if row else decided)


def test_a_job_that_finishes_while_nodes_get_ready_has_no_fault():
    growing = machine(Phase.RUNNING, 0, warming=(1,), new_node=2, scale_up_requested_at_s=NOW)
    after, commands = advance(growing, observation(COMPLETED, READY, capacity=2), POLICY)
    assert after.phase is Phase.ENDED and faults(commands) == []
