"""What following a Ray job needs: its description as a status and events, and the log of its driver."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from launcher.common.problems import fail
from launcher.model.following import event_line, refuse_unknown_attempt, refuse_unknown_ranks
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


class DriverLog:
    """Yields the lines of a driver's log, each once, and what Ray itself writes before them as events."""

    def __init__(self, selection: LogSelection):
        self._selection, self._read, self._is_begun = selection, 0, False

    def new_lines(self, text: str, job: "JobDetails", *, is_last: bool) -> Iterator[str]:
        """Yield the lines that are new in the complete log; an unfinished one only if no further read follows."""
        if not self._is_begun:
            head, found, _ = text.partition(_begin(job))
            if not (found or is_last):
                return  # what Ray itself writes is not complete
            self._is_begun, self._read = True, len(head) + len(found)
            for line in head.splitlines():
                yield event_line(JobEvent(0.0, "Ray", line.rpartition(" -- ")[2]))
            if self._selection.has_headings:
                yield "== attempt 0"
        end = len(text) if is_last else max(self._read, text.rfind("\n") + 1)
        prefix = "rank 0 | " if self._selection.has_prefixes else ""
        if new := text[self._read : end]:
            self._read = end
            yield from (f"{prefix}{line}" for line in new.removesuffix("\n").split("\n"))


def _begin(job: "JobDetails") -> str:
    """Return the line after which the output of a driver begins. Source: Ray, job_supervisor.py."""
    return f"Running entrypoint for job {job.submission_id}: {job.entrypoint}\n"
