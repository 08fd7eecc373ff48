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
    Course,
    DropNodes,
    Fault,
    KillNodes,
    Note,
    Order,
    Phase,
    Policy,
    Sight,
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

MAX_BARREN_FAULTS = 3
"""Faults in a row, without a new step between them, that a job is restarted after."""


Step = tuple[Course, tuple[Order, ...]]


def begin(num_nodes: int, now_s: float) -> Step:
    """Return the course of a job that starts on `num_nodes` nodes, or waits for them when that is 0."""
    nodes = tuple(range(num_nodes))
    phase = Phase.PREPARING if nodes else Phase.WAITING
    course = Course(phase, nodes, 0, now_s, new_node=num_nodes, size=num_nodes)
    return course, (SpawnNodes(nodes),) if nodes else ()


def advance(course: Course, sight: Sight, policy: Policy) -> Step:
    """Return the course after `sight`, and the orders that take the job there."""
    course = replace(course, progress=_newest(course.progress, sight))
    return _PHASES[course.phase](course, sight, policy)


def progress_step(progress: Mapping[str, Any]) -> int:
    """Return the step of the checkpoint that `progress` names, -1 for none.

    Source: hyperpod_elastic_agent 1.1.3, HyperPodElasticAgent.get_agent_progress.
    """
    return max((int(entry["progressCount"]) for entry in progress.values()), default=-1)


def _newest(progress: Mapping[str, Any], sight: Sight) -> Mapping[str, Any]:
    told = [report.status.progress for report in sight.reports.values() if report.status]
    return max((progress, *told), key=progress_step)


def _prepare(course: Course, sight: Sight, policy: Policy) -> Step:
    if sight.interrupts:
        return course.end(sight.now_s, JobState.CANCELLED), ()
    wanted = policy.fit(sight.capacity)
    if wanted < len(course.nodes):
        return _prepare_fewer(course, sight, wanted)
    waiting = tuple(node for node in course.nodes if not sight.report(node).says(AgentState.READY))
    if not waiting:
        running = course.enter(
            Phase.RUNNING, sight.now_s, size=len(course.nodes), wish_since_s=None, fault_since_s=None, faults=()
        )
        size = len(course.nodes)
        note = Note(
            "starting",
            f"starting on {_nodes(size)}",
            {"attempt": course.attempt, "nodes": course.nodes, "size": size},
        )
        return running, (note, StartWorkers(course.nodes, course.attempt, course.progress))
    return _late(course, sight, waiting)


def _prepare_fewer(course: Course, sight: Sight, wanted: int) -> Step:
    faults = tuple(Fault(node, Cause.LOST) for node in course.nodes if not sight.report(node).alive)
    if faults:  # a lost node may come back
        fields = {"size": len(course.nodes), "nodes": sight.alive(course.nodes), "fault_since_s": sight.now_s}
        return course.enter(Phase.WAITING, sight.now_s, faults=faults, **fields), tuple(map(_fault_note, faults))
    smaller, orders = _regroup(course, sight, wanted)
    return smaller, (_transition_to(wanted, len(course.nodes), sight.now_s), *orders)


def _late(course: Course, sight: Sight, waiting: tuple[int, ...]) -> Step:
    """Replace the nodes whose agents have ended, or took too long, before they were ready."""
    late = sight.now_s - course.since_s > READY_TIMEOUT_S
    faults = tuple(
        Fault(node, Cause.UNREADY if sight.report(node).alive else Cause.LOST)
        for node in waiting
        if late or not sight.report(node).alive
    )
    if not faults:
        return course, ()
    course = _count_fault(course, sight)
    if course.barren_faults > MAX_BARREN_FAULTS or (late and course.attempt == 0):
        return course.end(sight.now_s, JobState.FAILED, *faults), tuple(map(_fault_note, faults))
    gone = tuple(fault.node for fault in faults)
    course, spawn = _spawn(course, len(gone))
    fresh = iter(spawn.nodes)
    nodes = tuple(next(fresh) if node in gone else node for node in course.nodes)
    return course.enter(Phase.PREPARING, sight.now_s, nodes=nodes), (*map(_fault_note, faults), *_kill(gone), spawn)


