"""Trees of values by dotted path, and of the recipe at each cluster size: base recipe, `scale_config`, overrides.

Precedence, lowest first: base recipe, `scale_config[N]`, the user's override of the base key (at every size,
with a notice), the user's override of that size's key.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

AUTO = "auto"
"""Value of `scale_config` for planned sizes."""
SCALES = "recipes.scale_config"
"""Key of single sizes."""
ABSENT = object()
"""Represents the value of a key that does not exist."""
_SIZE = "trainer.num_nodes"
_MAPPING = (dict, Mapping)
"""Types of a mapping: most are a dict, which is found so in a quarter of the time of the abstract class."""


def size_of(key: str) -> int:
    """Return the number of nodes a key of `scale_config` names, 0 when it names none."""
    return int(key) if re.fullmatch("[1-9][0-9]{0,5}", key) else 0


def reachable(tree: Any, path: str) -> str:
    """Return `path` up to the first value on it that is not a mapping; a list counts as one value."""
    node, rest = tree, path
    while rest and isinstance(node, _MAPPING):
        key, rest = _first_key(node, rest)
        node = child(node, key)
    return path if node is ABSENT or not rest else path.removesuffix(f".{rest}")


def is_base(path: str) -> bool:
    """Return whether a path belongs to the base recipe, whose value applies at every size.

    `trainer.num_nodes` is the size a job starts with, and bounds and steps belong to the job, not to a size.
    """
    return path.startswith("recipes.") and not path.startswith((SCALES, f"recipes.{_SIZE}", "recipes.elastic_policy"))


def merged(tree: Any, other: Mapping[str, Any]) -> Any:
    """Return `tree` with `other` over it, key by key; both are unchanged.

    A mapping of items (`{0: {type: Foo}}`) over a list that has them changes these; anything else replaces.
    """
    new = {
        key: merged(old, value) if isinstance(value, _MAPPING) and _takes(old := child(tree, key), value) else value
        for key, value in other.items()
    }
    if isinstance(tree, list):
        return [new.get(str(i), value) for i, value in enumerate(tree)]
    return {**tree, **new}


def _takes(value: Any, other: Mapping[str, Any]) -> bool:
    """Return whether a mapping can be merged over a value."""
    if isinstance(value, list):
        return bool(other) and all(child(value, key) is not ABSENT for key in other)
    return isinstance(value, _MAPPING)


def child(node: Any, key: str) -> Any:
    """Return a mapping's value of a key, or a list's item at an index; ABSENT if there is none."""
    if isinstance(node, _MAPPING):
        return node.get(key, ABSENT)
    return node[int(key)] if isinstance(node, list) and is_index(key) and int(key) < len(node) else ABSENT


def is_index(word: str) -> bool:
    """Return whether a word of a path may be the index of a list's item, as an override spells it."""
    return re.fullmatch("0|[1-9][0-9]{0,8}", word) is not None


def _first_key(node: Any, path: str) -> tuple[str, str]:
    """Return the first key of a dotted path from `node`, and the rest. A key of a mapping may hold dots."""
    head, _, rest = path.partition(".")
    if rest and isinstance(node, _MAPPING) and head not in node:
        for key in node:
            if f"{path}.".startswith(f"{key}."):
                return key, path[len(str(key)) + 1 :]
    return head, rest


def lookup(tree: Any, path: str) -> Any:
    """Return the value at a dotted path, whose words are keys of mappings and indices of lists; ABSENT if none."""
    while path and tree is not ABSENT:
        key, path = _first_key(tree, path)
        tree = child(tree, key)
    return tree


def prefixes(path: str) -> Iterator[str]:
    """Yield a dotted path and every one above it."""
    while path:
        yield path
        path = path.rpartition(".")[0]


def get(tree: Any, path: str) -> Any:
    """Return the value at a dotted path, or None."""
    value = lookup(tree, path)
    return None if value is ABSENT else value


def replaced(tree: Mapping[str, Any], path: str, value: Any) -> Mapping[str, Any]:
    """Return `tree` with another value at a dotted path; nodes along the path are copied, the rest is shared.

    A value on the path without the key or item is replaced by a mapping.
    """
    found: Mapping[str, Any] = _replaced(tree, path, value)
    return found


def _replaced(tree: Any, path: str, value: Any) -> Any:
    key, rest = _first_key(tree, path)
    if rest:
        value = _replaced(child(tree, key), rest, value)
    if isinstance(tree, _MAPPING):
        return {**tree, key: value}
    if child(tree, key) is ABSENT:
        return {key: value}
    return [value if str(i) == key else item for i, item in enumerate(tree)]


