"""The keys of a family for values that the launcher reads from every recipe; and the batch it reads."""

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple, Protocol

from launcher.model.base_model import Model, ShareSize

BatchName = Literal["train_batch_size", "micro_train_batch_size", "learning_rate"]
"""The numbers of a batch that a plan determines."""

LAUNCHER_KEYS = ("extra_keys", "labels", "planner", "checkpointing", "instance_specs", "elastic_policy")
"""Keys of a recipe that only the launcher reads, as written. The published configurations of a size
have no elastic_policy either: the operator chooses sizes."""
_FOR_LAUNCHER = (*LAUNCHER_KEYS, "resources", "scale_config")
"""The same, with those that no program reads, although a configuration may have them."""


class UnevenBatch(Model):
    """Samples per optimizer step of each rank if they do not divide evenly."""

    use_uneven_batch: bool
    """true distributes the samples by the three numbers below, false evenly. launcher.runtime splits the shares by
    micro_train_batch_size; the published recipes take each in one pass."""
    num_dp_groups_with_small_batch_size: ShareSize | None = None
    """Number of data-parallel ranks with the small share; all others take the large one."""
    small_local_batch_size: ShareSize | None = None
    """Samples per optimizer step of each rank with the small share; at least 1."""
    large_local_batch_size: ShareSize | None = None
    """Samples per optimizer step of each other rank, and without a micro batch the maximum in a device's memory.
    small · num_small + large · (ranks − num_small) must be train_batch_size."""


class Batch(Protocol):
    """The numbers of a batch, as the planner and the rules read them."""

    @property
    def train_batch_size(self) -> int:
        """Samples per optimizer step over all ranks."""

    @property
    def micro_train_batch_size(self) -> int:
        """Samples per forward pass on one rank."""

    @property
    def learning_rate(self) -> float:
        """Peak learning rate."""

    @property
    def uneven_batch(self) -> UnevenBatch | None:
        """How samples are distributed if they do not divide over the ranks; None: evenly."""

    @property
    def ranks_per_sample(self) -> int:
        """Ranks that share one sample, apart from those that share the model."""


class Lora(NamedTuple):
    """The low-rank adapters that a recipe trains."""

    path: str
    """Dotted path, in the recipe, of the section that names their layers."""
    values: Mapping[str, Any]
    """Their settings by PEFT's names."""
    start: str | None = None
    """Adapters to start from, whose own settings are used; None or empty for new ones."""


class BatchKeys(NamedTuple):
    """The keys of a family's batch, as of `Batch`: dotted paths in the recipe."""

    train_batch_size: str
    micro_train_batch_size: str
    learning_rate: str
    uneven_batch: str
    sample_groups: tuple[str, ...] = ()
    """Keys whose product is the number of ranks that share one sample."""

    def path(self, name: BatchName) -> str:
        """Return the dotted path of one number."""
        found: str = getattr(self, name)
        return found

    @property
    def dealt_by(self) -> tuple[str, ...]:
        """The keys that determine the distribution of samples to ranks: all but the learning rate."""
        return (self.train_batch_size, self.micro_train_batch_size, *self.sample_groups, self.uneven_batch)

    @property
    def planned_from(self) -> tuple[str, ...]:
        """Dotted paths in the configuration that planned sizes are derived from."""
        own = (self.train_batch_size, self.micro_train_batch_size, self.learning_rate, *self.sample_groups)
        sections = ("trainer", "elastic_policy", "planner", "scale_config")
        return tuple(f"recipes.{key}" for key in (*own, *sections))

    @property
    def bound(self) -> str:
        """The path whose override bounds every planned size without replacing a value."""
        return f"recipes.{self.micro_train_batch_size}"


class RecipeKeys(NamedTuple):
    """The keys of a family that the launcher reads: dotted paths in the recipe, None for missing ones."""

    batch: BatchKeys | None = None
    mlflow: str | None = None
    """Section of the MLflow run."""
    training_dir: str | None = None
    """Folder of checkpoints and results."""
    results: tuple[str, ...] = ()
    """Further keys of folders, or addresses, that receive results."""
    same_folder: str | None = None
    """Whether a restart continues in that folder."""
    resumes: str | None = None
    """Whether a restart loads the checkpoint there; None of programs whose restarts always do."""
    inputs: tuple[str, ...] = ()
    """Keys that name models and data that are read, beside those that the open trainer is given."""
    examples: Mapping[str, str] = {}
    """Keys that have no value that works before the user gives one, with an example of each."""
    often_changed: tuple[str, ...] = ()
    """Keys that a new recipe shows, beside those of every family; related keys are adjacent."""
    left_to_image: tuple[str, ...] = ()
    """Keys whose empty value selects the container's own default."""
    passed: tuple[str, ...] = ()
    """Sections that the program reads as they are: models of `Passed`."""
    launcher_only: tuple[str, ...] = ()
    """Keys that the family's parts have for the launcher; the program's configuration lacks them."""

    def is_read_by_program(self, path: str) -> bool:
        """Return whether the program's configuration may have a key: not one of a section for the launcher."""
        return not any(f"{path}.".startswith(f"{section}.") for section in (*_FOR_LAUNCHER, *self.launcher_only))
