"""Follows and controls an elastic job: by Slurm while it waits, by the files of its operator while it runs."""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from launcher.backends.slurm import endings, run_files, written
from launcher.backends.slurm.follow import patiently
from launcher.backends.slurm.place import Place
from launcher.backends.slurm.queue import POLL_S, Seen
from launcher.common.names import RUN_DIR
from launcher.model import following
from launcher.model.job_spec import JobEvent, JobState, JobStatus, LogSelection
from launcher.operator.event_log import job_events
from launcher.operator.job_request import (
    REQUEST_FILE,
    read_job_request,
    refuse_unplanned_size,
    size_request,
)
from launcher.operator.snapshot import Attempt, Snapshot, read_snapshot
from launcher.operator.worker_logs import read_logs

_STOP_MARGIN_S = 60.0
"""Time to end a job, beyond the time its workers have to save."""
_FORGOTTEN = JobStatus(JobState.DELETED, 0, "Slurm no longer knows it, and its operator has not noted an end")
Status = Callable[[], JobStatus]


@dataclass(frozen=True, slots=True)
class ElasticJob:
    """A job with an operator.

    Args:
        name: Its name.
        bundle_dir: The bundle's folder.
        place: Where it was submitted and its files are.
    """

    name: str
    bundle_dir: Path
    place: Place

    @property
    def _run_dir(self) -> Path:
        return self.bundle_dir / RUN_DIR

    def status(self, job_id: str, seen: Seen | None) -> JobStatus:
        """Return the status of the job once it was submitted.

        Args:
            job_id: Its id.
            seen: The job as Slurm has it; None if it no longer knows the job.
        """
        has_ended = seen is None or seen.state.is_final
        # After Slurm's answer: the files of a job that has ended are its last.
        self.place.fetch(self.bundle_dir, written.of_operator(job_id, has_ended=has_ended))
        snapshot = self._snapshot()
        restarts = snapshot.attempt if snapshot else 0
        if snapshot and snapshot.state.is_final and has_ended:
            return JobStatus(snapshot.state, 0, snapshot.message, restarts=restarts)
        if seen is None:
            noted = endings.as_kept(self.bundle_dir, job_id, restarts)
            return replace(noted, restarts=restarts) if noted else _FORGOTTEN
        if seen.state is not JobState.RUNNING or snapshot is None:
            return JobStatus(seen.state, 0, seen.message, restarts=restarts)
        if snapshot.state.is_final:  # Slurm waits for its last process
            return JobStatus(JobState.RUNNING, 0, "ending the nodes", restarts=restarts)
        state = JobState.RUNNING if snapshot.state is JobState.PENDING and snapshot.nodes else snapshot.state
        return JobStatus(state, snapshot.nodes, snapshot.message, restarts=restarts)

    def logs(self, selection: LogSelection, read: Status, *, follow: bool) -> Iterator[str]:
        """Return what the selected ranks wrote; with `follow`, also the job's events, until it has ended.

        Raises:
            ProblemsFound: The job has no such attempt (E706) or rank (E707).
        """
        attempts = patiently(partial(self._attempts, selection, read))
        return read_logs(self.bundle_dir, selection, follow=follow, attempts=attempts, poll_s=self.place.poll_s)

    def events(self, read: Status, *, follow: bool) -> Iterator[JobEvent]:
        """Yield what the operator saw and did; with `follow`, until the job has ended."""
        read()
        pause = partial(time.sleep, self.place.poll_s) if follow else None
        return job_events(self._run_dir, lambda: read().state.is_final, pause)

    def scale(self, num_nodes: int, min_nodes: int | None, read: Status) -> None:
        """Ask the operator of a running job for another size.

        Raises:
            ProblemsFound: The job does not run (E412), or has no such size (E413); its least is always the plan's.
        """
        seen = read()
        if seen.state.is_final or self._snapshot() is None:
            raise following.ended(seen, self.name)
        refuse_unplanned_size(self.bundle_dir, num_nodes, min_nodes)
        self.place.replace(self.bundle_dir, REQUEST_FILE, size_request(num_nodes))

    def stop(self, job_id: str, read: Status) -> None:
        """Let the operator of a running job stop it, as its recipe says; return when it has, or is late."""
        if read().state is JobState.PENDING or (snapshot := self._snapshot()) is None or snapshot.state.is_final:
            return
        if self.place.run("scancel", "--batch", "--signal=INT", job_id).code:
            return
        grace_s = read_job_request(self.bundle_dir).policy.graceful_timeout_s or 0

        def is_over() -> bool:
            return read().state.is_final or ((now := self._snapshot()) is not None and now.state.is_final)

        following.until(is_over, grace_s + _STOP_MARGIN_S, POLL_S / 4)

    def _snapshot(self) -> Snapshot | None:
        return read_snapshot(self._run_dir)

    def _attempts(self, selection: LogSelection, read: Status) -> tuple[tuple[Attempt, ...], bool]:
        """Return the starts of the workers, whose logs are then here, and whether the job has ended."""
        is_over = read().state.is_final  # before the snapshot, which is then its last
        snapshot = self._snapshot()
        attempts = snapshot.attempts if snapshot else ()
        shown = [each for each in attempts if selection.attempt in (None, each.number)]
        processes = read_job_request(self.bundle_dir).nproc_per_node
        name = run_files.STDERR if selection.is_stderr else run_files.STDOUT
        self.place.fetch(self.bundle_dir, written.of_attempts(shown, selection.ranks, processes, name))
        return attempts, is_over
