"""The values of a timeline. Times in seconds since the launch; None for what did not happen or was not recorded."""

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from launcher.model.failure import Failure

if TYPE_CHECKING:
    import pandas


@dataclass(frozen=True, slots=True)
class StartParts:
    """The parts of a restart, in seconds, from the start command to the end of the first step.

    Args:
        spawn_s: Until rank 0's process exists.
        import_s: Until it has imported everything.
        rendezvous_s: Until the process group is up.
        restore_s: Until the checkpoint is loaded.
        first_step_s: Until the end of the first step.
    """

    spawn_s: float | None
    import_s: float | None
    rendezvous_s: float | None
    restore_s: float | None
    first_step_s: float | None


@dataclass(frozen=True, slots=True)
class StayParts:
    """The parts of a change after which ranks continued with the state in their memory, in seconds.

    Args:
        finish_s: From the stop command to the end of the last step; 0 after a fault.
        leave_s: From there until all workers wait for the next start.
        join_s: From the start command until the process group is up.
        move_s: Until every rank has the state, and the ranks have compared it.
        first_step_s: Until the end of the first step.
        blocked_s: From the end of the last step until every rank has the state.
        moved_bytes: Bytes that ranks received.
    """

    finish_s: float | None
    leave_s: float | None
    join_s: float | None
    move_s: float | None
    first_step_s: float | None
    blocked_s: float | None
    moved_bytes: int


@dataclass(frozen=True, slots=True)
class Transition:
    """One change of the job's size or set of nodes.

    Args:
        reason: start, scale-up, scale-down, restart (at the same size), recover, suspend or resume.
        from_nodes: Nodes that ran before; 0 if none did.
        to_nodes: Nodes that were started or, if none were, decided on; 0 for a suspended job.
        cause: Its cause, as a message.
        came_s: When the cause happened.
        decided_s: When the operator decided.
        prewarmed_s: When the agents of new nodes were ready.
        wait_s: From the cause to the stop command, or to the start command if nothing ran.
        stop_s: From the stop command until no worker was left.
        regroup_s: From there to the start command, while nodes are replaced or dropped.
        restart_s: From the start command to the end of the first step.
        total_s: From the cause to the end of the first step at the new size.
        parts: The parts of the restart.
        stay: Those of a change after which ranks continued with the state in their memory; None for a restart.
        graceful: Whether the workers were asked to save before they stopped.
        saved: Whether they did.
        kept_by: Ranks that kept the state in their memory, from which the job continued; None for a checkpoint.
        given_up: Whether another decision, a fault or the end of the job replaced it before anything was stopped.
        attempt: The attempt it led to.
        samples_lost: Samples trained after the checkpoint that the job resumed from.
        samples_redone: Samples of that attempt that an earlier attempt or launch had trained.
    """

    reason: str
    from_nodes: int
    to_nodes: int
    cause: str
    came_s: float
    decided_s: float
    prewarmed_s: float | None
    wait_s: float | None
    stop_s: float | None
    regroup_s: float | None
    restart_s: float | None
    total_s: float | None
    parts: StartParts | None
    stay: StayParts | None
    graceful: bool | None
    saved: bool | None
    kept_by: int | None
    given_up: bool
    attempt: int | None
    samples_lost: int
    samples_redone: int


@dataclass(frozen=True, slots=True)
class Attempt:
    """One start of the job's workers.

    Args:
        number: From 0.
        nodes: Nodes it ran on.
        ranks: Number of its processes.
        started_s: The start command.
        first_step_s: The end of its first step.
        ended_s: When its workers stopped, or received the command to.
        resumed_step: Last step of the checkpoint it resumed from; 0 for none.
        last_step: Its last step.
        ending: The reason for its end; "" if unknown.
    """

    number: int
    nodes: int
    ranks: int | None
    started_s: float
    first_step_s: float | None
    ended_s: float
    resumed_step: int | None
    last_step: int | None
    ending: str


@dataclass(frozen=True, slots=True)
class Step:
    """One optimizer step as it happened.

    Args:
        time_s: Its end.
        duration_s: Its duration, including the wait for data.
        data_s: How long rank 0 waited for data.
        cursor: Samples from the start of training to its end.
        samples: Samples it trained.
        samples_redone: How many of them an earlier attempt or launch had trained already.
        kept: Whether its work survives: False when the job resumed from a checkpoint before it, or failed before
            a checkpoint held it.
    """

    time_s: float
    duration_s: float
    data_s: float
    step: int
    loss: float | None
    nodes: int
    world_size: int
    attempt: int
    cursor: int
    samples: int
    samples_redone: int
    kept: bool


