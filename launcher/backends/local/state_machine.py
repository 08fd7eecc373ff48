"""The course of a job: which phase follows which, and what the operator does on the way.

A pure state machine. `advance` takes where the job is and what was seen of its nodes, and returns where
it is then and the orders to give.

    PREPARING ─all agents ready→ RUNNING ─all agents completed→ ENDED
        ↑                         │   │
        │                         │   └─a worker or node failed→ SETTLING ─peers heard─┐
        │                         └─more nodes are ready, or fewer remain─┐            │
        │                                                                 ↓            ↓
        └──────── WAITING ←─no nodes, or a lost one may come back──── STOPPING ←───────┘

A scale-up is pre-warmed: new nodes get their agents while the others train, and only then all stop. A job
that is interrupted, or fails for good, goes to ENDED from wherever it is.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from launcher.backends.local.operator_types import (
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
    SpawnNodes,
    StartWorkers,
    StopWorkers,
)
from launcher.model.job_spec import JobState

READY_TIMEOUT_S = 120.0
"""How long agents may take to be ready: 3 s each when idle, 9 s seen on a loaded machine."""

SETTLE_S = 1.0
"""After a fault: time for the other agents to notice theirs, so that the first cause can be told."""

SILENCE_TIMEOUT_S = 60.0
"""How long a living agent may leave /status unanswered."""

STOP_MARGIN_S = 15.0
"""What an agent may take beyond the workers' own time to stop them; 1.4 s seen."""

MAX_FAULTS_WITHOUT_PROGRESS = 3
"""Faults in a row, without a new step between them, that a job is restarted after."""


Step = tuple[MachineState, tuple[Command, ...]]


def begin(num_nodes: int, now_s: float) -> Step:
    """Return the course of a job that starts on `num_nodes` nodes, or waits for them when that is 0."""
    nodes = tuple(range(num_nodes))
    phase = Phase.PREPARING if nodes else Phase.WAITING
    machine = MachineState(phase, nodes, 0, now_s, new_node=num_nodes, size=num_nodes)
    return machine, (SpawnNodes(nodes),) if nodes else ()


def advance(machine: MachineState, observation: Observation, policy: Policy) -> Step:
    """Return the course after `observation`, and the orders that take the job there."""
    machine = replace(machine, progress=_newest(machine.progress, observation))
    return _PHASES[machine.phase](machine, observation, policy)


def progress_step(progress: Mapping[str, Any]) -> int:
    """Return the step of the checkpoint that `progress` names, -1 for none.

    Source: hyperpod_elastic_agent 1.1.3, HyperPodElasticAgent.get_agent_progress.
    """
    return max((int(entry["progressCount"]) for entry in progress.values()), default=-1)


def _newest(progress: Mapping[str, Any], observation: Observation) -> Mapping[str, Any]:
    told = [report.status.progress for report in observation.reports.values() if report.status]
    return max((progress, *told), key=progress_step)


def _prepare(machine: MachineState, observation: Observation, policy: Policy) -> Step:
    if observation.interrupts:
        return machine.end(observation.now_s, JobState.CANCELLED), ()
    wanted = policy.fit(observation.capacity)
    if wanted < len(machine.nodes):
        return _prepare_fewer(machine, observation, wanted)
    waiting = tuple(node for node in machine.nodes if not observation.report(node).is_in(AgentState.READY))
    if not waiting:
        running = machine.enter(
            Phase.RUNNING,
            observation.now_s,
            size=len(machine.nodes),
            scale_up_requested_at_s=None,
            fault_since_s=None,
            faults=(),
        )
        size = len(machine.nodes)
        event = Event(
            "starting",
            f"starting on {_nodes(size)}",
            {"attempt": machine.attempt, "nodes": machine.nodes, "size": size},
        )
        return running, (event, StartWorkers(machine.nodes, machine.attempt, machine.progress))
    return _late(machine, observation, waiting)


