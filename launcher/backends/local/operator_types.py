"""What the operator knows and says: the course of a job, what it sees of the nodes, the orders it gives."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

from launcher.backends.local.worker_exits import failed_workers
from launcher.model.job_spec import JobState


class AgentState(StrEnum):
    """States that /status names. There is no "stopped": a stopped agent is ready."""

    INIT = "init"
    READY = "ready"
    RUNNING = "running"
    COMPLETED = "completed"
    FAULTED = "faulted"
    STOPPING = "stopping"
    SHUTDOWN = "shutdown"


@dataclass(frozen=True, slots=True)
class AgentStatus:
    """What an agent says of itself.

    Args:
        state: Where it is.
        message: Why it is faulted.
        progress: The newest checkpoint its workers announced, as /start takes it back.
    """

    state: AgentState
    message: str = ""
    progress: Mapping[str, Any] = field(default_factory=dict)


class Phase(StrEnum):
    """Where a job is."""

    PREPARING = "preparing"
    RUNNING = "running"
    SETTLING = "settling"
    STOPPING = "stopping"
    WAITING = "waiting"
    ENDED = "ended"


class Cause(StrEnum):
    """Why a node counts as failed."""

    WORKER = "a worker failed"
    LOST = "its agent ended"
    UNREADY = "its agent was not ready in time"
    SILENT = "its agent does not answer"
    DISOBEDIENT = "its agent did not do as told"
    HANG = "hang"
    NO_CAPACITY = "the job waits for nodes, and no event that is left can bring them"


@dataclass(frozen=True, slots=True)
class Fault:
    """A node that failed: which, why, and what its agent said. A hang is the job's, of node -1."""

    node: int
    cause: Cause
    detail: str = ""

    def __str__(self) -> str:
        if self.cause is Cause.HANG:
            return f"{self.cause}: {self.detail}"
        workers = ", ".join(f"local rank {each.local_rank} {each}" for each in failed_workers(self.detail))
        return f"node {self.node}: {self.cause}{f' ({workers})' if workers else ''}"

    @property
    def is_own(self) -> bool:
        """Whether something happened to this node itself: a worker that ends by itself may miss those of others."""
        return self.cause is not Cause.WORKER or self.was_killed

    @property
    def was_killed(self) -> bool:
        """Whether the agent names a worker that a signal has ended."""
        return any(worker.was_killed for worker in failed_workers(self.detail))


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

    def is_in(self, state: AgentState) -> bool:
        """Return whether the agent answered that it is in `state`."""
        return self.status is not None and self.status.state is state


GONE = Report(alive=False, status=None)


@dataclass(frozen=True, slots=True)
class Observation:
    """One look at the job.

    Args:
        now_s: Time of the look.
        reports: Every node.
        interrupts: How often the end of the job was asked for.
        refusals: Orders that failed.
        capacity: Nodes the job may have now.
        step: Optimizer step that was done last; 0 while there is none.
        is_stuck: Whether the capacity stays as it is for good unless the job trains.
        hang: Since when there is no new step, in words, if that is too long; "" otherwise.
    """

    now_s: float
    reports: Mapping[int, Report]
    interrupts: int = 0
    failed_commands: tuple[Fault, ...] = ()
    capacity: int = 1
    step: int = 0
    is_stuck: bool = False
    hang: str = ""

    def report(self, node: int) -> Report:
        """Return what was seen of `node`."""
        return self.reports.get(node, GONE)

    def all_ready(self, nodes: tuple[int, ...]) -> bool:
        """Return whether the agents of all of `nodes` are ready."""
        return all(self.report(node).is_in(AgentState.READY) for node in nodes)

    def alive(self, nodes: tuple[int, ...]) -> tuple[int, ...]:
        """Return those of `nodes` whose process exists."""
        return tuple(node for node in nodes if self.report(node).alive)