@dataclass(frozen=True, slots=True)
class Event:
    """An event of the job: of the scenario, a request, a fault, a restart of the operator.

    Args:
        time_s: When.
        kind: `scenario`, `request`, `fault` or `operator`.
        message: Its description.
        cause: The cause of a fault; "" for other events.
    """

    time_s: float
    kind: str
    message: str
    cause: str = ""


@dataclass(frozen=True, slots=True)
class Timeline:
    """The timeline of a job's last launch.

    Args:
        launched: When, in seconds since the epoch.
        sizes: Numbers of nodes it may have.
        state: Its final state; None while it runs, or if its operator died.
        message: Of its end.
        is_running: Whether it has not ended yet.
        wall_s: From the launch to the end, or to the last record.
        restarts: How often its workers were started again.
        unfired: Events of the scenario that never happened, as messages.
        samples_lost_at_end: Samples trained after the last checkpoint of a job that did not succeed.
        skipped_steps: Steps that changed no weight, since their loss or gradients were not finite.
        failure: Why it failed; None unless it has, and if that is unknown.
        restart_s: How much longer a restart of all workers would block training, estimated from this job: a process
            until it is ready, as at its launch, and the median save, twice: it is loaded, too. None if none stayed.
    """

    launched: float
    sizes: tuple[int, ...]
    state: str | None
    message: str
    is_running: bool
    wall_s: float
    restarts: int
    transitions: tuple[Transition, ...]
    attempts: tuple[Attempt, ...]
    events: tuple[Event, ...]
    unfired: tuple[str, ...]
    steps: tuple[Step, ...]
    samples_lost_at_end: int = 0
    skipped_steps: int = 0
    failure: Failure | None = None
    restart_s: float | None = None

    def frame(self) -> "pandas.DataFrame":
        """Return the transitions as a data frame: their fields, and those of their parts as `parts.spawn_s`,
        `stay.move_s`.

        Raises:
            ImportError: pandas is not installed.
        """
        import pandas

        rows = [asdict(each) for each in self.transitions]
        for row in rows:
            for group in ("parts", "stay"):
                row |= {f"{group}.{name}": value for name, value in (row.pop(group) or {}).items()}
        return pandas.DataFrame(rows)

    @property
    def useful_s(self) -> float:
        """Return the seconds of the surviving steps without their waits for data: each step once."""
        return sum(step.duration_s - step.data_s for step in self.steps if step.kept)

    @property
    def data_s(self) -> float:
        """Return the seconds in which the surviving steps waited for data."""
        return sum(step.data_s for step in self.steps if step.kept)

    @property
    def goodput(self) -> float:
        """Return `useful_s` over the wall time, from 0 to 1.

        A step survives if the model of a job that succeeded holds it, or the newest complete checkpoint of one that
        failed or was stopped. While the job runs, the steps after its newest checkpoint count too.

        Source: Google Cloud TPU documentation, "Monitor goodput with the ML Goodput Measurement library":
        the proportion of time spent making productive, preserved training progress; data loading is badput.
        """
        return self.useful_s / self.wall_s if self.wall_s > 0 else 0.0

    @property
    def samples(self) -> int:
        """Return the samples whose training is in the model."""
        return sum(step.samples for step in self.steps if step.kept)

    @property
    def samples_lost(self) -> int:
        """Return the samples trained after a checkpoint from which the job resumed, or which was its last."""
        return sum(transition.samples_lost for transition in self.transitions) + self.samples_lost_at_end

    @property
    def samples_redone(self) -> int:
        """Return the samples that were trained although an earlier attempt or launch had trained them."""
        return sum(step.samples_redone for step in self.steps)

    @property
    def num_steps(self) -> int:
        """Return how many steps of this launch are in the model."""
        return sum(step.kept for step in self.steps)

    @property
    def last_step(self) -> int:
        """Return the last step whose work is in the model; 0 for none."""
        return max((step.step for step in self.steps if step.kept), default=0)

    @property
    def has_scaled(self) -> bool:
        """Return whether the job had any transition except its start."""
        return any(transition.reason != "start" for transition in self.transitions)