def _run(course: Course, sight: Sight, policy: Policy) -> Step:
    if sight.interrupts:
        return _stop_for(course, sight, course.enter(Phase.STOPPING, sight.now_s, verdict=JobState.CANCELLED), policy)
    if faults := _merged(sight.refusals, _faults(course, sight)):
        settling = course.enter(Phase.SETTLING, sight.now_s, faults=faults, fault_since_s=sight.now_s)
        return settling, tuple(map(_fault_note, faults))
    done = [node for node in course.nodes if sight.report(node).says(AgentState.COMPLETED)]
    if len(done) == len(course.nodes):
        return course.end(sight.now_s, JobState.SUCCEEDED), ()
    wanted = policy.fit(sight.capacity)
    if wanted < len(course.nodes):
        stopping, orders = _stop_for(course, sight, course.enter(Phase.STOPPING, sight.now_s, target=wanted), policy)
        return stopping, (_transition_to(wanted, len(course.nodes), sight.now_s), *orders)
    # Where some have finished, the others are about to: no use in growing.
    if done or wanted == len(course.nodes):
        return _forget_warming(replace(course, wish_since_s=None), sight)
    return _grow(course, sight, policy, wanted)


def _grow(course: Course, sight: Sight, policy: Policy, wanted: int) -> Step:
    since = sight.now_s if course.wish_since_s is None else course.wish_since_s
    course = replace(course, wish_since_s=since)
    if not course.warming:
        patient = sight.now_s - since >= policy.scaling_timeout_s
        rested = course.attempt == 0 or sight.now_s - course.since_s >= policy.snooze_s
        if not (patient and rested):
            return course, ()
        course, spawn = _spawn(course, wanted - len(course.nodes))
        course = replace(course, warming=spawn.nodes, wish_since_s=sight.now_s)
        told = _transition("scale-up", len(course.nodes), wanted, since)
        return course, (told, Note("spawned", "", {"nodes": spawn.nodes}), spawn)
    # A node that dies or dawdles while it gets ready is given up; what is left of the wish starts anew.
    late = sight.now_s - since > READY_TIMEOUT_S
    fit = wanted == len(course.nodes + course.warming) and not late
    if not fit or len(sight.alive(course.warming)) < len(course.warming):
        return _forget_warming(replace(course, wish_since_s=sight.now_s), sight, late=late)
    if not sight.all_ready(course.warming):
        return course, ()
    note = Note("prewarmed", "", {"nodes": course.warming})
    stopping, orders = _stop_for(course, sight, course.enter(Phase.STOPPING, sight.now_s, target=wanted), policy)
    return stopping, (note, *orders)


def _forget_warming(course: Course, sight: Sight, *, late: bool = False) -> Step:
    """Give the new nodes up: the capacity for them is gone, or one of them failed or, if `late`, is not ready."""
    if not course.warming:
        return course, ()
    faults = _warming_faults(course, sight)
    if late:
        slow = tuple(node for node in sight.alive(course.warming) if not sight.report(node).says(AgentState.READY))
        faults += tuple(Fault(node, Cause.UNREADY) for node in slow)
    message = "a new node failed before it took part" if faults else "the new nodes are not needed any more"
    note = Note("abandoned", message, {"nodes": course.warming})
    notes = (*(_fault_note(fault, warming=True) for fault in faults), note)
    return replace(course, warming=()), (*notes, DropNodes(course.warming))


def _warming_faults(course: Course, sight: Sight) -> tuple[Fault, ...]:
    return tuple(Fault(node, Cause.LOST) for node in course.warming if not sight.report(node).alive)


def _settle(course: Course, sight: Sight, policy: Policy) -> Step:
    if sight.interrupts:
        stopping = course.enter(Phase.STOPPING, sight.now_s, verdict=JobState.CANCELLED)
        return stopping, (StopWorkers(sight.alive(course.nodes), None),)
    course, notes = _note_faults(course, _faults(course, sight))
    if sight.now_s - course.since_s < SETTLE_S:
        return course, notes
    faults = course.faults
    course = _count_fault(course, sight)
    # A script that ends by itself before its first step would do so again.
    hopeless = sight.step == 0 and all(fault.cause is Cause.WORKER and not fault.was_killed for fault in faults)
    if hopeless or course.barren_faults > MAX_BARREN_FAULTS:
        return course.end(sight.now_s, JobState.FAILED, *faults), notes
    unfit = tuple(fault.node for fault in faults if fault.cause in (Cause.SILENT, Cause.DISOBEDIENT))
    survivors = tuple(node for node in sight.alive(course.nodes) if node not in unfit)
    stopping = course.enter(Phase.STOPPING, sight.now_s, nodes=survivors)
    note = _transition("recover", course.size, course.size, course.fault_since_s)
    halt = _stopping_note(course.attempt, survivors, graceful=False)
    return stopping, (*notes, note, *_kill(unfit), halt, StopWorkers(survivors, None))


