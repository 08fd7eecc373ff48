"""Follows and controls an elastic job: by Slurm while it waits, by the files of its operator while it runs."""

import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from launcher.backends.slurm import programs
from launcher.backends.slurm.queue import POLL_S, Seen
from launcher.common.names import RUN_DIR
from launcher.common.problems import fail
from launcher.model.job_spec import JobEvent, JobHandle, JobState, JobStatus, LogSelection
from launcher.operator.event_log import job_events
from launcher.operator.job_request import read_job_request, request_planned_size
from launcher.operator.snapshot import Attempt, read_snapshot
from launcher.operator.worker_logs import pause, read_logs

_STOP_MARGIN_S = 60.0
"""Time to end a job, beyond the time its workers have to save."""
Status = Callable[[], JobStatus]


def status(bundle_dir: Path, seen: Seen | None) -> JobStatus:
    """Return the status of a job that was submitted.

    Args:
        bundle_dir: The bundle's folder.
        seen: The job as Slurm has it; None if it no longer knows the job.
    """
    snapshot = read_snapshot(bundle_dir / RUN_DIR)
    restarts = snapshot.attempt if snapshot else 0
    if snapshot and snapshot.state.is_final and (seen is None or seen.state.is_final):
        return JobStatus(snapshot.state, 0, snapshot.message, restarts=restarts)
    if seen is None:
        return JobStatus(JobState.DELETED, 0, "Slurm no longer knows it, and its operator has not noted an end")
    if seen.state is not JobState.RUNNING or snapshot is None:
        return JobStatus(seen.state, 0, seen.message, restarts=restarts)
    if snapshot.state.is_final:  # Slurm waits for its last process
        return JobStatus(JobState.RUNNING, 0, "ending the nodes", restarts=restarts)
    state = JobState.RUNNING if snapshot.state is JobState.PENDING and snapshot.nodes else snapshot.state
    return JobStatus(state, snapshot.nodes, snapshot.message, restarts=restarts)


def logs(bundle_dir: Path, selection: LogSelection, read: Status, *, follow: bool) -> Iterator[str]:
    """Return what the selected ranks wrote; with `follow`, also the job's events, until it has ended.

    Raises:
        ProblemsFound: The job has no such attempt (E706) or rank (E707).
    """
    return read_logs(bundle_dir, selection, follow=follow, attempts=partial(_attempts, bundle_dir, read))


def events(bundle_dir: Path, read: Status, *, follow: bool) -> Iterator[JobEvent]:
    """Yield what the operator saw and did; with `follow`, until the job has ended."""
    return job_events(bundle_dir / RUN_DIR, lambda: read().state.is_final, pause if follow else None)


def scale(handle: JobHandle, num_nodes: int, min_nodes: int | None, read: Status) -> None:
    """Ask the operator of a running job for another size.

    Raises:
        ProblemsFound: The job does not run (E412), or has no such size (E413); its least is always the plan's.
    """
    seen = read()
    if seen.state.is_final or read_snapshot(handle.bundle_dir / RUN_DIR) is None:
        raise fail("E412", "job", f"is not running: {seen.message or seen.state.value}", value=handle.job_name)
    request_planned_size(handle.bundle_dir, num_nodes, min_nodes)


def stop(bundle_dir: Path, job_id: str, read: Status) -> None:
    """Let the operator of a running job stop it, as its recipe says; return when it has, or is late."""
    snapshot = read_snapshot(bundle_dir / RUN_DIR)
    if snapshot is None or snapshot.state.is_final or read().state is JobState.PENDING:
        return
    if programs.run("scancel", "--batch", "--signal=INT", job_id).code:
        return
    grace_s = read_job_request(bundle_dir).policy.graceful_timeout_s or 0
    deadline = time.monotonic() + grace_s + _STOP_MARGIN_S
    while time.monotonic() < deadline:
        now = read_snapshot(bundle_dir / RUN_DIR)
        if read().state.is_final or (now and now.state.is_final):
            return
        time.sleep(POLL_S / 4)


def _attempts(bundle_dir: Path, read: Status) -> tuple[tuple[Attempt, ...], bool]:
    is_over = read().state.is_final  # before the snapshot, which is then its last
    snapshot = read_snapshot(bundle_dir / RUN_DIR)
    return (snapshot.attempts if snapshot else ()), is_over
