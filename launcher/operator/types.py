"""Values of the operator: its observations of the nodes, the commands it gives, and the state of a job."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum

from launcher.common import names
from launcher.common.texts import signal_name
from launcher.model.job_spec import JobState
from launcher.timeline.records import HANG

_FAILURE = re.compile(r"Local Rank (\d+) exited with code (-?\d+)")

AgentProgress = Mapping[str, Mapping[str, object]]
"""The newest checkpoint that workers announced, as the agent's /status returns it and /start accepts it."""


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
    """An agent's answer to /status."""

    state: AgentState
    message: str = ""
    progress: AgentProgress = field(default_factory=dict)
    is_in_place: bool = False
    """Whether its workers stay in their processes."""


@dataclass(frozen=True, slots=True)
class FailedWorker:
    """A failed worker; `exit_code` is the agent's number.

    The agent's SIGCHLD handler keeps the negated wait status (exit status in the high byte, signal in the low seven
    bits); if the handler ran too late, the number is Popen's: exit status or negated signal.
    """

    local_rank: int
    exit_code: int

    @property
    def was_killed(self) -> bool:
        """Whether a signal ended it."""
        return self.exit_code < 0 and bool(-self.exit_code & 0x7F)

    @property
    def status(self) -> int:
        """Its exit status, if it was not killed."""
        return self.exit_code if self.exit_code >= 0 else -self.exit_code >> 8

    @property
    def is_final(self) -> bool:
        """Whether it would end in the same way if it was started again."""
        return not self.was_killed and self.status == names.EXIT_NOT_FINITE

    def __str__(self) -> str:
        if self.was_killed:
            return f"was killed by {signal_name(-self.exit_code & 0x7F)}"
        reason = " (its loss, gradients or weights are not finite)" if self.is_final else ""
        return f"exited with code {self.status}{reason}"


def failed_workers(message: str) -> tuple[FailedWorker, ...]:
    """Return the workers named in a faulted agent's message.

    Source: hyperpod_elastic_agent 1.1.3, HyperPodElasticAgent.set_agent_state_fault.
    """
    return tuple(FailedWorker(int(rank), int(code)) for rank, code in _FAILURE.findall(message))


class Phase(StrEnum):
    """The phases of a job; `state_machine` draws the transitions between them."""

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
    DISOBEDIENT = "its agent ignored a command"
    HANG = HANG
    NO_CAPACITY = "the job waits for nodes, and no remaining event can bring them"


@dataclass(frozen=True, slots=True)
class Fault:
    """A failed node, the cause, and the agent's message.

    A hang affects the complete job and has node -1; `lagging` are the nodes that the others wait for.
    """

    node: int
    cause: Cause
    detail: str = ""
    lagging: tuple[int, ...] = ()

    def __str__(self) -> str:
        if self.cause is Cause.HANG:
            return f"{self.cause}: {self.detail}"
        workers = ", ".join(f"local rank {each.local_rank} {each}" for each in failed_workers(self.detail))
        return f"node {self.node}: {self.cause}{f' ({workers})' if workers else ''}"

    @property
    def is_own(self) -> bool:
        """Whether the fault began on this node: a worker that exits by itself may only have lost its peers."""
        return self.cause is not Cause.WORKER or self.was_killed

    @property
    def was_killed(self) -> bool:
        """Whether the agent names a worker that a signal killed."""
        return any(worker.was_killed for worker in failed_workers(self.detail))

    @property
    def has_exited(self) -> bool:
        """Whether the agent names a worker that exited by itself; it kills the node's others after that."""
        return any(not worker.was_killed for worker in failed_workers(self.detail))

    @property
    def is_final(self) -> bool:
        """Whether the agent names a worker that would end in the same way if it was started again."""
        return any(worker.is_final for worker in failed_workers(self.detail))


@dataclass(frozen=True, slots=True)
class Report:
    """The last observation of a node.

    Args:
        status: None if the agent did not answer.
        silent_s: Seconds since it last answered.
    """

    alive: bool
    status: AgentStatus | None
    silent_s: float = 0.0

    def is_in(self, *states: AgentState) -> bool:
        """Return whether the agent answered that it is in one of these states."""
        return self.status is not None and self.status.state in states


GONE = Report(alive=False, status=None)


