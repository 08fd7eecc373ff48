"""The protocol of backends: a description, which checking and planning read, and operations on jobs.

A backend is a package under `launcher.backends`, loaded by name (`backend_registry`). Its module `description` holds
the description, `DESCRIPTION`; code outside the package uses it and never compares names of backends. What only some
backends can do is a capability (`capabilities`), None in the description of the others. A backend that
only has a description has its keys checked, but cannot launch jobs yet.

A method that fails raises ProblemsFound with the reason, and no other exception. A JobHandle comes from `submit`, or
from the job's record in a later process, so following a job needs nothing that is kept in the backend's object.
tests/job_suite.py tests every backend for this.
"""

from collections.abc import Iterator, Mapping, Sequence
from enum import Enum
from importlib.util import find_spec
from typing import Any, ClassVar, Generic, NamedTuple, Protocol

from launcher.common.problems import Problem
from launcher.model.capabilities import (
    OF_PODS,
    Clusters,
    Doctor,
    Files,
    Instances,
    OptionsT,
    Pods,
    Programs,
    Queue,
    Scaling,
    Secrets,
)
from launcher.model.job_spec import (
    PUBLISHED,
    Bundle,
    JobEvent,
    JobHandle,
    JobSpec,
    JobStatus,
    LogLine,
    LogSelection,
    Trainer,
)

RANK_0 = LogSelection()


class MemoryKeeper(Enum):
    """The keeper of the checkpoints of `recipes.checkpointing.memory`."""

    SERVICE = "service"
    """A service on each node, to which the pods pass staged copies."""
    WORKERS = "workers"
    """The workers' own runtime."""


class LaunchMode(NamedTuple):
    """What the `cluster` section requests: to follow the job, like wait=true, or to write the bundle alone."""

    is_followed: bool = False
    is_written_only: bool = False


class BackendDescription(Generic[OptionsT]):
    """The description of a backend for checking, planning and listing; a subclass overrides the defaults.

    Loading one imports little else. Its options are the typed `cluster` section.
    """

    name: ClassVar[str]
    """Name of the backend in plans, bundles and job records."""
    choice: ClassVar[str]
    """The choice of `cluster` that selects it."""
    cluster_types: ClassVar[tuple[str, ...]]
    """Values of the published key `cluster_type` that agree with it."""
    title: ClassVar[str]
    """The users' name for the place where its jobs run."""

    runs_here: ClassVar[bool] = False
    """Whether jobs run on the machine that launches them, whatever they are planned for. They end with the process
    that submitted them, which therefore follows them until then."""
    examples: ClassVar[tuple[str, ...]] = ()
    """Overrides with examples of what every launch there gives."""
    default_trainer: ClassVar[Trainer] = PUBLISHED
    """Who trains where `cluster.trainer` is null. Where jobs run on this machine the published image never does."""
    memory_tier: ClassVar[MemoryKeeper | None] = None
    """The keeper of checkpoints in memory; None if `recipes.checkpointing.memory` is unsupported."""
    files: ClassVar[Files[Any]] = Files()
    instances: ClassVar[Instances[Any] | None] = Instances()
    programs: ClassVar[Programs[Any]] = Programs()
    scaling: ClassVar[Scaling | None] = None
    secrets: ClassVar[Secrets] = Secrets()
    unread: ClassVar[tuple[str, ...]] = OF_PODS
    """Keys without an effect on this cluster, those inside them included."""

    @classmethod
    def rules(cls) -> tuple[str, ...]:
        """Return where the rules for its jobs are, beside `launcher.rules`.

        That is `rules`, a module or a package of modules, beside its description, and beside a description that it
        extends, whose jobs it runs.
        """
        extended = cls.__mro__[: cls.__mro__.index(BackendDescription)]
        packages = dict.fromkeys(each.__module__.rpartition(".")[0] for each in extended)
        return tuple(f"{each}.rules" for each in packages if find_spec(f"{each}.rules"))

    def load(self) -> "Backend | None":
        """Return the part that runs jobs; None if there is none yet."""
        return None

    def pods(self) -> Pods | None:
        """Return the operations on a job's pods; None if jobs have none."""
        return None

    def queue(self) -> Queue | None:
        """Return the operations on several jobs of a queue; None if there is no queue."""
        return None

    def clusters(self) -> Clusters | None:
        """Return the access to clusters apart from jobs; None if there is none."""
        return None

    def doctor(self) -> Doctor | None:
        """Return the examination of the place where jobs run; None if there is nothing to ask there."""
        return None

    def options(self) -> type[OptionsT]:
        """Return the model of the `cluster` section."""
        raise NotImplementedError

    def job_kind(self, job: JobSpec) -> str:
        """Return the name of the kind of job, for its plan."""
        return self.title

    def launch_mode(self, options: OptionsT) -> LaunchMode:
        """Return what the `cluster` section requests of a launch."""
        return LaunchMode()

    def region(self, options: OptionsT) -> str | None:
        """Return the AWS region that the `cluster` section names; None if it names none."""
        return None

    def offers(self, key: str) -> Sequence[str]:
        """Return the names that a key of the `cluster` section may have, for completion; none if they are free."""
        return ()


