"""What following a Ray job needs: its description as a status and as events, and the logs that it cannot have."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from launcher.common.problems import fail
from launcher.model.following import refuse_unknown_attempt, refuse_unknown_ranks
from launcher.model.job_spec import JobEvent, JobState, JobStatus, LogSelection

if TYPE_CHECKING:
    from ray.dashboard.modules.job.pydantic_models import JobDetails

_STATES = {
    "PENDING": JobState.PENDING,
    "RUNNING": JobState.RUNNING,
    "SUCCEEDED": JobState.SUCCEEDED,
    "FAILED": JobState.FAILED,
    "STOPPED": JobState.CANCELLED,
}
"""Source: Ray, ray.job_submission.JobStatus."""
_LAST_LINES = ", last available logs"
DELETED = JobStatus(JobState.DELETED, 0, "the cluster has no such job; it may have been restarted")


def read_status(job: "JobDetails | None", nodes: int) -> JobStatus:
    """Return the status of a job that runs on a number of nodes."""
    if job is None:
        return DELETED
    state = _STATES[job.status.value]
    has_reason = state in (JobState.PENDING, JobState.FAILED, JobState.CANCELLED)
    return JobStatus(state, nodes if state is JobState.RUNNING else 0, _reason(job) if has_reason else "")


def _reason(job: "JobDetails") -> str:
    """Return why a job waits or has ended: of the log that Ray appends, the last line, which has the cause."""
    reason, _, log = (job.message or job.status.value).partition(_LAST_LINES)
    lines = [line.strip() for line in log.splitlines()[1:] if line.strip()]
    return f"{reason}: {lines[-1]}" if lines else reason


def events(job: "JobDetails | None") -> Iterator[JobEvent]:
    """Yield what Ray records of a job, oldest first: its submission and its end."""
    if job is None or job.start_time is None:
        return
    yield JobEvent(job.start_time / 1000, "Submitted", f"Ray has the job {job.submission_id}")
    if job.end_time is not None:
        state = _STATES[job.status.value]
        reason = _reason(job) if job.message else state.value
        yield JobEvent(
            job.end_time / 1000, job.status.value.capitalize(), reason, is_warning=state is JobState.FAILED
        )


def refuse_unknown(selection: LogSelection) -> None:
    """Raise a Problem if a job cannot have the requested log lines: it has one driver, started once.

    Raises:
        ProblemsFound: No such rank, attempt or stream exists.
    """
    if selection.is_stderr:
        raise fail("E828", "--stderr", "Ray keeps both outputs of a driver as one stream", remedy="leave it out")
    refuse_unknown_ranks(selection.ranks, 1)
    refuse_unknown_attempt(selection.attempt, range(1))
