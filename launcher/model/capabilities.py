"""What a backend can do, one object for each subject. None in its description means that it cannot.

The first five are read by checks and plans, and the protocols below them are operations on a running cluster. A
backend subclasses those that differ from the defaults here.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Generic, NamedTuple, Protocol, TypeVar

from launcher.common.problems import Notice, Problem
from launcher.model.earlier_jobs import QueuedJob
from launcher.model.job_spec import Bundle, JobHandle, JobSpec, ResultKind, Trainer

if TYPE_CHECKING:  # a command that only follows jobs does not need pydantic
    from launcher.model.base_model import ClusterOptions
    from launcher.model.checked_recipe import CheckedRecipe
    from launcher.model.cluster_view import AdoptedJob, Capacity, ClusterJob, JobPod
    from launcher.model.finding import Answer
    from launcher.model.ray_job import RayJob

_OF_POD = ("cpu", "memory", "cpuLimit", "memoryLimit")
OF_PODS = (
    "recipes.resources",
    *(f"recipes.ray_cluster.{part}.{key}" for part in ("head_node", "worker_nodes") for key in _OF_POD),
)
"""Keys of recipes that only pods have."""
REFERENCES = {"secretKeyRef": "{secretKeyRef: {name: …, key: …}}", "env": "{env: NAME}"}
"""How each kind of reference to a secret is written."""
OptionsT = TypeVar("OptionsT", bound="ClusterOptions")
"""The typed `cluster` section of a backend."""


class RuntimeLimit(NamedTuple):
    """The limit at which a backend stops a job, in hours, and the path of the key that sets it, in seconds."""

    hours: float
    key: str
    warm_hours: float = 0.0
    """Hours for which its instances are kept, and billed, after the job."""


class Instances(Generic[OptionsT]):
    """Nodes that are instances of `instance_type`, which determines devices, memory and prices."""

    price_use: ClassVar[str | None] = None
    """The `use` of instance types, in `instances.csv`, whose prices apply to its jobs; None for EC2's prices."""

    def spot_keys(self, options: OptionsT) -> Iterator[tuple[str, object]]:
        """Yield path and value of each key of the `cluster` section that requests Spot capacity."""
        yield from ()

    def chosen_by_service(self, options: OptionsT) -> bool:
        """Return whether the backend chooses the instances itself, so that those of the plan have no effect."""
        return False

    def groups(self, options: OptionsT) -> tuple[tuple[str, int], ...]:
        """Return type and number of the instances of a job that has several types; none if all are of one."""
        return ()

    def limit(self, options: OptionsT) -> RuntimeLimit | None:
        """Return when the backend stops a job; None if it never does."""
        return None


class Scaling:
    """The size of a running job may change, as `recipes.elastic_policy` requests."""

    resizes_in_place: ClassVar[bool] = False
    """Whether workers stay by default: this launcher's own operator tells them what each stop is for."""

    def initial_nodes(self, job: JobSpec) -> int | None:
        """Return the size that a job starts with if the backend determines that; None leaves it to the recipe."""
        return None

    def start_reason(self, nodes: int) -> str:
        """Return what the result of `initial_nodes` is, after "the job starts on"."""
        return f"{nodes} nodes"


class Programs(Generic[OptionsT]):
    """How a job's processes are started."""

    has_ray: ClassVar[bool] = False
    """Whether Ray clusters are started: their heads and submitters, beside workers."""
    has_components: ClassVar[bool] = False
    """Whether a job may have several programs, each on nodes of its own."""
    starts_by_mpi: ClassVar[bool] = False
    """Whether `recipes.distribution.mpi` starts a script."""
    toolkit_key: ClassVar[str | None] = None
    """Key whose false starts the image's own program, where images have SageMaker's toolkit, which starts scripts
    and libraries; None elsewhere."""

    def needs_script(self, checked: "CheckedRecipe") -> bool:
        """Return whether a job needs a script to start; False if its image runs its own program."""
        return True

    def ray_job(self, bundle: Bundle) -> "RayJob | None":
        """Return the Ray cluster that a bundle's files describe, and its program; None if its job has no cluster.

        Raises:
            ProblemsFound: This machine lacks a part of the program.
        """
        return None

    def are_replaced(self, options: OptionsT) -> bool:
        """Return whether the `cluster` section has a start command of its own in place of the family's program."""
        return bool(options.start_command)


class Files(Generic[OptionsT]):
    """The files that a job's processes see."""

    has_containers: ClassVar[bool] = True
    """Whether processes run in containers, which see neither the files nor the folder of the launching machine."""
    has_bundle: ClassVar[bool] = True
    """Whether processes have every file of the bundle, not only its configurations."""
    has_revisions: ClassVar[bool] = False
    """Whether the launcher itself fetches the revision that `git` names, so that any program may run it."""

    def in_container(self, options: OptionsT, image: str | None) -> bool:
        """Return whether the processes of a job with this image, if any, run in a container."""
        return self.has_containers

    def are_shared(self, options: OptionsT) -> bool:
        """Return whether processes see the files of the launching machine, at the same paths."""
        return not self.has_containers

    def code_folder(self, options: OptionsT, trainer: Trainer | None) -> str | None:
        """Return the folder of this machine whose code a launch copies to the job, relative to the folder it is
        launched from; None if it copies none."""
        return None

    def channels(self, options: OptionsT) -> tuple[str, ...]:
        """Return the names of the channels that bring data to a job; none where there are no channels."""
        return ()

    def outputs(self, bundle: Bundle) -> Iterator[tuple[ResultKind, str]]:
        """Yield kind and address of what the cluster itself keeps of a job, beside what its program writes."""
        yield from ()