def _prepare_fewer(machine: MachineState, observation: Observation, wanted: int) -> Step:
    faults = tuple(Fault(node, Cause.LOST) for node in machine.nodes if not observation.report(node).alive)
    if faults:  # a lost node may come back
        fields = {
            "size": len(machine.nodes),
            "nodes": observation.alive(machine.nodes),
            "fault_since_s": observation.now_s,
        }
        return machine.enter(Phase.WAITING, observation.now_s, faults=faults, **fields), tuple(
            map(_fault_event, faults)
        )
    smaller, commands = _regroup(machine, observation, wanted)
    return smaller, (_transition_to(wanted, len(machine.nodes), observation.now_s), *commands)


def _late(machine: MachineState, observation: Observation, waiting: tuple[int, ...]) -> Step:
    """Replace the nodes whose agents have ended, or took too long, before they were ready."""
    late = observation.now_s - machine.since_s > READY_TIMEOUT_S
    faults = tuple(
        Fault(node, Cause.UNREADY if observation.report(node).alive else Cause.LOST)
        for node in waiting
        if late or not observation.report(node).alive
    )
    if not faults:
        return machine, ()
    machine = _count_fault(machine, observation)
    if machine.faults_without_progress > MAX_FAULTS_WITHOUT_PROGRESS or (late and machine.attempt == 0):
        return machine.end(observation.now_s, JobState.FAILED, *faults), tuple(map(_fault_event, faults))
    gone = tuple(fault.node for fault in faults)
    machine, spawn = _spawn(machine, len(gone))
    fresh = iter(spawn.nodes)
    nodes = tuple(next(fresh) if node in gone else node for node in machine.nodes)
    return machine.enter(Phase.PREPARING, observation.now_s, nodes=nodes), (
        *map(_fault_event, faults),
        *_kill(gone),
        spawn,
    )


def _run(machine: MachineState, observation: Observation, policy: Policy) -> Step:
    if observation.interrupts:
        return _stop_for(
            machine, observation, machine.enter(Phase.STOPPING, observation.now_s, verdict=JobState.CANCELLED), policy
        )
    if faults := _merged(observation.failed_commands, _faults(machine, observation)):
        settling = machine.enter(Phase.SETTLING, observation.now_s, faults=faults, fault_since_s=observation.now_s)
        return settling, tuple(map(_fault_event, faults))
    done = [node for node in machine.nodes if observation.report(node).is_in(AgentState.COMPLETED)]
    if len(done) == len(machine.nodes):
        return machine.end(observation.now_s, JobState.SUCCEEDED), ()
    wanted = policy.fit(observation.capacity)
    if wanted < len(machine.nodes):
        stopping, commands = _stop_for(
            machine, observation, machine.enter(Phase.STOPPING, observation.now_s, target=wanted), policy
        )
        return stopping, (_transition_to(wanted, len(machine.nodes), observation.now_s), *commands)
    # Where some have finished, the others are about to: no use in growing.
    if done or wanted == len(machine.nodes):
        return _forget_warming(replace(machine, scale_up_requested_at_s=None), observation)
    return _grow(machine, observation, policy, wanted)


def _grow(machine: MachineState, observation: Observation, policy: Policy, wanted: int) -> Step:
    since = observation.now_s if machine.scale_up_requested_at_s is None else machine.scale_up_requested_at_s
    machine = replace(machine, scale_up_requested_at_s=since)
    if not machine.warming:
        patient = observation.now_s - since >= policy.scaling_timeout_s
        rested = machine.attempt == 0 or observation.now_s - machine.since_s >= policy.snooze_s
        if not (patient and rested):
            return machine, ()
        machine, spawn = _spawn(machine, wanted - len(machine.nodes))
        machine = replace(machine, warming=spawn.nodes, scale_up_requested_at_s=observation.now_s)
        told = _transition("scale-up", len(machine.nodes), wanted, since)
        return machine, (told, Event("spawned", "", {"nodes": spawn.nodes}), spawn)
    # A node that dies or dawdles while it gets ready is given up; what is left of the wish starts anew.
    late = observation.now_s - since > READY_TIMEOUT_S
    fit = wanted == len(machine.nodes + machine.warming) and not late
    if not fit or len(observation.alive(machine.warming)) < len(machine.warming):
        return _forget_warming(replace(machine, scale_up_requested_at_s=observation.now_s), observation, late=late)
    if not observation.all_ready(machine.warming):
        return machine, ()
    event = Event("prewarmed", "", {"nodes": machine.warming})
    stopping, commands = _stop_for(
        machine, observation, machine.enter(Phase.STOPPING, observation.now_s, target=wanted), policy
    )
    return stopping, (event, *commands)


