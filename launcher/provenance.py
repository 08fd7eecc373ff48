"""Which line of which file set a value."""

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import yaml

from launcher import yamlio
from launcher.paths import COLLECTION


def leaf_origins(layers: Iterable[tuple[Path, str]]) -> dict[str, str]:
    """Return dotted path to `file:line` for every leaf of the layers.

    Args:
        layers: File and package (dotted prefix, may be empty) of each, lowest precedence first.
    """
    origins: dict[str, str] = {}
    for file, package in layers:
        node = yamlio.load_nodes(file.read_text(encoding="utf-8"))
        name = file.relative_to(COLLECTION) if file.is_relative_to(COLLECTION) else file
        if isinstance(node, yaml.MappingNode):
            node.value = [(key, value) for key, value in node.value if key.value != "defaults"]
        origins |= {path: f"{name}:{line}" for path, line in _leaves(node, package)}
    return origins


def nearest(origins: Mapping[str, str], path: str) -> str | None:
    """Return the origin of `path`, else of its last descendant, else of its nearest ancestor."""
    inside = [origin for leaf, origin in origins.items() if leaf.startswith(path + ".")]
    if path not in origins and inside:
        return inside[-1]
    ancestor = path
    while ancestor:
        if ancestor in origins:
            return origins[ancestor]
        ancestor = ancestor.rpartition(".")[0]
    return None


def overridden(files: Mapping[str, str], overrides: Mapping[str, str]) -> dict[str, str]:
    """Return the origins with the overrides on top; what an override replaced as a whole is gone."""
    gone = tuple(f"{path}." for path in overrides)
    return {path: origin for path, origin in files.items() if not path.startswith(gone)} | dict(overrides)


def _leaves(node: yaml.Node | None, path: str) -> Iterator[tuple[str, int]]:
    if isinstance(node, yaml.MappingNode) and node.value:
        for key, value in node.value:
            yield from _leaves(value, f"{path}.{key.value}" if path else key.value)
    elif node is not None:
        yield path, node.start_mark.line + 1
