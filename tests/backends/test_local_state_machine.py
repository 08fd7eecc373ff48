import dataclasses

import pytest

from launcher.common import names
from launcher.model.job_spec import JobState
from launcher.operator.state_machine import (
    MAX_FAULTS_WITHOUT_PROGRESS,
    READY_TIMEOUT_S,
    SETTLE_S,
    SILENCE_TIMEOUT_S,
    STOP_MARGIN_S,
    advance,
    begin,
)
from launcher.operator.types import (
    GONE,
    AgentState,
    AgentStatus,
    Cause,
    DropNodes,
    Event,
    Fault,
    KillNodes,
    MachineState,
    Observation,
    Phase,
    Policy,
    RecordStart,
    Report,
    SpawnNodes,
    StartWorkers,
    StopWorkers,
)

READY, RUNNING, COMPLETED = AgentState.READY, AgentState.RUNNING, AgentState.COMPLETED
STOPPING, FAULTED = AgentState.STOPPING, AgentState.FAULTED
NOW = 100.5
POLICY = Policy((1, 2, 4), graceful_timeout_s=30, scaling_timeout_s=10, faulty_timeout_s=20)
CHECKPOINT = {"folder": {"progressData": "folder/step-8", "progressCount": 8}}


def machine(phase, *nodes, **fields):
    nodes = nodes or (0, 1)
    fields = {"new_node": max(nodes) + 1, "size": len(nodes), **fields}
    return MachineState(phase, nodes, fields.pop("attempt", 0), fields.pop("since_s", 100.0), **fields)


def report(state, message="", silent_s=0.0, progress=None):
    return Report(True, AgentStatus(state, message, progress or {}) if state else None, silent_s)


def observation(*reports, now_s=NOW, capacity=2, **fields):
    seen = [each if isinstance(each, Report) else report(each) for each in reports]
    return Observation(now_s, dict(enumerate(seen)), capacity=capacity, **fields)


def step(before, seen, policy=POLICY):
    """Return the course after a look, the orders by kind, and the transitions noted."""
    after, commands = advance(before, seen, policy)
    acts = tuple(command for command in commands if not isinstance(command, Event))
    told = [command for command in commands if isinstance(command, Event) and command.kind == "transition"]
    return after, acts, [(n.fields["reason"], n.fields["from_nodes"], n.fields["to_nodes"]) for n in told]


# Start and end


def test_a_job_begins_with_its_nodes():
    first, commands = begin(2, NOW)
    assert (first.phase, first.nodes, commands) == (Phase.PREPARING, (0, 1), (SpawnNodes((0, 1)),))


def test_a_job_without_capacity_waits_for_it():
    first, commands = begin(0, NOW)
    assert (first.phase, commands) == (Phase.WAITING, ())
    waiting, acts, _ = step(first, observation(capacity=0))
    assert (waiting.phase, acts) == (Phase.WAITING, ())
    preparing, acts, told = step(waiting, observation(capacity=3))
    assert (preparing.phase, acts, told) == (Phase.PREPARING, (SpawnNodes((0, 1)),), [("resume", 0, 2)])


def test_workers_start_once_every_agent_is_ready():
    waiting, acts, _ = step(machine(Phase.PREPARING), observation(READY, None))
    assert (waiting.phase, acts) == (Phase.PREPARING, ())
    running, acts, _ = step(waiting, observation(READY, READY, now_s=103.0))
    assert (running.phase, running.since_s) == (Phase.RUNNING, 103.0)
    assert acts == (StartWorkers((0, 1), 0),)


def test_an_agent_that_is_never_ready_fails_the_job():
    late = observation(READY, None, now_s=100.0 + READY_TIMEOUT_S + 1)
    assert step(machine(Phase.PREPARING), late)[0].faults == (Fault(1, Cause.UNREADY),)