def _forget_warming(machine: MachineState, observation: Observation, *, late: bool = False) -> Step:
    """Give the new nodes up: the capacity for them is gone, or one of them failed or, if `late`, is not ready."""
    if not machine.warming:
        return machine, ()
    faults = _warming_faults(machine, observation)
    if late:
        slow = tuple(
            node
            for node in observation.alive(machine.warming)
            if not observation.report(node).is_in(AgentState.READY)
        )
        faults += tuple(Fault(node, Cause.UNREADY) for node in slow)
    message = "a new node failed before it took part" if faults else "the new nodes are not needed any more"
    event = Event("abandoned", message, {"nodes": machine.warming})
    events = (*(_fault_event(fault, warming=True) for fault in faults), event)
    return replace(machine, warming=()), (*events, DropNodes(machine.warming))


def _warming_faults(machine: MachineState, observation: Observation) -> tuple[Fault, ...]:
    return tuple(Fault(node, Cause.LOST) for node in machine.warming if not observation.report(node).alive)


def _settle(machine: MachineState, observation: Observation, policy: Policy) -> Step:
    if observation.interrupts:
        stopping = machine.enter(Phase.STOPPING, observation.now_s, verdict=JobState.CANCELLED)
        return stopping, (StopWorkers(observation.alive(machine.nodes), None),)
    machine, events = _add_faults(machine, _faults(machine, observation))
    if observation.now_s - machine.since_s < SETTLE_S:
        return machine, events
    faults = machine.faults
    machine = _count_fault(machine, observation)
    # A script that ends by itself before its first step would do so again.
    hopeless = observation.step == 0 and all(fault.cause is Cause.WORKER and not fault.was_killed for fault in faults)
    if hopeless or machine.faults_without_progress > MAX_FAULTS_WITHOUT_PROGRESS:
        return machine.end(observation.now_s, JobState.FAILED, *faults), events
    unfit = tuple(fault.node for fault in faults if fault.cause in (Cause.SILENT, Cause.DISOBEDIENT))
    survivors = tuple(node for node in observation.alive(machine.nodes) if node not in unfit)
    stopping = machine.enter(
        Phase.STOPPING,
        observation.now_s,
        nodes=survivors,
        faults=faults,
    )
    event = _transition("recover", machine.size, machine.size, machine.fault_since_s)
    halt = _stopping_event(machine.attempt, survivors, graceful=False)
    return stopping, (*events, event, *_kill(unfit), halt, StopWorkers(survivors, None))


def _add_faults(machine: MachineState, faults: tuple[Fault, ...]) -> Step:
    """Return the course with these faults, and a note for each that is new."""
    known = {(fault.node, fault.cause) for fault in machine.faults}
    events = tuple(_fault_event(fault) for fault in faults if (fault.node, fault.cause) not in known)
    return replace(machine, faults=_merged(machine.faults, faults)), events


def _merged(faults: tuple[Fault, ...], later: tuple[Fault, ...]) -> tuple[Fault, ...]:
    """Return each fault of a node once, with what was said of it last."""
    return tuple({(fault.node, fault.cause): fault for fault in (*faults, *later)}.values())


def _count_fault(machine: MachineState, observation: Observation) -> MachineState:
    """Count a fault: the first one after a new step, or one more in a row."""
    faults_without_progress = 1 if observation.step > machine.fault_step else machine.faults_without_progress + 1
    return replace(
        machine, faults_without_progress=faults_without_progress, fault_step=max(observation.step, machine.fault_step)
    )


