"""The state machine of a job: its phases, and the commands that the operator gives in each.

Pure: `advance` takes the state of the job and an observation of its nodes, and returns the next state and the
commands to execute.

    PREPARING ─all agents ready→ RUNNING ─all agents completed→ ENDED
        ↑                         │   │
        │                         │   └─a worker or node failed→ SETTLING ─peers heard─┐
        │                         └─more nodes are ready, or fewer remain─┐            │
        │                                                                 ↓            ↓
        └──────── WAITING ←─no nodes, or a lost one may come back──── STOPPING ←───────┘

A scale-up is pre-warmed: the agents of new nodes start up while the others train, and only then do all stop. A job
that is interrupted, or fails for good, enters ENDED from any phase.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace

from launcher.common import names
from launcher.common.texts import counted
from launcher.model.job_spec import JobState
from launcher.operator.types import (
    AgentProgress,
    AgentState,
    Cause,
    Command,
    DropNodes,
    Event,
    Fault,
    KillNodes,
    MachineState,
    Observation,
    Phase,
    Policy,
    RecordStart,
    SpawnNodes,
    StartWorkers,
    StopWorkers,
)

READY_TIMEOUT_S = 120.0
"""How long agents may take to become ready: 3 s each when idle, 9 s measured on a loaded machine."""

SETTLE_S = 1.0
"""How long after a fault the other agents may take to notice theirs, so that the first cause can be found."""

SILENCE_TIMEOUT_S = 60.0
"""How long a living agent may leave /status unanswered."""

STOP_MARGIN_S = 15.0
"""How long an agent may take to stop its workers, beyond the workers' own time; 1.4 s measured."""

MAX_FAULTS_WITHOUT_PROGRESS = 3
"""Consecutive faults without a new step after which a job is still restarted; with progress there is no limit."""


Step = tuple[MachineState, tuple[Command, ...]]


def begin(num_nodes: int, now_s: float) -> Step:
    """Return the state of a job that starts on `num_nodes` nodes, or waits for nodes if that is 0."""
    nodes = tuple(range(num_nodes))
    phase = Phase.PREPARING if nodes else Phase.WAITING
    machine = MachineState(phase, nodes, 0, now_s, new_node=num_nodes, size=num_nodes)
    return machine, (SpawnNodes(nodes),) if nodes else ()


def advance(machine: MachineState, observation: Observation, policy: Policy) -> Step:
    """Return the state after `observation`, and the commands to execute."""
    reported = [report.status.progress for report in observation.reports.values() if report.status]
    machine = replace(machine, progress=max((machine.progress, *reported), key=progress_step))
    return _PHASES[machine.phase](machine, observation, policy)


def progress_step(progress: AgentProgress) -> int:
    """Return the step of the checkpoint that `progress` names, -1 for none.

    Source: hyperpod_elastic_agent 1.1.3, HyperPodElasticAgent.get_agent_progress.
    """
    return max((int(str(entry["progressCount"])) for entry in progress.values()), default=-1)


def _prepare(machine: MachineState, observation: Observation, policy: Policy) -> Step:
    if _may_end(machine, observation):
        return machine.end(observation.now_s, JobState.CANCELLED), ()
    size = policy.fit(observation.capacity)
    if not observation.lost(machine.nodes):  # one that is lost may come back
        size = max(size, _holders(machine))
    if size < len(machine.nodes):
        return _prepare_fewer(machine, observation, size)
    if not observation.all_ready(machine.nodes):
        return _replace_unready(machine, observation)
    return _start(machine, observation)


def _holders(machine: MachineState) -> int:
    """Return how many of the first nodes must take part in the next start, whatever the capacity.

    After a planned stop these have the only copy of the last steps, each of some rows: they hand it over, or save it,
    at the next planned stop.
    """
    return min(machine.target, machine.size) if machine.is_unsaved else 0


