"""The recipe at each cluster size: the base recipe, its `scale_config`, and what the user set explicitly.

Precedence, lowest first: base recipe, `scale_config[N]`, the user's override of the base key (at every size,
and it says so), the user's override of that size's key.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from launcher.problems import Notice, Problem

AUTO = "auto"
"""What `scale_config` says where its sizes are planned."""
MOST_SIZES = 5000
"""Sizes of one job. Each is a configuration that is typed, checked and written."""
_SIZE = "trainer.num_nodes"


@dataclass(frozen=True, slots=True)
class ScaleTree:
    """One entry of `scale_config`, merged over the recipe.

    Args:
        key: As written.
        own: What the entry itself sets and no override of the base key replaces.
        tree: The recipe at this size, without `scale_config`.
    """

    key: str
    own: Mapping[str, Any]
    tree: Mapping[str, Any]


def size_of(key: str) -> int:
    """Return the number of nodes a key of `scale_config` names, 0 when it names none."""
    return int(key) if re.fullmatch("[1-9][0-9]{0,5}", key) else 0


def steps(policy: Any) -> range:
    """Return the numbers of nodes that a typed elastic policy allows, `replica_increment_step` apart."""
    return range(policy.min_nodes, policy.max_nodes + 1, policy.replica_increment_step or 1)


def too_many_sizes(policy: Any, scale_config: Any) -> Problem | None:
    """Return what is wrong if an elastic policy leads to more sizes than a job may have; it makes none of them.

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
        f"{policy.min_nodes} to {policy.max_nodes} nodes are {count} sizes, each with a configuration of its own",
        value=policy.max_nodes,
        allowed=f"at most {MOST_SIZES} sizes",
        remedy=f"recipes.elastic_policy.replica_increment_step={step} or more, or a smaller max_nodes",
    )


def static_tree(recipe: Mapping[str, Any], num_nodes: int) -> Mapping[str, Any]:
    """Return the recipe at a size that has no `scale_config` entry. It shares with `recipe` what is the same."""
    return replaced({key: value for key, value in recipe.items() if key != "scale_config"}, _SIZE, num_nodes)


def scale_trees(
    recipe: Mapping[str, Any], explicit: Mapping[str, str]
) -> tuple[tuple[ScaleTree, ...], tuple[Notice, ...]]:
    """Merge every entry of `scale_config` over the recipe.

    Args:
        recipe: Resolved recipe tree.
        explicit: Dotted path (from `recipes.`) of every leaf the user's overrides set.

    Returns:
        The merged trees in ascending size, and a notice for each base override that wins over a size.
    """
    entries = recipe.get("scale_config")
    if not isinstance(entries, Mapping):
        return (), ()
    base_overrides = [p.removeprefix("recipes.") for p in explicit if is_base(p)]
    scales, shadowed = [], dict.fromkeys(base_overrides, 0)
    for key in sorted(entries, key=size_of):
        own = entries[key] if isinstance(entries[key], Mapping) else {}
        tree = merged(static_tree(recipe, size_of(key)), own)
        for path in base_overrides:
            if f"recipes.scale_config.{key}.{path}" in explicit:
                continue
            value, before = get(recipe, path), get(own, path)
            if before is not None and before != value:
                shadowed[path] += 1
            tree = replaced(tree, path, value)
            own = _cleared(own, path)
        scales.append(ScaleTree(key, own, tree))
    return tuple(scales), tuple(
        Notice(
            "N104",
            f"{path.rpartition('.')[2]}={get(recipe, path)} from the command line wins over scale_config"
            f" at {count} size{'s' if count > 1 else ''}",
        )
        for path, count in shadowed.items()
        if count
    )


def is_base(path: str) -> bool:
    """Tell an override of the base recipe, whose value holds at every size.

    `trainer.num_nodes` is the size a job starts with, and bounds and steps belong to the job as a whole.
    """
    return path.startswith("recipes.") and not path.startswith(
        ("recipes.scale_config", f"recipes.{_SIZE}", "recipes.elastic_policy")
    )


def merged(tree: Mapping[str, Any], other: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return `tree` with `other` over it, mapping by mapping; anything else replaces. Both are left as they are."""
    return {
        **tree,
        **{
            key: merged(tree[key], value)
            if isinstance(value, Mapping) and isinstance(tree.get(key), Mapping)
            else value
            for key, value in other.items()
        },
    }


def replaced(tree: Mapping[str, Any], path: str, value: Any) -> Mapping[str, Any]:
    """Return `tree` with another value at a dotted path; the mappings on the way are new, the rest is shared."""
    key, _, rest = path.partition(".")
    if rest:
        inner = tree.get(key)
        value = replaced(inner if isinstance(inner, Mapping) else {}, rest, value)
    return {**tree, key: value}


def get(tree: Any, path: str) -> Any:
    """Return the value at a dotted path, or None."""
    for key in path.split("."):
        tree = tree.get(key) if isinstance(tree, Mapping) else None
    return tree


def without(tree: Mapping[str, Any], path: str) -> Mapping[str, Any]:
    """Return `tree` without the value at a dotted path; itself, if there is none."""
    key, _, rest = path.partition(".")
    inner = tree.get(key)
    if not rest:
        return {name: value for name, value in tree.items() if name != key}
    return {**tree, key: without(inner, rest)} if isinstance(inner, Mapping) else tree


def _cleared(tree: Mapping[str, Any], path: str) -> Mapping[str, Any]:
    """Return `tree` without the value at a dotted path, nor the mappings that hold nothing else."""
    parent = path.rpartition(".")[0]
    left = without(tree, path)
    return _cleared(left, parent) if parent and get(left, parent) == {} != get(tree, parent) else left


def leaves(tree: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield dotted path and value of every leaf; a list or an empty mapping is a leaf."""
    if isinstance(tree, Mapping) and tree:
        for key, value in tree.items():
            yield from leaves(value, f"{prefix}.{key}" if prefix else str(key))
    else:
        yield prefix, tree
