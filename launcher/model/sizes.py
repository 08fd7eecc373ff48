"""The recipe typed at each cluster size; its trees are of `config_tree`."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from launcher.common.problems import Problem
from launcher.model.checked_recipe import SizedRecipe
from launcher.model.config_tree import ScaleTree, leaves, related, scale_trees, size_of, static_tree, steps, without
from launcher.model.recipe import RecipeBase
from launcher.model.validation import is_field, type_problems


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
    scales, problems = typed_scales(family, trees, tree.get("scale_config", {}), {})
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