def _note_faults(course: Course, faults: tuple[Fault, ...]) -> Step:
    """Return the course with these faults, and a note for each that is new."""
    known = {(fault.node, fault.cause) for fault in course.faults}
    notes = tuple(_fault_note(fault) for fault in faults if (fault.node, fault.cause) not in known)
    return replace(course, faults=_merged(course.faults, faults)), notes


def _merged(faults: tuple[Fault, ...], later: tuple[Fault, ...]) -> tuple[Fault, ...]:
    """Return each fault of a node once, with what was said of it last."""
    return tuple({(fault.node, fault.cause): fault for fault in (*faults, *later)}.values())


def _count_fault(course: Course, sight: Sight) -> Course:
    """Count a fault: the first one after a new step, or one more in a row."""
    barren = 1 if sight.step > course.fault_step else course.barren_faults + 1
    return replace(course, barren_faults=barren, fault_step=max(sight.step, course.fault_step))


def _stop_for(course: Course, sight: Sight, stopping: Course, policy: Policy) -> Step:
    alive = sight.alive(course.nodes)
    note = _stopping_note(course.attempt, alive, graceful=policy.graceful_timeout_s is not None)
    return stopping, (note, StopWorkers(alive, policy.graceful_timeout_s))


def _stop(course: Course, sight: Sight, policy: Policy) -> Step:
    if sight.interrupts:
        course = replace(course, verdict=JobState.CANCELLED)
    # An interrupted job may save, one that recovers from a fault cannot.
    grace_s = policy.graceful_timeout_s if course.fault_since_s is None else None
    alive = sight.alive(course.nodes)
    out_of_time = sight.now_s - course.since_s > (grace_s or 0) + STOP_MARGIN_S
    disobedient = tuple(node for node in alive if out_of_time and not sight.report(node).says(AgentState.READY))
    lost = tuple(Fault(node, Cause.LOST) for node in course.nodes if node not in alive)
    course, notes = _note_faults(course, (*lost, *(Fault(node, Cause.DISOBEDIENT) for node in disobedient)))
    nodes = tuple(node for node in alive if node not in disobedient)
    if not sight.all_ready(nodes) and sight.interrupts < 2:
        # An agent that is too busy to answer is told again: to kill it would end a save that others take part in.
        deaf = tuple(fault.node for fault in sight.refusals if fault.node in nodes)
        return replace(course, nodes=nodes), (*notes, *((StopWorkers(deaf, grace_s),) if deaf else ()))
    if course.verdict:
        return course.enter(Phase.ENDED, sight.now_s), notes
    saved = bool(course.progress) and progress_step(course.progress) >= sight.step
    note = Note("stopped", "", {"attempt": course.attempt, "saved": saved})
    course, orders = _restart(replace(course, nodes=nodes, attempt=course.attempt + 1), sight, policy)
    return course, (*notes, *_kill(disobedient), note, *orders)


def _restart(course: Course, sight: Sight, policy: Policy) -> Step:
    """Go on with the nodes there are, or wait for a lost one to come back."""
    wanted = policy.fit(sight.capacity)
    if course.fault_since_s is None:
        # What is ready is what a planned stop was for; more comes with the next scale-up.
        here = policy.fit(len(course.nodes) + len(sight.alive(course.warming)))
        size = min(wanted, here) or wanted
        note = _transition_to(size, course.size, sight.now_s)
        course, orders = _regroup(course, sight, size)
        return course, orders if size == course.target else (note, *orders)
    if wanted < course.size and _is_patient(course, sight, policy):
        return course.enter(Phase.WAITING, sight.now_s), ()
    return _regroup(course, sight, min(wanted, course.size))


def _is_patient(course: Course, sight: Sight, policy: Policy) -> bool:
    """Return whether the nodes that are left wait for a lost one: a job of one size has no other way to go on."""
    if policy.is_static:
        return not sight.is_stuck
    return sight.now_s - course.fault_since_s < policy.faulty_timeout_s


