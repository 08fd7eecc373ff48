"""Values that a user adds to sections that a family's program reads as they are.

The launcher has no types for most of their keys. It knows those that the collection's files set, and of what type.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from launcher.common.problems import Problem
from launcher.model.composition import Composition
from launcher.model.config_tree import ABSENT, lookup, prefixes, related
from launcher.model.recipe import RecipeBase
from launcher.model.validation import is_field, listed

_KINDS = {bool: "true or false", int: "a whole number", float: "a number", str: "a text", list: "a list"}


def written(composition: Composition) -> Iterator[tuple[str, Any, list[Any]]]:
    """Yield path, value and published values of each key that a user sets and `extra_keys` does not declare."""
    own = composition.sources.own_layers
    paths = {*composition.explicit, *(path for layer in own for path in composition.sources.leaves(layer))}
    declared = lookup(composition.tree, "recipes.extra_keys")
    free = [f"recipes.{path}" for path in declared] if isinstance(declared, list) else []
    for path in sorted(paths):
        value = lookup(composition.tree, path)
        if value is not ABSENT and not any(related(each, path) for each in free):
            yield path, value, [given for layer, given in composition.sources.layers(path) if layer not in own]


def passed_problems(family: type[RecipeBase], composition: Composition) -> Iterator[Problem]:
    """Yield a Problem for each key that no published file has, and for each value of another type than there.

    A key inside a published empty mapping is free, as is one that `extra_keys` declares, and any may be null.
    """
    faulty: dict[str, list[str]] = {}
    for path, value, published in written(composition) if family.keys.passed else ():
        key = path.removeprefix("recipes.")
        if not any(related(section, key) for section in family.keys.passed):
            continue
        beside = [*lookup(composition.tree, path.rpartition(".")[0])]
        if is_field(family, key):
            continue
        if published:
            if (kind := _kind(published[-1])) and not _is_of(value, kind):
                remedy = f"\"{path}='{value}'\"" if kind is str and isinstance(value, int | float) else None
                yield Problem("E102", path, f"should be {_KINDS[kind]}", value=value, remedy=remedy)
        elif not any(given == {} for above in prefixes(path) for _, given in composition.sources.layers(above)):
            faulty[path] = beside
    for path, beside in faulty.items():
        section = path.rpartition(".")[0]
        known = [key for key in beside if not any(related(f"{section}.{key}", each) for each in faulty)]
        yield Problem("E101", path, "unknown key", allowed=listed(known))


def _kind(published: Any) -> type | None:
    """Return the type of a published value; None if it says nothing: null, a mapping, a reference."""
    if isinstance(published, str) and "${" in published:
        return None
    return next((kind for kind in _KINDS if type(published) is kind), None)


def _is_of(value: Any, kind: type) -> bool:
    if value is None or isinstance(value, Mapping):
        return value is None
    return type(value) is kind or (kind is float and type(value) is int)
