"""The recipe at each cluster size, typed: the base recipe, its `scale_config`, and what the user set explicitly.

Precedence, lowest first: base recipe, `scale_config[N]`, the user's override of the base key (at every size,
with a notice), the user's override of that size's key.
"""

import dataclasses
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from launcher.common.problems import Problem
from launcher.model.checked_recipe import SizedRecipe
from launcher.model.config_tree import (
    ABSENT,
    AUTO,
    SCALES,
    SIZE,
    get,
    is_base,
    leaves,
    lookup,
    merged,
    prefixes,
    reachable,
    related,
    replaced,
    size_of,
    without,
)
from launcher.model.recipe import ElasticSettings, RecipeBase
from launcher.model.validation import is_field, type_problems

MOST_SIZES = 5000
"""Sizes of one job. Each is a configuration that is validated, checked and written."""


@dataclass(frozen=True, slots=True)
class ScaleTree:
    """One entry of `scale_config`, merged over the recipe.

    Args:
        key: As written.
        own: Values that the entry sets and that no override of the base key replaces.
        tree: The recipe at this size, without `scale_config`.
    """

    key: str
    own: Mapping[str, Any]
    tree: Mapping[str, Any]


def steps(policy: ElasticSettings) -> range:
    """Return the numbers of nodes that a typed elastic policy allows, `replica_increment_step` apart."""
    return range(policy.min_nodes, policy.max_nodes + 1, policy.replica_increment_step or 1)


