"""The course of a job: which phase follows which, and what the operator does on the way.

A pure state machine. `advance` takes where the job is and what was seen of its nodes, and returns where
it is then and the orders to give. A transition of another kind is another branch of a phase's function.

    PREPARING ─all agents ready→ RUNNING ─all agents completed→ ENDED
        │                          │ │
        │                          │ └─a worker or node failed→ SETTLING ─peers heard→ ENDED
        │                          └─interrupted→ STOPPING ─all agents ready→ ENDED
        └─interrupted, an agent died or never got ready→ ENDED
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum

from launcher.backends.local.agent import AgentState, AgentStatus
from launcher.specs import JobState

READY_TIMEOUT_S = 120.0
"""How long agents may take to be ready: 3 s each when idle, 9 s seen on a loaded machine."""

SETTLE_S = 1.0
"""After a fault: time for the other agents to notice theirs, so that the first cause can be told."""

SILENCE_TIMEOUT_S = 60.0
"""How long a living agent may leave /status unanswered."""

STOP_MARGIN_S = 15.0
"""What an agent may take beyond the workers' own time to stop them; 1.4 s seen."""


class Phase(StrEnum):
    """Where a job is."""

    PREPARING = "preparing"
    RUNNING = "running"
    SETTLING = "settling"
    STOPPING = "stopping"
    ENDED = "ended"


class Cause(StrEnum):
    """Why a node counts as failed."""

    WORKER = "a worker failed"
    LOST = "its agent ended"
    UNREADY = "its agent was not ready in time"
    SILENT = "its agent does not answer"
    DISOBEDIENT = "its agent did not do as told"


@dataclass(frozen=True, slots=True)
class Fault:
    """A node that failed: which, why, and what its agent said."""

    node: int
    cause: Cause
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Report:
    """A node as last seen.

    Args:
        alive: Whether its process exists.
        status: What its agent answered; None when it did not.
        silent_s: Seconds since it last answered.
    """

    alive: bool
    status: AgentStatus | None
    silent_s: float = 0.0

    def says(self, state: AgentState) -> bool:
        """Return whether the agent answered that it is in `state`."""
        return self.status is not None and self.status.state is state


@dataclass(frozen=True, slots=True)
class Sight:
    """One look at the job: the time, every node, orders that failed, and how often it was interrupted."""

    now_s: float
    reports: Mapping[int, Report]
    interrupts: int = 0
    refusals: tuple[Fault, ...] = ()


@dataclass(frozen=True, slots=True)
class StartWorkers:
    """Start workers on these nodes, rank by rank."""

    nodes: tuple[int, ...]
    attempt: int


@dataclass(frozen=True, slots=True)
class StopWorkers:
    """Stop the workers of these nodes, all at once. `graceful_timeout_s` None kills them."""

    nodes: tuple[int, ...]
    graceful_timeout_s: int | None


Order = StartWorkers | StopWorkers


@dataclass(frozen=True, slots=True)
class Course:
    """Where a job is.

    Args:
        phase: Its phase.
        nodes: Nodes that take part; the place in the tuple is the rank.
        attempt: How often its workers were restarted.
        since_s: When the phase began.
        graceful_timeout_s: Seconds a stopped worker has to save; None kills workers at once.
        verdict: How it ends, once that is known.
        faults: What went wrong.
    """

    phase: Phase
    nodes: tuple[int, ...]
    attempt: int
    since_s: float
    graceful_timeout_s: int | None
    verdict: JobState | None = None
    faults: tuple[Fault, ...] = ()

    def enter(self, phase: Phase, now_s: float, **changes: object) -> "Course":
        """Return the course in another phase, begun now."""
        return replace(self, phase=phase, since_s=now_s, **changes)


Step = tuple[Course, tuple[Order, ...]]


def advance(course: Course, sight: Sight) -> Step:
    """Return the course after `sight`, and the orders that take the job there."""
    return _PHASES[course.phase](course, sight)


def _prepare(course: Course, sight: Sight) -> Step:
    if sight.interrupts:
        return course.enter(Phase.ENDED, sight.now_s, verdict=JobState.CANCELLED), ()
    faults = _lost(course, sight)
    waiting = tuple(node for node in course.nodes if not sight.reports[node].says(AgentState.READY))
    if sight.now_s - course.since_s > READY_TIMEOUT_S:
        faults += tuple(Fault(node, Cause.UNREADY) for node in waiting if sight.reports[node].alive)
    if faults:
        return _fail(course, sight, faults), ()
    if waiting:
        return course, ()
    return course.enter(Phase.RUNNING, sight.now_s), (StartWorkers(course.nodes, course.attempt),)


def _run(course: Course, sight: Sight) -> Step:
    if sight.interrupts:
        stopping = course.enter(Phase.STOPPING, sight.now_s, verdict=JobState.CANCELLED)
        return stopping, (StopWorkers(course.nodes, course.graceful_timeout_s),)
    if sight.refusals:
        return _fail(course, sight, sight.refusals), ()
    if faults := _faults(course, sight):
        return course.enter(Phase.SETTLING, sight.now_s, faults=faults), ()
    if all(sight.reports[node].says(AgentState.COMPLETED) for node in course.nodes):
        return course.enter(Phase.ENDED, sight.now_s, verdict=JobState.SUCCEEDED), ()
    return course, ()


def _settle(course: Course, sight: Sight) -> Step:
    if sight.now_s - course.since_s < SETTLE_S:
        return course, ()
    return _fail(course, sight, _faults(course, sight) or course.faults), ()


def _stop(course: Course, sight: Sight) -> Step:
    patience_s = (course.graceful_timeout_s or 0) + STOP_MARGIN_S
    stopped = all(
        sight.reports[node].says(AgentState.READY) or not sight.reports[node].alive for node in course.nodes
    )
    if stopped or sight.interrupts > 1 or sight.now_s - course.since_s > patience_s:
        return course.enter(Phase.ENDED, sight.now_s), ()
    return course, ()


def _fail(course: Course, sight: Sight, faults: tuple[Fault, ...]) -> Course:
    return course.enter(Phase.ENDED, sight.now_s, verdict=JobState.FAILED, faults=faults)


def _lost(course: Course, sight: Sight) -> tuple[Fault, ...]:
    return tuple(Fault(node, Cause.LOST) for node in course.nodes if not sight.reports[node].alive)


def _faults(course: Course, sight: Sight) -> tuple[Fault, ...]:
    faults = _lost(course, sight)
    for node in course.nodes:
        report = sight.reports[node]
        if report.says(AgentState.FAULTED) and report.status:
            faults += (Fault(node, Cause.WORKER, report.status.message),)
        elif report.alive and report.silent_s > SILENCE_TIMEOUT_S:
            faults += (Fault(node, Cause.SILENT),)
    return faults


_PHASES: Mapping[Phase, Callable[[Course, Sight], Step]] = {
    Phase.PREPARING: _prepare,
    Phase.RUNNING: _run,
    Phase.SETTLING: _settle,
    Phase.STOPPING: _stop,
    Phase.ENDED: lambda course, _sight: (course, ()),
}