@dataclass(frozen=True, slots=True)
class Policy:
    """What the recipe says of a job's sizes. Times in seconds.

    Args:
        sizes: Every number of nodes the job may have, ascending.
        graceful_timeout_s: What a stopped worker has to save; None kills workers at once.
        scaling_timeout_s: How long more nodes must be there before a scale-up.
        faulty_timeout_s: How long a lost node may take to come back before a scale-down.
        snooze_s: After a start of the workers: how long there is no scale-up.
    """

    sizes: tuple[int, ...]
    graceful_timeout_s: int | None
    scaling_timeout_s: int = 0
    faulty_timeout_s: int = 0
    snooze_s: int = 0

    @property
    def is_static(self) -> bool:
        """Whether the job has one size."""
        return len(self.sizes) == 1

    def fit(self, capacity: int) -> int:
        """Return the largest size that `capacity` nodes hold; 0 when there is none."""
        return max((size for size in self.sizes if size <= capacity), default=0)


@dataclass(frozen=True, slots=True)
class StartWorkers:
    """Start workers on these nodes, rank by rank, from the checkpoint that `progress` names."""

    nodes: tuple[int, ...]
    attempt: int
    progress: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class StopWorkers:
    """Stop the workers of these nodes, all at once. `graceful_timeout_s` None kills them."""

    nodes: tuple[int, ...]
    graceful_timeout_s: int | None


@dataclass(frozen=True, slots=True)
class SpawnNodes:
    """Start these nodes, whose numbers none had before."""

    nodes: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class DropNodes:
    """Let these nodes end, which have no workers."""

    nodes: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class KillNodes:
    """End these nodes at once: their workers must not go on beside those of the next attempt."""

    nodes: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Event:
    """Something worth telling. `cause_s` is when it began, on the clock of `Observation`."""

    kind: str
    message: str
    fields: Mapping[str, Any] = field(default_factory=dict)
    cause_s: float | None = None


Command = StartWorkers | StopWorkers | SpawnNodes | DropNodes | KillNodes | Event


@dataclass(frozen=True, slots=True)
class MachineState:
    """Where a job is.

    Args:
        phase: Its phase.
        nodes: Nodes that take part; the place in the tuple is the rank.
        attempt: How often its workers were restarted.
        since_s: When the phase began.
        new_node: Number of the next node that was never there before.
        warming: New nodes, whose agents get ready while the others train.
        size: Nodes it had when it last ran.
        target: Nodes it is to have after a planned stop.
        scale_up_requested_at_s: Since when it could have more nodes.
        fault_since_s: When the fault that it recovers from was noticed.
        fault_step: Newest step that any fault so far interrupted.
        faults_without_progress: Faults in a row without a new step.
        progress: Newest checkpoint that an agent has named, as /start takes it back.
        verdict: How it ends, once that is known.
        faults: What went wrong last.
    """

    phase: Phase
    nodes: tuple[int, ...]
    attempt: int
    since_s: float
    new_node: int = 0
    warming: tuple[int, ...] = ()
    size: int = 0
    target: int = 0
    scale_up_requested_at_s: float | None = None
    fault_since_s: float | None = None
    fault_step: int = 0
    faults_without_progress: int = 0
    progress: Mapping[str, Any] = field(default_factory=dict)
    verdict: JobState | None = None
    faults: tuple[Fault, ...] = ()

    @property
    def entitled_nodes(self) -> int:
        """Nodes that it would take back at once: those it had, while it recovers from a fault."""
        return self.size if self.fault_since_s is not None else len(self.nodes)

    def enter(self, phase: Phase, now_s: float, **changes: Any) -> "MachineState":
        """Return the course in another phase, begun now."""
        return replace(self, phase=phase, since_s=now_s, **changes)

    def end(self, now_s: float, verdict: JobState, *faults: Fault) -> "MachineState":
        """Return the course at its end."""
        return self.enter(Phase.ENDED, now_s, verdict=verdict, faults=faults)