def _wait(course: Course, sight: Sight, policy: Policy) -> Step:
    if sight.interrupts:
        return course.end(sight.now_s, JobState.CANCELLED), ()
    lost = tuple(Fault(node, Cause.LOST) for node in course.nodes if not sight.report(node).alive)
    course, notes = _note_faults(course, lost)
    course = replace(course, nodes=sight.alive(course.nodes))
    if course.fault_since_s is not None:
        course, orders = _restart(course, sight, policy)
        return course, (*notes, *orders)
    wanted = policy.fit(sight.capacity)
    if wanted:
        course, orders = _regroup(course, sight, wanted)
        return course, (_transition("resume", 0, wanted, sight.now_s), *orders)
    if sight.is_stuck:
        return course.end(sight.now_s, JobState.FAILED, Fault(-1, Cause.NO_CAPACITY)), ()
    return course, ()


def _regroup(course: Course, sight: Sight, size: int) -> Step:
    """Keep the nodes that are there, up to `size`; end the others and start what is missing."""
    orders: tuple[Order, ...] = ()
    if course.fault_since_s is not None and size < course.size:
        orders = (_transition_to(size, course.size, course.fault_since_s),)
    have = sight.alive(course.nodes) + sight.alive(course.warming)
    stay, leave = have[:size], have[size:]
    lost = tuple(node for node in course.warming if node not in have)
    orders += tuple(_fault_note(fault, warming=True) for fault in _warming_faults(course, sight))
    if leave or lost:
        orders += (Note("dropped", "", {"nodes": leave}), DropNodes(leave + lost))
    course = course.enter(
        Phase.PREPARING if size else Phase.WAITING, sight.now_s, warming=(), nodes=stay, fault_since_s=None
    )
    if missing := size - len(stay):
        course, spawn = _spawn(course, missing)
        course = replace(course, nodes=stay + spawn.nodes)
        orders += (Note("spawned", "", {"nodes": spawn.nodes}), spawn)
    return course, orders


def _kill(nodes: tuple[int, ...]) -> tuple[Order, ...]:
    return (KillNodes(nodes),) if nodes else ()


def _spawn(course: Course, count: int) -> tuple[Course, SpawnNodes]:
    nodes = tuple(range(course.new_node, course.new_node + count))
    return replace(course, new_node=course.new_node + count), SpawnNodes(nodes)


def _faults(course: Course, sight: Sight) -> tuple[Fault, ...]:
    faults = tuple(Fault(node, Cause.LOST) for node in course.nodes if not sight.report(node).alive)
    for node in course.nodes:
        report = sight.report(node)
        if report.says(AgentState.FAULTED) and report.status:
            faults += (Fault(node, Cause.WORKER, report.status.message),)
        elif report.alive and report.silent_s > SILENCE_TIMEOUT_S:
            faults += (Fault(node, Cause.SILENT),)
    if sight.hang and not faults:
        faults = (Fault(-1, Cause.HANG, sight.hang),)
    return faults


def _transition(reason: str, from_nodes: int, to_nodes: int, cause_s: float | None) -> Note:
    fields = {"reason": reason, "from_nodes": from_nodes, "to_nodes": to_nodes}
    return Note("transition", f"{reason}: {from_nodes} → {_nodes(to_nodes)}", fields, cause_s)


def _transition_to(size: int, from_nodes: int, cause_s: float | None) -> Note:
    reason = "suspend" if not size else "scale-down" if size < from_nodes else "scale-up"
    return _transition("restart" if size == from_nodes else reason, from_nodes, size, cause_s)


def _stopping_note(attempt: int, nodes: tuple[int, ...], *, graceful: bool) -> Note:
    return Note("stopping", "", {"attempt": attempt, "nodes": nodes, "graceful": graceful})


def _fault_note(fault: Fault, *, warming: bool = False) -> Note:
    node = {} if fault.node < 0 else {"node": fault.node}
    fields = {**node, "cause": str(fault.cause), "is_own": fault.is_own, "warming": warming}
    return Note("fault", str(fault), fields)


def _nodes(count: int) -> str:
    return f"{count} node{'' if count == 1 else 's'}"


_PHASES: Mapping[Phase, Callable[[Course, Sight, Policy], Step]] = {
    Phase.PREPARING: _prepare,
    Phase.RUNNING: _run,
    Phase.SETTLING: _settle,
    Phase.STOPPING: _stop,
    Phase.WAITING: _wait,
    Phase.ENDED: lambda course, _sight, _policy: (course, ()),
}
