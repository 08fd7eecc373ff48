"""The origin of a key's value, at every size: the place that sets it, and every overridden place."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from launcher.common.problems import fail
from launcher.common.suggestions import nearest, question
from launcher.model.checked_recipe import CheckedRecipe
from launcher.model.composition import Composition, Setting
from launcher.model.config_tree import (
    ABSENT,
    AUTO,
    SCALES,
    get,
    is_base,
    leaves,
    lookup,
    prefixes,
    scale_trees,
    size_of,
)
from launcher.planning.check import examine

_ROOT = "recipes."
_FILLED_IN = "training_config"
"""The key of the top level that gets the recipe's name."""
_SIZE = "recipes.trainer.num_nodes"


@dataclass(frozen=True, slots=True)
class Value:
    """The value of a key at one size.

    Args:
        nodes: Number of nodes; None for the base recipe, or a key that no size changes.
        value: Resolved value; ABSENT if the size has no such key.
        origin: The place that sets it; None when nothing in the files or overrides does.
        shadowed: Overridden places, nearest first.
    """

    nodes: int | None
    value: Any
    origin: Setting | None
    shadowed: tuple[Setting, ...]


@dataclass(frozen=True)
class Sizes:
    """A composition, which may be faulty, and the recipe at each of its sizes."""

    composition: Composition

    @cached_property
    def base(self) -> dict[str, Any]:
        """Every leaf of the full configuration."""
        return dict(leaves(self.composition.tree))

    @property
    def is_elastic(self) -> bool:
        """Whether the job may change its size."""
        return get(self.composition.tree, "recipes.elastic_policy.is_elastic") is True

    @cached_property
    def trees(self) -> dict[int, Mapping[str, Any]]:
        """Number of nodes to the recipe at that size, even if the recipe is not elastic."""
        recipe = self.composition.tree["recipes"]
        if self._checked is not None:
            return {scale.nodes: scale.tree for scale in self._checked.scales if scale.nodes}
        entries, _ = scale_trees(recipe, self.composition.decided)
        return {size_of(entry.key): entry.tree for entry in entries if size_of(entry.key)}

    @cached_property
    def scales(self) -> dict[int, dict[str, Any]]:
        """Number of nodes to every leaf of the recipe at that size, paths from `recipes`."""
        return {nodes: dict(leaves(tree, "recipes")) for nodes, tree in self.trees.items()}

    @cached_property
    def planned(self) -> dict[int, dict[str, Any]]:
        """The values that the planner sets, by number of nodes; paths start at `recipes`. Empty without it."""
        plan = self._checked and self._checked.size_plan
        return {int(key): dict(leaves(own, "recipes")) for key, own in plan.entries.items()} if plan else {}

    @property
    def bound(self) -> str | None:
        """The path whose value bounds planned sizes; None without a plan."""
        keys = self._checked.recipe.keys.batch if self._checked else None
        return keys.bound if keys else None

    @cached_property
    def _checked(self) -> CheckedRecipe | None:
        """The typed recipe if its sizes are planned; incomplete if it is faulty."""
        is_auto = self.composition.tree["recipes"].get("scale_config") == AUTO
        return examine(self.composition)[0] if is_auto else None

    def at(self, nodes: int) -> Mapping[str, Any]:
        """Return the recipe at a size.

        Raises:
            ProblemsFound: It has no such size.
        """
        if nodes in self.trees:
            return self.trees[nodes]
        known = ", ".join(map(str, sorted(self.trees)))
        message = f"the recipe has no size of {nodes} nodes" if known else "the recipe has one size; name it alone"
        raise fail("E803", f"@{nodes}", message, allowed=known or None)

    @property
    def paths(self) -> list[str]:
        """Every leaf that the configuration has at any size."""
        return list(dict.fromkeys([*self.base, *(path for tree in self.scales.values() for path in tree)]))


def find(sizes: Sizes, key: str) -> list[str]:
    """Return the leaves that `key` names: a path, the end of one (`learning_rate`), or a mapping above some.

    Raises:
        ProblemsFound: No such key exists; similar ones are suggested.
    """
    if not key:
        raise fail("E101", "explain", "names no key")
    known = sizes.paths
    for path in (key, f"{_ROOT}{key}"):
        if (leaves := _leaves_at(sizes, known, path)) is not None:
            return leaves
    if found := [leaf for leaf in known if f".{key}." in f"{leaf}." and not leaf.startswith(f"{SCALES}.")]:
        return found
    raise fail("E101", key, "no such key in this recipe", remedy=_suggestion(key, known))


