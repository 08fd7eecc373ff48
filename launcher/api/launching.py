"""Submitting the jobs of bundles on disk, and their MLflow runs. Prints nothing."""

import contextlib
from collections.abc import Iterator, Sequence

from launcher import pipeline
from launcher.api.observing import Observer
from launcher.bundle import store as bundles
from launcher.common import console
from launcher.common.problems import Problem, ProblemsFound, fail, gathering, raise_any
from launcher.job_store import failures, registry, tracking
from launcher.job_store.registry import JobRecord
from launcher.job_store.tracking import run_of
from launcher.job_store.tracking_store import ui_command
from launcher.model import backend_registry
from launcher.model.backend import Backend
from launcher.model.capabilities import Queue
from launcher.model.job_spec import Bundle, JobState, JobStatus

__all__ = ["close_run", "conclude", "run_of", "submit", "submitted_nevertheless", "ui_command"]


@contextlib.contextmanager
def submitted_nevertheless(jobs: Sequence[JobRecord]) -> Iterator[None]:
    """Add to Problems of the block that jobs were submitted."""
    try:
        yield
    except ProblemsFound as error:
        what = f"the job was submitted as {jobs[0].handle.native_id}" if len(jobs) == 1 else "the jobs were submitted"
        raise ProblemsFound(error.problems, what) from error


def submit(every: Sequence[Bundle], backend: Backend, *, is_again: bool) -> tuple[JobRecord, ...]:
    """Submit the jobs of bundles; other launches of the same bundles wait.

    Args:
        is_again: Whether a job that has ended is launched again; without it, one that has succeeded is refused.

    Raises:
        ProblemsFound: A job has succeeded (E715), or its backend, the tracking store or the disk refuses.
    """
    with contextlib.ExitStack() as launching:
        # In one order, so that two launches of the same bundles do not wait for each other.
        for folder in sorted(bundle.directory for bundle in every):
            launching.enter_context(registry.launching(folder))
        problems: list[Problem] = []
        for bundle in every:
            with gathering(problems):
                _settle_finished(bundle, backend, is_again=is_again)
        raise_any(problems)
        return pipeline.submit_all(every, backend)


def backend_of(name: str) -> Backend:
    """Return what runs the jobs of a choice of `cluster`."""
    return backend_registry.load_backend(name)


def queue_of(name: str) -> Queue | None:
    """Return the queue of a choice of `cluster`, to which jobs are submitted together; None without one."""
    return backend_registry.described(name).queue()


def _settle_finished(bundle: Bundle, backend: Backend, *, is_again: bool) -> None:
    """Clear a finished job for another launch, if that is requested; else refuse one that has succeeded."""
    try:
        ended = registry.finished(bundle.directory, backend)
    except ProblemsFound as error:
        if is_again and {each.code for each in error.problems} == {"E414"}:
            return  # a launch writes the state anew
        raise
    if not ended:
        return
    job, status = ended
    if is_again:
        backend.clear(job.handle)
    elif status.state is JobState.SUCCEEDED:
        unclosed = () if backend_registry.described(backend.name).runs_here else close_run(job, status)
        place = console.shown_path(job.handle.bundle_dir)
        message = f"its job, submitted {job.submitted} by {job.user}, has succeeded; nothing was launched"
        remedy = "--again (in Python again=True) launches it once more, from its last checkpoint; or render it again"
        raise ProblemsFound((*fail("E715", place, message, remedy=remedy).problems, *unclosed))


def close_run(job: JobRecord, status: JobStatus) -> tuple[Problem, ...]:
    """Close the MLflow run of a job that has ended, once; return why the store refuses.

    That of a job on this machine is left to the process that launched it, unless that was killed. The next call tries
    again.
    """
    if job.is_closed or status.state is JobState.DELETED or bundles.is_adopted(job.handle.bundle_dir):
        return ()  # an adopted job's run is known to its own bundle only
    backend = backend_registry.load_backend(job.handle.backend)
    is_here = backend_registry.described(backend.name).runs_here
    following = registry.following(job.handle.bundle_dir, waits=False) if is_here else contextlib.nullcontext(True)
    with following as is_mine:
        if not is_mine:
            return ()  # the process that launched it closes its run
        try:
            bundle = bundles.read(job.handle.bundle_dir)[0]
            if not is_here or tracking.is_running(bundle):
                tracking.finish(bundle, status.state, failure=failures.of(job, backend, status))
        except ProblemsFound as error:
            return error.problems
        registry.close(job)
    return ()


def conclude(job: JobRecord, status: JobStatus, observer: Observer) -> None:
    """Close the MLflow run of a job that has ended, once; the observer gets why the store refuses."""
    if problems := close_run(job, status):
        observer.refused(problems, "the job has ended, but its MLflow run could not be closed")
