import dataclasses

import pytest

from launcher.backends.local.operator_types import (
    GONE,
    AgentState,
    AgentStatus,
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
from launcher.backends.local.state_machine import (
    MAX_BARREN_FAULTS,
    READY_TIMEOUT_S,
    SETTLE_S,
    SILENCE_TIMEOUT_S,
    STOP_MARGIN_S,
    advance,
    begin,
)
from launcher.model.job_spec import JobState

READY, RUNNING, COMPLETED = AgentState.READY, AgentState.RUNNING, AgentState.COMPLETED
STOPPING, FAULTED = AgentState.STOPPING, AgentState.FAULTED
NOW = 100.5
POLICY = Policy((1, 2, 4), graceful_timeout_s=30, scaling_timeout_s=10, faulty_timeout_s=20)
CHECKPOINT = {"folder": {"progressData": "folder/step-8", "progressCount": 8}}


def course(phase, *nodes, **fields):
    nodes = nodes or (0, 1)
    fields = {"new_node": max(nodes) + 1, "size": len(nodes), **fields}
    return Course(phase, nodes, fields.pop("attempt", 0), fields.pop("since_s", 100.0), **fields)


def report(state, message="", silent_s=0.0, progress=None):
    return Report(True, AgentStatus(state, message, progress or {}) if state else None, silent_s)


def sight(*reports, now_s=NOW, capacity=2, **fields):
    seen = [each if isinstance(each, Report) else report(each) for each in reports]
    return Sight(now_s, dict(enumerate(seen)), capacity=capacity, **fields)


def step(before, seen, policy=POLICY):
    """Return the course after a look, the orders by kind, and the transitions noted."""
    after, orders = advance(before, seen, policy)
    acts = tuple(order for order in orders if not isinstance(order, Note))
    told = [order for order in orders if isinstance(order, Note) and order.kind == "transition"]
    return after, acts, [(n.fields["reason"], n.fields["from_nodes"], n.fields["to_nodes"]) for n in told]


# Start and end


def test_a_job_begins_with_its_nodes():
    first, orders = begin(2, NOW)
    assert (first.phase, first.nodes, orders) == (Phase.PREPARING, (0, 1), (SpawnNodes((0, 1)),))


def test_a_job_without_capacity_waits_for_it():
    first, orders = begin(0, NOW)
    assert (first.phase, orders) == (Phase.WAITING, ())
    waiting, acts, _ = step(first, sight(capacity=0))
    assert (waiting.phase, acts) == (Phase.WAITING, ())
    preparing, acts, told = step(waiting, sight(capacity=3))
    assert (preparing.phase, acts, told) == (Phase.PREPARING, (SpawnNodes((0, 1)),), [("resume", 0, 2)])


def test_workers_start_once_every_agent_is_ready():
    waiting, acts, _ = step(course(Phase.PREPARING), sight(READY, None))
    assert (waiting.phase, acts) == (Phase.PREPARING, ())
    running, acts, _ = step(waiting, sight(READY, READY, now_s=103.0))
    assert (running.phase, running.since_s) == (Phase.RUNNING, 103.0)
    assert acts == (StartWorkers((0, 1), 0),)


def test_an_agent_that_is_never_ready_fails_the_job():
    late = sight(READY, None, now_s=100.0 + READY_TIMEOUT_S + 1)
    assert step(course(Phase.PREPARING), late)[0].faults == (Fault(1, Cause.UNREADY),)


@pytest.mark.parametrize("attempt", [0, 1], ids=["first-start", "restart"])
def test_an_agent_that_dies_before_it_is_ready_gets_a_successor_but_not_for_ever(attempt):
    preparing = course(Phase.PREPARING, attempt=attempt)
    for number in range(MAX_BARREN_FAULTS):
        old, new = preparing.nodes[1], number + 2
        seen = Sight(NOW, {0: report(READY), old: GONE}, capacity=2)
        preparing, acts, _ = step(preparing, seen)
        assert (preparing.phase, preparing.nodes) == (Phase.PREPARING, (0, new))
        assert acts == (KillNodes((old,)), SpawnNodes((new,)))
    ended, _, _ = step(preparing, Sight(NOW, {0: report(READY)}, capacity=2))
    assert (ended.verdict, ended.faults[0].cause) == (JobState.FAILED, Cause.LOST)


def test_agents_that_die_before_a_restart_are_no_row_where_the_job_went_on_between():
    preparing = course(Phase.PREPARING, attempt=1, barren_faults=MAX_BARREN_FAULTS, fault_step=7)
    again, _, _ = step(preparing, sight(READY, GONE, step=8))
    assert (again.phase, again.barren_faults, again.fault_step) == (Phase.PREPARING, 1, 8)
    assert step(preparing, sight(READY, GONE, step=7))[0].verdict is JobState.FAILED


def test_a_node_that_is_lost_before_the_first_start_is_waited_for_and_then_gone_without():
    waiting, acts, told = step(course(Phase.PREPARING), sight(GONE, None, capacity=1))
    assert (waiting.phase, waiting.nodes, acts, told) == (Phase.WAITING, (1,), (), [])
    smaller, acts, told = step(waiting, Sight(NOW + 20, {1: report(None)}, capacity=1))
    assert (smaller.phase, smaller.nodes, acts, told) == (Phase.PREPARING, (1,), (), [("scale-down", 2, 1)])
    back, acts, _ = step(waiting, Sight(NOW + 1, {1: report(None)}, capacity=2))
    assert (back.nodes, acts) == ((1, 2), (SpawnNodes((2,)),))


def test_a_job_is_completed_only_when_every_agent_says_so():
    going, acts, _ = step(course(Phase.RUNNING), sight(COMPLETED, RUNNING))
    assert (going.phase, acts) == (Phase.RUNNING, ())
    ended, _, _ = step(going, sight(COMPLETED, COMPLETED))
    assert (ended.phase, ended.verdict) == (Phase.ENDED, JobState.SUCCEEDED)


def test_a_job_that_is_about_to_end_does_not_grow_but_gives_nodes_back():
    ending = course(Phase.RUNNING, wish_since_s=0.0)
    going, acts, _ = step(ending, sight(COMPLETED, RUNNING, capacity=4))
    assert (going.phase, acts) == (Phase.RUNNING, ())
    stopping, acts, _ = step(ending, sight(COMPLETED, RUNNING, capacity=1))
    assert (stopping.phase, acts) == (Phase.STOPPING, (StopWorkers((0, 1), 30),))


# Scale-up


def test_a_scale_up_waits_for_its_timeout_and_warms_new_nodes_while_the_others_train():
    wishing, acts, _ = step(course(Phase.RUNNING), sight(RUNNING, RUNNING, capacity=4))
    assert (wishing.phase, acts) == (Phase.RUNNING, ())
    still, acts, _ = step(wishing, sight(RUNNING, RUNNING, capacity=4, now_s=NOW + 9))
    assert acts == ()
    warming, acts, told = step(still, sight(RUNNING, RUNNING, capacity=4, now_s=NOW + 10))
    assert (warming.phase, warming.nodes, warming.warming) == (Phase.RUNNING, (0, 1), (2, 3))
    assert (acts, told) == ((SpawnNodes((2, 3)),), [("scale-up", 2, 4)])
    same, acts, _ = step(warming, sight(RUNNING, RUNNING, READY, None, capacity=4, now_s=NOW + 12))
    assert (same.phase, acts) == (Phase.RUNNING, ())
    stopping, acts, _ = step(same, sight(RUNNING, RUNNING, READY, READY, capacity=4, now_s=NOW + 13))
    assert (stopping.phase, acts) == (Phase.STOPPING, (StopWorkers((0, 1), 30),))
    preparing, acts, _ = step(stopping, sight(READY, READY, READY, READY, capacity=4))
    assert (preparing.phase, preparing.nodes, preparing.attempt, acts) == (Phase.PREPARING, (0, 1, 2, 3), 1, ())
    running, acts, _ = step(preparing, sight(READY, READY, READY, READY, capacity=4))
    assert (running.size, acts) == (4, (StartWorkers((0, 1, 2, 3), 1),))


def test_sizes_come_only_from_the_replica_space():
    for capacity, spawned in ((3, ()), (4, (2, 3)), (9, (2, 3))):
        wish = course(Phase.RUNNING, wish_since_s=0.0)
        assert step(wish, sight(RUNNING, RUNNING, capacity=capacity))[0].warming == spawned
    down, _, told = step(course(Phase.RUNNING, 0, 1, 2, 3), sight(*[RUNNING] * 4, capacity=3))
    assert told == [("scale-down", 4, 2)]


def test_capacity_that_goes_again_within_the_timeout_starts_the_wait_anew():
    wishing = course(Phase.RUNNING, wish_since_s=100.0)
    content, _, _ = step(wishing, sight(RUNNING, RUNNING))
    assert content.wish_since_s is None
    wishing, acts, _ = step(content, sight(RUNNING, RUNNING, capacity=4, now_s=NOW + 30))
    assert (wishing.wish_since_s, acts) == (NOW + 30, ())


def test_a_restarted_job_snoozes_before_it_grows():
    policy = dataclasses.replace(POLICY, snooze_s=60)
    wishing = course(Phase.RUNNING, attempt=1, wish_since_s=0.0)
    assert step(wishing, sight(RUNNING, RUNNING, capacity=4, now_s=150.0), policy)[1] == ()
    assert step(wishing, sight(RUNNING, RUNNING, capacity=4, now_s=161.0), policy)[1] == (SpawnNodes((2, 3)),)


@pytest.mark.parametrize(
    "seen",
    [
        sight(RUNNING, RUNNING, READY, None, capacity=2),
        sight(RUNNING, RUNNING, READY, GONE, capacity=4),
        sight(RUNNING, RUNNING, READY, None, capacity=4, now_s=NOW + READY_TIMEOUT_S + 1),
    ],
    ids=["capacity-gone", "new-node-died", "new-node-never-ready"],
)
def test_warming_nodes_that_are_of_no_use_are_dropped(seen):
    warming = course(Phase.RUNNING, warming=(2, 3), new_node=4, wish_since_s=NOW)
    after, acts, _ = step(warming, seen)
    assert (after.phase, after.warming, acts) == (Phase.RUNNING, (), (DropNodes((2, 3)),))


# Scale-down and suspension


def test_a_scale_down_keeps_the_first_nodes_and_drops_the_others():
    stopping, acts, told = step(course(Phase.RUNNING), sight(RUNNING, RUNNING, capacity=1))
    assert (stopping.phase, acts, told) == (Phase.STOPPING, (StopWorkers((0, 1), 30),), [("scale-down", 2, 1)])
    preparing, acts, _ = step(stopping, sight(READY, READY, capacity=1))
    assert (preparing.nodes, preparing.attempt, acts) == ((0,), 1, (DropNodes((1,)),))


def test_without_graceful_shutdown_workers_are_killed():
    policy = dataclasses.replace(POLICY, graceful_timeout_s=None)
    assert step(course(Phase.RUNNING), sight(RUNNING, RUNNING, capacity=1), policy)[1] == (StopWorkers((0, 1), None),)


def test_completed_agents_do_not_complete_a_job_that_is_being_stopped():
    still, acts, _ = step(course(Phase.STOPPING), sight(COMPLETED, COMPLETED))
    assert (still.phase, acts) == (Phase.STOPPING, ())


def test_an_agent_that_is_too_busy_to_be_told_to_stop_is_told_again():
    deaf = Fault(1, Cause.DISOBEDIENT, "timed out")
    still, acts, _ = step(course(Phase.STOPPING), sight(STOPPING, RUNNING, refusals=(deaf,)))
    assert (still.phase, still.nodes, acts) == (Phase.STOPPING, (0, 1), (StopWorkers((1,), 30),))


def test_agents_that_do_not_stop_in_time_are_replaced():
    late = sight(STOPPING, READY, now_s=100.0 + 30 + STOP_MARGIN_S + 1)
    after, acts, _ = step(course(Phase.STOPPING, fault_since_s=100.0), late)
    assert acts == (KillNodes((0,)), SpawnNodes((2,)))
    assert (after.phase, after.nodes) == (Phase.PREPARING, (1, 2))


def test_a_job_below_its_smallest_size_is_suspended_and_resumes():
    stopping, _, told = step(course(Phase.RUNNING), sight(RUNNING, RUNNING, capacity=0))
    assert told == [("suspend", 2, 0)]
    waiting, acts, _ = step(stopping, sight(READY, READY, capacity=0))
    assert (waiting.phase, waiting.nodes, acts) == (Phase.WAITING, (), (DropNodes((0, 1)),))
    resumed, acts, told = step(waiting, sight(capacity=1))
    assert (resumed.attempt, acts, told) == (1, (SpawnNodes((2,)),), [("resume", 0, 1)])


def test_a_suspended_job_that_nothing_can_resume_fails():
    ended, _, _ = step(dataclasses.replace(course(Phase.WAITING), nodes=()), sight(capacity=0, is_stuck=True))
    assert (ended.verdict, ended.faults[0].cause) == (JobState.FAILED, Cause.NO_CAPACITY)


def test_capacity_that_shrinks_while_agents_come_up_shrinks_the_job():
    preparing, acts, told = step(course(Phase.PREPARING), sight(None, None, capacity=1))
    assert (preparing.phase, preparing.nodes, acts) == (Phase.PREPARING, (0,), (DropNodes((1,)),))
    assert told == [("scale-down", 2, 1)]


# Faults


def settle(seen, **fields):
    """Return the course after a fault has settled."""
    settling, _, _ = step(course(Phase.RUNNING, *range(len(seen.reports)), **fields), seen)
    assert settling.phase is Phase.SETTLING
    return settling, dataclasses.replace(seen, now_s=seen.now_s + SETTLE_S)


def test_a_worker_crash_restarts_all_workers_on_the_same_nodes():
    settling, seen = settle(sight(report(FAULTED, "first"), RUNNING, step=7))
    stopping, acts, told = step(settling, seen)
    assert (stopping.phase, acts, told) == (Phase.STOPPING, (StopWorkers((0, 1), None),), [("recover", 2, 2)])
    preparing, acts, _ = step(stopping, sight(READY, READY, step=7))
    assert (preparing.phase, preparing.nodes, preparing.attempt, acts) == (Phase.PREPARING, (0, 1), 1, ())


def test_a_lost_pod_whose_node_is_there_is_started_again_at_once():
    settling, seen = settle(sight(RUNNING, GONE))
    stopping, acts, _ = step(settling, seen)
    assert acts == (StopWorkers((0,), None),)
    preparing, acts, _ = step(stopping, sight(READY, GONE))
    assert (preparing.nodes, acts) == ((0, 2), (SpawnNodes((2,)),))


def test_a_lost_node_is_waited_for_and_then_gone_without():
    settling, seen = settle(sight(RUNNING, GONE, capacity=1))
    stopping, _, _ = step(settling, seen)
    waiting, acts, _ = step(stopping, sight(READY, GONE, capacity=1, now_s=NOW + 2))
    assert (waiting.phase, waiting.nodes, acts) == (Phase.WAITING, (0,), ())
    still, acts, _ = step(waiting, sight(READY, capacity=1, now_s=NOW + 19))
    assert (still.phase, acts) == (Phase.WAITING, ())
    back, acts, told = step(still, sight(READY, capacity=2, now_s=NOW + 19.5))
    assert (back.nodes, acts, told) == ((0, 2), (SpawnNodes((2,)),), [])
    smaller, acts, told = step(still, sight(READY, capacity=1, now_s=NOW + 20))
    assert (smaller.phase, smaller.nodes, told) == (Phase.PREPARING, (0,), [("scale-down", 2, 1)])


def test_a_fault_waits_for_the_other_agents_to_notice_theirs():
    first = report(FAULTED, "first")
    settling, _, _ = step(course(Phase.RUNNING), sight(first, RUNNING))
    both = sight(first, report(FAULTED, "second"), now_s=settling.since_s + SETTLE_S)
    ended, _, _ = step(settling, both)
    assert [fault.detail for fault in ended.faults] == ["first", "second"]


def test_a_script_that_fails_before_its_first_step_fails_the_job():
    settling, seen = settle(sight(FAULTED, RUNNING, step=0))
    ended, _, _ = step(settling, seen)
    assert (ended.phase, ended.verdict) == (Phase.ENDED, JobState.FAILED)


def test_a_worker_that_is_killed_before_its_first_step_is_started_again():
    killed = report(FAULTED, "Local Rank 0 exited with code -9")
    settling, seen = settle(sight(killed, report(FAULTED, "Local Rank 0 exited with code -256"), step=0))
    assert step(settling, seen)[0].phase is Phase.STOPPING


def test_a_job_that_fails_at_the_same_step_again_and_again_fails():
    seen, fields = sight(FAULTED, RUNNING, step=7), {}
    for _ in range(MAX_BARREN_FAULTS):
        settling, later = settle(seen, **fields)
        after, _, _ = step(settling, later)
        assert after.phase is Phase.STOPPING
        fields = {"fault_step": after.fault_step, "barren_faults": after.barren_faults}
    progressed, later = settle(dataclasses.replace(seen, step=8), **fields)
    assert step(progressed, later)[0].barren_faults == 1
    settling, later = settle(seen, **fields)
    assert step(settling, later)[0].verdict is JobState.FAILED


def test_a_node_that_was_silent_for_too_long_is_replaced():
    settling, seen = settle(sight(RUNNING, Report(True, None, SILENCE_TIMEOUT_S + 1), step=7))
    stopping, acts, _ = step(settling, seen)
    assert acts == (KillNodes((1,)), StopWorkers((0,), None))
    assert step(stopping, sight(READY))[0].nodes == (0, 2)


def test_a_refused_start_replaces_the_node_that_refused():
    refusal = Fault(0, Cause.DISOBEDIENT, "no effect")
    settling, seen = settle(sight(READY, RUNNING, refusals=(refusal,)))
    stopping, acts, _ = step(settling, dataclasses.replace(seen, refusals=()))
    assert acts == (KillNodes((0,)), StopWorkers((1,), None))
    assert stopping.nodes == (1,)


def test_a_node_that_dies_during_a_graceful_stop_is_gone_without():
    stopping = course(Phase.STOPPING, 0, 1, 2, 3)
    after, _, _ = step(stopping, sight(READY, GONE, READY, READY, capacity=4))
    assert (after.phase, after.nodes) == (Phase.PREPARING, (0, 2))


# Checkpoints that agents name


def test_the_newest_checkpoint_is_passed_on():
    running = course(Phase.RUNNING)
    seen, _, _ = step(running, sight(report(RUNNING, progress=CHECKPOINT), RUNNING))
    older = {"folder": {"progressData": "folder/step-4", "progressCount": 4}}
    preparing = dataclasses.replace(seen, phase=Phase.PREPARING, attempt=1)
    _, acts, _ = step(preparing, sight(report(READY, progress=older), READY))
    assert acts == (StartWorkers((0, 1), 1, CHECKPOINT),)


@pytest.mark.parametrize(("done", "saved"), [(8, True), (9, False)], ids=["saved", "killed-before-it-saved"])
def test_a_stop_tells_whether_a_checkpoint_came_of_it(done, saved):
    _, orders = advance(course(Phase.STOPPING), sight(report(READY, progress=CHECKPOINT), READY, step=done), POLICY)
    (stopped,) = [order for order in orders if isinstance(order, Note) and order.kind == "stopped"]
    assert stopped.fields["saved"] is saved


# Interrupts


def test_an_interrupt_stops_all_nodes_together():
    stopping, acts, _ = step(course(Phase.RUNNING), sight(RUNNING, RUNNING, interrupts=1))
    assert (stopping.phase, stopping.verdict) == (Phase.STOPPING, JobState.CANCELLED)
    assert acts == (StopWorkers((0, 1), 30),)


@pytest.mark.parametrize(
    "seen",
    [
        sight(READY, READY, interrupts=1),
        sight(READY, GONE, interrupts=1),
        sight(STOPPING, STOPPING, interrupts=2),
        sight(STOPPING, STOPPING, interrupts=1, now_s=100.0 + 30 + STOP_MARGIN_S + 1),
    ],
    ids=["all-ready", "one-dead", "second-interrupt", "out-of-time"],
)
def test_stopping_ends_cancelled(seen):
    ended, _, _ = step(course(Phase.STOPPING, verdict=JobState.CANCELLED), seen)
    assert (ended.phase, ended.verdict) == (Phase.ENDED, JobState.CANCELLED)


@pytest.mark.parametrize("phase", [Phase.PREPARING, Phase.WAITING], ids=str)
def test_an_interrupt_while_nothing_trains_cancels_without_orders(phase):
    ended, acts, _ = step(course(phase), sight(READY, None, interrupts=1))
    assert (ended.phase, ended.verdict, acts) == (Phase.ENDED, JobState.CANCELLED, ())


def test_an_interrupt_during_a_scale_event_ends_the_job_once_it_has_saved():
    ended, _, _ = step(course(Phase.STOPPING), sight(READY, READY, interrupts=1))
    assert (ended.phase, ended.verdict) == (Phase.ENDED, JobState.CANCELLED)


def test_a_course_is_a_value():
    with pytest.raises(dataclasses.FrozenInstanceError):
        course(Phase.RUNNING).attempt = 1


def test_a_job_of_one_size_keeps_its_other_nodes_until_the_lost_one_is_replaced():
    static = Policy((2,), graceful_timeout_s=None)
    waiting = course(Phase.WAITING, 0, new_node=2, size=2, fault_since_s=1.0)
    after, orders = advance(waiting, sight(READY, GONE, capacity=1), static)
    assert (after.phase, after.nodes, orders) == (Phase.WAITING, (0,), ())
    after, orders = advance(after, sight(READY, GONE, capacity=2), static)
    assert after.nodes == (0, 2) and SpawnNodes((2,)) in orders
    after, orders = advance(waiting, sight(READY, GONE, capacity=1, is_stuck=True), static)
    assert DropNodes((0,)) in orders
    after, _ = advance(after, sight(capacity=1, is_stuck=True), static)
    assert after.verdict is JobState.FAILED