@pytest.mark.parametrize("attempt", [0, 1], ids=["first-start", "restart"])
def test_an_agent_that_dies_before_it_is_ready_gets_a_successor_but_not_for_ever(attempt):
    preparing = machine(Phase.PREPARING, attempt=attempt)
    for number in range(MAX_FAULTS_WITHOUT_PROGRESS):
        old, new = preparing.nodes[1], number + 2
        seen = Observation(NOW, {0: report(READY), old: GONE}, capacity=2)
        preparing, acts, _ = step(preparing, seen)
        assert (preparing.phase, preparing.nodes) == (Phase.PREPARING, (0, new))
        assert acts == (KillNodes((old,)), SpawnNodes((new,)))
    ended, _, _ = step(preparing, Observation(NOW, {0: report(READY)}, capacity=2))
    assert (ended.verdict, ended.faults[0].cause) == (JobState.FAILED, Cause.LOST)


def test_agents_that_die_before_a_restart_are_no_row_where_the_job_went_on_between():
    preparing = machine(Phase.PREPARING, attempt=1, faults_without_progress=MAX_FAULTS_WITHOUT_PROGRESS, fault_step=7)
    again, _, _ = step(preparing, observation(READY, GONE, step=8))
    assert (again.phase, again.faults_without_progress, again.fault_step) == (Phase.PREPARING, 1, 8)
    assert step(preparing, observation(READY, GONE, step=7))[0].verdict is JobState.FAILED


def test_a_node_that_is_lost_before_the_first_start_is_waited_for_and_then_gone_without():
    waiting, acts, told = step(machine(Phase.PREPARING), observation(GONE, None, capacity=1))
    assert (waiting.phase, waiting.nodes, acts, told) == (Phase.WAITING, (1,), (), [])
    smaller, acts, told = step(waiting, Observation(NOW + 20, {1: report(None)}, capacity=1))
    assert (smaller.phase, smaller.nodes, acts, told) == (Phase.PREPARING, (1,), (), [("scale-down", 2, 1)])
    back, acts, _ = step(waiting, Observation(NOW + 1, {1: report(None)}, capacity=2))
    assert (back.nodes, acts) == ((1, 2), (SpawnNodes((2,)),))


EXITED, KILLED = "Local Rank 1 exited with code -256", "Local Rank 0 exited with code -9"


@pytest.mark.parametrize(
    ("message", "step_done", "fields"),
    [
        (EXITED, 0, {}),
        (f"{EXITED}, {KILLED}", 0, {}),
        (KILLED, 7, {"faults_without_progress": MAX_FAULTS_WITHOUT_PROGRESS, "fault_step": 7}),
    ],
    ids=["by-itself-before-the-first-step", "and-its-neighbour-after-it", "again-and-again"],
)
def test_a_worker_that_fails_before_the_start_ends_the_job_at_once_as_in_training(message, step_done, fields):
    preparing = machine(Phase.PREPARING, attempt=2, **fields)
    ended, acts, _ = step(preparing, observation(READY, report(FAULTED, message), step=step_done))
    assert (ended.verdict, ended.faults) == (JobState.FAILED, (Fault(1, Cause.WORKER, message),))
    assert acts == (RecordStart((0, 1), 2, 100.0),)


def test_a_start_that_comes_to_nothing_is_an_attempt_with_its_fault():
    _, commands = advance(machine(Phase.PREPARING), observation(None, report(FAULTED, EXITED)), POLICY)
    starting, fault, _ = commands
    assert (starting.kind, starting.fields["attempt"], starting.fields["nodes"]) == ("starting", 0, (0, 1))
    assert (starting.cause_s, fault.kind, fault.fields["node"]) == (100.0, "fault", 1)


@pytest.mark.parametrize(("message", "step_done"), [(KILLED, 0), (EXITED, 7)], ids=["killed", "after-a-step"])
def test_a_node_whose_worker_fails_before_the_start_is_replaced_where_a_restart_may_help(message, step_done):
    again, acts, _ = step(machine(Phase.PREPARING), observation(READY, report(FAULTED, message), step=step_done))
    assert (again.phase, again.nodes, again.faults_without_progress) == (Phase.PREPARING, (0, 2), 1)
    assert acts == (KillNodes((1,)), SpawnNodes((2,)))


def test_a_job_is_completed_only_when_every_agent_says_so():
    going, acts, _ = step(machine(Phase.RUNNING), observation(COMPLETED, RUNNING))
    assert (going.phase, acts) == (Phase.RUNNING, ())
    ended, _, _ = step(going, observation(COMPLETED, COMPLETED))
    assert (ended.phase, ended.verdict) == (Phase.ENDED, JobState.SUCCEEDED)


