"""Where each value of a composition came from: which line of which file, and which overrides."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import yaml

from launcher.common.paths import COLLECTION
from launcher.config.files import FileCache, Layer, shown_path
from launcher.config.overrides import Override
from launcher.model import config_tree
from launcher.model.composition import Setting
from launcher.model.config_tree import ABSENT, SCALES, child, is_index, prefixes


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
        found: dict[str, str] = {}
        for n in range(len(self.files)):
            new = self.leaves(n)
            for replaced in {above for path in new for above in prefixes(path)} & found.keys():
                del found[replaced]  # by a value, or by keys below it
            found.update(new)
        return found

    @cached_property
    def own_layers(self) -> frozenset[int]:
        """Numbers of the layers whose files are the user's and not of the collection."""
        return frozenset(n for n, layer in enumerate(self.files) if not layer.file.is_relative_to(COLLECTION))

    def settings(self, path: str) -> tuple[Setting, ...]:
        """Return every place that sets the leaf `path`, lowest precedence first: files, then overrides as typed."""
        in_files = (_in_file(layer, path, self.cache) for layer in self.files)
        typed = (_setting(override, path) for override in self.values)
        return tuple(filter(None, (*in_files, *typed)))

    def layers(self, path: str) -> tuple[tuple[int, Any], ...]:
        """Return number and value of each layer that sets `path`, lowest precedence first."""
        found = ((n, _in_file(layer, path, self.cache)) for n, layer in enumerate(self.files))
        return tuple((n, setting.value) for n, setting in found if setting and setting.path == path)

    def leaves(self, layer: int) -> Mapping[str, str]:
        """Return `file:line` of every leaf that a layer sets, by dotted path."""
        file, package = self.place(layer)
        name, prefix = shown_path(file), f"{package}." if package else ""
        lines = self.cache.lines(file).items()
        return {f"{prefix}{path}" if path else package: f"{name}:{line}" for path, line in lines}

    def unquoted(self, layer: int) -> Iterator[tuple[str, str]]:
        """Yield dotted path and text of every value that a layer has without quotes."""
        file, package = self.place(layer)
        yield from _unquoted(self.cache.nodes(file)[1], package)

    def above(self, layer: int) -> frozenset[int]:
        """Return the layers that win over one because its `defaults` name them after `_self_`."""
        from launcher.config import hydra_errors  # it asks Hydra's sources, which few launches need

        files = hydra_errors.after_self(self.files[layer].config, self.search)
        return frozenset(n for n, each in enumerate(self.files) if n > layer and each.file in files)

    def place(self, layer: int) -> tuple[Path, str]:
        """Return file and package of a layer."""
        return self.files[layer].file, self.files[layer].package

    def has_file_in(self, folder: Path) -> bool:
        """Return whether a file of the configuration is in a folder, or in one below it."""
        return "://" in str(folder) or any(layer.file.is_relative_to(folder) for layer in self.files)

    def refers_to(self, *names: str) -> bool:
        """Return whether a file may refer to a key of one of these names, as `${name}` does."""
        texts = (layer.file.read_text(encoding="utf-8") for layer in self.files)
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


def _in_file(layer: Layer, path: str, cache: FileCache) -> Setting | None:
    """Return what a layer sets at a leaf, or in place of it; None if it says nothing of it."""
    below = path if not layer.package else path.removeprefix(f"{layer.package}.")
    if layer.package and below == path:
        return None
    tree, node = cache.nodes(layer.file)
    if isinstance(node, yaml.MappingNode) and not node.value:
        return None  # a file of defaults alone sets nothing
    if not (found := _find(tree, node, below)):
        return None
    rest, value, line = found
    return Setting(path.removesuffix(f".{rest}") if rest else path, value, f"{shown_path(layer.file)}:{line}")


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


def _unquoted(node: yaml.Node | None, path: str) -> Iterator[tuple[str, str]]:
    if isinstance(node, yaml.ScalarNode) and not node.style:
        yield path, node.value
    elif isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            yield from _unquoted(value, f"{path}.{key.value}".lstrip("."))
    elif isinstance(node, yaml.SequenceNode):
        for i, item in enumerate(node.value):
            yield from _unquoted(item, f"{path}.{i}")