def without(tree: Mapping[str, Any], path: str) -> Mapping[str, Any]:
    """Return `tree` without the value at a dotted path; itself, if there is none."""
    found: Mapping[str, Any] = _without(tree, path)
    return found


def _without(tree: Any, path: str) -> Any:
    key, rest = _first_key(tree, path)
    if (inner := child(tree, key)) is ABSENT:
        return tree
    if rest:
        return _replaced(tree, key, _without(inner, rest)) if isinstance(inner, Mapping | list) else tree
    if isinstance(tree, list):
        return [item for i, item in enumerate(tree) if str(i) != key]
    return {name: value for name, value in tree.items() if name != key}


def leaves(tree: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield dotted path and value of every leaf; a list or an empty mapping is a leaf."""
    if isinstance(tree, _MAPPING) and tree:
        for key, value in tree.items():
            yield from leaves(value, f"{prefix}.{key}" if prefix else str(key))
    else:
        yield prefix, tree


def targets(text: str, path: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    """Yield the path of each value that the text at `path` refers to."""
    for dots, name in re.findall(r"\$\{\s*(\.*)([\w\-.\[\]]*)\s*\}", text):
        start = path[: max(0, len(path) - len(dots))] if dots else ()
        yield (*start, *filter(None, re.split(r"[.\[\]]+", name)))


def related(a: str, b: str) -> bool:
    """Return whether two dotted paths are the same or one contains the other."""
    return a == b or a.startswith(b + ".") or b.startswith(a + ".")


class ScaleTree(NamedTuple):
    """One entry of `scale_config`, merged over the recipe."""

    key: str
    own: Mapping[str, Any]
    """Values that the entry sets and that no override of the base key replaces."""
    tree: Mapping[str, Any]
    """The recipe at this size, without `scale_config`."""


def static_tree(recipe: Mapping[str, Any], num_nodes: int) -> Mapping[str, Any]:
    """Return the recipe at a size that has no `scale_config` entry. Equal parts are shared with `recipe`."""
    return replaced({key: value for key, value in recipe.items() if key != "scale_config"}, _SIZE, num_nodes)


def scale_trees(
    recipe: Mapping[str, Any], explicit: Mapping[str, str]
) -> tuple[tuple[ScaleTree, ...], Mapping[str, int]]:
    """Merge every entry of `scale_config` over the recipe.

    Args:
        recipe: Resolved recipe tree.
        explicit: Dotted path (from `recipes.`) of every leaf the user's overrides set or remove.

    Returns:
        The merged trees in ascending size; and for each base override that overrides sizes, their number.
    """
    entries = recipe.get("scale_config")
    if not isinstance(entries, Mapping):
        return (), {}
    base_overrides = [path.removeprefix("recipes.") for path in explicit if is_base(path)]
    of_sizes = [path for path in explicit if path.startswith(f"{SCALES}.")]
    scales, shadowed = [], dict.fromkeys(base_overrides, 0)
    for key in sorted(entries, key=size_of):
        own = entries[key] if isinstance(entries[key], Mapping) else {}
        tree = merged(static_tree(recipe, size_of(key)), own)
        of_size = f"{SCALES}.{key}."
        typed = {path.removeprefix(of_size): None for path in of_sizes if path.startswith(of_size)}.keys()
        for override in base_overrides:
            if typed.isdisjoint(prefixes(override)):
                path = reachable(tree, override)
                base = lookup(recipe, path)
                shadowed[override] += lookup(own, path) not in (ABSENT, base)
                tree = without(tree, path) if base is ABSENT else replaced(tree, path, base)
                own = _cleared(own, path)
        scales.append(ScaleTree(key, own, _with_typed(tree, entries[key], typed)))
    return tuple(scales), {path: count for path, count in shadowed.items() if count}


def _with_typed(tree: Mapping[str, Any], entry: Any, typed: Iterable[str]) -> Mapping[str, Any]:
    """Return a size's tree with the values that the user's overrides of this size set, over those of the base."""
    for path in typed:
        value = lookup(entry, path)
        if value is not ABSENT and not isinstance(value, _MAPPING):
            tree = replaced(tree, path, value)
    return tree


def _cleared(tree: Mapping[str, Any], path: str) -> Mapping[str, Any]:
    """Return `tree` without the value at a dotted path, nor the mappings that hold nothing else."""
    parent = path.rpartition(".")[0]
    left = without(tree, path)
    return _cleared(left, parent) if parent and get(left, parent) == {} != get(tree, parent) else left