def _start(machine: MachineState, observation: Observation) -> Step:
    running = replace(
        machine.enter(Phase.RUNNING, observation.now_s),
        size=len(machine.nodes),
        is_unsaved=False,
        scale_up_requested_at_s=None,
        fault_since_s=None,
        faults=(),
    )
    return running, (_start_event(machine), StartWorkers(machine.nodes, machine.attempt, machine.progress))


def _prepare_fewer(machine: MachineState, observation: Observation, size: int) -> Step:
    if faults := observation.lost(machine.nodes):  # a lost node may come back
        waiting = replace(
            machine.enter(Phase.WAITING, observation.now_s),
            faults=faults,
            size=len(machine.nodes),
            nodes=observation.alive(machine.nodes),
            fault_since_s=observation.now_s,
        )
        return waiting, tuple(map(fault_event, faults))
    smaller, commands = _regroup(machine, observation, size)
    return smaller, (transition_to(size, len(machine.nodes), observation.now_s), *commands)


def _replace_unready(machine: MachineState, observation: Observation) -> Step:
    """Replace the nodes whose agents ended or took too long, or whose workers failed, before they were ready."""
    is_late = observation.now_s - machine.since_s > READY_TIMEOUT_S
    faults = observation.unfit(machine.nodes, is_late=is_late)
    if not faults:
        return machine, ()
    events = tuple(map(fault_event, faults))
    machine = _count_fault(machine, observation)
    # A worker that has not joined the others does not fail with them: one that exited did so by itself.
    would_exit = observation.step == 0 and all(fault.has_exited for fault in faults)
    if would_exit or _is_for_good(machine, faults, observation) or (is_late and machine.attempt == 0):
        ended = machine.end(observation.now_s, JobState.FAILED, *faults)
        if not any(fault.cause is Cause.WORKER for fault in faults):
            return ended, events
        start = RecordStart(machine.nodes, machine.attempt, machine.since_s)
        return ended, (_start_event(machine, "a worker failed before the start", machine.since_s), *events, start)
    failed = tuple(fault.node for fault in faults)
    machine, spawn = _spawn(machine, len(failed))
    new = iter(spawn.nodes)
    nodes = tuple(next(new) if node in failed else node for node in machine.nodes)
    machine = replace(machine.enter(Phase.PREPARING, observation.now_s), nodes=nodes)
    return machine, (*events, *_kill(failed), spawn)


def _start_event(machine: MachineState, words: str = "starting", cause_s: float | None = None) -> Event:
    size = len(machine.nodes)
    fields = {"attempt": machine.attempt, "nodes": machine.nodes, "size": size}
    return Event("starting", f"{words} on {counted(size, 'node')}", fields, cause_s)


def _run(machine: MachineState, observation: Observation, policy: Policy) -> Step:
    if observation.interrupts:
        stopping = replace(machine.enter(Phase.STOPPING, observation.now_s), verdict=JobState.CANCELLED)
        return stopping, _stop_commands(machine, observation, policy)
    if faults := _merged(observation.failed_commands, _faults(machine, observation)):
        settling = machine.enter(Phase.SETTLING, observation.now_s)
        settling = replace(settling, faults=faults, fault_since_s=observation.now_s)
        return settling, tuple(map(fault_event, faults))
    done = [node for node in machine.nodes if observation.report(node).is_in(AgentState.COMPLETED)]
    if len(done) == len(machine.nodes):
        return machine.end(observation.now_s, JobState.SUCCEEDED), ()
    return _scale(machine, observation, policy, is_finishing=bool(done))


def _scale(machine: MachineState, observation: Observation, policy: Policy, *, is_finishing: bool) -> Step:
    size = policy.fit(observation.capacity)
    if size < len(machine.nodes):
        event = transition_to(size, len(machine.nodes), observation.now_s)
        stopping, commands = _stop_to_resize(machine, observation, policy, size)
        return stopping, (event, *commands)
    # Where some nodes have finished, the others are about to: a scale-up would come too late.
    if is_finishing or size == len(machine.nodes):
        return _abandon_warming(replace(machine, scale_up_requested_at_s=None), observation)
    since_s = observation.now_s if machine.scale_up_requested_at_s is None else machine.scale_up_requested_at_s
    machine = replace(machine, scale_up_requested_at_s=since_s)
    if machine.warming:
        return _await_warming(machine, observation, policy, size, since_s)
    return _spawn_more(machine, observation, policy, size, since_s)


