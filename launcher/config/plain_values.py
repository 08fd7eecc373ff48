"""The values of a composition on plain trees: layers merged, overrides set, references resolved.

That is what OmegaConf makes of them, without loading it, in a tenth of the time. Most launches set scalars, lists and
mappings of them, and refer to scalars by their paths. What a plain tree could get wrong, and every fault, is refused
with `NotPlain`: then Hydra merges, and `resolving` sets and resolves.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from launcher.common import yaml_io
from launcher.config import interpolation
from launcher.config.files import MISSING, POLICY, POLICY_KEY, Files
from launcher.config.overrides import INTEGER, Override
from launcher.model.composition import RUN_NAME, UnusedOverride
from launcher.model.config_tree import AUTO, SCALES, get, leaves, lookup, merged, prefixes

REFERENCE = re.compile(r"\$\{(\.*)([A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*)\}", re.A)
_CALL = re.compile(r"\$\{(\w+):((?:[^${}:]|\$\{[\w.]+\})*)\}", re.A)
_SCALARS = (str, int, float, bool, type(None))
_MOST_STEPS = 8
"""References that are followed one after the other; more may be a circle."""


@dataclass(frozen=True, slots=True)
class Effects:
    """Which override set and removed each key last, gathered while they are applied in order.

    Args:
        set_by: Dotted path of every leaf that an override sets, to that override.
        removed_by: Dotted path of every key that an override removes, to that override.
    """

    set_by: dict[str, Override] = field(default_factory=dict)
    removed_by: dict[str, Override] = field(default_factory=dict)

    def note(self, override: Override, landing: Sequence[str]) -> None:
        """Record an override that was applied, and drop earlier ones that it replaces completely.

        Args:
            override: The override.
            landing: Dotted path of every leaf it sets, or of the key it removes.
        """
        new = dict.fromkeys(landing, override)
        for known in (self.set_by, self.removed_by):
            for below in [path for path in known if not new.keys().isdisjoint(prefixes(path))]:
                del known[below]
        for above in {above for path in new for above in prefixes(path)} & self.set_by.keys():
            if not _holds_more(self.set_by[above], above):
                del self.set_by[above]
        (self.removed_by if override.is_delete else self.set_by).update(new)

    @property
    def explicit(self) -> dict[str, str]:
        """Dotted path of every leaf that overrides set, to the override as it may be shown."""
        return _shown(self.set_by)

    @property
    def removed(self) -> dict[str, str]:
        """Dotted path of every key that overrides remove, to the override as it may be shown."""
        return _shown(self.removed_by)

    def unused(self, values: Iterable[Override]) -> tuple[UnusedOverride, ...]:
        """Return the overrides of `values` that change nothing."""
        used = {id(override) for known in (self.set_by, self.removed_by) for override in known.values()}
        return tuple(_unused(override) for override in values if id(override) not in used)


@dataclass(frozen=True, slots=True)
class Values:
    """What overrides make of the values of files.

    Args:
        tree: The values, every reference resolved.
        effects: The effect of each override.
        stated: Dotted path of every key whose name the job's replaced before references were resolved, to that name.
        has_default_policy: As `Composition` has it.
        corrections: As `Composition` has them; None if sizes are not planned, or no override changes one.
    """

    tree: Mapping[str, Any]
    effects: Effects
    stated: Mapping[str, str]
    has_default_policy: bool
    corrections: Mapping[str, Any] | None = None


def _shown(known: Mapping[str, Override]) -> dict[str, str]:
    """Return the override of each path as it may be shown; one override may set thousands of paths."""
    texts = {id(override): override.shown for override in {id(o): o for o in known.values()}.values()}
    return {path: texts[id(override)] for path, override in known.items()}


def _holds_more(override: Override, path: str) -> bool:
    """Return whether a value stays an override's although a later one sets a key below it: a list has other items."""
    value = override.value
    value = lookup(value, path[len(override.key) + 1 :]) if isinstance(value, dict) else value
    return isinstance(value, list) or (path == SCALES and value == AUTO)


