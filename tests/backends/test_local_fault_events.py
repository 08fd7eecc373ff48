"""Each fault of a local job has an event of its own, and each change of size names the size that is started."""

import pytest
from test_local_course import COMPLETED, FAULTED, NOW, READY, RUNNING, STOPPING, course, report, sight

from launcher.backends.local.operator_types import GONE, Cause, DropNodes, Note, Phase, Policy, Report
from launcher.backends.local.state_machine import READY_TIMEOUT_S, SETTLE_S, advance

POLICY = Policy((1, 2, 3, 4), graceful_timeout_s=30, faulty_timeout_s=20)
KILLED = "Local Rank 0 exited with code -9"


def told(orders, kind="fault"):
    return [order for order in orders if isinstance(order, Note) and order.kind == kind]


def faults(orders):
    return [(note.fields["node"], note.fields["cause"], note.fields["warming"]) for note in told(orders)]


@pytest.mark.parametrize("capacity", [1, 2], ids=["its-place-is-gone-too", "its-place-stays"])
def test_a_new_node_that_dies_while_it_gets_ready_is_a_fault(capacity):
    growing = course(Phase.RUNNING, 0, warming=(1,), new_node=2, wish_since_s=NOW)
    after, orders = advance(growing, sight(RUNNING, GONE, capacity=capacity), POLICY)
    assert faults(orders) == [(1, Cause.LOST, True)]
    (abandoned,) = told(orders, "abandoned")
    assert abandoned.message == "a new node failed before it took part"
    assert after.warming == () and DropNodes((1,)) in orders


def test_a_new_node_that_takes_too_long_is_a_fault_and_the_ready_one_is_none():
    growing = course(Phase.RUNNING, 0, warming=(1, 2), new_node=3, wish_since_s=NOW - READY_TIMEOUT_S - 1)
    _, orders = advance(growing, sight(RUNNING, READY, None, capacity=3), POLICY)
    assert faults(orders) == [(2, Cause.UNREADY, True)]


def test_new_nodes_without_capacity_are_not_needed_any_more():
    growing = course(Phase.RUNNING, 0, warming=(1,), new_node=2, wish_since_s=NOW)
    _, orders = advance(growing, sight(RUNNING, READY, capacity=1), POLICY)
    assert faults(orders) == []
    assert told(orders, "abandoned")[0].message == "the new nodes are not needed any more"


def test_a_new_node_that_dies_during_the_stop_is_a_fault():
    stopping = course(Phase.STOPPING, 0, warming=(1,), new_node=2, target=2)
    _, orders = advance(stopping, sight(READY, GONE, capacity=2), POLICY)
    assert faults(orders) == [(1, Cause.LOST, True)]


def test_a_fault_that_is_seen_while_another_settles_has_its_own_event():
    seen = sight(report(FAULTED, KILLED), RUNNING, RUNNING, capacity=3)
    settling, first = advance(course(Phase.RUNNING, 0, 1, 2), seen, POLICY)
    assert faults(first) == [(0, Cause.WORKER, False)]
    assert told(first)[0].message == "node 0: a worker failed (local rank 0 was killed by SIGKILL)"
    seen = sight(report(FAULTED, KILLED), GONE, report(FAULTED), capacity=3, now_s=NOW + SETTLE_S / 2)
    settling, second = advance(settling, seen, POLICY)
    assert faults(second) == [(1, Cause.LOST, False), (2, Cause.WORKER, False)]
    assert [note.fields["is_own"] for note in told(second)] == [True, False]
    seen = sight(report(FAULTED, KILLED), GONE, GONE, capacity=3, now_s=NOW + SETTLE_S + 1, step=7)
    stopping, third = advance(settling, seen, POLICY)
    assert stopping.phase is Phase.STOPPING and faults(third) == [(2, Cause.LOST, False)]


def test_two_nodes_that_fall_together_have_an_event_each():
    _, orders = advance(course(Phase.RUNNING, 0, 1, 2), sight(RUNNING, GONE, GONE, capacity=1), POLICY)
    assert faults(orders) == [(1, Cause.LOST, False), (2, Cause.LOST, False)]


@pytest.mark.parametrize("phase", [Phase.STOPPING, Phase.WAITING], ids=str)
def test_a_node_that_is_lost_while_the_others_stop_or_wait_is_a_fault(phase):
    before = course(phase, 0, 1, size=3, fault_since_s=NOW - 1, attempt=1)
    _, orders = advance(before, sight(STOPPING, GONE, capacity=1), POLICY)
    assert faults(orders) == [(1, Cause.LOST, False)]


def test_a_node_that_does_not_stop_is_a_fault():
    stopping = course(Phase.STOPPING, 0, 1, since_s=NOW - 100)
    _, orders = advance(stopping, sight(READY, Report(True, None), capacity=2), POLICY)
    assert faults(orders) == [(1, Cause.DISOBEDIENT, False)]


@pytest.mark.parametrize(
    ("nodes", "capacity", "row"),
    [((0, 1, 2, 3), 3, ("scale-down", 4, 3)), ((0, 1), 3, ("restart", 2, 2)), ((0, 1), 1, None), ((0,), 0, None)],
    ids=["more-than-decided", "as-many-as-before", "as-decided", "suspended-as-decided"],
)
def test_a_stop_that_capacity_overtakes_names_the_size_that_is_started(nodes, capacity, row):
    decided = 1 if capacity else 0
    stopping = course(Phase.STOPPING, *nodes, target=decided)
    after, orders = advance(stopping, sight(*[READY] * len(nodes), capacity=capacity), POLICY)
    rows = [
        tuple(note.fields[name] for name in ("reason", "from_nodes", "to_nodes"))
        for note in told(orders, "transition")
    ]
    assert rows == ([row] if row else [])
    assert len(after.nodes) == (row[2] if row else decided)


def test_a_job_that_finishes_while_nodes_get_ready_has_no_fault():
    growing = course(Phase.RUNNING, 0, warming=(1,), new_node=2, wish_since_s=NOW)
    after, orders = advance(growing, sight(COMPLETED, READY, capacity=2), POLICY)
    assert after.phase is Phase.ENDED and faults(orders) == []
