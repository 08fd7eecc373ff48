"""The values that pass from one stage to the next. All frozen."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from launcher.common.names import CONFIG_DIR
from launcher.common.problems import Notice
from launcher.common.texts import bounded, plain
from launcher.model.instances import Instance

if TYPE_CHECKING:  # a command that only follows jobs does not need pydantic
    from launcher.model.base_model import ClusterOptions
    from launcher.model.recipe import Preemption
    from launcher.model.sources import Sources

Trainer = Literal["published", "open"]
"""Who reads the compiled configuration of a family that has the choice, as `cluster.trainer` names it."""
PUBLISHED: Trainer = "published"
"""The closed program of the family's published image."""
OPEN: Trainer = "open"
"""The trainer of this package, `launcher.runtime`."""

DEFAULT_SAVE_TIMEOUT_S = 600
"""Seconds for a last checkpoint if the recipe does not set them.

Source: the smallest graceful_shutdown_timeout of the published elastic recipes, which are 600, 900 and 1200.
"""


class BatchSplit(NamedTuple):
    """How the samples of one optimizer step are distributed to the data-parallel ranks.

    The first `num_small` ranks take `small` samples each, the others `large`. An even split has
    `small == large`.
    """

    small: int
    large: int
    num_small: int

    @property
    def is_even(self) -> bool:
        """Whether every rank takes the same number of samples."""
        return self.small == self.large

    def samples(self, data_parallel_size: int) -> int:
        """Return the samples per optimizer step over `data_parallel_size` ranks."""
        return self.small * self.num_small + self.large * (data_parallel_size - self.num_small)


class StepBatch(NamedTuple):
    """How a size trains the samples of an optimizer step; the passes are those of a rank with the larger share."""

    split: BatchSplit
    micro_batch_size: int
    grad_accumulation: int
    learning_rate: float | None
    """The peak; None if the recipe of a script states none."""


class ScalePoint(NamedTuple):
    """The job at one cluster size."""

    nodes: int
    ranks: int
    data_parallel_size: int
    """Ranks divided by every model- and sequence-parallel degree."""
    batch: StepBatch | None
    """None for a family without a batch."""
    config: Mapping[str, Any]
    """The resolved recipe at this size; what the container reads."""

    @property
    def samples_per_step(self) -> int | None:
        """Samples of one optimizer step over all ranks; None without a batch."""
        return self.batch.split.samples(self.data_parallel_size) if self.batch else None

    @property
    def learning_rate(self) -> float | None:
        """Peak learning rate at this size; None without a batch, or if the recipe of a script states none."""
        return self.batch.learning_rate if self.batch else None

    @property
    def largest_share(self) -> float | None:
        """Largest fraction of a step's samples that a rank takes: it determines the time of a step."""
        samples = self.samples_per_step
        return self.batch.split.large / samples if self.batch and samples else None

    @property
    def balance(self) -> float | None:
        """`largest share · W ÷ samples`: 1 if no rank waits for another, 1.25 if a step takes 1.25 times as long as
        it would with equal shares; None without a batch."""
        samples = self.samples_per_step
        return self.batch.split.large * self.data_parallel_size / samples if self.batch and samples else None

    @property
    def idle(self) -> float | None:
        """Fraction of all ranks' time, 0 to 1, that is spent waiting for the largest share; None without a batch."""
        return 1 - 1 / self.balance if self.balance else None


def start_size(num_nodes: int, sizes: Sequence[int]) -> int:
    """Return the size that a job of these sizes starts with: `num_nodes`, or the smallest if that is not one."""
    return num_nodes if num_nodes in sizes else min(sizes)


class ElasticPolicy(NamedTuple):
    """How a job may change its size. Times in seconds; None leaves the operator's default.

    Exactly one of `replica_increment_step` and `replica_values` is set; without `preemption` there is one priority.
    """

    min_nodes: int
    max_nodes: int
    replica_increment_step: int | None
    replica_values: tuple[int, ...] | None
    use_graceful_shutdown: bool
    scaling_timeout_s: int | None
    graceful_shutdown_timeout_s: int | None
    faulty_timeout_s: int | None
    scale_up_snooze_s: int | None
    preemption: "Preemption | None" = None
    is_in_place: bool = False
    """Whether workers that stay keep their processes."""


class Resources(NamedTuple):
    """What one node of the job requests; neither type nor instance on this machine."""

    instance_type: str | None
    """With the `ml.` prefix."""
    accelerators: int
    """Devices of `accelerator_resource`, the name of Kubernetes; 0 for a CPU job."""
    accelerator_resource: str | None
    efa: int
    instance: Instance | None = None