def _spawn_more(machine: MachineState, observation: Observation, policy: Policy, size: int, since_s: float) -> Step:
    """Start nodes for a scale-up, once they have been available for long enough."""
    is_stable = observation.now_s - since_s >= policy.scaling_timeout_s
    is_rested = machine.attempt == 0 or observation.now_s - machine.since_s >= policy.snooze_s
    if not (is_stable and is_rested):
        return machine, ()
    event = transition("scale-up", len(machine.nodes), size, since_s)
    machine, spawn = _spawn(machine, size - len(machine.nodes))
    machine = replace(machine, warming=spawn.nodes, scale_up_requested_at_s=observation.now_s)
    return machine, (event, Event("spawned", "", {"nodes": spawn.nodes}), spawn)


def _await_warming(
    machine: MachineState, observation: Observation, policy: Policy, size: int, since_s: float
) -> Step:
    """Stop the workers once the new nodes are ready; give up the new nodes if one fails or is late."""
    is_late = observation.now_s - since_s > READY_TIMEOUT_S
    still_fits = size == len(machine.nodes + machine.warming) and not is_late
    if not still_fits or observation.unfit(machine.warming):
        # What is left of the request starts again from here.
        machine = replace(machine, scale_up_requested_at_s=observation.now_s)
        return _abandon_warming(machine, observation, is_late=is_late)
    if not observation.all_ready(machine.warming):
        return machine, ()
    stopping, commands = _stop_to_resize(machine, observation, policy, size)
    return stopping, (Event("prewarmed", "", {"nodes": machine.warming}), *commands)


def _abandon_warming(machine: MachineState, observation: Observation, *, is_late: bool = False) -> Step:
    """Give up the new nodes: the capacity for them is gone, or one failed or, if `is_late`, is not ready."""
    if not machine.warming:
        return machine, ()
    faults = observation.unfit(machine.warming, is_late=is_late)
    message = "a new node failed before it took part" if faults else "the new nodes are no longer needed"
    event = Event("abandoned", message, {"nodes": machine.warming})
    events = (*(fault_event(fault, warming=True) for fault in faults), event)
    return replace(machine, warming=()), (*events, DropNodes(machine.warming))


def _settle(machine: MachineState, observation: Observation, policy: Policy) -> Step:
    if observation.interrupts:
        stopping = replace(machine.enter(Phase.STOPPING, observation.now_s), verdict=JobState.CANCELLED)
        return stopping, (StopWorkers(observation.alive(machine.nodes), None),)
    machine, events = _add_faults(machine, _faults(machine, observation))
    # A worker that stays does not fail with its peers: whatever has failed did so by itself.
    if observation.now_s - machine.since_s < (0 if observation.stays() else SETTLE_S):
        return machine, events
    faults = machine.faults
    machine = _count_fault(machine, observation)
    if _is_for_good(machine, faults, observation):
        return machine.end(observation.now_s, JobState.FAILED, *faults), events
    unfit = tuple(fault.node for fault in faults if fault.cause in (Cause.SILENT, Cause.DISOBEDIENT))
    # A second fault at the same step may lie in the state that the workers keep.
    heals = observation.stays() and machine.faults_without_progress < 2
    if faults[0].cause is Cause.HANG:
        late = tuple(node for node in faults[0].lagging if node in machine.nodes)
        heals = heals and 0 < len(late) < len(machine.nodes)
        unfit += late if heals else ()
    survivors = tuple(node for node in observation.alive(machine.nodes) if node not in unfit)
    recovery = transition("recover", machine.size, machine.size, machine.fault_since_s)
    stop = stopping_event(machine.attempt, survivors, graceful=False)
    machine = replace(machine.enter(Phase.STOPPING, observation.now_s), nodes=survivors)
    command = StopWorkers(survivors, None, names.ABORT if heals else None)
    return machine, (*events, recovery, *_kill(unfit), stop, command)


