"""What is around a job: the nodes that others leave it, and the sizes that people ask for."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from launcher.backends.local import rehearsal as rehearsals
from launcher.backends.local.job_request import JobRequest, take_request
from launcher.backends.local.rehearsal import Happening, Progress, Rehearsal
from launcher.backends.local.step_reader import DoneStep


class ClusterSim:
    """Where a job plays. With a scenario it takes all the nodes it can get; without, those it is told to.

    Args:
        run_dir: The job's; requests lie there.
        job: The job.
        rehearsal: How far the scenario is; None without one.
        requested: Most nodes that people want it to have; None for any number.
    """

    def __init__(self, run_dir: Path, job: JobRequest, rehearsal: Rehearsal | None, requested: int | None):
        self._run_dir = run_dir
        self._sizes = job.policy.sizes
        self._rehearsal = rehearsal
        self.requested = requested

    @property
    def capacity(self) -> int:
        """Nodes the job may have now."""
        there = self._sizes[-1] if self._rehearsal is None else self._rehearsal.capacity
        return there if self.requested is None else min(there, self.requested)

    @property
    def is_stuck(self) -> bool:
        """Whether the capacity stays as it is unless the job trains or somebody asks for another size."""
        return self._rehearsal is not None and rehearsals.is_stuck(self._rehearsal)

    @property
    def unfired(self) -> tuple[str, ...]:
        """Events of the scenario that have not come."""
        return rehearsals.unfired(self._rehearsal) if self._rehearsal else ()

    def dump(self) -> Mapping[str, Any] | None:
        """Return the scenario's state as plain data."""
        return rehearsals.as_json(self._rehearsal) if self._rehearsal else None

    def take_request(self) -> int | None:
        """Return the size that somebody has asked for since the last call; take it over if it is one of the job's."""
        asked = take_request(self._run_dir)
        if asked in self._sizes:
            self.requested = asked
        return asked

    def play(self, since_launch_s: float, done: DoneStep, used_nodes: int) -> tuple[Happening, ...]:
        """Let happen what is due."""
        if self._rehearsal is None:
            return ()
        progress = Progress(since_launch_s, done.step, done.samples)
        self._rehearsal, happenings = rehearsals.advance(self._rehearsal, progress, used_nodes)
        return happenings
