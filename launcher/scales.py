"""The recipe at each cluster size: the base recipe, its `scale_config`, and what the user set explicitly.

Precedence, lowest first: base recipe, `scale_config[N]`, the user's override of the base key (at every size,
and it says so), the user's override of that size's key.
"""

import copy
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from launcher.problems import Notice

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
    tree: dict[str, Any]


def size_of(key: str) -> int:
    """Return the number of nodes a key of `scale_config` names, 0 when it names none."""
    return int(key) if re.fullmatch("[1-9][0-9]*", key) else 0


def static_tree(recipe: Mapping[str, Any], num_nodes: int) -> dict[str, Any]:
    """Return the recipe at a size that has no `scale_config` entry."""
    tree = {key: copy.deepcopy(value) for key, value in recipe.items() if key != "scale_config"}
    put(tree, _SIZE, num_nodes)
    return tree


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
    base_overrides = [p.removeprefix("recipes.") for p in explicit if _is_base(p)]
    scales, shadowed = [], dict.fromkeys(base_overrides, 0)
    for key in sorted(entries, key=size_of):
        own = copy.deepcopy(dict(entries[key])) if isinstance(entries[key], Mapping) else {}
        tree = static_tree(recipe, size_of(key))
        merge(tree, own)
        for path in base_overrides:
            if f"recipes.scale_config.{key}.{path}" in explicit:
                continue
            value, before = get(recipe, path), get(own, path)
            if before is not None and before != value:
                shadowed[path] += 1
            put(tree, path, copy.deepcopy(value))
            drop(own, path)
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


def _is_base(path: str) -> bool:
    """Tell an override of the base recipe, whose value holds at every size.

    `trainer.num_nodes` is the size a job starts with, and bounds and steps belong to the job as a whole.
    """
    return path.startswith("recipes.") and not path.startswith(
        ("recipes.scale_config", f"recipes.{_SIZE}", "recipes.elastic_policy")
    )


def merge(into: dict[str, Any], other: Mapping[str, Any]) -> None:
    """Merge `other` over `into`, mapping by mapping; anything else replaces."""
    for key, value in other.items():
        if isinstance(value, Mapping) and isinstance(into.get(key), dict):
            merge(into[key], value)
        else:
            into[key] = copy.deepcopy(value)


def get(tree: Any, path: str) -> Any:
    """Return the value at a dotted path, or None."""
    for key in path.split("."):
        tree = tree.get(key) if isinstance(tree, Mapping) else None
    return tree


def put(tree: dict[str, Any], path: str, value: Any) -> None:
    """Set the value at a dotted path, making the mappings on the way."""
    *parents, last = path.split(".")
    for key in parents:
        if not isinstance(tree.get(key), dict):
            tree[key] = {}
        tree = tree[key]
    tree[last] = value


def drop(tree: dict[str, Any], path: str) -> None:
    """Remove the value at a dotted path, if there is one."""
    parent, _, last = path.rpartition(".")
    holder = get(tree, parent) if parent else tree
    if isinstance(holder, dict):
        holder.pop(last, None)


def leaves(tree: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield dotted path and value of every leaf; a list or an empty mapping is a leaf."""
    if isinstance(tree, Mapping) and tree:
        for key, value in tree.items():
            yield from leaves(value, f"{prefix}.{key}" if prefix else str(key))
    else:
        yield prefix, tree
