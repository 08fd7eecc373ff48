"""Where each value of a composition came from: which line of which file, and which overrides."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import yaml

from launcher.common.paths import COLLECTION
from launcher.config.files import FileCache, Layer
from launcher.config.overrides import Override
from launcher.model import config_tree
from launcher.model.composition import Setting
from launcher.model.config_tree import ABSENT, SCALES, child, is_index


@dataclass(frozen=True)
class FileLayers:
    """Implements `ValueSources` over Hydra's layers. Files are read on first use: most launches need none of this.

    Args:
        files: The layers, lowest precedence first.
        search: Folders and files that are searched beside the collection.
        values: The overrides that set or remove values, as typed.
        cache: The files read so far.
    """

    files: tuple[Layer, ...]
    search: tuple[str, ...]
    values: Sequence[Override]
    cache: FileCache

    @cached_property
    def leaf_origins(self) -> Mapping[str, str]:
        """`file:line` of every leaf that a file sets, by dotted path."""
        return leaf_origins(self._located, self.cache)

    @property
    def _located(self) -> tuple[tuple[Path, str], ...]:
        """Path and package of each layer."""
        return tuple((layer.file, layer.package) for layer in self.files)

    @cached_property
    def own_layers(self) -> frozenset[int]:
        """Numbers of the layers whose files are the user's and not of the collection."""
        numbered = enumerate(file for file, _ in self._located)
        return frozenset(number for number, file in numbered if not file.is_relative_to(COLLECTION))

    def settings(self, path: str) -> tuple[Setting, ...]:
        """Return every place that sets the leaf `path`, lowest precedence first: files, then overrides as typed."""
        typed = (_setting(override, path) for override in self.values)
        return (*settings(self._located, path, self.cache), *filter(None, typed))

    def layers(self, path: str) -> tuple[tuple[int, Any], ...]:
        """Return number and value of each layer that sets `path`, lowest precedence first."""
        numbered = enumerate(self._located)
        found = ((i, setting) for i, layer in numbered for setting in settings([layer], path, self.cache))
        return tuple((i, setting.value) for i, setting in found if setting.path == path)

    def leaves(self, layer: int) -> Iterable[str]:
        """Return the dotted path of every leaf that a layer sets."""
        return leaf_origins([self._located[layer]], self.cache)

    def above(self, layer: int) -> frozenset[int]:
        """Return the layers that win over one because its `defaults` name them after `_self_`."""
        from launcher.config import hydra_errors  # it asks Hydra's sources, which few launches need

        files = hydra_errors.after_self(self.files[layer].config, self.search)
        return frozenset(n for n, (file, _) in enumerate(self._located) if n > layer and file in files)

    def place(self, layer: int) -> tuple[Path, str]:
        """Return file and package of a layer."""
        return self._located[layer]

    def has_file_in(self, folder: Path) -> bool:
        """Return whether a file of the configuration is in a folder, or in one below it."""
        return "://" in str(folder) or any(file.is_relative_to(folder) for file, _ in self._located)

    def refers_to(self, *names: str) -> bool:
        """Return whether a file may refer to a key of one of these names, as `${name}` does."""
        texts = (file.read_text(encoding="utf-8") for file, _ in self._located)
        lines = (line for text in texts if "${" in text for line in text.splitlines() if "${" in line)
        return any(name in line for line in lines for name in names)


def _setting(override: Override, path: str) -> Setting | None:
    """Return what an override sets or removes at a leaf, None when it is about other keys."""
    key, origin = override.key, override.shown
    if path != key and not path.startswith(f"{key}."):
        index = key.removeprefix(f"{path}.").partition(".")[0]
        is_item = key.startswith(f"{path}.") and is_index(index) and path != SCALES and not override.is_delete
        return Setting(key, override.value, origin, is_override=True) if is_item else None
    if override.is_delete:
        return Setting(key, None, origin, is_override=True)
    if not isinstance(override.value, dict):
        return Setting(key, override.value, origin, is_override=True)
    inside = dict(config_tree.leaves(override.value, key))
    return Setting(path, inside[path], origin, is_override=True) if path in inside else None


def leaf_origins(layers: Iterable[tuple[Path, str]], cache: FileCache) -> dict[str, str]:
    """Return dotted path to `file:line` for every leaf of the layers.

    Args:
        layers: File and package (dotted prefix, may be empty) of each, lowest precedence first.
        cache: The files read so far.
    """
    origins: dict[str, str] = {}
    for file, package in layers:
        name, prefix = _name(file), f"{package}." if package else ""
        lines = cache.lines(file).items()
        origins |= {f"{prefix}{path}" if path else package: f"{name}:{line}" for path, line in lines}
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
