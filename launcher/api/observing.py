"""A launch as its caller sees it while it happens, and the types of what it sees."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from launcher.common.problems import Problem
from launcher.job_store.registry import JobRecord
from launcher.model.backend import Backend
from launcher.model.job_spec import NEWS, Bundle, JobHandle, JobSpec, JobState, JobStatus, LogLine

if TYPE_CHECKING:
    from launcher.timeline import Timeline

__all__ = [
    "NEWS", "Backend", "Bundle", "JobHandle", "JobRecord", "JobSpec", "JobState", "JobStatus", "LogLine", "Observer",
]  # fmt: skip


class Observer:
    """Gets what a launch or a job does, while it does it. What is not overridden is logged, or passes in silence."""

    def accepted(self) -> None:
        """The cluster would accept the job, as `server_dry_run` was to find out."""

    def reserves_run(self) -> None:
        """An MLflow run is about to be reserved, which may take seconds."""

    def recording(self) -> contextlib.AbstractContextManager[None]:
        """Return the context in which code and data are recorded, which may take minutes."""
        return contextlib.nullcontext()

    def submitted(self, job: JobRecord) -> None:
        """The job was submitted now, or has been before, to run without this process."""

    def started(self, job: JobRecord) -> None:
        """The job runs on this machine, and ends with this process."""

    def left(self, bundle: Bundle, status: JobStatus | None, interrupt: KeyboardInterrupt | None = None) -> None:
        """The job is not followed, or no longer, because of a signal; `status` is how it ended if it has."""

    def changed(self, status: JobStatus) -> None:
        """The followed job has this status now."""

    def read(self, lines: Iterator[LogLine]) -> None:
        """The log of the job, which may be read to its end."""

    def cancelling(self, job: JobRecord) -> None:
        """The job has not ended, and is about to be cancelled on request."""

    def stopping(self, job: JobRecord | None, interrupt: KeyboardInterrupt, *, at_once: bool = False) -> None:
        """A signal is about to end the job on this machine; None if it has not started yet."""

    def ended(self, bundle: Bundle, status: JobStatus, *, is_here: bool, can_resume: bool = False) -> None:
        """The followed job has ended. On this machine, it may have lost its operator, and resume."""

    def scaled(self, course: "Timeline", run_dir: Path) -> None:
        """The job on this machine has ended, and changed its size or did not play all of its scenario."""

    def refused(self, problems: tuple[Problem, ...], outcome: str) -> None:
        """Something was refused that does not affect the job."""
        self.warned("\n".join([*map(str, problems), outcome]))

    def warned(self, line: str) -> None:
        """A message was not sent, or a report not written."""
        import logging

        logging.getLogger(__name__).warning(line)
