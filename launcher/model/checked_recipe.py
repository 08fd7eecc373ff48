"""A typed composition, which rules read and from which jobs are planned."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from launcher.model import instance_specs
from launcher.model.cluster_options import ClusterOptions
from launcher.model.composition import Composition
from launcher.model.instances import Instance
from launcher.model.job_spec import Trainer
from launcher.model.recipe import ElasticSettings, Launch, RecipeBase, Rehearsal
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
        return instance_specs.find(instance_type, self.recipe.instance_specs)

    def is_explicit(self, path: str) -> bool:
        """Return whether the user's overrides set `path`."""
        return path in self.composition.explicit

    def data_parallel_size(self, scale: SizedRecipe) -> int:
        """Return the ranks at `scale` divided by the ranks that share one sample, rounded down."""
        return scale.nodes * self.devices // scale.recipe.ranks_per_sample
