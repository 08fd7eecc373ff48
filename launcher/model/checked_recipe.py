"""A typed composition, which rules read and from which jobs are planned."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from launcher.model import instances
from launcher.model.cluster_options import ClusterOptions
from launcher.model.composition import Composition
from launcher.model.config_tree import get
from launcher.model.instances import Instance
from launcher.model.job_spec import BatchSplit, Resources, Trainer
from launcher.model.recipe import ElasticSettings, Launch, RecipeBase, Rehearsal
from launcher.model.recipe_keys import Batch, BatchKeys, UnevenBatch
from launcher.model.size_plan import SizePlan


@dataclass(frozen=True, slots=True)
class SizedRecipe:
    """The typed recipe at one size.

    Args:
        nodes: Number of nodes; 0 if the key is not a positive number (which is a Problem).
        path: Dotted path of the size, `recipes` for a static job.
        own: The values that the entry of `scale_config` itself sets.
        tree: Resolved recipe tree at this size.
        recipe: The same, typed.
        is_faulty: Whether its own entry has a fault, so that no other rule needs to check it.
    """

    nodes: int
    path: str
    own: Mapping[str, Any]
    tree: Mapping[str, Any] = field(repr=False)
    recipe: RecipeBase = field(repr=False)
    is_faulty: bool = False


@dataclass(frozen=True, slots=True)
class SizedBatch:
    """How one size distributes the samples of an optimizer step.

    Args:
        size: The size.
        batch: Its batch, typed.
        keys: The batch's keys in the recipe's family.
        data_parallel_size: Ranks divided by the ranks that share one sample, rounded down.
    """

    size: SizedRecipe
    batch: Batch
    keys: BatchKeys
    data_parallel_size: int

    @property
    def uneven(self) -> UnevenBatch | None:
        """The shares of an uneven batch; None if samples are distributed evenly."""
        section = self.batch.uneven_batch
        return section if section and section.use_uneven_batch else None

    @property
    def split(self) -> BatchSplit | None:
        """The split that an uneven batch names; None for an even one, and while one of its numbers is missing."""
        if (uneven := self.uneven) is None:
            return None
        small, large = uneven.small_local_batch_size, uneven.large_local_batch_size
        num_small = uneven.num_dp_groups_with_small_batch_size
        return None if small is None or large is None or num_small is None else BatchSplit(small, large, num_small)

    def states(self, key: str) -> bool:
        """Return whether the size's own entry sets a key."""
        return get(self.size.own, key) is not None

    def path(self, key: str) -> str:
        """Return the path of a key for the user: in the size's own entry if that sets it, else in the base recipe."""
        return f"{self.size.path}.{key}" if self.states(key) else f"recipes.{key}"

    def own_path(self, key: str) -> str:
        """Return the path of a key in the size's own entry."""
        return f"{self.size.path}.{key}"


@dataclass(frozen=True, slots=True)
class CheckedRecipe:
    """A typed composition, before and after the rules have checked it.

    Args:
        composition: Origin of every value.
        launch: The top level, typed.
        settings: The `cluster` section, typed by its backend; `options_of` narrows it.
        recipe: The base recipe, typed by its family.
        instance: The chosen instance type; None if unknown, or on this machine.
        scales: Every size the job may run at, ascending.
        overridden_sizes: For each base override that overrides entries of `scale_config`, their number.
        size_plan: The planned sizes, if `scale_config` is `auto`.
        trainer: The chosen trainer; None for a family without the choice.
    """

    composition: Composition
    launch: Launch
    settings: ClusterOptions
    recipe: RecipeBase
    instance: Instance | None
    scales: tuple[SizedRecipe, ...]
    overridden_sizes: Mapping[str, int]
    size_plan: SizePlan | None = None
    trainer: Trainer | None = None

    @property
    def backend(self) -> str:
        """The chosen cluster."""
        return self.composition.backend

    @property
    def is_rehearsal(self) -> bool:
        """Whether the open trainer shrinks the model and makes up its data."""
        return self.launch.rehearse is True or isinstance(self.launch.rehearse, Rehearsal)

    @property
    def rehearsal(self) -> Rehearsal:
        """What a rehearsal leaves out."""
        return self.launch.rehearse if isinstance(self.launch.rehearse, Rehearsal) else Rehearsal()

    @property
    def published_model(self) -> str:
        """The published model that the recipe is of, whatever the job's name; empty if unknown."""
        return self.recipe.published_model(self.composition.sources)

    @property
    def elastic(self) -> ElasticSettings | None:
        """The policy of a job that may change its size; None for a static job."""
        policy = self.recipe.elastic_policy
        return policy if policy and policy.is_elastic else None

    @property
    def is_elastic(self) -> bool:
        """Whether the job may change its size."""
        return self.elastic is not None

    @property
    def devices(self) -> int:
        """Processes per node: the recipe's, but no more than the instance has unless an override sets them."""
        wanted = self.recipe.trainer.devices or 1  # None in the placeholder for a faulty one
        if self.instance and self.instance.processes and not self.is_explicit("recipes.trainer.devices"):
            return min(wanted, self.instance.processes)
        return wanted

    @property
    def resources(self) -> Resources:
        """What a pod takes of its node; nothing if the instance type is unknown, or this machine."""
        if (instance := self.instance) is None:
            return Resources(None, 0, None, 0)
        per_device = max(1, instance.processes // max(1, instance.accelerators))
        accelerators = -(-self.devices // per_device) if instance.accelerators else 0
        efa = instance.efa_of(accelerators)
        return Resources(instance.name, accelerators, instance.accelerator_resource, efa, instance)

    @property
    def entries(self) -> Mapping[str, Any]:
        """The entries for single sizes: `scale_config`, or the overrides on top of planned ones."""
        entries = self.recipe.scale_config
        return entries if isinstance(entries, Mapping) else self.composition.corrections

    @property
    def sizes(self) -> tuple[SizedRecipe, ...]:
        """The sizes the job may take: for an elastic one, those within its bounds."""
        policy = self.elastic
        if policy is None:
            return self.scales
        return tuple(s for s in self.scales if s.nodes and policy.min_nodes <= s.nodes <= policy.max_nodes)

    def instance_of(self, instance_type: object) -> Instance | None:
        """Return a type that the table has or the recipe describes; None for any other."""
        return instances.find(instance_type, self.recipe.instance_specs)

    def is_explicit(self, path: str) -> bool:
        """Return whether the user's overrides set `path`."""
        return path in self.composition.explicit

    def data_parallel_size(self, scale: SizedRecipe) -> int:
        """Return the ranks at `scale` divided by the ranks that share one sample, rounded down."""
        return scale.nodes * self.devices // scale.recipe.ranks_per_sample

    def batch_of(self, size: SizedRecipe) -> SizedBatch | None:
        """Return how a size distributes its samples; None if the family has no batch."""
        batch, keys = size.recipe.batch, size.recipe.keys.batch
        return None if batch is None or keys is None else SizedBatch(size, batch, keys, self.data_parallel_size(size))