def _stop_for(machine: MachineState, observation: Observation, stopping: MachineState, policy: Policy) -> Step:
    alive = observation.alive(machine.nodes)
    event = _stopping_event(machine.attempt, alive, graceful=policy.graceful_timeout_s is not None)
    return stopping, (event, StopWorkers(alive, policy.graceful_timeout_s))


def _stop(machine: MachineState, observation: Observation, policy: Policy) -> Step:
    if observation.interrupts:
        machine = replace(machine, verdict=JobState.CANCELLED)
    # An interrupted job may save, one that recovers from a fault cannot.
    grace_s = policy.graceful_timeout_s if machine.fault_since_s is None else None
    alive = observation.alive(machine.nodes)
    out_of_time = observation.now_s - machine.since_s > (grace_s or 0) + STOP_MARGIN_S
    disobedient = tuple(
        node for node in alive if out_of_time and not observation.report(node).is_in(AgentState.READY)
    )
    lost = tuple(Fault(node, Cause.LOST) for node in machine.nodes if node not in alive)
    machine, events = _add_faults(machine, (*lost, *(Fault(node, Cause.DISOBEDIENT) for node in disobedient)))
    nodes = tuple(node for node in alive if node not in disobedient)
    if not observation.all_ready(nodes) and observation.interrupts < 2:
        # An agent that is too busy to answer is told again: to kill it would end a save that others take part in.
        deaf = tuple(fault.node for fault in observation.failed_commands if fault.node in nodes)
        return replace(machine, nodes=nodes), (*events, *((StopWorkers(deaf, grace_s),) if deaf else ()))
    if machine.verdict:
        return machine.enter(Phase.ENDED, observation.now_s), events
    saved = bool(machine.progress) and progress_step(machine.progress) >= observation.step
    event = Event("stopped", "", {"attempt": machine.attempt, "saved": saved})
    machine, commands = _restart(replace(machine, nodes=nodes, attempt=machine.attempt + 1), observation, policy)
    return machine, (*events, *_kill(disobedient), event, *commands)


def _restart(machine: MachineState, observation: Observation, policy: Policy) -> Step:
    """Go on with the nodes there are, or wait for a lost one to come back."""
    wanted = policy.fit(observation.capacity)
    if machine.fault_since_s is None:
        # What is ready is what a planned stop was for; more comes with the next scale-up.
        here = policy.fit(len(machine.nodes) + len(observation.alive(machine.warming)))
        size = min(wanted, here) or wanted
        event = _transition_to(size, machine.size, observation.now_s)
        machine, commands = _regroup(machine, observation, size)
        return machine, commands if size == machine.target else (event, *commands)
    if wanted < machine.size and _is_patient(machine, observation, policy):
        return machine.enter(Phase.WAITING, observation.now_s), ()
    return _regroup(machine, observation, min(wanted, machine.size))


def _is_patient(machine: MachineState, observation: Observation, policy: Policy) -> bool:
    """Return whether the nodes that are left wait for a lost one: a job of one size has no other way to go on."""
    if policy.is_static:
        return not observation.is_stuck
    return observation.now_s - machine.fault_since_s < policy.faulty_timeout_s


def _wait(machine: MachineState, observation: Observation, policy: Policy) -> Step:
    if observation.interrupts:
        return machine.end(observation.now_s, JobState.CANCELLED), ()
    lost = tuple(Fault(node, Cause.LOST) for node in machine.nodes if not observation.report(node).alive)
    machine, events = _add_faults(machine, lost)
    machine = replace(machine, nodes=observation.alive(machine.nodes))
    if machine.fault_since_s is not None:
        machine, commands = _restart(machine, observation, policy)
        return machine, (*events, *commands)
    wanted = policy.fit(observation.capacity)
    if wanted:
        machine, commands = _regroup(machine, observation, wanted)
        return machine, (_transition("resume", 0, wanted, observation.now_s), *commands)
    if observation.is_stuck:
        return machine.end(observation.now_s, JobState.FAILED, Fault(-1, Cause.NO_CAPACITY)), ()
    return machine, ()