def _leaves_at(sizes: Sizes, known: Sequence[str], path: str) -> list[str] | None:
    """Return the leaves at or below a path, or the one that contains it; None where nothing is there."""
    if path in known:
        return [path]
    if inside := [leaf for leaf in known if leaf.startswith(f"{path}.")]:
        return inside
    if lookup(sizes.composition.tree, path) is ABSENT:
        return None
    return [leaf for leaf in prefixes(path) if leaf in known]  # in a list, which is one leaf


def _suggestion(key: str, known: Sequence[str]) -> str | None:
    """Return the keys nearest to a wrong one, first by its last word, then by its full path."""
    word = key.rpartition(".")[2]
    words = {path.rpartition(".")[2]: path for path in reversed(known) if ".scale_config." not in path}
    near = [words[name] for name in nearest(word, list(words), cutoff=0.7)]
    near = near or nearest(f"{_ROOT}{key}", known, cutoff=0.7)
    return question([path.removeprefix(_ROOT) for path in near])


def explain(sizes: Sizes, path: str) -> tuple[Value, ...]:
    """Return the value of a leaf in the base recipe, then at each size, with all places that set it.

    A key that sizes cannot change (`cluster.…`, `elastic_policy`) has one value.
    """
    settings = sizes.composition.sources.settings(path)
    if path == _FILLED_IN and sizes.base[path] == sizes.composition.recipe:
        settings = (*settings, Setting(path, sizes.base[path], "the chosen recipe"))
    base = _value(None, sizes.base, path, settings)
    if not path.startswith(_ROOT) or path.startswith(SCALES):
        return (base,)
    return (base, *(_value(n, tree, path, _at(sizes, path, n)) for n, tree in sizes.scales.items()))


def _at(sizes: Sizes, path: str, nodes: int) -> tuple[Setting, ...]:
    """Return all places that set a leaf of the recipe at a size, lowest precedence first."""
    composition = sizes.composition
    at_base = composition.sources.settings(path)
    own = composition.sources.settings(f"{SCALES}.{nodes}.{path.removeprefix(_ROOT)}")
    own = tuple(setting for setting in own if setting.path != SCALES)  # the word auto, which replaces a table
    if path == _SIZE:
        return (*at_base, *(own or [Setting(path, nodes, "the size itself")]))
    files, typed = _parted(at_base)
    own_files, own_typed = _parted(own)
    planned = sizes.planned.get(nodes, {})
    plan = [Setting(path, planned[path], f"planned ({SCALES}: {AUTO})")] if path in planned else []
    if not is_base(path):
        return (*files, *typed, *own_files, *own_typed)
    if plan and path == sizes.bound:
        return (*files, *own_files, *typed, *plan, *own_typed)
    return (*files, *own_files, *plan, *typed, *own_typed)


def _parted(settings: Sequence[Setting]) -> tuple[list[Setting], list[Setting]]:
    return [s for s in settings if not s.is_override], [s for s in settings if s.is_override]


def _value(nodes: int | None, tree: Mapping[str, Any], path: str, chain: tuple[Setting, ...]) -> Value:
    return Value(nodes, tree.get(path, ABSENT), chain[-1] if chain else None, chain[-2::-1])


def as_json(path: str, values: Sequence[Value]) -> dict[str, Any]:
    """Return an explanation as plain data."""
    return {
        "key": path,
        "values": [
            {"nodes": v.nodes}
            | ({} if v.value is ABSENT else {"value": v.value})
            | {
                "set_by": v.origin and v.origin.origin,
                "shadowed": [{"value": s.value, "set_by": s.origin} for s in v.shadowed],
            }
            for v in values
        ],
    }


def differing(values: Sequence[Value]) -> Iterator[Value]:
    """Yield the sizes whose value is not the base recipe's."""
    for value in values[1:]:
        if value.value is ABSENT or values[0].value is ABSENT or value.value != values[0].value:
            yield value
