"""The layers of files and the typed overrides of a composition: where each of its values came from."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from launcher.common.paths import COLLECTION
from launcher.config import provenance
from launcher.config.file_cache import FileCache, Stamp, stamp_of
from launcher.config.overrides import Override
from launcher.model.composition import Setting
from launcher.model.config_tree import SCALES, is_index, leaves


class Layer(NamedTuple):
    """One file of a composition.

    Args:
        config: Its path as `defaults` name it.
        package: Dotted prefix of its keys, may be empty.
        file: Where it is.
    """

    config: str
    package: str
    file: Path


@dataclass(frozen=True, slots=True)
class Files:
    """The chosen files as Hydra composes them, before any value is overridden.

    Args:
        tree: Their values, merged; references stay references.
        recipe: The chosen recipe.
        cluster: The chosen cluster.
        layers: Name and package of each file, lowest precedence first.
        references: How many `${…}` they hold.
        looked: The state of every place where a file was looked for, and of the code that composed them.
    """

    tree: Mapping[str, Any]
    recipe: str
    cluster: str
    layers: tuple[Layer, ...]
    references: int
    looked: Mapping[str, Stamp]

    def is_current(self) -> bool:
        """Return whether every file is as it was when it was read, and no other one has appeared before it."""
        return all(stamp_of(path) == stamp for path, stamp in self.looked.items())


POLICY = Layer("base/elastic/policy", "recipes", COLLECTION / "base/elastic/policy.yaml")
"""The file that holds the default `elastic_policy`."""


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
        return provenance.leaf_origins(self._located)

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
        return (*provenance.settings(self._located, path, self.cache), *filter(None, typed))

    def layers(self, path: str) -> tuple[tuple[int, Any], ...]:
        """Return number and value of each layer that sets `path`, lowest precedence first."""
        numbered = enumerate(self._located)
        found = ((i, setting) for i, layer in numbered for setting in provenance.settings([layer], path, self.cache))
        return tuple((i, setting.value) for i, setting in found if setting.path == path)

    def above(self, layer: int) -> frozenset[int]:
        """Return the layers that win over one because its `defaults` name them after `_self_`."""
        from launcher.config import defaults_list  # it asks Hydra's sources, which few launches need

        files = defaults_list.after_self(self.files[layer].config, self.search)
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
    inside = dict(leaves(override.value, key))
    return Setting(path, inside[path], origin, is_override=True) if path in inside else None
