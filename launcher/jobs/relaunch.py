"""Launching a bundle whose job has ended: refused if it succeeded, unless the user requests it."""

import contextlib
from pathlib import Path

from launcher.common.console import shown_path
from launcher.common.problems import ProblemsFound, fail
from launcher.jobs import registry
from launcher.jobs.registry import JobRecord
from launcher.model.backend import Backend
from launcher.model.job_spec import JobState, JobStatus


def finished(folder: Path, backend: Backend) -> tuple[JobRecord, JobStatus] | None:
    """Return the job of the bundle in `folder` and its final status; None if it has not ended or was never launched.

    Raises:
        ProblemsFound: Its backend cannot be reached.
    """
    job = None
    with contextlib.suppress(ProblemsFound):  # a damaged record is replaced by the launch
        job = registry.read(folder)
    if job is None or not job.is_submitted:
        return None
    status = registry.status(job, backend)
    return (job, status) if status.state.is_final and status.state is not JobState.DELETED else None


def refuse(job: JobRecord) -> ProblemsFound:
    """Return the Problem that a job has already succeeded."""
    return fail(
        "E715",
        shown_path(job.handle.bundle_dir),
        f"its job, submitted {job.submitted} by {job.user}, has succeeded; nothing was launched",
        remedy="add --again to launch it once more, from its last checkpoint; or render the recipe again",
    )
