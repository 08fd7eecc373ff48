"""Merging the layers of a composition as plain trees: what OmegaConf would make of them, in a tenth of the time.

OmegaConf wraps every value of every file before it merges them. Few layers need that: what a plain merge could get
wrong is refused with `NotPlain`, and the caller has Hydra merge instead.
"""

from collections.abc import Iterable, Mapping
from typing import Any

_MISSING = "???"


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
        result = _merged(result, placed)
    return result


def _merged(base: Mapping[Any, Any], layer: Mapping[Any, Any]) -> dict[Any, Any]:
    """Return `layer` over `base`, neither changed. Source: omegaconf 2.3, BaseContainer._map_merge."""
    result = dict(base)
    for key, value in layer.items():
        if key not in result:
            result[key] = value
            continue
        old = result[key]
        if isinstance(old, dict) and isinstance(value, dict):
            result[key] = _merged(old, value)
        elif value == _MISSING:
            if isinstance(old, str) and "${" in old:
                raise NotPlain
        elif _is_container(old) or _is_container(value):
            result[key] = _replaced(old, value)
        else:
            result[key] = value
    return result


def _replaced(old: Any, value: Any) -> Any:
    """Return `value` where one of the two is a list or a mapping."""
    is_mixed = _is_container(old) and _is_container(value) and type(old) is not type(value)
    if is_mixed or any(isinstance(each, str) and "${" in each for each in (old, value)):
        raise NotPlain
    return value


def _is_container(value: Any) -> bool:
    return isinstance(value, dict | list)