def test_a_job_that_is_about_to_end_does_not_grow_but_gives_nodes_back():
    ending = machine(Phase.RUNNING, scale_up_requested_at_s=0.0)
    going, acts, _ = step(ending, observation(COMPLETED, RUNNING, capacity=4))
    assert (going.phase, acts) == (Phase.RUNNING, ())
    stopping, acts, _ = step(ending, observation(COMPLETED, RUNNING, capacity=1))
    assert (stopping.phase, acts) == (Phase.STOPPING, (StopWorkers((0, 1), 30),))


# Scale-up


def test_a_scale_up_waits_for_its_timeout_and_warms_new_nodes_while_the_others_train():
    wishing, acts, _ = step(machine(Phase.RUNNING), observation(RUNNING, RUNNING, capacity=4))
    assert (wishing.phase, acts) == (Phase.RUNNING, ())
    still, acts, _ = step(wishing, observation(RUNNING, RUNNING, capacity=4, now_s=NOW + 9))
    assert acts == ()
    warming, acts, told = step(still, observation(RUNNING, RUNNING, capacity=4, now_s=NOW + 10))
    assert (warming.phase, warming.nodes, warming.warming) == (Phase.RUNNING, (0, 1), (2, 3))
    assert (acts, told) == ((SpawnNodes((2, 3)),), [("scale-up", 2, 4)])
    same, acts, _ = step(warming, observation(RUNNING, RUNNING, READY, None, capacity=4, now_s=NOW + 12))
    assert (same.phase, acts) == (Phase.RUNNING, ())
    stopping, acts, _ = step(same, observation(RUNNING, RUNNING, READY, READY, capacity=4, now_s=NOW + 13))
    assert (stopping.phase, acts) == (Phase.STOPPING, (StopWorkers((0, 1), 30),))
    preparing, acts, _ = step(stopping, observation(READY, READY, READY, READY, capacity=4))
    assert (preparing.phase, preparing.nodes, preparing.attempt, acts) == (Phase.PREPARING, (0, 1, 2, 3), 1, ())
    running, acts, _ = step(preparing, observation(READY, READY, READY, READY, capacity=4))
    assert (running.size, acts) == (4, (StartWorkers((0, 1, 2, 3), 1),))


def test_sizes_come_only_from_the_replica_space():
    for capacity, spawned in ((3, ()), (4, (2, 3)), (9, (2, 3))):
        wish = machine(Phase.RUNNING, scale_up_requested_at_s=0.0)
        assert step(wish, observation(RUNNING, RUNNING, capacity=capacity))[0].warming == spawned
    down, _, told = step(machine(Phase.RUNNING, 0, 1, 2, 3), observation(*[RUNNING] * 4, capacity=3))
    assert told == [("scale-down", 4, 2)]


def test_capacity_that_goes_again_within_the_timeout_starts_the_wait_anew():
    wishing = machine(Phase.RUNNING, scale_up_requested_at_s=100.0)
    content, _, _ = step(wishing, observation(RUNNING, RUNNING))
    assert content.scale_up_requested_at_s is None
    wishing, acts, _ = step(content, observation(RUNNING, RUNNING, capacity=4, now_s=NOW + 30))
    assert (wishing.scale_up_requested_at_s, acts) == (NOW + 30, ())


def test_a_restarted_job_snoozes_before_it_grows():
    policy = dataclasses.replace(POLICY, snooze_s=60)
    wishing = machine(Phase.RUNNING, attempt=1, scale_up_requested_at_s=0.0)
    assert step(wishing, observation(RUNNING, RUNNING, capacity=4, now_s=150.0), policy)[1] == ()
    assert step(wishing, observation(RUNNING, RUNNING, capacity=4, now_s=161.0), policy)[1] == (SpawnNodes((2, 3)),)