def _is_for_good(machine: MachineState, faults: tuple[Fault, ...], observation: Observation) -> bool:
    """Return whether these faults, the last of which is counted, end the job."""
    is_hopeless = machine.faults_without_progress > MAX_FAULTS_WITHOUT_PROGRESS
    return is_hopeless or _fails_at_start(faults, observation) or any(fault.is_final for fault in faults)


def _fails_at_start(faults: tuple[Fault, ...], observation: Observation) -> bool:
    """Return whether workers exited by themselves before the first step: after a restart they would do so again."""
    is_by_itself = all(fault.cause is Cause.WORKER and not fault.was_killed for fault in faults)
    return observation.step == 0 and is_by_itself


def _add_faults(machine: MachineState, faults: tuple[Fault, ...]) -> Step:
    """Return the state with these faults, and an event for each that is new."""
    known = {(fault.node, fault.cause) for fault in machine.faults}
    events = tuple(fault_event(fault) for fault in faults if (fault.node, fault.cause) not in known)
    return replace(machine, faults=_merged(machine.faults, faults)), events


def _merged(faults: tuple[Fault, ...], later: tuple[Fault, ...]) -> tuple[Fault, ...]:
    """Return each fault of a node once, with its latest detail."""
    return tuple({(fault.node, fault.cause): fault for fault in (*faults, *later)}.values())


def _count_fault(machine: MachineState, observation: Observation) -> MachineState:
    """Count a fault: the first one after a new step, or one more in a row."""
    count = 1 if observation.step > machine.fault_step else machine.faults_without_progress + 1
    return replace(machine, faults_without_progress=count, fault_step=max(observation.step, machine.fault_step))


def _stop_to_resize(machine: MachineState, observation: Observation, policy: Policy, size: int) -> Step:
    is_unsaved = _notice(observation, policy, size) == names.RESIZE
    stopping = replace(machine.enter(Phase.STOPPING, observation.now_s), target=size, is_unsaved=is_unsaved)
    return stopping, _stop_commands(machine, observation, policy, size)


def _stop_commands(
    machine: MachineState, observation: Observation, policy: Policy, target: int = 0
) -> tuple[Command, ...]:
    alive = observation.alive(machine.nodes)
    event = stopping_event(machine.attempt, alive, graceful=policy.graceful_timeout_s is not None)
    notice = _notice(observation, policy, target)
    leaving = alive[target:] if notice == names.RESIZE else ()
    return event, StopWorkers(alive, policy.graceful_timeout_s, notice, leaving)


def _notice(observation: Observation, policy: Policy, target: int) -> str | None:
    """Return the notice to workers that stay while the job changes to `target` nodes, or ends if that is 0."""
    if policy.graceful_timeout_s is None or not observation.stays():
        return None
    return names.RESIZE if target else names.SAVE


