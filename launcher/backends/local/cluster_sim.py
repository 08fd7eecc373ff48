"""The simulated cluster around a job: its capacity, and the sizes that users request."""

from collections.abc import Mapping
from pathlib import Path

from launcher.backends.local import rehearsal as rehearsals
from launcher.backends.local.rehearsal import Happening, Progress, Rehearsal
from launcher.operator.control_loop import Cluster
from launcher.operator.job_request import JobRequest
from launcher.operator.step_reader import DoneStep


class ClusterSim(Cluster):
    """The simulated cluster. With a scenario a job takes all nodes it can get; without one, those requested.

    Args:
        run_dir: Of the job; requests are files in it.
        job: The part of the plan that the operator needs.
        rehearsal: The state of the scenario; None without one.
        requested: Maximum nodes that a user requested; None for no limit.
    """

    def __init__(self, run_dir: Path, job: JobRequest, rehearsal: Rehearsal | None, requested: int | None):
        super().__init__(run_dir, job.policy.sizes, requested)
        self._rehearsal = rehearsal

    @property
    def capacity(self) -> int:
        """Nodes the job may have now."""
        return self._limited(self._sizes[-1] if self._rehearsal is None else self._rehearsal.capacity)

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

    def play(self, since_launch_s: float, done: DoneStep, used_nodes: int) -> tuple[Happening, ...]:
        """Apply the due events of the scenario."""
        if self._rehearsal is None:
            return ()
        progress = Progress(since_launch_s, done.step, done.samples)
        self._rehearsal, happenings = rehearsals.advance(self._rehearsal, progress, used_nodes)
        return happenings
