"""A typed composition, which rules read and from which jobs are planned; the recipe is typed at every size."""

from collections.abc import Mapping
from typing import Any, NamedTuple, TypeVar

from launcher.common.problems import Problem
from launcher.model import instances
from launcher.model.backend_registry import described
from launcher.model.base_model import ClusterOptions
from launcher.model.composition import Composition
from launcher.model.config_tree import (
    ScaleTree,
    get,
    leaves,
    related,
    scale_trees,
    size_of,
    static_tree,
    without,
)
from launcher.model.instances import Instance
from launcher.model.job_spec import BatchSplit, Resources, Trainer
from launcher.model.launch import Launch, Rehearsal
from launcher.model.recipe import ElasticSettings, RecipeBase
from launcher.model.recipe_keys import Batch, BatchKeys, UnevenBatch
from launcher.model.size_plan import SizePlan
from launcher.model.validation import declared_keys, is_field, type_problems

PROCESSES = ("recipes.training_cfg.run.ntasks_per_node", "recipes.trainer.devices")
"""Keys of the processes per node: the first, of a script, is the default of the second."""


class SizedRecipe(NamedTuple):
    """The typed recipe at one size."""

    nodes: int
    """0 if the key is not a positive number (which is a Problem)."""
    path: str
    """Of the size: `recipes` for a static job."""
    own: Mapping[str, Any]
    """The values that the entry of `scale_config` itself sets."""
    tree: Mapping[str, Any]
    """Resolved recipe tree at this size."""
    recipe: RecipeBase
    """The same, typed."""
    is_faulty: bool = False
    """Whether its own entry has a fault, so that no other rule needs to check it."""


class SizedBatch(NamedTuple):
    """How one size distributes the samples of an optimizer step."""

    size: SizedRecipe
    batch: Batch
    keys: BatchKeys
    data_parallel_size: int
    """Ranks divided by the ranks that share one sample, rounded down."""

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


class CheckedRecipe(NamedTuple):
    """A typed composition, before and after the rules have checked it.

    Args:
        launch: The top level, typed.
        settings: The `cluster` section, typed by its backend; `options_of` narrows it.
        recipe: The base recipe, typed by its family.
        instance: The chosen instance type; None if unknown, or on this machine.
        scales: Every size the job may run at, ascending.
        overridden_sizes: For each base override that overrides entries of `scale_config`, their number.
        size_plan: If `scale_config` is `auto`.
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
    def recipe_tree(self) -> Mapping[str, Any]:
        """The base recipe as it was composed."""
        tree: Mapping[str, Any] = self.composition.tree["recipes"]
        return tree

    @property
    def is_rehearsal(self) -> bool:
        """Whether the open trainer shrinks the model and makes up its data."""
        return self.launch.rehearse is True or isinstance(self.launch.rehearse, Rehearsal)

    @property
    def rehearsal(self) -> Rehearsal:
        """What a rehearsal leaves out."""
        return self.launch.rehearse if isinstance(self.launch.rehearse, Rehearsal) else Rehearsal.model_construct()

    @property
    def published_model(self) -> str:
        """The published model that the recipe is of, whatever the job's name; empty if unknown."""
        return self.recipe.published_model(self.composition.sources)

    @property
    def has_no_image(self) -> bool:
        """Whether the recipe does not run on the chosen cluster, or its image is not published in the region."""
        return bool(self.recipe.refusal(described(self.backend).choice) or self.region_without_image)

    @property
    def region_without_image(self) -> str | None:
        """The job's region, if the recipe's image is published in others only and the launch names none."""
        backend = described(self.backend)
        regions = self.recipe.image_regions(backend.choice)
        region: str = backend.region(self.settings) or get(self.recipe_tree, "images.region")
        return region if regions and region not in regions and not self.launch.container else None

    @property
    def is_in_container(self) -> bool:
        """Whether the job's processes run in a container."""
        return described(self.backend).files.in_container(self.settings, self.launch.container)

    @property
    def hides_image(self) -> bool:
        """Whether the recipe has an image on the chosen cluster, which an empty `container` hides."""
        given = [value for _, value in self.composition.sources.layers("container")]
        return not self.launch.container and any((*given, *self.recipe.image_regions(described(self.backend).choice)))

    @property
    def elastic(self) -> ElasticSettings | None:
        """The policy of a job that may change its size; None for a static job, and one that must be (E121)."""
        policy = self.recipe.elastic_policy
        return policy if policy and policy.is_elastic and not self.recipe.fixed_size else None

    @property
    def is_elastic(self) -> bool:
        """Whether the job may change its size."""
        return self.elastic is not None

    @property
    def devices(self) -> int:
        """Processes per node: the recipe's, but no more than the instance has unless an override sets them."""
        wanted = self.recipe.trainer.devices or 1  # None in the placeholder for a faulty one
        if self.instance and self.instance.processes and not any(map(self.is_explicit, PROCESSES)):
            return min(wanted, self.instance.processes)
        return wanted

    @property
    def ranks(self) -> int:
        """Ranks on the nodes of the base recipe."""
        return self.recipe.trainer.num_nodes * self.devices

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