def _regroup(machine: MachineState, observation: Observation, size: int) -> Step:
    """Keep the nodes that are there, up to `size`; end the others and start what is missing."""
    commands: tuple[Command, ...] = ()
    if machine.fault_since_s is not None and size < machine.size:
        commands = (_transition_to(size, machine.size, machine.fault_since_s),)
    have = observation.alive(machine.nodes) + observation.alive(machine.warming)
    stay, drain = have[:size], have[size:]
    lost = tuple(node for node in machine.warming if node not in have)
    commands += tuple(_fault_event(fault, warming=True) for fault in _warming_faults(machine, observation))
    if drain or lost:
        commands += (Event("dropped", "", {"nodes": drain}), DropNodes(drain + lost))
    machine = machine.enter(
        Phase.PREPARING if size else Phase.WAITING, observation.now_s, warming=(), nodes=stay, fault_since_s=None
    )
    if missing := size - len(stay):
        machine, spawn = _spawn(machine, missing)
        machine = replace(machine, nodes=stay + spawn.nodes)
        commands += (Event("spawned", "", {"nodes": spawn.nodes}), spawn)
    return machine, commands


def _kill(nodes: tuple[int, ...]) -> tuple[Command, ...]:
    return (KillNodes(nodes),) if nodes else ()


def _spawn(machine: MachineState, count: int) -> tuple[MachineState, SpawnNodes]:
    nodes = tuple(range(machine.new_node, machine.new_node + count))
    return replace(machine, new_node=machine.new_node + count), SpawnNodes(nodes)


def _faults(machine: MachineState, observation: Observation) -> tuple[Fault, ...]:
    faults = tuple(Fault(node, Cause.LOST) for node in machine.nodes if not observation.report(node).alive)
    for node in machine.nodes:
        report = observation.report(node)
        if report.is_in(AgentState.FAULTED) and report.status:
            faults += (Fault(node, Cause.WORKER, report.status.message),)
        elif report.alive and report.silent_s > SILENCE_TIMEOUT_S:
            faults += (Fault(node, Cause.SILENT),)
    if observation.hang and not faults:
        faults = (Fault(-1, Cause.HANG, observation.hang),)
    return faults


def _transition(reason: str, from_nodes: int, to_nodes: int, cause_s: float | None) -> Event:
    fields = {"reason": reason, "from_nodes": from_nodes, "to_nodes": to_nodes}
    return Event("transition", f"{reason}: {from_nodes} → {_nodes(to_nodes)}", fields, cause_s)


def _transition_to(size: int, from_nodes: int, cause_s: float | None) -> Event:
    reason = "suspend" if not size else "scale-down" if size < from_nodes else "scale-up"
    return _transition("restart" if size == from_nodes else reason, from_nodes, size, cause_s)


def _stopping_event(attempt: int, nodes: tuple[int, ...], *, graceful: bool) -> Event:
    return Event("stopping", "", {"attempt": attempt, "nodes": nodes, "graceful": graceful})


def _fault_event(fault: Fault, *, warming: bool = False) -> Event:
    node = {} if fault.node < 0 else {"node": fault.node}
    fields = {**node, "cause": str(fault.cause), "is_own": fault.is_own, "warming": warming}
    return Event("fault", str(fault), fields)


def _nodes(count: int) -> str:
    return f"{count} node{'' if count == 1 else 's'}"


_PHASES: Mapping[Phase, Callable[[MachineState, Observation, Policy], Step]] = {
    Phase.PREPARING: _prepare,
    Phase.RUNNING: _run,
    Phase.SETTLING: _settle,
    Phase.STOPPING: _stop,
    Phase.WAITING: _wait,
    Phase.ENDED: lambda machine, _sight, _policy: (machine, ()),
}
