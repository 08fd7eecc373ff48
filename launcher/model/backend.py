"""The protocol of backends: a description, which checking and planning read, and operations on jobs.

A backend is a package under `launcher.backends`, loaded by name (`backend_registry`). Its module `description` holds
the description, `DESCRIPTION`; code outside the package uses it and never compares names of backends. A backend that
only has a description has its keys checked, but cannot launch jobs yet.

A method that fails raises ProblemsFound with the reason, and no other exception. A JobHandle comes from
`submit`, or from the job's record (`jobs.registry`) in a later process, so following a job needs nothing that is kept
in the backend's object. tests/job_suite.py tests every backend for this.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Protocol, TypeVar, runtime_checkable

from launcher.common.problems import Notice, Problem
from launcher.model.earlier_jobs import QueuedJob
from launcher.model.job_spec import (
    PUBLISHED,
    Bundle,
    JobEvent,
    JobHandle,
    JobPod,
    JobSpec,
    JobStatus,
    LogSelection,
    Trainer,
)

if TYPE_CHECKING:  # a command that only follows jobs does not need pydantic
    from launcher.model.checked_recipe import CheckedRecipe
    from launcher.model.cluster_options import ClusterOptions

OptionsT = TypeVar("OptionsT", bound="ClusterOptions")
"""The typed `cluster` section of a backend."""

NEWS = ("event", "fault", "scale")
"""First words, followed by two spaces, of log lines in which a backend reports a job's events."""

RANK_0 = LogSelection()


class MemoryKeeper(Enum):
    """The keeper of the checkpoints of `recipes.checkpointing.memory`."""

    SERVICE = "service"
    """A service on each node, to which the pods pass staged copies."""
    WORKERS = "workers"
    """The workers' own runtime."""


@dataclass(frozen=True, slots=True)
class InstanceGroup:
    """Instances of one type within a job.

    Args:
        instance_type: The type, as given.
        count: Number of instances.
    """

    instance_type: str
    count: int


@dataclass(frozen=True, slots=True)
class RuntimeLimit:
    """The time limit at which a backend stops a job.

    Args:
        hours: Maximum hours that a job runs.
        key: Dotted path of the key that sets the limit, in seconds.
        warm_hours: Hours for which its instances are kept, and billed, after the job.
    """

    hours: float
    key: str
    warm_hours: float = 0.0


class BackendDescription(Generic[OptionsT]):
    """The description of a backend for checking, planning and listing. Loading one imports little else.

    A subclass in the backend's package overrides the defaults. Its options are the typed `cluster`
    section.
    """

    name: ClassVar[str]
    """Name of the backend in plans, bundles and job records."""
    choice: ClassVar[str]
    """The choice of `cluster` that selects it."""
    cluster_types: ClassVar[tuple[str, ...]]
    """Values of the published key `cluster_type` that agree with it."""
    title: ClassVar[str]
    """The users' name for the place where its jobs run."""
    rule_modules: ClassVar[tuple[str, ...]] = ()
    """Modules of the rules for its jobs, with E and N codes, beside those of `launcher.rules`."""

    runs_here: ClassVar[bool] = False
    """Whether jobs run on the machine that launches them, whatever they are planned for."""
    has_instances: ClassVar[bool] = True
    """Whether a node is an instance of `instance_type`, which determines devices, memory and prices."""
    has_containers: ClassVar[bool] = True
    """Whether processes run in containers, which see neither the files nor the folder of the launching machine."""
    default_trainer: ClassVar[Trainer] = PUBLISHED
    """Who trains where `cluster.trainer` is null. Where jobs run on this machine the published image never does."""
    runs_training_jobs: ClassVar[bool] = False
    """Whether jobs are SageMaker training jobs: a request, channels, and an image whose toolkit starts scripts."""
    starts_by_mpi: ClassVar[bool] = False
    """Whether `recipes.distribution.mpi` starts a script."""
    resizes_jobs: ClassVar[bool] = False
    """Whether the size of a running job may change, as `recipes.elastic_policy` requests."""
    has_pods: ClassVar[bool] = False
    """Whether jobs have pods on a cluster: whether it is a `PodBackend`."""
    has_queue: ClassVar[bool] = False
    """Whether jobs wait in a queue, for others or beside others: whether it is a `QueueBackend`."""
    memory_tier: ClassVar[MemoryKeeper | None] = None
    """The keeper of checkpoints in memory; None if `recipes.checkpointing.memory` is unsupported."""
    places_code: ClassVar[bool] = False
    """Whether the launcher itself fetches the revision that `git` names, so that any program may run it."""
    has_bundle: ClassVar[bool] = True
    """Whether processes have every file of the bundle, not only its configurations."""
    toolkit_key: ClassVar[str | None] = None
    """Key whose false starts the image's own program instead of a script; None if images have none."""
    secret_sources: ClassVar[tuple[str, ...]] = ("env", "secretKeyRef")
    """Kinds of secret references that its jobs can resolve."""
    url_keys: ClassVar[tuple[str, ...]] = ()
    """Keys beyond the common ones in which its own rules look for URLs with credentials."""
    instance_use: ClassVar[str | None] = None
    """The `use` of instance types, in `instances.csv`, whose prices apply to its jobs; None for EC2's prices."""

    def load(self) -> "Backend | None":
        """Return the part that runs jobs; None if there is none yet."""
        return None

    def options(self) -> type[OptionsT]:
        """Return the model of the `cluster` section."""
        raise NotImplementedError

    def job_kind(self, job: JobSpec) -> str:
        """Return the name of the kind of job, for its plan."""
        return self.title

    def initial_nodes(self, job: JobSpec) -> int | None:
        """Return the size that a job starts with if the backend determines that; None leaves it to the recipe."""
        return None

    def start_reason(self, nodes: int) -> str:
        """Return what the result of `initial_nodes` is, after "the job starts on"."""
        return f"{nodes} nodes"

    def waits(self, options: OptionsT) -> bool:
        """Return whether the `cluster` section requests to follow the job until it has ended, like wait=true."""
        return False

    def writes_only(self, options: OptionsT) -> bool:
        """Return whether the `cluster` section requests the bundle alone, like dry_run=true."""
        return False

    def shares_files(self, options: OptionsT) -> bool:
        """Return whether a job's processes see the files of the launching machine, at the same paths."""
        return not self.has_containers

    def spot_keys(self, options: OptionsT) -> Iterator[tuple[str, object]]:
        """Yield path and value of each key of the typed `cluster` section that requests Spot capacity."""
        yield from ()

    def chooses_instances(self, options: OptionsT) -> bool:
        """Return whether the backend chooses the instances itself, so that those of the plan have no effect."""
        return False

    def starts_scripts(self, checked: "CheckedRecipe") -> bool:
        """Return whether a job needs a script to start; False if its image runs its own program."""
        return True

    def replaces_program(self, options: OptionsT) -> bool:
        """Return whether the `cluster` section has a start command of its own in place of the family's program."""
        return False

    def channels(self, options: OptionsT) -> tuple[str, ...]:
        """Return the names of the channels that bring data to a job; none where there are no channels."""
        return ()

    def instance_groups(self, options: OptionsT) -> tuple[InstanceGroup, ...]:
        """Return the instances of a job that has several types; none if all are of `instance_type`."""
        return ()

    def runtime_limit(self, options: OptionsT) -> RuntimeLimit | None:
        """Return when the backend stops a job; None if it never does."""
        return None

    def secret_values(self, checked: "CheckedRecipe") -> Iterator[tuple[str, Mapping[str, Any]]]:
        """Yield path and content of each mapping of its section that must not hold a secret in clear text."""
        yield from ()

    def secret_words(self, checked: "CheckedRecipe") -> Iterator[tuple[str, Sequence[str]]]:
        """Yield path and words of each command of its section that must not hold a secret in clear text."""
        yield from ()