@pytest.mark.parametrize(
    "seen",
    [
        observation(RUNNING, RUNNING, READY, None, capacity=2),
        observation(RUNNING, RUNNING, READY, GONE, capacity=4),
        observation(RUNNING, RUNNING, READY, report(FAULTED, EXITED), capacity=4),
        observation(RUNNING, RUNNING, READY, None, capacity=4, now_s=NOW + READY_TIMEOUT_S + 1),
    ],
    ids=["capacity-gone", "new-node-died", "worker-of-new-node-failed", "new-node-never-ready"],
)
def test_warming_nodes_that_are_of_no_use_are_dropped(seen):
    warming = machine(Phase.RUNNING, warming=(2, 3), new_node=4, scale_up_requested_at_s=NOW)
    after, acts, _ = step(warming, seen)
    assert (after.phase, after.warming, acts) == (Phase.RUNNING, (), (DropNodes((2, 3)),))


# Scale-down and suspension


def test_a_scale_down_keeps_the_first_nodes_and_drops_the_others():
    stopping, acts, told = step(machine(Phase.RUNNING), observation(RUNNING, RUNNING, capacity=1))
    assert (stopping.phase, acts, told) == (Phase.STOPPING, (StopWorkers((0, 1), 30),), [("scale-down", 2, 1)])
    preparing, acts, _ = step(stopping, observation(READY, READY, capacity=1))
    assert (preparing.nodes, preparing.attempt, acts) == ((0,), 1, (DropNodes((1,)),))


def test_without_graceful_shutdown_workers_are_killed():
    policy = dataclasses.replace(POLICY, graceful_timeout_s=None)
    assert step(machine(Phase.RUNNING), observation(RUNNING, RUNNING, capacity=1), policy)[1] == (
        StopWorkers((0, 1), None),
    )


def test_completed_agents_do_not_complete_a_job_that_is_being_stopped():
    still, acts, _ = step(machine(Phase.STOPPING), observation(COMPLETED, COMPLETED))
    assert (still.phase, acts) == (Phase.STOPPING, ())


def test_an_agent_that_is_too_busy_to_be_told_to_stop_is_told_again():
    deaf = Fault(1, Cause.DISOBEDIENT, "timed out")
    still, acts, _ = step(machine(Phase.STOPPING), observation(STOPPING, RUNNING, failed_commands=(deaf,)))
    assert (still.phase, still.nodes, acts) == (Phase.STOPPING, (0, 1), (StopWorkers((1,), 30),))


def test_agents_that_do_not_stop_in_time_are_replaced():
    late = observation(STOPPING, READY, now_s=100.0 + 30 + STOP_MARGIN_S + 1)
    after, acts, _ = step(machine(Phase.STOPPING, fault_since_s=100.0), late)
    assert acts == (KillNodes((0,)), SpawnNodes((2,)))
    assert (after.phase, after.nodes) == (Phase.PREPARING, (1, 2))


def test_a_job_below_its_smallest_size_is_suspended_and_resumes():
    stopping, _, told = step(machine(Phase.RUNNING), observation(RUNNING, RUNNING, capacity=0))
    assert told == [("suspend", 2, 0)]
    waiting, acts, _ = step(stopping, observation(READY, READY, capacity=0))
    assert (waiting.phase, waiting.nodes, acts) == (Phase.WAITING, (), (DropNodes((0, 1)),))
    resumed, acts, told = step(waiting, observation(capacity=1))
    assert (resumed.attempt, acts, told) == (1, (SpawnNodes((2,)),), [("resume", 0, 1)])


def test_a_suspended_job_that_nothing_can_resume_fails():
    ended, _, _ = step(dataclasses.replace(machine(Phase.WAITING), nodes=()), observation(capacity=0, is_stuck=True))
    assert (ended.verdict, ended.faults[0].cause) == (JobState.FAILED, Cause.NO_CAPACITY)


def test_capacity_that_shrinks_while_agents_come_up_shrinks_the_job():
    preparing, acts, told = step(machine(Phase.PREPARING), observation(None, None, capacity=1))
    assert (preparing.phase, preparing.nodes, acts) == (Phase.PREPARING, (0,), (DropNodes((1,)),))
    assert told == [("scale-down", 2, 1)]


# Faults


def settle(seen, **fields):
    """Return the course after a fault has settled."""
    settling, _, _ = step(machine(Phase.RUNNING, *range(len(seen.reports)), **fields), seen)
    assert settling.phase is Phase.SETTLING
    return settling, dataclasses.replace(seen, now_s=seen.now_s + SETTLE_S)