class Backend(Protocol):
    """Turns a planned job into files, and files into a running job."""

    name: ClassVar[str]
    """The name in its description."""

    def check(self, job: JobSpec) -> tuple[Problem, ...]:
        """Return what the backend, or this machine, does not support in `job`. Changes nothing, contacts no
        server."""

    def render(self, job: JobSpec, configs: Mapping[str, str]) -> dict[str, str]:
        """Return the backend's own files of the bundle, relative path to text. Pure.

        `configs` are those that the container reads, file name to text; they are in the bundle anyway.
        """

    def validate(self, bundle: Bundle) -> tuple[Problem, ...]:
        """Return every reason why a bundle, on disk or not, would be refused at its destination. Creates nothing."""

    def intent(self, bundle: Bundle, known: JobHandle | None) -> JobHandle | None:
        """Return how a bundle's job will be found, before anything is submitted; None if that need not be recorded.

        Sends nothing, unless the bundle has a job already: `known`, which is not known to have ended.

        Raises:
            ProblemsFound: That job is on another cluster (E348).
        """

    def submit(self, bundle: Bundle) -> JobHandle:
        """Start the job of a bundle that is on disk, atomically.

        A bundle whose job exists already is not submitted again; the handle's `is_new` is then false.

        Raises:
            ProblemsFound: Every reason why it was not submitted; nothing remains of it.
        """

    def status(self, handle: JobHandle) -> JobStatus:
        """Return the job's current status; DELETED if it was submitted and no longer exists."""

    def wait(self, handle: JobHandle, *, timeout_s: float | None = None) -> Iterator[JobStatus]:
        """Yield the job's status now and after each change, up to its final one, or for a time."""

    def logs(self, handle: JobHandle, selection: LogSelection = RANK_0, *, follow: bool) -> Iterator[LogLine]:
        """Yield selected log lines and NEWS of the job; with `follow`, until it has ended, each line once.

        Raises:
            ProblemsFound: No such rank, attempt or stream exists.
        """

    def events(self, handle: JobHandle, *, follow: bool) -> Iterator[JobEvent]:
        """Yield the job's events, oldest first; with `follow`, until it has ended, each event once."""

    def scale(self, handle: JobHandle, num_nodes: int, min_nodes: int | None = None) -> None:
        """Request another maximum, and minimum, of nodes; None for the plan's smallest size.

        Returns once that is accepted; the job follows according to its recipe.

        Raises:
            ProblemsFound: The job does not run (E412), or its plan has no such size (E413).
        """

    def cancel(self, handle: JobHandle) -> None:
        """Stop the job and everything it started; return when all of it has ended. A finished job is left unchanged.

        Raises:
            ProblemsFound: It cannot be stopped, or does not end.
        """

    def clear(self, handle: JobHandle) -> None:
        """Remove the remains of a finished job if they would prevent its bundle from being launched again.

        Raises:
            ProblemsFound: It cannot be removed, or this backend cannot run a bundle twice (E716).
        """