def _unused(override: Override) -> UnusedOverride:
    if not override.is_delete and override.value == {}:
        key = override.key
        return UnusedOverride(override.shown, f"{{}} adds no key to those of {key}; ~{key} removes them")
    return UnusedOverride(override.shown)


class NotPlain(Exception):
    """The layers hold something that only OmegaConf's own merge treats correctly, or reports."""


def merge_layers(layers: Iterable[tuple[str, Mapping[Any, Any]]]) -> dict[Any, Any]:
    """Return layers merged, the first lowest.

    Args:
        layers: Package (dotted prefix, may be empty) and tree of each.

    Raises:
        NotPlain: A list meets a mapping, a reference meets a mapping or a list, or a package is a keyword of Hydra.
    """
    result: dict[Any, Any] = {}
    for package, tree in layers:
        if package.startswith("_"):
            raise NotPlain
        placed = tree
        for key in reversed(package.split(".") if package else ()):
            placed = {key: placed}
        result = _over(result, placed)
    return result


def _over(base: Mapping[Any, Any], layer: Mapping[Any, Any]) -> dict[Any, Any]:
    """Return `layer` over `base`, neither changed. Source: omegaconf 2.3, BaseContainer._map_merge."""
    result = dict(base)
    for key, value in layer.items():
        if key not in result:
            result[key] = value
            continue
        old = result[key]
        if isinstance(old, dict) and isinstance(value, dict):
            result[key] = _over(old, value)
        elif value == MISSING:
            if isinstance(old, str) and "${" in old:
                raise NotPlain
        elif isinstance(old, dict | list) or isinstance(value, dict | list):
            is_mixed = {type(old), type(value)} == {dict, list}
            if is_mixed or any(isinstance(each, str) and "${" in each for each in (old, value)):
                raise NotPlain
            result[key] = value
        else:
            result[key] = value
    return result


def valued(files: Files, overrides: Sequence[Override], suffix: str | None) -> Values:
    """Return the values of a composition.

    Args:
        files: The chosen files.
        overrides: Those that set or remove values.
        suffix: End of the job's name, as `compose` takes it.

    Raises:
        NotPlain: The values, or faults in them, are more than this module understands.
    """
    tree, effects = files.tree, Effects()
    changes_size = any(override.key.startswith(f"{SCALES}.") for override in overrides)
    if changes_size and AUTO in (get(tree, SCALES), *(o.value for o in overrides if o.key == SCALES)):
        raise NotPlain
    for override in overrides:
        changed = _set(tree, override)
        effects.note(override, _landing(tree, override))
        tree = changed
    policy = get(tree, POLICY_KEY)
    if has_default_policy := isinstance(policy, dict) and not files.have_policy:
        default = yaml_io.load(POLICY.file.read_text(encoding="utf-8"))["elastic_policy"]
        tree = _put(tree, POLICY_KEY.split("."), merged(default, policy))
    stated: dict[str, str] = {}
    if suffix:
        found = [resolved(get(tree, path), tuple(path.split(".")), tree) for path in interpolation.NAMES]
        stated, named = interpolation.job_names(found, get(tree, RUN_NAME), suffix)
        for path, name in named.items():
            tree = _put(tree, path.split("."), name)
    return Values(resolved(tree, (), tree), effects, stated, has_default_policy)


def _set(tree: Mapping[str, Any], override: Override) -> Mapping[str, Any]:
    """Return the tree with the value that an override sets, or without the key that it removes."""
    words, value = override.key.split("."), override.value
    is_below_value = len(words) > 1 and not isinstance(tree.get(words[0], {}), dict)
    if override.package is not None or is_below_value or not _is_literal(value):
        raise NotPlain
    if not override.is_delete:
        known = get(tree, override.key)
        if isinstance(value, dict | list) and isinstance(known, dict | list):  # a list replaces one
            value = merge_layers([("", {"at": known}), ("", {"at": value})])["at"]
        return _put(tree, words, value)
    if value is not None:
        raise NotPlain
    parent: Any = tree
    for word in words[:-1]:
        parent = parent.get(word) if isinstance(parent, dict) else None
    if not isinstance(parent, dict) or words[-1] not in parent:
        raise NotPlain
    left = {key: value for key, value in parent.items() if key != words[-1]}
    return _put(tree, words[:-1], left) if words[:-1] else left