def too_many_sizes(policy: ElasticSettings | None, scale_config: Any) -> Problem | None:
    """Return a Problem if an elastic policy leads to more sizes than a job may have; it creates none of them.

    Args:
        policy: Typed and without fault; None for a job that is never elastic.
        scale_config: A table, which lists its own sizes, or `auto`, or None.
    """
    if not policy or not policy.is_elastic or (scale_config and scale_config != AUTO):
        return None
    if (count := len(steps(policy))) <= MOST_SIZES:
        return None
    step = -(-(policy.max_nodes - policy.min_nodes) // MOST_SIZES)
    return Problem(
        "E218",
        "recipes.elastic_policy.max_nodes",
        f"{policy.min_nodes} to {policy.max_nodes} nodes are {count} sizes, each with its own configuration",
        value=policy.max_nodes,
        allowed=f"at most {MOST_SIZES} sizes",
        remedy=f"recipes.elastic_policy.replica_increment_step={step} or more, or a smaller max_nodes",
    )


def static_tree(recipe: Mapping[str, Any], num_nodes: int) -> Mapping[str, Any]:
    """Return the recipe at a size that has no `scale_config` entry. Equal parts are shared with `recipe`."""
    return replaced({key: value for key, value in recipe.items() if key != "scale_config"}, SIZE, num_nodes)


def scale_trees(
    recipe: Mapping[str, Any], explicit: Mapping[str, str]
) -> tuple[tuple[ScaleTree, ...], Mapping[str, int]]:
    """Merge every entry of `scale_config` over the recipe.

    Args:
        recipe: Resolved recipe tree.
        explicit: Dotted path (from `recipes.`) of every leaf the user's overrides set or remove.

    Returns:
        The merged trees in ascending size, and for each base override of sizes, their number.
    """
    entries = recipe.get("scale_config")
    if not isinstance(entries, Mapping):
        return (), {}
    base_overrides = [path.removeprefix("recipes.") for path in explicit if is_base(path)]
    scales, shadowed = [], dict.fromkeys(base_overrides, 0)
    for key in sorted(entries, key=size_of):
        own = entries[key] if isinstance(entries[key], Mapping) else {}
        tree = merged(static_tree(recipe, size_of(key)), own)
        of_size = f"{SCALES}.{key}."
        typed = {path.removeprefix(of_size): None for path in explicit if path.startswith(of_size)}.keys()
        for override in base_overrides:
            if typed.isdisjoint(prefixes(override)):
                path = reachable(tree, override)
                shadowed[override] += lookup(own, path) not in (ABSENT, lookup(recipe, path))
                tree, own = _as_in(recipe, tree, path), _cleared(own, path)
        scales.append(ScaleTree(key, own, _with_typed(tree, entries[key], typed)))
    return tuple(scales), {path: count for path, count in shadowed.items() if count}


def _as_in(recipe: Mapping[str, Any], tree: Mapping[str, Any], path: str) -> Mapping[str, Any]:
    """Return a size's tree with the value that the recipe has at a path."""
    value = lookup(recipe, path)
    return without(tree, path) if value is ABSENT else replaced(tree, path, value)


def _with_typed(tree: Mapping[str, Any], entry: Any, typed: Iterable[str]) -> Mapping[str, Any]:
    """Return a size's tree with the values that the user's overrides of this size set, over those of the base."""
    for path in typed:
        value = lookup(entry, path)
        if value is not ABSENT and not isinstance(value, Mapping):
            tree = replaced(tree, path, value)
    return tree


def _cleared(tree: Mapping[str, Any], path: str) -> Mapping[str, Any]:
    """Return `tree` without the value at a dotted path, nor the mappings that hold nothing else."""
    parent = path.rpartition(".")[0]
    left = without(tree, path)
    return _cleared(left, parent) if parent and get(left, parent) == {} != get(tree, parent) else left


def typed_scales(
    family: type[RecipeBase],
    trees: tuple[ScaleTree, ...],
    entries: Mapping[str, Any],
    typed_already: Mapping[str, RecipeBase],
) -> tuple[tuple[SizedRecipe, ...], list[Problem]]:
    scales, problems = [], []
    for entry in trees:
        known = typed_already.get(entry.key)
        typed, faults = (known, ()) if known else type_recipe(family, entry.tree)
        own_faults = _faults_of_scale(entry, faults)
        problems += own_faults
        path = f"recipes.scale_config.{entry.key}"
        is_faulty = bool(own_faults) or not isinstance(entries[entry.key], Mapping)
        scales.append(SizedRecipe(size_of(entry.key), path, entry.own, entry.tree, typed, is_faulty=is_faulty))
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
        family: The recipe's model.
        recipe: The typed base recipe.
        tree: The same, as composed.
        explicit: Each leaf that the user's overrides set, to that override.
        faulty: Whether a key that determines the sizes is faulty.
    """
    trees, overridden = scale_trees(tree, explicit)
    policy = recipe.elastic_policy
    scales, problems = typed_scales(family, trees, get(tree, "scale_config"), {})
    if policy is None or policy.is_elastic is not True:
        return (static_recipe(family, recipe, tree),), problems, {}
    if not trees and policy.replica_increment_step and not faulty:
        return tuple(static_recipe(family, recipe, tree, nodes) for nodes in steps(policy)), problems, {}
    return scales, problems, overridden


def _faults_of_scale(entry: ScaleTree, faults: tuple[Problem, ...]) -> list[Problem]:
    """Return the faults that the entry itself made, under the entry's own path."""
    own = [path for path, _ in leaves(entry.own)] if faults else []
    return [
        dataclasses.replace(fault, path=f"recipes.scale_config.{entry.key}.{fault.path.removeprefix('recipes.')}")
        for fault in faults
        if any(related(leaf, fault.path.removeprefix("recipes.")) for leaf in own)
    ]


def static_recipe(
    family: type[RecipeBase], recipe: RecipeBase, tree: Mapping[str, Any], nodes: int | None = None
) -> SizedRecipe:
    nodes = nodes or (recipe.trainer.num_nodes if isinstance(recipe.trainer.num_nodes, int) else 1)
    own = static_tree(tree, nodes)
    return SizedRecipe(nodes, "recipes", {}, own, type_recipe(family, own)[0])


def type_recipe(family: type[RecipeBase], tree: Mapping[str, Any]) -> tuple[RecipeBase, tuple[Problem, ...]]:
    """Type a recipe without the keys it declares in `extra_keys`: those are passed to the container unchecked."""
    extra = tree.get("extra_keys")
    if isinstance(extra, list):
        for path in (str(path) for path in extra if not is_field(family, str(path))):
            tree = without(tree, path)
    return type_problems(family, tree, "recipes")