def test_a_worker_crash_restarts_all_workers_on_the_same_nodes():
    settling, seen = settle(observation(report(FAULTED, "first"), RUNNING, step=7))
    stopping, acts, told = step(settling, seen)
    assert (stopping.phase, acts, told) == (Phase.STOPPING, (StopWorkers((0, 1), None),), [("recover", 2, 2)])
    preparing, acts, _ = step(stopping, observation(READY, READY, step=7))
    assert (preparing.phase, preparing.nodes, preparing.attempt, acts) == (Phase.PREPARING, (0, 1), 1, ())


def test_a_lost_pod_whose_node_is_there_is_started_again_at_once():
    settling, seen = settle(observation(RUNNING, GONE))
    stopping, acts, _ = step(settling, seen)
    assert acts == (StopWorkers((0,), None),)
    preparing, acts, _ = step(stopping, observation(READY, GONE))
    assert (preparing.nodes, acts) == ((0, 2), (SpawnNodes((2,)),))


def test_a_lost_node_is_waited_for_and_then_gone_without():
    settling, seen = settle(observation(RUNNING, GONE, capacity=1))
    stopping, _, _ = step(settling, seen)
    waiting, acts, _ = step(stopping, observation(READY, GONE, capacity=1, now_s=NOW + 2))
    assert (waiting.phase, waiting.nodes, acts) == (Phase.WAITING, (0,), ())
    still, acts, _ = step(waiting, observation(READY, capacity=1, now_s=NOW + 19))
    assert (still.phase, acts) == (Phase.WAITING, ())
    back, acts, told = step(still, observation(READY, capacity=2, now_s=NOW + 19.5))
    assert (back.nodes, acts, told) == ((0, 2), (SpawnNodes((2,)),), [])
    smaller, acts, told = step(still, observation(READY, capacity=1, now_s=NOW + 20))
    assert (smaller.phase, smaller.nodes, told) == (Phase.PREPARING, (0,), [("scale-down", 2, 1)])


def test_a_fault_waits_for_the_other_agents_to_notice_theirs():
    first = report(FAULTED, "first")
    settling, _, _ = step(machine(Phase.RUNNING), observation(first, RUNNING))
    both = observation(first, report(FAULTED, "second"), now_s=settling.since_s + SETTLE_S)
    ended, _, _ = step(settling, both)
    assert [fault.detail for fault in ended.faults] == ["first", "second"]


def test_a_script_that_fails_before_its_first_step_fails_the_job():
    settling, seen = settle(observation(FAULTED, RUNNING, step=0))
    ended, _, _ = step(settling, seen)
    assert (ended.phase, ended.verdict) == (Phase.ENDED, JobState.FAILED)


def test_a_worker_that_is_killed_before_its_first_step_is_started_again():
    killed = report(FAULTED, "Local Rank 0 exited with code -9")
    settling, seen = settle(observation(killed, report(FAULTED, "Local Rank 0 exited with code -256"), step=0))
    assert step(settling, seen)[0].phase is Phase.STOPPING


def test_a_job_that_fails_at_the_same_step_again_and_again_fails():
    seen, fields = observation(FAULTED, RUNNING, step=7), {}
    for _ in range(MAX_FAULTS_WITHOUT_PROGRESS):
        settling, later = settle(seen, **fields)
        after, _, _ = step(settling, later)
        assert after.phase is Phase.STOPPING
        fields = {"fault_step": after.fault_step, "faults_without_progress": after.faults_without_progress}
    progressed, later = settle(dataclasses.replace(seen, step=8), **fields)
    assert step(progressed, later)[0].faults_without_progress == 1
    settling, later = settle(seen, **fields)
    assert step(settling, later)[0].verdict is JobState.FAILED


def test_a_node_that_was_silent_for_too_long_is_replaced():
    settling, seen = settle(observation(RUNNING, Report(True, None, SILENCE_TIMEOUT_S + 1), step=7))
    stopping, acts, _ = step(settling, seen)
    assert acts == (KillNodes((1,)), StopWorkers((0,), None))
    assert step(stopping, observation(READY))[0].nodes == (0, 2)