class Backend(Protocol):
    """Turns a planned job into files, and files into a running job."""

    name: ClassVar[str]
    """The name in its description."""

    ends_with_launcher: ClassVar[bool]
    """Whether a job ends with the process that submitted it, which therefore follows it until then."""

    def check(self, job: JobSpec) -> tuple[Problem, ...]:
        """Return what the backend, or this machine, does not support in `job`. Changes nothing, contacts no
        server."""

    def render(self, job: JobSpec, configs: Mapping[str, str]) -> dict[str, str]:
        """Return the backend's own files of the bundle, relative path to text. Pure.

        Args:
            job: The planned job.
            configs: The configurations the container reads, file name to text; they are in the bundle anyway.
        """

    def validate(self, bundle: Bundle) -> tuple[Problem, ...]:
        """Return every reason why a bundle, on disk or not, would be refused at its destination.

        Creates nothing.
        """

    def intent(self, bundle: Bundle, known: JobHandle | None) -> JobHandle | None:
        """Return how a bundle's job will be found, before anything is submitted; None if that need not be recorded.

        Sends nothing, unless the bundle has a job already.

        Args:
            bundle: The bundle.
            known: Its earlier submitted job that is not known to have ended.

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
        """Yield the job's status now and after each change, up to its final one.

        Args:
            handle: The job.
            timeout_s: Seconds after which to stop; None for no limit.
        """

    def logs(self, handle: JobHandle, selection: LogSelection = RANK_0, *, follow: bool) -> Iterator[str]:
        """Yield selected log lines and NEWS of the job; with `follow`, until it has ended, each line once.

        Raises:
            ProblemsFound: No such rank, attempt or stream exists.
        """

    def events(self, handle: JobHandle, *, follow: bool) -> Iterator[JobEvent]:
        """Yield the job's events, oldest first; with `follow`, until it has ended, each event once."""

    def scale(self, handle: JobHandle, num_nodes: int, min_nodes: int | None = None) -> None:
        """Request another size. Returns once that is accepted; the job follows according to its recipe.

        Args:
            handle: The job.
            num_nodes: Maximum number of nodes.
            min_nodes: Minimum number of nodes; None for the plan's smallest size.

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


@runtime_checkable
class PodBackend(Protocol):
    """The further protocol of a backend whose jobs have pods on a cluster."""

    def pods(self, handle: JobHandle) -> tuple[JobPod, ...]:
        """Return the job's current pods, in the order of their ranks."""

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


@runtime_checkable
class QueueBackend(Protocol):
    """The further protocol of a backend with a queue: jobs wait for others, and those of a sweep share an array."""

    def submit_all(self, jobs: Sequence[QueuedJob]) -> tuple[JobHandle, ...]:
        """Start the jobs of bundles that are on disk: all of them, or none.

        Bundles whose jobs exist already are not submitted again; `is_new` of their handles is then false.

        Args:
            jobs: The bundles, and what each waits for.

        Returns:
            A handle for each, in the same order.

        Raises:
            ProblemsFound: Every reason why they were not submitted; nothing remains of them.
        """

    def array_notices(self, bundles: Sequence[Bundle]) -> tuple[Notice, ...]:
        """Return what the user should know about jobs that are submitted together, before they are."""