def _landing(tree: Mapping[str, Any], override: Override) -> list[str]:
    """Return the dotted path of every leaf that an override sets; an empty mapping adds nothing to another one."""
    if not isinstance(override.value, dict):
        return [override.key]
    places = ((path, value, get(tree, path)) for path, value in leaves(override.value, override.key))
    return [path for path, value, known in places if value != {} or not (known and isinstance(known, dict))]


def _is_literal(value: Any) -> bool:
    """Return whether a value consists of scalars, none of which is a reference or a placeholder."""
    if isinstance(value, dict | list):
        return all(map(_is_literal, value.values() if isinstance(value, dict) else value))
    return type(value) in _SCALARS and not (isinstance(value, str) and ("${" in value or value == MISSING))


def _put(tree: Any, words: Sequence[str], value: Any) -> dict[str, Any]:
    """Return a tree with a value at a path, whose mappings are copied or made; a key with dots is no path here."""
    if not isinstance(tree, dict):
        raise NotPlain
    head, *rest = words
    return {**tree, head: _put(tree.get(head, {}), rest, value) if rest else value}


def resolved(value: Any, path: tuple[str, ...], tree: Any, steps: int = 0) -> Any:
    """Return the value at a path with every reference in it replaced by what it refers to.

    Raises:
        NotPlain: A reference leads nowhere, back to itself, or has a form that only OmegaConf reads.
    """
    if type(value) is dict:
        return {key: resolved(inner, (*path, key), tree, steps) for key, inner in value.items()}
    if type(value) is list:
        return [resolved(inner, (*path, str(i)), tree, steps) for i, inner in enumerate(value)]
    if type(value) not in _SCALARS or value == MISSING:
        raise NotPlain
    if not isinstance(value, str) or "${" not in value:
        return value
    if call := _CALL.fullmatch(value):
        return _called(call, path, tree, steps)
    if steps > _MOST_STEPS or "\\" in value or "${" in REFERENCE.sub("", value):
        raise NotPlain
    found = [_followed(match, path, tree, steps) for match in REFERENCE.finditer(value)]
    if REFERENCE.fullmatch(value):
        return found[0]
    if not all(type(each) in (str, int) for each in found):
        raise NotPlain
    texts = iter(found)
    return REFERENCE.sub(lambda _: str(next(texts)), value)


def _called(call: re.Match[str], path: tuple[str, ...], tree: Any, steps: int) -> int:
    """Return what a function makes of whole numbers, each given or referred to."""
    texts = [text.strip() for text in call[2].split(",")]
    numbers = [int(text) if INTEGER.fullmatch(text) else resolved(text, path, tree, steps) for text in texts]
    if call[1] not in interpolation.ARITHMETIC or any(type(number) is not int for number in numbers):
        raise NotPlain
    try:
        return interpolation.ARITHMETIC[call[1]](*numbers)
    except (TypeError, ZeroDivisionError) as error:
        raise NotPlain from error


def _followed(match: re.Match[str], path: tuple[str, ...], tree: Any, steps: int) -> Any:
    """Return the scalar that a reference of the value at `path` means: each dot before it leads one mapping up."""
    if len(match[1]) > len(path):
        raise NotPlain
    start = path[: len(path) - len(match[1])] if match[1] else ()
    target = (*start, *match[2].split("."))
    node = tree
    for word in target:
        if type(node) is not dict or word not in node:
            raise NotPlain
        node = node[word]
    if isinstance(node, dict | list):
        raise NotPlain
    return resolved(node, target, tree, steps + 1)