def _stop(machine: MachineState, observation: Observation, policy: Policy) -> Step:
    if _may_end(machine, observation):
        machine = replace(machine, verdict=JobState.CANCELLED)
    # An interrupted job may save, one that recovers from a fault cannot.
    grace_s = policy.graceful_timeout_s if machine.fault_since_s is None else None
    is_late = observation.now_s - machine.since_s > (grace_s or 0) + STOP_MARGIN_S
    disobedient = tuple(fault.node for fault in observation.unready(machine.nodes)) if is_late else ()
    if observation.hang and machine.is_unsaved and (late := _late_to_stop(machine, observation)):
        return _settle_hang(machine, observation, late)
    ignored = tuple(Fault(node, Cause.DISOBEDIENT) for node in disobedient)
    nodes = tuple(node for node in observation.alive(machine.nodes) if node not in disobedient)
    machine, events = _add_faults(machine, (*observation.lost(machine.nodes), *ignored))
    if not observation.all_stopped(nodes) and observation.interrupts < 2:
        # Agents too busy to take the command get it again: killing one would end a save that others take part in.
        missed = tuple(fault.node for fault in observation.failed_commands if fault.node in nodes)
        notice = _notice(observation, policy, 0 if machine.verdict else machine.target) if grace_s else None
        leaving = nodes[machine.target :] if notice == names.RESIZE else ()
        again = StopWorkers(missed, grace_s, notice, leaving)
        return replace(machine, nodes=nodes), (*events, *((again,) if missed else ()))
    if machine.verdict:
        return machine.enter(Phase.ENDED, observation.now_s), events
    saved = bool(machine.progress) and progress_step(machine.progress) >= observation.step
    stopped = Event("stopped", "", {"attempt": machine.attempt, "saved": saved})
    machine = replace(machine, nodes=nodes, attempt=machine.attempt + 1)
    machine, commands = _restart(machine, observation, policy)
    return machine, (*events, *_kill(disobedient), stopped, *commands)


def _late_to_stop(machine: MachineState, observation: Observation) -> tuple[int, ...]:
    """Return the nodes that hold up a planned stop: the others have stopped, or wait for a rank of theirs."""
    late = tuple(node for node in machine.nodes if not observation.all_stopped((node,)))
    return late if 0 < len(late) < len(machine.nodes) else observation.lagging


def _settle_hang(machine: MachineState, observation: Observation, late: tuple[int, ...]) -> Step:
    """Give up a planned stop that some nodes hold up: they are killed, and the others heal."""
    fault = Fault(-1, Cause.HANG, observation.hang, late)
    settling = machine.enter(Phase.SETTLING, observation.now_s)
    settling = replace(settling, faults=(fault,), fault_since_s=observation.now_s, is_unsaved=False)
    return settling, (fault_event(fault),)


def _may_end(machine: MachineState, observation: Observation) -> bool:
    """Return whether an interrupted job ends now: not while workers have the only copy of the last steps."""
    return observation.interrupts > (1 if machine.is_unsaved else 0)


def _restart(machine: MachineState, observation: Observation, policy: Policy) -> Step:
    """Restart on the remaining nodes, or wait for a lost one to come back."""
    size = policy.fit(observation.capacity)
    if machine.fault_since_s is None:
        return _resize(machine, observation, policy, size)
    if size < machine.size and _awaits_lost_node(observation, policy, machine.fault_since_s):
        return machine.enter(Phase.WAITING, observation.now_s), ()
    return _regroup(machine, observation, min(size, machine.size))


def _resize(machine: MachineState, observation: Observation, policy: Policy, size: int) -> Step:
    """Restart after a planned stop with the nodes that are ready; any others come with the next scale-up."""
    ready = policy.fit(len(machine.nodes) + len(observation.alive(machine.warming)))
    size = min(max(size, _holders(machine)), ready) or size
    event = transition_to(size, machine.size, observation.now_s)
    machine, commands = _regroup(machine, observation, size)
    return machine, commands if size == machine.target else (event, *commands)


def _awaits_lost_node(observation: Observation, policy: Policy, since_s: float) -> bool:
    """Return whether the remaining nodes wait for a lost one: a job of one size cannot continue without it."""
    if policy.is_static:
        return not observation.is_stuck
    return observation.now_s - since_s < policy.faulty_timeout_s


def _wait(machine: MachineState, observation: Observation, policy: Policy) -> Step:
    if observation.interrupts:
        return machine.end(observation.now_s, JobState.CANCELLED), ()
    machine, events = _add_faults(machine, observation.lost(machine.nodes))
    machine = replace(machine, nodes=observation.alive(machine.nodes))
    if machine.fault_since_s is not None:
        machine, commands = _restart(machine, observation, policy)
        return machine, (*events, *commands)
    if size := policy.fit(observation.capacity):
        machine, commands = _regroup(machine, observation, size)
        return machine, (transition("resume", 0, size, observation.now_s), *commands)
    if observation.is_stuck:
        return machine.end(observation.now_s, JobState.FAILED, Fault(-1, Cause.NO_CAPACITY)), ()
    return machine, ()