@dataclass(frozen=True, slots=True)
class JobSpec:
    """A checked and planned job: everything a backend needs to render it.

    Args:
        name: A DNS label of at most 63 characters.
        recipe: As the user named it.
        scales: One point per size, ascending.
        elastic: None for a job of fixed size.
        base_results_dir: Folder that receives the bundle.
        settings: The `cluster` section, typed by its backend; `options_of` narrows it.
        config: The complete composed configuration, resolved, without secrets.
        cwd: Folder that the user's relative paths start from.
        save_timeout_s: Seconds that the workers of a job, elastic or not, have for a last checkpoint.
        trainer: Who trains; None for a family without the choice.
        is_rehearsal: Whether the open trainer shrinks the model and makes up its data.
        published_model: The one that the recipe is of, by its name on the Hugging Face Hub; empty if unknown.
        rehearsal_steps: Steps that a rehearsal is to make; 0 for no bound, None for the default.
    """

    name: str
    backend: str
    recipe: str
    model_type: str
    nproc_per_node: int
    initial_nodes: int
    scales: tuple[ScalePoint, ...]
    elastic: ElasticPolicy | None
    resources: Resources
    image: str | None
    base_results_dir: Path
    settings: "ClusterOptions"
    config: Mapping[str, Any] = field(repr=False)
    overrides: tuple[str, ...] = ()
    notices: tuple[Notice, ...] = ()
    cwd: Path = Path()
    save_timeout_s: int = DEFAULT_SAVE_TIMEOUT_S
    trainer: Trainer | None = None
    is_rehearsal: bool = False
    published_model: str = ""
    rehearsal_steps: int | None = None

    @property
    def in_place_timeout_s(self) -> int | None:
        """Seconds that workers that stay in their processes may take to stop; None if they do not stay."""
        return self.save_timeout_s if self.elastic and self.elastic.is_in_place else None

    @property
    def recipe_tree(self) -> Mapping[str, Any]:
        """The recipe as it was composed, of no size."""
        tree: Mapping[str, Any] = self.config["recipes"]
        return tree

    @property
    def max_nodes(self) -> int:
        """Nodes the job may grow to."""
        return self.elastic.max_nodes if self.elastic else self.initial_nodes


@dataclass(frozen=True, slots=True)
class Bundle:
    """A rendered job.

    Args:
        job_name: Name of the job and of the bundle's folder.
        directory: Written or not.
        files: Relative path to text, including `bundle.json`.
        digest: sha256 over every other file, hex.
        config: The composed configuration that `recipe.yaml` was written from; None for a bundle that was read.
        sources: What its record describes; None for a bundle that was read.
    """

    job_name: str
    directory: Path
    files: Mapping[str, str] = field(repr=False)
    digest: str
    config: Mapping[str, Any] | None = field(default=None, repr=False, compare=False)
    sources: "Sources | None" = field(default=None, repr=False, compare=False)

    @property
    def plan(self) -> Mapping[str, Any]:
        """The job's plan, from its file."""
        found: Mapping[str, Any] = json.loads(self.files["plan.json"])
        return found

    @property
    def configs(self) -> dict[str, str]:
        """The configurations that the job's program reads, file name to text."""
        prefix = f"{CONFIG_DIR}/"
        return {name.removeprefix(prefix): text for name, text in self.files.items() if name.startswith(prefix)}


ResultKind = Literal["checkpoints", "adapters", "model", "output"]
"""What a job produces: checkpoints of the training state, adapters, a model, anything else."""


class JobState(StrEnum):
    """State of a job, the same for every backend."""

    PENDING = "pending"
    RUNNING = "running"
    SCALING = "scaling"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"
    DELETED = "deleted"
    """It no longer exists, and no command saw how it ended."""

    @classmethod
    def _missing_(cls, value: object) -> "JobState | None":
        return cls.DELETED if value == "gone" else None  # its name in records of earlier versions

    @property
    def is_final(self) -> bool:
        """Whether the job has ended."""
        return self in (JobState.SUCCEEDED, JobState.FAILED, JobState.CANCELLED, JobState.DELETED)


