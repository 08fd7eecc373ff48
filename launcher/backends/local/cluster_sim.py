"""The simulated cluster around a job: its capacity, and the sizes that users request."""

from collections.abc import Mapping
from pathlib import Path

from launcher.backends.local import rehearsal as rehearsals
from launcher.backends.local.rehearsal import Happening, Progress, Rehearsal
from launcher.operator.job_request import JobRequest, take_request
from launcher.operator.step_reader import DoneStep


class ClusterSim:
    """The simulated cluster. With a scenario a job takes all nodes it can get; without one, those requested.

    Args:
        run_dir: Of the job; requests are files in it.
        job: The part of the plan that the operator needs.
        rehearsal: The state of the scenario; None without one.
        requested: Maximum nodes that a user requested; None for no limit.
    """

    def __init__(self, run_dir: Path, job: JobRequest, rehearsal: Rehearsal | None, requested: int | None):
        self._run_dir = run_dir
        self._sizes = job.policy.sizes
        self._rehearsal = rehearsal
        self.requested = requested

    @property
    def capacity(self) -> int:
        """Nodes the job may have now."""
        available = self._sizes[-1] if self._rehearsal is None else self._rehearsal.capacity
        return available if self.requested is None else min(available, self.requested)

    @property
    def is_stuck(self) -> bool:
        """Whether the capacity can only change if the job trains or a user requests another size."""
        return self._rehearsal is not None and rehearsals.is_stuck(self._rehearsal)

    @property
    def unfired(self) -> tuple[str, ...]:
        """Events of the scenario that have not happened."""
        return rehearsals.unfired(self._rehearsal) if self._rehearsal else ()

    def dump(self) -> Mapping[str, object] | None:
        """Return the scenario's state as plain data."""
        return rehearsals.as_json(self._rehearsal) if self._rehearsal else None

    def take_request(self) -> int | None:
        """Return the size requested since the last call; apply it if it is one of the job's sizes."""
        asked = take_request(self._run_dir)
        if asked in self._sizes:
            self.requested = asked
        return asked

    def play(self, since_launch_s: float, done: DoneStep, used_nodes: int) -> tuple[Happening, ...]:
        """Apply the due events of the scenario."""
        if self._rehearsal is None:
            return ()
        progress = Progress(since_launch_s, done.step, done.samples)
        self._rehearsal, happenings = rehearsals.advance(self._rehearsal, progress, used_nodes)
        return happenings
