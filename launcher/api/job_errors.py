"""What following a job raises: it has not ended in time, or has failed."""

from launcher.causes import Cause, ErrorLine, Failure
from launcher.common.problems import ProblemsFound, ReadableError
from launcher.model.job_spec import JobStatus


class JobTimeout(ProblemsFound, TimeoutError):
    """Raised when a job has not ended in time (E712). It keeps running."""


class JobFailed(ReadableError):
    """Raised by `Job.result` for a job that did not succeed.

    Args:
        job: Its name.
        status: How it ended; `message` is the reason that its cluster gives.
        failure: Its first error and its cause; None if it was cancelled or deleted, or if nothing shows why.
    """

    def __init__(self, job: str, status: JobStatus, failure: Failure | None = None):
        head = f"{job} {status.state.value}: {status.message}" if status.message else f"{job} {status.state}"
        super().__init__("\n".join([head, str(failure)] if failure else [head]))
        self.job, self.status, self.failure = job, status, failure

    @property
    def first_error(self) -> ErrorLine | None:
        """The first error, with rank, host and time as far as they are known."""
        return self.failure.first_error if self.failure else None

    @property
    def cause(self) -> Cause | None:
        """Its known cause, with the remedy."""
        return self.failure.cause if self.failure else None
