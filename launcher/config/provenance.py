"""Which line of which file set a value."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import yaml

from launcher.common.paths import COLLECTION
from launcher.config.file_cache import FileCache, value_nodes
from launcher.model.composition import Setting
from launcher.model.config_tree import ABSENT, child


def leaf_origins(layers: Iterable[tuple[Path, str]]) -> dict[str, str]:
    """Return dotted path to `file:line` for every leaf of the layers.

    Args:
        layers: File and package (dotted prefix, may be empty) of each, lowest precedence first.
    """
    origins: dict[str, str] = {}
    for file, package in layers:
        node = value_nodes(file)
        origins |= {path: f"{_name(file)}:{line}" for path, line in _leaves(node, package)}
    return origins


def settings(layers: Iterable[tuple[Path, str]], path: str, cache: FileCache) -> Iterator[Setting]:
    """Yield the setting of each layer that sets a leaf or replaces it, in the order of the layers.

    Args:
        layers: As for `leaf_origins`.
        path: Dotted path of the leaf.
        cache: The files read so far.
    """
    for file, package in layers:
        below = path if not package else path.removeprefix(f"{package}.")
        if package and below == path:
            continue
        tree, node = cache.nodes(file)
        if isinstance(node, yaml.MappingNode) and not node.value:
            continue  # a file of defaults alone sets nothing
        if found := _find(tree, node, below):
            rest, value, line = found
            yield Setting(path.removesuffix(f".{rest}") if rest else path, value, f"{_name(file)}:{line}")


def _find(tree: Any, node: yaml.Node | None, path: str) -> tuple[str, Any, int] | None:
    """Return the rest of `path` below a value that replaces it, that value and its line. A key may hold dots."""
    if isinstance(node, yaml.SequenceNode) and child(tree, index := path.partition(".")[0]) is not ABSENT:
        rest, item = path[len(index) + 1 :], node.value[int(index)]
        return _find(tree[int(index)], item, rest) if rest else ("", tree[int(index)], item.start_mark.line + 1)
    if not isinstance(node, yaml.MappingNode) or not node.value:
        return (path, tree, node.start_mark.line + 1) if node else None
    for key, value in node.value:
        if path == key.value:
            return "", tree[key.value], value.start_mark.line + 1
        if path.startswith(f"{key.value}."):
            return _find(tree[key.value], value, path.removeprefix(f"{key.value}."))
    return None


def _name(file: Path) -> Path:
    return file.relative_to(COLLECTION) if file.is_relative_to(COLLECTION) else file


_STAND_INS = "base/custom/"
"""Part of a script's recipe whose values hold until a recipe or an override states its own."""


def is_stand_in(origin: str | None) -> bool:
    """Return whether a value of this origin is only a default for a value that was not set."""
    return (origin or "").startswith(_STAND_INS)


def _leaves(node: yaml.Node | None, path: str) -> Iterator[tuple[str, int]]:
    if isinstance(node, yaml.MappingNode) and node.value:
        for key, value in node.value:
            yield from _leaves(value, f"{path}.{key.value}" if path else key.value)
    elif node is not None:
        yield path, node.start_mark.line + 1
    for i, item in enumerate(node.value) if isinstance(node, yaml.SequenceNode) else ():
        yield from _leaves(item, f"{path}.{i}")
