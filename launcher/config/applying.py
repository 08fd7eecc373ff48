"""The values of overrides, set one by one on the composed files, and why one cannot be."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from launcher.common.problems import Problem, ProblemsFound, first_line
from launcher.config.effects import Effects
from launcher.config.overrides import Override
from launcher.model.config_tree import AUTO, SCALES, is_index, leaves
from launcher.model.recipe import RecipeBase
from launcher.model.validation import field_names

_MOST_PLACES = 3
"""Keys that a Problem suggests."""


def apply(config: DictConfig, values: Sequence[Override]) -> tuple[Effects, bool]:
    """Set every value on `config`.

    Returns:
        The effect of each override, and whether some change single sizes while the sizes are planned.

    Raises:
        ProblemsFound: An override cannot be applied; every such override is reported.
    """
    is_planned = _is_planned(config, values)
    corrections = [o for o in values if is_planned and o.key.startswith(f"{SCALES}.")]
    base = [o for o in values if not (is_planned and o.key.startswith(f"{SCALES}."))]
    effects = Effects()
    problems = _apply(config, base, _set, effects)
    if corrections:
        OmegaConf.update(config, SCALES, {}, merge=False, force_add=True)
        problems += _apply(config, corrections, _correct, effects)
    if problems:
        raise ProblemsFound(tuple(problems))
    return effects, bool(corrections)


def _apply(
    config: DictConfig,
    values: Sequence[Override],
    setter: Callable[[DictConfig, Override], Problem | None],
    effects: Effects,
) -> list[Problem]:
    """Apply overrides in order and record their effects; return their faults."""
    problems = []
    for override in values:
        landing = _landing(config, override)
        if problem := setter(config, override):
            problems.append(problem)
        else:
            effects.note(override, landing)
    return problems


def _landing(config: DictConfig, override: Override) -> list[str]:
    """Return the dotted path of every leaf that an override is about to set, or of the key it removes."""
    key = override.key
    if override.is_delete:
        return [key]
    found = leaves(override.value, key)
    return [path for path, value in found if value != {} or not _keys_at(config, path)]


def _keys_at(config: DictConfig, path: str) -> bool:
    """Return whether a path holds a non-empty mapping, to which an empty one adds nothing."""
    try:
        node = OmegaConf.select(config, path)
    except OmegaConfBaseException:
        return False
    return OmegaConf.is_dict(node) and bool(node.keys())


def _set(config: DictConfig, override: Override) -> Problem | None:
    """Apply one value override to `config`; return its fault, if any."""
    key, where = override.key, override.shown
    if override.package is not None:
        return Problem("E003", key, "a value cannot be given a package with @", where=where)
    try:
        if problem := _unreachable(config, key, where):
            return problem
        if override.is_delete:
            return _remove(config, override)
        if key.partition(".")[0] in config and (place := _misplaced(config, key)):
            return Problem("E101", key, "unknown key", remedy=f"did you mean {place}?", where=where)
        if isinstance(override.value, dict) and OmegaConf.is_list(OmegaConf.select(config, key)):
            given = f'"{key}=[{where.partition("=")[2]}]"' if where == override.text else None
            return Problem("E003", key, "is a list", remedy=given, where=where)
        OmegaConf.update(config, key, override.value, merge=True, force_add=True)
    except (OmegaConfBaseException, ValueError, TypeError, IndexError) as error:
        return Problem("E003", key, first_line(error), where=where)
    return None


def _unreachable(config: DictConfig, key: str, where: str) -> Problem | None:
    """Return why a key cannot be reached: a list on the path lacks the item, or a reference blocks the path."""
    node: Any = config
    names = key.split(".")
    for i, name in enumerate(names):
        word: str | int = name
        if OmegaConf.is_list(node):
            if not (is_index(name) and int(name) < len(node)):
                return _no_item(".".join(names[:i]), len(node), key, where)
            word = int(name)
        elif not OmegaConf.is_dict(node) or word not in node:
            return None
        if OmegaConf.is_interpolation(node, word) and i < len(names) - 1:
            above = ".".join(names[: i + 1])
            message = f"cannot be set: {above} is {node._get_node(word)._value()}"
            return Problem("E003", key, message, remedy="set the key that it refers to", where=where)
        node = node._get_node(word) if not OmegaConf.is_missing(node, word) else None
    return None


def _no_item(path: str, length: int, key: str, where: str) -> Problem:
    items = f"{length} item{'' if length == 1 else 's'}"
    allowed = f"0 to {length - 1}" if length > 1 else "0" if length else None
    remedy = f"give the list: {path}=[…]"
    return Problem("E003", key, f"{path} has {items}", allowed=allowed, remedy=remedy, where=where)


def _remove(config: DictConfig, override: Override) -> Problem | None:
    """Remove a key; return why that cannot be done, if it cannot."""
    key, where = override.key, override.shown
    parent, _, name = key.rpartition(".")
    node = OmegaConf.select(config, parent) if parent else config
    if OmegaConf.is_list(node):
        remedy = f"give the items that stay: {parent}=[…]"
        return Problem("E008", key, "a single item cannot be removed", remedy=remedy, where=where)
    if not OmegaConf.is_dict(node) or name not in node:
        place = _misplaced(config, key)
        near = f"did you mean ~{place}?" if place else None
        return Problem("E008", key, "cannot be removed: no such key exists", remedy=near, where=where)
    if override.value not in (None, "") and OmegaConf.select(config, key) != override.value:
        remedy = f"~{key} removes it, whatever its value"
        return Problem("E008", key, "cannot be removed: it has another value", remedy=remedy, where=where)
    del node[name]
    return None


def _misplaced(config: DictConfig, key: str) -> str | None:
    """Return where a key is that was given without the words before it, None if it is in place or not known."""
    head, _, rest = key.partition(".")
    if head in config and (not rest or OmegaConf.is_dict(config[head])):
        return None
    tree = as_tree(config, resolve=False)
    found = [path for path, _ in leaves(tree) if path.endswith(f".{key}") and not path.startswith(SCALES)]
    if found:
        return " or ".join(found[:_MOST_PLACES])
    return next((f"{part}.{key}" for part in _parts_with(tree, head)), None)


def _parts_with(tree: Mapping[str, Any], head: str) -> list[str]:
    """Return which of recipe and cluster have a key, or where a recipe may have it."""
    of_parts = [name for name in ("recipes", "cluster") if (names := tree.get(name)) and head in names]
    if not of_parts and head in field_names(RecipeBase):
        return ["recipes"]
    return of_parts


def _is_planned(config: DictConfig, values: Sequence[Override]) -> bool:
    """Return whether the sizes are planned: then overrides of single sizes have no mapping to be set in."""
    stated = [None if o.is_delete else o.value for o in values if o.key == SCALES]
    return (stated[-1] if stated else OmegaConf.select(config, SCALES)) == AUTO


def _correct(config: DictConfig, override: Override) -> Problem | None:
    """Apply an override of a single size; one that is removed is null."""
    if override.is_delete and override.key.count(".") == SCALES.count(".") + 1:
        OmegaConf.update(config, override.key, None, force_add=True)
        return None
    return _set(config, override)


def as_tree(config: Any, *, resolve: bool, throw_on_missing: bool = False) -> dict[str, Any]:
    """Return a configuration as plain dictionaries, whose keys are texts."""
    tree = OmegaConf.to_container(config, resolve=resolve, throw_on_missing=throw_on_missing)
    return cast(dict[str, Any], tree)