def _regroup(machine: MachineState, observation: Observation, size: int) -> Step:
    """Keep up to `size` of the living nodes; drain the others and start the missing ones."""
    commands: tuple[Command, ...] = ()
    if machine.fault_since_s is not None and size < machine.size:
        commands = (transition_to(size, machine.size, machine.fault_since_s),)
    alive = observation.alive(machine.nodes) + observation.alive(machine.warming)
    keep, drain = alive[:size], alive[size:]
    lost = observation.lost(machine.warming)
    commands += tuple(fault_event(fault, warming=True) for fault in lost)
    if drain or lost:
        dropped = drain + tuple(fault.node for fault in lost)
        commands += (Event("dropped", "", {"nodes": drain}), DropNodes(dropped))
    machine = machine.enter(Phase.PREPARING if size else Phase.WAITING, observation.now_s)
    machine = replace(machine, warming=(), nodes=keep, fault_since_s=None)
    if missing := size - len(keep):
        machine, spawn = _spawn(machine, missing)
        machine = replace(machine, nodes=keep + spawn.nodes)
        commands += (Event("spawned", "", {"nodes": spawn.nodes}), spawn)
    return machine, commands


def _kill(nodes: tuple[int, ...]) -> tuple[Command, ...]:
    return (KillNodes(nodes),) if nodes else ()


def _spawn(machine: MachineState, count: int) -> tuple[MachineState, SpawnNodes]:
    nodes = tuple(range(machine.new_node, machine.new_node + count))
    return replace(machine, new_node=machine.new_node + count), SpawnNodes(nodes)


def _faults(machine: MachineState, observation: Observation) -> tuple[Fault, ...]:
    alive = observation.alive(machine.nodes)
    silent = (node for node in alive if observation.report(node).silent_s > SILENCE_TIMEOUT_S)
    faults = observation.lost(machine.nodes) + observation.crashed(machine.nodes)
    faults += tuple(Fault(node, Cause.SILENT) for node in silent)
    if observation.hang and not faults:
        faults = (Fault(-1, Cause.HANG, observation.hang, observation.lagging),)
    return faults


def transition(reason: str, from_nodes: int, to_nodes: int, cause_s: float | None) -> Event:
    """Return the event of a change from one number of nodes to another."""
    fields = {"reason": reason, "from_nodes": from_nodes, "to_nodes": to_nodes}
    return Event("transition", f"{reason}: {from_nodes} → {counted(to_nodes, 'node')}", fields, cause_s)


def transition_to(size: int, from_nodes: int, cause_s: float | None) -> Event:
    """Return the event of a change to `size` nodes, with the reason that the sizes give."""
    reason = "suspend" if not size else "scale-down" if size < from_nodes else "scale-up"
    return transition("restart" if size == from_nodes else reason, from_nodes, size, cause_s)


def stopping_event(attempt: int, nodes: tuple[int, ...], *, graceful: bool) -> Event:
    """Return the event of a command to stop workers."""
    return Event("stopping", "", {"attempt": attempt, "nodes": nodes, "graceful": graceful})


def fault_event(fault: Fault, *, warming: bool = False) -> Event:
    """Return the event of a fault; `warming` for a node that had not taken part yet."""
    fields: dict[str, object] = {} if fault.node < 0 else {"node": fault.node}
    fields |= {"cause": str(fault.cause), "is_own": fault.is_own, "warming": warming}
    return Event("fault", str(fault), fields)


_PHASES: Mapping[Phase, Callable[[MachineState, Observation, Policy], Step]] = {
    Phase.PREPARING: _prepare,
    Phase.RUNNING: _run,
    Phase.SETTLING: _settle,
    Phase.STOPPING: _stop,
    Phase.WAITING: _wait,
    Phase.ENDED: lambda machine, _observation, _policy: (machine, ()),
}