def test_a_refused_start_replaces_the_node_that_refused():
    refusal = Fault(0, Cause.DISOBEDIENT, "no effect")
    settling, seen = settle(observation(READY, RUNNING, failed_commands=(refusal,)))
    stopping, acts, _ = step(settling, dataclasses.replace(seen, failed_commands=()))
    assert acts == (KillNodes((0,)), StopWorkers((1,), None))
    assert stopping.nodes == (1,)


def test_a_node_that_dies_during_a_graceful_stop_is_gone_without():
    stopping = machine(Phase.STOPPING, 0, 1, 2, 3)
    after, _, _ = step(stopping, observation(READY, GONE, READY, READY, capacity=4))
    assert (after.phase, after.nodes) == (Phase.PREPARING, (0, 2))


# Checkpoints that agents name


def test_the_newest_checkpoint_is_passed_on():
    running = machine(Phase.RUNNING)
    seen, _, _ = step(running, observation(report(RUNNING, progress=CHECKPOINT), RUNNING))
    older = {"folder": {"progressData": "folder/step-4", "progressCount": 4}}
    preparing = dataclasses.replace(seen, phase=Phase.PREPARING, attempt=1)
    _, acts, _ = step(preparing, observation(report(READY, progress=older), READY))
    assert acts == (StartWorkers((0, 1), 1, CHECKPOINT),)


@pytest.mark.parametrize(("done", "saved"), [(8, True), (9, False)], ids=["saved", "killed-before-it-saved"])
def test_a_stop_tells_whether_a_checkpoint_came_of_it(done, saved):
    _, commands = advance(
        machine(Phase.STOPPING), observation(report(READY, progress=CHECKPOINT), READY, step=done), POLICY
    )
    (stopped,) = [command for command in commands if isinstance(command, Event) and command.kind == "stopped"]
    assert stopped.fields["saved"] is saved


# Interrupts


def test_an_interrupt_stops_all_nodes_together():
    stopping, acts, _ = step(machine(Phase.RUNNING), observation(RUNNING, RUNNING, interrupts=1))
    assert (stopping.phase, stopping.verdict) == (Phase.STOPPING, JobState.CANCELLED)
    assert acts == (StopWorkers((0, 1), 30),)


@pytest.mark.parametrize(
    "seen",
    [
        observation(READY, READY, interrupts=1),
        observation(READY, GONE, interrupts=1),
        observation(STOPPING, STOPPING, interrupts=2),
        observation(STOPPING, STOPPING, interrupts=1, now_s=100.0 + 30 + STOP_MARGIN_S + 1),
    ],
    ids=["all-ready", "one-dead", "second-interrupt", "out-of-time"],
)
def test_stopping_ends_cancelled(seen):
    ended, _, _ = step(machine(Phase.STOPPING, verdict=JobState.CANCELLED), seen)
    assert (ended.phase, ended.verdict) == (Phase.ENDED, JobState.CANCELLED)


@pytest.mark.parametrize("phase", [Phase.PREPARING, Phase.WAITING], ids=str)
def test_an_interrupt_while_nothing_trains_cancels_without_orders(phase):
    ended, acts, _ = step(machine(phase), observation(READY, None, interrupts=1))
    assert (ended.phase, ended.verdict, acts) == (Phase.ENDED, JobState.CANCELLED, ())


def test_an_interrupt_during_a_scale_event_ends_the_job_once_it_has_saved():
    ended, _, _ = step(machine(Phase.STOPPING), observation(READY, READY, interrupts=1))
    assert (ended.phase, ended.verdict) == (Phase.ENDED, JobState.CANCELLED)


def test_a_course_is_a_value():
    with pytest.raises(dataclasses.FrozenInstanceError):
        machine(Phase.RUNNING).attempt = 1


def test_a_job_of_one_size_keeps_its_other_nodes_until_the_lost_one_is_replaced():
    static = Policy((2,), graceful_timeout_s=None)
    waiting = machine(Phase.WAITING, 0, new_node=2, size=2, fault_since_s=1.0)
    after, commands = advance(waiting, observation(READY, GONE, capacity=1), static)
    assert (after.phase, after.nodes, commands) == (Phase.WAITING, (0,), ())
    after, commands = advance(after, observation(READY, GONE, capacity=2), static)
    assert after.nodes == (0, 2) and SpawnNodes((2,)) in commands
    after, commands = advance(waiting, observation(READY, GONE, capacity=1, is_stuck=True), static)
    assert DropNodes((0,)) in commands
    after, _ = advance(after, observation(capacity=1, is_stuck=True), static)
    assert after.verdict is JobState.FAILED


