"""Overrides set, and references resolved, on plain trees: what OmegaConf makes of them, without loading it.

Most launches set scalars, lists and mappings of them, and refer to scalars by their paths. Anything else, and every
fault, is refused with `NotPlain`, and the caller has OmegaConf do it.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from launcher.common import yaml_io
from launcher.config import interpolation
from launcher.config.effects import Effects, Values
from launcher.config.layer_merge import NotPlain, merge_layers
from launcher.config.overrides import Override
from launcher.config.value_sources import POLICY
from launcher.model.config_tree import AUTO, SCALES, get, leaves, merged

_POLICY = "recipes.elastic_policy"
_REFERENCE = re.compile(r"\$\{(\.*)([A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*)\}", re.A)
_CALL = re.compile(r"\$\{(\w+):((?:[^${}:]|\$\{[\w.]+\})*)\}", re.A)
_INTEGER = re.compile(r"-?(?:0|[1-9]\d{0,17})", re.A)
_SCALARS = (str, int, float, bool, type(None))
_MOST_STEPS = 8
"""References that are followed one after the other; more may be a circle."""


def valued(of_files: Mapping[str, Any], overrides: Sequence[Override], suffix: str | None) -> Values:
    """Return the values of a composition.

    Args:
        of_files: The values of its files.
        overrides: Those that set or remove values.
        suffix: End of the job's name, as `compose` takes it.

    Raises:
        NotPlain: The values, or faults in them, are more than this module understands.
    """
    tree, effects = of_files, Effects()
    changes_size = any(override.key.startswith(f"{SCALES}.") for override in overrides)
    if changes_size and AUTO in (get(tree, SCALES), *(o.value for o in overrides if o.key == SCALES)):
        raise NotPlain
    for override in overrides:
        changed = _set(tree, override)
        effects.note(override, _landing(tree, override))
        tree = changed
    policy = get(tree, _POLICY)
    if has_default_policy := isinstance(policy, dict) and get(of_files, _POLICY) is None:
        default = yaml_io.load(POLICY.file.read_text(encoding="utf-8"))["elastic_policy"]
        tree = _put(tree, _POLICY.split("."), merged(default, policy))
    stated: dict[str, str] = {}
    if suffix:
        found = [_resolved(get(tree, path), tuple(path.split(".")), tree) for path in interpolation.NAMES]
        stated, named = interpolation.job_names(found, get(tree, interpolation.RUN_NAME), suffix)
        for path, name in named.items():
            tree = _put(tree, path.split("."), name)
    return Values(_resolved(tree, (), tree), effects, stated, has_default_policy)


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
    return type(value) in _SCALARS and not (isinstance(value, str) and ("${" in value or value == "???"))


def _put(tree: Any, words: Sequence[str], value: Any) -> dict[str, Any]:
    """Return a tree with a value at a path, whose mappings are copied or made; a key with dots is no path here."""
    if not isinstance(tree, dict):
        raise NotPlain
    head, *rest = words
    return {**tree, head: _put(tree.get(head, {}), rest, value) if rest else value}


def _resolved(value: Any, path: tuple[str, ...], tree: Any, steps: int = 0) -> Any:
    """Return the value at a path with every reference in it replaced by what it refers to."""
    if type(value) is dict:
        return {key: _resolved(inner, (*path, key), tree, steps) for key, inner in value.items()}
    if type(value) is list:
        return [_resolved(inner, (*path, str(i)), tree, steps) for i, inner in enumerate(value)]
    if type(value) not in _SCALARS or value == "???":
        raise NotPlain
    if not isinstance(value, str) or "${" not in value:
        return value
    if call := _CALL.fullmatch(value):
        return _called(call, path, tree, steps)
    if steps > _MOST_STEPS or "\\" in value or "${" in _REFERENCE.sub("", value):
        raise NotPlain
    found = [_followed(match, path, tree, steps) for match in _REFERENCE.finditer(value)]
    if _REFERENCE.fullmatch(value):
        return found[0]
    if not all(type(each) in (str, int) for each in found):
        raise NotPlain
    texts = iter(found)
    return _REFERENCE.sub(lambda _: str(next(texts)), value)


def _called(call: re.Match[str], path: tuple[str, ...], tree: Any, steps: int) -> int:
    """Return what a function makes of whole numbers, each given or referred to."""
    texts = [text.strip() for text in call[2].split(",")]
    numbers = [int(text) if _INTEGER.fullmatch(text) else _resolved(text, path, tree, steps) for text in texts]
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
    return _resolved(node, target, tree, steps + 1)