@dataclass(frozen=True, slots=True)
class Observation:
    """One poll of the job.

    Args:
        interrupts: Number of signals that have requested the end of the job.
        failed_commands: Commands that failed, as faults of their nodes.
        step: The last optimizer step done; 0 if none.
        is_stuck: Whether the capacity can only change while the job trains.
        hang: How long there has been no new step, and which rank lags, as a message; "" if the job does not hang.
        lagging: Nodes of these ranks.
    """

    now_s: float
    reports: Mapping[int, Report]
    interrupts: int = 0
    failed_commands: tuple[Fault, ...] = ()
    capacity: int = 1
    step: int = 0
    is_stuck: bool = False
    hang: str = ""
    lagging: tuple[int, ...] = ()

    def report(self, node: int) -> Report:
        """Return the report of `node`."""
        return self.reports.get(node, GONE)

    def all_ready(self, nodes: tuple[int, ...]) -> bool:
        """Return whether the agents of all of `nodes` are ready."""
        return all(self.report(node).is_in(AgentState.READY) for node in nodes)

    def all_stopped(self, nodes: tuple[int, ...]) -> bool:
        """Return whether no worker of these nodes trains: it waits for a start, or is made anew for one."""
        return all(self.report(node).is_in(AgentState.READY, AgentState.INIT) for node in nodes)

    def stays(self) -> bool:
        """Return whether workers stay in their processes."""
        return any(report.status and report.status.is_in_place for report in self.reports.values())

    def alive(self, nodes: tuple[int, ...]) -> tuple[int, ...]:
        """Return those of `nodes` whose process exists."""
        return tuple(node for node in nodes if self.report(node).alive)

    def lost(self, nodes: tuple[int, ...]) -> tuple[Fault, ...]:
        """Return a fault for each of `nodes` whose process no longer exists."""
        return tuple(Fault(node, Cause.LOST) for node in nodes if not self.report(node).alive)

    def crashed(self, nodes: tuple[int, ...]) -> tuple[Fault, ...]:
        """Return a fault for each of `nodes` whose agent reports that a worker failed."""
        asked = ((node, self.report(node).status) for node in nodes)
        return tuple(
            Fault(node, Cause.WORKER, status.message)
            for node, status in asked
            if status and status.state is AgentState.FAULTED
        )

    def unfit(self, nodes: tuple[int, ...], *, is_late: bool = False) -> tuple[Fault, ...]:
        """Return a fault for each of `nodes` that will not be ready for a start or, if `is_late`, is not yet."""
        found = {fault.node: fault for fault in self.unready(nodes)} if is_late else {}
        found |= {fault.node: fault for fault in (*self.crashed(nodes), *self.lost(nodes))}
        return tuple(found[node] for node in nodes if node in found)

    def unready(self, nodes: tuple[int, ...]) -> tuple[Fault, ...]:
        """Return a fault for each of `nodes` that is alive and whose agent is not ready."""
        return tuple(Fault(node, Cause.UNREADY) for node in self.alive(nodes) if not self.all_ready((node,)))


@dataclass(frozen=True, slots=True)
class Policy:
    """The sizes and timeouts that the recipe gives a job. Times in seconds.

    Args:
        sizes: Every number of nodes the job may have, ascending.
        graceful_timeout_s: How long stopped workers may take to save; None kills them at once.
        scaling_timeout_s: How long additional nodes must be available before a scale-up.
        faulty_timeout_s: How long to wait for a lost node before a scale-down.
        snooze_s: Time after a start of the workers without scale-ups.
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
        """Return the largest size that fits into `capacity` nodes; 0 if none does."""
        return max((size for size in self.sizes if size <= capacity), default=0)


@dataclass(frozen=True, slots=True)
class StartWorkers:
    """Start workers on these nodes, in the order of ranks, from the checkpoint that `progress` names."""

    nodes: tuple[int, ...]
    attempt: int
    progress: AgentProgress = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class RecordStart:
    """Record a start that came to nothing, so that what its workers wrote is found: one of them failed before it.

    Args:
        since_s: When the job began to prepare it, on the clock of `Observation`.
    """

    nodes: tuple[int, ...]
    attempt: int
    since_s: float


@dataclass(frozen=True, slots=True)
class StopWorkers:
    """Stop the workers of these nodes, all at the same time.

    Args:
        graceful_timeout_s: None kills them.
        notice: To workers that stay in their processes: `names.SAVE`, `RESIZE` or `ABORT`; None to start them anew.
        leaving: Nodes that will not take part in the next attempt.
    """

    nodes: tuple[int, ...]
    graceful_timeout_s: int | None
    notice: str | None = None
    leaving: tuple[int, ...] = ()

    def notice_to(self, node: int) -> str | None:
        """Return the notice to the workers of a node."""
        return names.LEAVE if self.notice == names.RESIZE and node in self.leaving else self.notice


@dataclass(frozen=True, slots=True)
class SpawnNodes:
    """Start these nodes; their numbers have not been used before."""

    nodes: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class DropNodes:
    """Shut down these nodes, which have no workers."""

    nodes: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class KillNodes:
    """Kill these nodes at once: their workers must not keep running beside those of the next attempt."""

    nodes: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Event:
    """A line of the event log. `cause_s` is when its cause began, on the clock of `Observation`."""

    kind: str
    message: str
    fields: Mapping[str, object] = field(default_factory=dict)
    cause_s: float | None = None


Command = StartWorkers | RecordStart | StopWorkers | SpawnNodes | DropNodes | KillNodes | Event


@dataclass(frozen=True, slots=True)
class MachineState:
    """The state of a job.

    Args:
        nodes: Nodes that take part; the index is the node's rank.
        attempt: How often its workers were restarted.
        since_s: When the phase began.
        new_node: The next unused node number.
        warming: New nodes, whose agents start up while the others train.
        size: Nodes it had when it last ran.
        target: Size after a planned stop.
        scale_up_requested_at_s: Since when more nodes are available to it; None if none are.
        fault_since_s: When the fault that it recovers from was noticed.
        fault_step: Newest step that any fault so far interrupted.
        faults_without_progress: Consecutive faults without a new step.
        progress: Newest checkpoint that an agent has named.
        verdict: Its final state, once known.
        is_unsaved: Whether the workers that stay have the only copy of the last steps: it must not end before they
            run again.
        faults: The most recent faults.
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
    progress: AgentProgress = field(default_factory=dict)
    verdict: JobState | None = None
    is_unsaved: bool = False
    faults: tuple[Fault, ...] = ()

    @property
    def entitled_nodes(self) -> int:
        """Nodes it holds or may take back: while it recovers from a fault, those it had before."""
        return self.size if self.fault_since_s is not None else len(self.nodes)

    def enter(self, phase: Phase, now_s: float) -> "MachineState":
        """Return the state in another phase, entered now."""
        return replace(self, phase=phase, since_s=now_s)

    def end(self, now_s: float, verdict: JobState, *faults: Fault) -> "MachineState":
        """Return the final state."""
        return replace(self.enter(Phase.ENDED, now_s), verdict=verdict, faults=faults)