def test_a_restart_that_repeats_steps_is_no_progress_until_the_step_of_the_last_fault_is_passed():
    count, fault_step = 0, 100
    for repeated in (90, 95, 99)[:MAX_FAULTS_WITHOUT_PROGRESS]:  # each further than the one before, none beyond 100
        preparing = machine(Phase.PREPARING, attempt=1, faults_without_progress=count, fault_step=fault_step)
        after, _, _ = step(preparing, observation(READY, GONE, step=repeated))
        count, fault_step = after.faults_without_progress, after.fault_step
    assert (count, fault_step) == (MAX_FAULTS_WITHOUT_PROGRESS, 100)
    preparing = machine(Phase.PREPARING, attempt=1, faults_without_progress=count, fault_step=fault_step)
    assert step(preparing, observation(READY, GONE, step=100))[0].verdict is JobState.FAILED


def test_a_restart_after_a_fault_keeps_the_size_where_there_is_room_for_more():
    stopped = machine(Phase.STOPPING, fault_since_s=100.0)
    after, acts, _ = step(stopped, observation(READY, READY, capacity=4))
    assert (after.phase, after.size, len(after.nodes)) == (Phase.PREPARING, 2, 2)
    assert not [act for act in acts if isinstance(act, SpawnNodes)]


# Workers that stay in their processes


def stays(state, message=""):
    return Report(True, AgentStatus(state, message, {}, is_in_place=True))


def test_a_resize_tells_workers_that_stay_that_some_keep_the_state():
    stopping, acts, _ = step(machine(Phase.RUNNING), observation(stays(RUNNING), stays(RUNNING), capacity=1))
    assert (stopping.is_unsaved, acts) == (True, (StopWorkers((0, 1), 30, names.RESIZE, (1,)),))


def test_workers_that_stay_save_before_a_job_waits_or_ends():
    running = machine(Phase.RUNNING)
    waits, acts, _ = step(running, observation(stays(RUNNING), stays(RUNNING), capacity=0))
    assert (waits.is_unsaved, acts) == (False, (StopWorkers((0, 1), 30, names.SAVE),))
    ends, acts, _ = step(running, observation(stays(RUNNING), stays(RUNNING), interrupts=1))
    assert (ends.is_unsaved, acts) == (False, (StopWorkers((0, 1), 30, names.SAVE),))


def test_an_interrupt_during_a_resize_waits_until_the_workers_run_again_and_can_save():
    stopping = machine(Phase.STOPPING, target=1, is_unsaved=True)
    both = (stays(READY), stays(READY))
    preparing, _, _ = step(stopping, observation(*both, capacity=1, interrupts=1))
    assert (preparing.phase, preparing.nodes, preparing.verdict) == (Phase.PREPARING, (0,), None)
    running, acts, _ = step(preparing, observation(stays(READY), capacity=1, interrupts=1))
    assert (running.phase, running.is_unsaved, acts) == (Phase.RUNNING, False, (StartWorkers((0,), 1),))
    ending, acts, _ = step(running, observation(stays(RUNNING), capacity=1, interrupts=1))
    assert (ending.verdict, acts) == (JobState.CANCELLED, (StopWorkers((0,), 30, names.SAVE),))
    impatient, _, _ = step(stopping, observation(*both, capacity=1, interrupts=2))
    assert impatient.verdict is JobState.CANCELLED