Family = TypeVar("Family", bound=RecipeBase)


def recipe_of(checked: CheckedRecipe, family: type[Family]) -> Family:
    """Return the base recipe, typed by the family whose recipes are `family`; TypeError for one of another family."""
    if not isinstance(checked.recipe, family):
        raise TypeError(f"this is a recipe of {type(checked.recipe).__module__}, not of {family.__module__}")
    return checked.recipe


def typed_scales(
    family: type[RecipeBase],
    trees: tuple[ScaleTree, ...],
    entries: Mapping[str, Any],
    typed_already: Mapping[str, RecipeBase],
) -> tuple[tuple[SizedRecipe, ...], list[Problem]]:
    """Type every size of `scale_config`, and return the faults that its entries themselves made."""
    scales, problems = [], []
    for key, own, tree in trees:
        known = typed_already.get(key)
        path = f"recipes.scale_config.{key}"
        typed, faults = (known, ()) if known else type_recipe(family, tree, path)
        set_here = [f"{path}.{leaf}" for leaf, _ in leaves(own)] if faults else []
        own_faults = [fault for fault in faults if any(related(leaf, fault.path) for leaf in set_here)]
        problems += own_faults
        is_faulty = bool(own_faults) or not isinstance(entries[key], Mapping)
        scales.append(SizedRecipe(size_of(key), path, own, tree, typed, is_faulty))
    return tuple(scales), problems


def sized_recipes(
    family: type[RecipeBase],
    recipe: RecipeBase,
    tree: Mapping[str, Any],
    explicit: Mapping[str, str],
    *,
    faulty: bool,
) -> tuple[tuple[SizedRecipe, ...], list[Problem], Mapping[str, int]]:
    """Type the recipe at every size. A static job has one size.

    Args:
        recipe: The typed base recipe, as `tree` has it.
        explicit: Each leaf that the user's overrides set, to that override.
        faulty: Whether a key that determines the sizes is.
    """
    trees, overridden = scale_trees(tree, explicit)
    policy = recipe.elastic_policy
    scales, problems = typed_scales(family, trees, tree.get("scale_config", {}), {})
    if policy is None or policy.is_elastic is not True:
        return (static_recipe(family, recipe, tree),), problems, {}
    if not trees and policy.replica_increment_step and not faulty:
        return tuple(static_recipe(family, recipe, tree, nodes) for nodes in policy.steps), problems, {}
    return scales, problems, overridden


def static_recipe(
    family: type[RecipeBase], recipe: RecipeBase, tree: Mapping[str, Any], nodes: int | None = None
) -> SizedRecipe:
    """Type the recipe at a size without an entry: by default the one it starts with, 1 if that is faulty."""
    nodes = nodes or (recipe.trainer.num_nodes if isinstance(recipe.trainer.num_nodes, int) else 1)
    own = static_tree(tree, nodes)
    return SizedRecipe(nodes, "recipes", {}, own, type_recipe(family, own)[0])


def type_recipe(
    family: type[RecipeBase], tree: Mapping[str, Any], path: str = "recipes"
) -> tuple[RecipeBase, tuple[Problem, ...]]:
    """Type a recipe without the keys it declares in `extra_keys`: those are passed to the container unchecked.

    Args:
        path: Where the user sets its values, for the Problems: in the base recipe or in the entry of a size.
    """
    for key in declared_keys(tree):
        if not is_field(family, key):
            tree = without(tree, key)
    return type_problems(family, tree, path)