class Secrets:
    """The references to secrets that jobs can resolve, and the keys that must not hold a secret in clear text."""

    sources: ClassVar[tuple[str, ...]] = ("secretKeyRef", "env")
    """Kinds of references."""
    instead: ClassVar[str] = ""
    """What replaces a reference, for jobs that resolve none."""
    url_keys: ClassVar[tuple[str, ...]] = ()
    """Keys beyond the common ones in which the backend's own rules look for URLs with credentials."""

    @property
    def references(self) -> str | None:
        """How a job's recipe names a secret; None if the job can resolve no reference."""
        return " or ".join(REFERENCES[source] for source in self.sources) or None

    def remedy(self, key: str) -> str:
        """Return the remedy for a secret at a key: a reference as its value, or what replaces one."""
        return f'"{key}={REFERENCES[self.sources[0]]}"' if self.sources else f"{key}=null, and {self.instead}"

    @property
    def in_env_vars(self) -> str:
        """The remedy for a secret anywhere else."""
        return f"name it in env_vars: NAME={REFERENCES[self.sources[0]]}" if self.sources else self.instead

    def values(self, checked: "CheckedRecipe") -> Iterator[tuple[str, Mapping[str, Any]]]:
        """Yield path and content of each mapping of the `cluster` section whose values are checked."""
        yield from ()

    def words(self, checked: "CheckedRecipe") -> Iterator[tuple[str, Sequence[str]]]:
        """Yield path and words of each command of the `cluster` section."""
        yield "cluster.command", checked.settings.start_command


class Pods(Protocol):
    """Jobs have pods."""

    def pods(self, handle: JobHandle) -> tuple["JobPod", ...]:
        """Return the job's current pods, in the order of their ranks."""

    def run_in_pod(self, handle: JobHandle, rank: int, command: Sequence[str]) -> int:
        """Run a command, empty for a shell, in the pod of a rank, with this process's standard streams.

        Returns the command's exit code.

        Raises:
            ProblemsFound: No such pod runs, or the cluster refuses.
        """

    def forward_ports(self, handle: JobHandle, rank: int, ports: Sequence[tuple[int, int]]) -> None:
        """Forward ports of 127.0.0.1 to the pod of a rank, until interrupted: each a local one, 0 for any free, and
        the pod's.

        Raises:
            ProblemsFound: A local port is taken, no such pod runs, or the cluster refuses.
        """

    def operator_log(self, handle: JobHandle) -> Iterator[str]:
        """Yield the lines of the operator's log that mention the job.

        Raises:
            ProblemsFound: The operator is not found, or its log may not be read.
        """


class Queue(Protocol):
    """Jobs wait in a queue: for others, and those of a sweep share an array."""

    def submit_all(self, jobs: Sequence[QueuedJob]) -> tuple[JobHandle, ...]:
        """Start the jobs of bundles that are on disk: all of them, or none.

        Returns a handle for each, in the same order. Bundles whose jobs exist already are not submitted again;
        `is_new` of their handles is then false.

        Raises:
            ProblemsFound: Every reason why they were not submitted; nothing remains of them.
        """

    def array_notices(self, bundles: Sequence[Bundle]) -> tuple[Notice, ...]:
        """Return what the user should know about jobs that are submitted together, before they are."""


class Doctor(Protocol):
    """The place where jobs run can be examined before a launch."""

    unanswered: ClassVar[frozenset[str]]
    """Codes of Problems by which the place does not answer, so that nothing is known."""

    def examine(self, job: JobSpec, bundle: Bundle) -> "Iterator[Answer]":
        """Yield whether the place can be used, and if so, the questions whose answers decide about a job.

        Changes nothing there. The bundle need not be on disk. Threads ask the questions, all at the same time.

        Raises:
            ProblemsFound: The place cannot be asked, or not used.
        """


class Cluster(Protocol):
    """A cluster, apart from any job that this launcher submitted. Every method may raise a Problem."""

    @property
    def context(self) -> str | None:
        """The name of the cluster for later commands; None inside it."""

    def capacity(self, namespace: str | None) -> "Capacity":
        """Return what it has, as far as that may be read: queues of one namespace if those of all may not be."""

    def jobs(self, namespace: str | None, *, is_everywhere: bool) -> tuple[str | None, tuple["ClusterJob", ...]]:
        """Return the namespace that was read, None for all, and the training jobs in it, oldest first."""

    def find_job(self, name: str, kind: str | None, namespace: str | None, folder: Path) -> "AdoptedJob":
        """Return a job that was launched elsewhere, to be followed in a folder here."""

    def kueue_version(self, known: Iterable[str], given: str | None) -> str:
        """Return the version of Kueue's API, of the `known`, to generate objects for: the given, or the cluster's."""

    def lacks(self, objects: Iterable[Mapping[str, Any]]) -> Iterator[Problem]:
        """Yield a Problem for each prerequisite of a team's objects that the cluster lacks."""

    def existing(self, objects: Iterable[Mapping[str, Any]]) -> tuple[Mapping[str, Any], ...]:
        """Return the cluster's objects with the kind and name of a cluster-scoped one among `objects`."""


class Clusters(Protocol):
    """Jobs run on clusters that commands may name: `recipes cluster`, `jobs --cluster`, `adopt`, `governance`."""

    def connect(self, context: str | None) -> Cluster:
        """Return a cluster by name; None for the current one.

        Raises:
            ProblemsFound: No such cluster is known.
        """

    def check_adoption(self, name: str, kind: str | None, alias: str | None) -> None:
        """Raise a Problem if a job cannot have a name, a kind, or a folder's name here. Contacts no cluster."""