@pytest.mark.parametrize(
    ("before", "target", "capacity", "nodes"),
    [(3, 2, 1, (0, 1)), (3, 2, 0, (0, 1)), (2, 3, 1, (0, 1)), (3, 2, 3, (0, 1, 2))],
    ids=["falls-again", "falls-to-none", "falls-instead", "comes-back"],
)
def test_nodes_with_the_only_copy_of_the_last_steps_start_again_whatever_the_capacity(
    before, target, capacity, nodes
):
    """As many as were to stay, of those that ran; the next planned stop lets them hand over what they have."""
    policy = dataclasses.replace(POLICY, sizes=(1, 2, 3))
    stopping = machine(Phase.STOPPING, *range(before), target=target, is_unsaved=True)
    stopping = dataclasses.replace(stopping, warming=tuple(range(before, target)))
    ready = observation(*(stays(READY),) * 3, capacity=capacity)
    preparing, _, _ = step(stopping, ready, policy)
    assert (preparing.phase, preparing.nodes) == (Phase.PREPARING, nodes)
    assert step(preparing, ready, policy)[1] == (StartWorkers(nodes, 1),)


@pytest.mark.parametrize(
    ("states", "lagging", "is_unsaved", "killed"),
    [
        ((STOPPING, STOPPING), (1,), True, (1,)),
        ((STOPPING, STOPPING), (), True, ()),
        ((STOPPING, STOPPING), (1,), False, ()),
        ((STOPPING, READY), (1,), True, (0,)),
    ],
    ids=["others-wait", "none-lags", "workers-save", "others-have-stopped"],
)
def test_a_node_that_holds_up_a_change_is_replaced(states, lagging, is_unsaved, killed):
    stopping = machine(Phase.STOPPING, target=1, is_unsaved=is_unsaved)
    both = tuple(map(stays, states))
    settling, _, _ = step(stopping, observation(*both, hang="no step", lagging=lagging))
    assert settling.phase is (Phase.SETTLING if killed else Phase.STOPPING)
    if killed:
        healing, acts, _ = step(settling, observation(*both))
        others = tuple({0, 1} - set(killed))
        assert acts == (KillNodes(killed), StopWorkers(others, None, names.ABORT))
        assert (healing.nodes, healing.is_unsaved) == (others, False)


def test_workers_that_stay_heal_a_lost_one_at_once_and_begin_anew_after_a_second_fault_at_the_same_step():
    lost = (stays(RUNNING), GONE)
    settling, _, _ = step(machine(Phase.RUNNING), observation(*lost, step=5))
    healing, acts, _ = step(settling, observation(*lost, step=5))
    assert (healing.phase, acts) == (Phase.STOPPING, (StopWorkers((0,), None, names.ABORT),))
    again = machine(Phase.RUNNING, faults_without_progress=1, fault_step=5)
    settling, _, _ = step(again, observation(*lost, step=5))
    _, acts, _ = step(settling, observation(*lost, step=5))
    assert acts == (StopWorkers((0,), None),)


@pytest.mark.parametrize(
    ("lagging", "fields", "expected"),
    [
        ((), {}, (StopWorkers((0, 1), None),)),
        ((0, 1), {}, (StopWorkers((0, 1), None),)),
        ((1,), {}, (KillNodes((1,)), StopWorkers((0,), None, names.ABORT))),
        ((1,), {"faults_without_progress": 1}, (StopWorkers((0, 1), None),)),
    ],
    ids=["none-lags", "all-lag", "one-lags", "again"],
)
def test_a_hang_begins_workers_anew_unless_it_is_known_who_hangs(lagging, fields, expected):
    both = (stays(RUNNING), stays(RUNNING))
    hangs = observation(*both, hang="no step", lagging=lagging)
    settling, _, _ = step(machine(Phase.RUNNING, **fields), hangs)
    assert step(settling, observation(*both))[1] == expected


def test_a_node_that_leaves_is_told_so():
    seen = observation(*(stays(RUNNING),) * 4, capacity=2)
    _, (stop,), _ = step(machine(Phase.RUNNING, 0, 1, 2, 3), seen)
    assert [stop.notice_to(node) for node in range(4)] == [names.RESIZE] * 2 + [names.LEAVE] * 2


def test_a_worker_that_is_made_anew_counts_as_stopped_and_is_waited_for_before_the_start():
    stopping = machine(Phase.STOPPING, fault_since_s=NOW)
    made_anew = observation(stays(READY), stays(AgentState.INIT))
    preparing, acts, _ = step(stopping, made_anew)
    assert (preparing.phase, acts) == (Phase.PREPARING, ())
    assert step(preparing, made_anew)[0].phase is Phase.PREPARING
