"""What every backend offers. A backend is one package beside this file, loaded by name.

What a method cannot do is a ProblemsFound with its reason; there are no other exceptions. A JobHandle comes from
`submit`, or from the job's record (`jobs.registry`) in a later process, so following a job needs nothing that is kept
in the backend's object. tests/job_suite.py holds every backend to this.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import ClassVar, Protocol, runtime_checkable

from launcher.common.problems import Problem
from launcher.model.job_spec import Bundle, JobEvent, JobHandle, JobPod, JobSpec, JobStatus, LogSelection

NEWS = ("event", "fault", "scale")
"""First words of the log lines, two spaces behind them, in which a backend tells what happens to the job."""

RANK_0 = LogSelection()


class Backend(Protocol):
    """Turns a planned job into files, and files into a running job."""

    name: ClassVar[str]
    """The choice of `cluster`."""

    ends_with_launcher: ClassVar[bool]
    """Whether a job lives no longer than the process that submitted it, which therefore follows it to its end."""

    def check(self, job: JobSpec) -> tuple[Problem, ...]:
        """Return what this backend cannot do with `job`, or this machine for it. Changes nothing, asks no server."""

    def render(self, job: JobSpec, configs: Mapping[str, str]) -> dict[str, str]:
        """Return the backend's own files of the bundle, relative path to text. Pure.

        Args:
            job: The planned job.
            configs: The configurations the container reads, file name to text; they are in the bundle anyway.
        """

    def validate(self, bundle: Bundle) -> tuple[Problem, ...]:
        """Return every reason for which a bundle, on disk or not, would be refused where it is to run.

        Creates nothing.
        """

    def intent(self, bundle: Bundle, known: JobHandle | None) -> JobHandle | None:
        """Return how a bundle's job will be found, before anything is submitted; None if that need not be recorded.

        Sends nothing, unless the bundle has a job already.

        Args:
            bundle: The bundle.
            known: Its job that was submitted before and was not seen to end.

        Raises:
            ProblemsFound: That job is on another cluster (E348).
        """

    def submit(self, bundle: Bundle) -> JobHandle:
        """Start the job of a bundle that is on disk: whole, or not at all.

        A bundle whose very job is there already is not submitted again; the handle says so (`is_new`).

        Raises:
            ProblemsFound: Every reason for which it was not submitted; nothing of it is left.
        """

    def status(self, handle: JobHandle) -> JobStatus:
        """Return the job as it is now; DELETED if it was submitted and no longer exists."""

    def wait(self, handle: JobHandle, *, timeout_s: float | None = None) -> Iterator[JobStatus]:
        """Yield the job as it is now, then as it is after each change, the last time as it ended.

        Args:
            handle: The job.
            timeout_s: When to end all the same; None never does.
        """

    def logs(self, handle: JobHandle, selection: LogSelection = RANK_0, *, follow: bool) -> Iterator[str]:
        """Yield selected log lines and NEWS of the job; with `follow`, until it has ended, each line once.

        Raises:
            ProblemsFound: There is no such rank, attempt or stream.
        """

    def events(self, handle: JobHandle, *, follow: bool) -> Iterator[JobEvent]:
        """Yield what happened to the job, oldest first; with `follow`, until it has ended, each event once."""

    def scale(self, handle: JobHandle, num_nodes: int, min_nodes: int | None = None) -> None:
        """Ask for another size. Returns once that is accepted; the job follows as its recipe says.

        Args:
            handle: The job.
            num_nodes: The most it may have.
            min_nodes: The least it goes on with; None for the plan's smallest size.

        Raises:
            ProblemsFound: The job does not run (E412), or its plan has no such size (E413).
        """

    def cancel(self, handle: JobHandle) -> None:
        """Stop the job and everything it started; return when nothing of it runs. A job that has ended is left alone.

        Raises:
            ProblemsFound: It cannot be stopped, or does not end.
        """

    def clear(self, handle: JobHandle) -> None:
        """Remove what is left of a job that has ended, where it would keep its bundle from being launched again.

        Raises:
            ProblemsFound: It cannot be removed, or this backend runs no bundle twice (E716).
        """


@runtime_checkable
class PodBackend(Protocol):
    """What a backend offers beside `Backend` where a job has pods on a cluster."""

    def pods(self, handle: JobHandle) -> tuple[JobPod, ...]:
        """Return the job's pods as they are now, in the order of their ranks."""

    def run_in_pod(self, handle: JobHandle, rank: int, command: Sequence[str]) -> int:
        """Run a command in the pod of a rank, with this process's standard streams; return its exit code.

        Args:
            handle: The job.
            rank: A rank that the pod runs.
            command: Program and arguments; empty for a shell.

        Raises:
            ProblemsFound: No such pod runs, or the cluster refuses.
        """

    def forward_ports(self, handle: JobHandle, rank: int, ports: Sequence[tuple[int, int]]) -> None:
        """Forward ports of 127.0.0.1 to the pod of a rank, until interrupted.

        Args:
            handle: The job.
            rank: A rank that the pod runs.
            ports: Each a local port, 0 for any free one, and the pod's.

        Raises:
            ProblemsFound: A local port is taken, no such pod runs, or the cluster refuses.
        """

    def operator_log(self, handle: JobHandle) -> Iterator[str]:
        """Yield the lines of the operator's log that mention the job.

        Raises:
            ProblemsFound: The operator is not found, or its log may not be read.
        """