@dataclass(frozen=True, slots=True)
class JobHandle:
    """Names a submitted job: enough to find it again in another process.

    Args:
        backend: The choice of `cluster`.
        job_name: Also of its bundle's folder.
        bundle_dir: Absolute.
        native_id: The backend's identifier: the resource's name, the operator's pid.
        kind: Kind of the resource, if the backend has several.
        context: Name of the cluster for later commands; None inside it, or on this machine.
        uid: Distinguishes the job from earlier and later ones of its name; None if names are not reused, and
            after a launch that was killed before it could record it.
        server: The context's cluster when the job was submitted; None if contexts do not change.
        is_new: False if this bundle's job already existed, so nothing was submitted. Not recorded.
    """

    backend: str
    job_name: str
    bundle_dir: Path
    native_id: str = ""
    kind: str | None = None
    namespace: str | None = None
    context: str | None = None
    uid: str | None = None
    server: str | None = None
    is_new: bool = field(default=True, compare=False)

    @property
    def place(self) -> tuple[str | None, ...]:
        """Names the server that answers for the job: one that does not answer is not asked about its other jobs."""
        return (self.backend, self.context, self.namespace, self.server)


@dataclass(frozen=True, slots=True)
class JobStatus:
    """The last observed status of a job.

    Args:
        nodes: Nodes it runs on now.
        message: Why it is pending, or why it ended; bounded, since others write parts of it.
        target_nodes: Nodes it is scaling to; None if it is not scaling.
        restarts: Of its workers.
        faulty_nodes: Names of those that failed last.
    """

    state: JobState
    nodes: int
    message: str = ""
    target_nodes: int | None = None
    restarts: int = 0
    faulty_nodes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "message", bounded(self.message))


@dataclass(frozen=True, slots=True)
class JobEvent:
    """An event of a job.

    Args:
        time_s: Seconds since the epoch.
        kind: One word from the backend: a reason in CamelCase, or the operator's action.
        about: The object concerned, as `Kind/name` or `node 1`; "" for the job itself.
    """

    time_s: float
    kind: str
    message: str
    about: str = ""
    is_warning: bool = False

    def __post_init__(self) -> None:
        for name in ("kind", "message", "about"):
            object.__setattr__(self, name, bounded(getattr(self, name)))


LAST_LINES = 2000
"""Lines at the end of a log that an excerpt of it has."""

NEWS = ("event", "fault", "scale")
"""Kinds of log lines in which a backend reports a job's events."""


class LogLine(NamedTuple):
    """A line that a worker wrote, or one about the job."""

    kind: str
    """`line` of a worker, `attempt` at the start of the workers, or one of NEWS."""
    rank: int | None
    """Who wrote it; None for a line about the job, and if only the host of several ranks is known."""
    text: str
    attempt: int | None = None
    """Number of the start of the workers, from 0; None for news."""
    host: str | None = None
    """Of its log or rank, as the cluster names it; None if that is unknown."""
    time_s: float | None = None
    """When it was written, in seconds since the epoch; None if the log does not have it."""
    stream: str | None = None
    """`stdout` or `stderr`; None where one log has both."""
    writer: str = ""
    """Who wrote it in words, if not `rank <n>`: `rank <n> on <host>` in another host's log, the ranks of a pod."""
    until_s: float | None = None
    """When it had been written, in seconds since the epoch, if its time is unknown; None if that is unknown too."""

    def shown(self, *, with_writer: bool, with_attempt: bool = False) -> str:
        """Return the line as commands print it."""
        if self.kind == "line":
            words = self.text
        else:
            words = f"== {self.text}" if self.kind == "attempt" else f"{self.kind}  {self.text}"
        if not with_writer or (self.rank is None and not self.writer):
            return words
        if "\r" in words:
            words = plain(words)  # it would remove the writer with the earlier states of a progress bar
        attempt = f", attempt {self.attempt}" if with_attempt and self.attempt is not None else ""
        return f"{self.writer or f'rank {self.rank}'}{attempt} | {words}"


class LogSelection(NamedTuple):
    """A selection of a job's log lines."""

    ranks: tuple[int, ...] | None = (0,)
    """Ascending; None for all."""
    attempt: int | None = None
    """Number of the one start of the workers to show, from 0; None for all, with the events of the job."""
    is_stderr: bool | None = False
    """Whether to show standard error instead of standard output; None for both, where they are separate."""
    has_headings: bool = False
    """Whether a line of its own marks the start of each attempt."""
    is_excerpt: bool = False
    """Whether only the lines that may show an error are read: `LAST_LINES` of a log that has only times, and of a
    file the end and the part after its first error, with the times of the file."""
