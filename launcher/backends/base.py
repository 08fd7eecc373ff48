"""What every backend offers. A backend is one package beside this file, loaded by name."""

from collections.abc import Iterator, Mapping
from typing import ClassVar, Protocol

from launcher.problems import Problem
from launcher.specs import Bundle, JobHandle, JobSpec, JobStatus

NEWS = ("event", "fault", "scale")
"""First words of the log lines in which a backend tells what happens to the job; the others are its rank 0's."""


class Backend(Protocol):
    """Turns a planned job into files, and files into a running job."""

    name: ClassVar[str]

    def check(self, job: JobSpec) -> tuple[Problem, ...]:
        """Return what this backend cannot do with `job`, or this machine for it. Changes nothing."""

    def render(self, job: JobSpec, configs: Mapping[str, str]) -> dict[str, str]:
        """Return the backend's own files of the bundle, relative path to text. Pure.

        Args:
            job: The planned job.
            configs: The configurations the container reads, file name to text; they are in the bundle anyway.
        """

    def submit(self, bundle: Bundle) -> JobHandle:
        """Start the job of a bundle that is on disk."""

    def status(self, handle: JobHandle) -> JobStatus:
        """Return the job as it is now."""

    def logs(self, handle: JobHandle, *, follow: bool) -> Iterator[str]:
        """Yield rank 0's log lines and NEWS of the job; with `follow`, until it has ended."""

    def cancel(self, handle: JobHandle) -> None:
        """Stop the job and everything it started."""
