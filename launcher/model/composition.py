"""The result of overrides: one resolved tree, and the origin of each value. Created by `config`."""

import re
from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from launcher.model.config_tree import prefixes, targets

_REFERENCE = re.compile(r"\$\{[^${}:]+\}")
RUN_NAME = "recipes.run.name"
_STAND_INS = "base/custom/"
"""Part of a script's recipe whose values hold until a recipe or an override states its own."""


class Setting(NamedTuple):
    """One place that sets a value, overridden or not."""

    path: str
    """The requested one, or the ancestor that replaces it."""
    value: Any
    """As written; a reference stays a reference."""
    origin: str
    """`file:line`, the override, or another source."""
    is_override: bool = False


class UnusedOverride(NamedTuple):
    """An override, in a form that may be shown, and why it has no effect."""

    override: str
    reason: str = "a later override decides"


class ValueSources(Protocol):
    """The files and overrides that a composition was made from. Layers are numbered, lowest precedence first."""

    @property
    def leaf_origins(self) -> Mapping[str, str]:
        """`file:line` of every leaf that a file sets, by dotted path."""

    @property
    def own_layers(self) -> frozenset[int]:
        """Numbers of the layers whose files are the user's, not the collection's."""

    def settings(self, path: str) -> tuple[Setting, ...]:
        """Return every place that sets the leaf `path`, lowest precedence first: files, then overrides as typed."""

    def layers(self, path: str) -> tuple[tuple[int, Any], ...]:
        """Return number and value of each layer that sets `path`, lowest precedence first."""

    def leaves(self, layer: int) -> Iterable[str]:
        """Return the dotted path of every leaf that a layer sets."""

    def unquoted(self, layer: int) -> Iterable[tuple[str, str]]:
        """Yield dotted path and text of every value that a layer has without quotes."""

    def above(self, layer: int) -> frozenset[int]:
        """Return the layers that override one because its `defaults` list them after `_self_`."""

    def place(self, layer: int) -> tuple[Path, str]:
        """Return file and package of a layer."""

    def has_file_in(self, folder: Path) -> bool:
        """Return whether a file of the configuration is in a folder, or in one below it."""

    def refers_to(self, *names: str) -> bool:
        """Return whether a file may refer to a key of one of these names, as `${name}` does."""


@dataclass(frozen=True)
class Composition:
    """The effect of the overrides.

    Args:
        tree: The complete configuration, resolved; every key a string.
        recipe: As the user named it.
        backend: The chosen cluster, or `contract` for the container contract on this machine.
        explicit: Dotted path of every leaf an override sets, to that override.
        removed: Dotted path of every key an override removes, to that override.
        corrections: Values of overrides of single sizes if `scale_config` is `auto`, by size; None removes a size.
        chosen: Group and package of every choice of a file, to the override that makes it; a cluster that several
            choose together, to all of them.
        has_default_policy: Whether overrides make a recipe without an `elastic_policy` elastic by default.
        name_paths: Dotted paths of run.name and, if it refers to training_cfg.run.name, of that one.
    """

    tree: Mapping[str, Any]
    recipe: str
    backend: str
    overrides: tuple[str, ...]
    explicit: Mapping[str, str]
    sources: ValueSources = field(repr=False, compare=False)
    removed: Mapping[str, str] = field(kw_only=True, default_factory=dict)
    unused: tuple[UnusedOverride, ...] = field(kw_only=True, default=())
    chosen: Mapping[str, str] = field(kw_only=True, default_factory=dict)
    corrections: Mapping[str, Any] = field(kw_only=True, default_factory=dict)
    has_default_policy: bool = field(kw_only=True, default=False)
    name_paths: tuple[str, ...] = field(kw_only=True, default=(RUN_NAME,))

    @property
    def decided(self) -> dict[str, str]:
        """Dotted path of every leaf that an override sets and of every key that one removes, to that override."""
        return {**self.removed, **self.explicit}

    @cached_property
    def origins(self) -> dict[str, str]:
        """The origin of every leaf, dotted path to `file:line` or override."""
        return _overridden(self.sources.leaf_origins, self.decided) | dict(self.chosen)

    def origin(self, path: str) -> str | None:
        """Return the origin of `path`: an override, or `file:line`. None if nothing set it.

        For a path that is not a leaf, the origin of its last descendant or, failing that, its nearest ancestor; for
        a value that refers to one of the user's, the origin of that one.
        """
        return nearest_origin(self.origins, self.decider(path))

    def decider(self, path: str) -> str:
        """Return the key that decides the value at `path`: the last one that the value refers to and that the user
        sets, by an override or a file; else `path` itself."""
        chain = [path]
        while (target := self._reference(chain[-1])) and target not in chain:
            chain.append(target)
        return next(filter(self.is_given, reversed(chain)), path) if len(chain) > 1 else path

    def _reference(self, path: str) -> str | None:
        """Return the path that the value at `path` consists of a reference to."""
        places = self.sources.settings(path)
        written = places[-1].value if places else None
        if places and places[-1].path == path and isinstance(written, str) and _REFERENCE.fullmatch(written):
            return ".".join(next(targets(written, tuple(path.split("."))), ()))
        return None

    def refers_to_one(self, path: str, others: Set[tuple[str, ...]]) -> bool:
        """Return whether the value at `path` is written as a reference to one of the `others`, paths in words."""
        places = self.sources.settings(path)
        written = places[-1].value if places else None
        if not isinstance(written, str) or "${" not in written:
            return False
        return any(target in others for target in targets(written, tuple(path.split("."))))

    def is_given(self, path: str) -> bool:
        """Return whether an override or a file of the user's own sets the leaf `path`."""
        own = self.sources.own_layers
        if path in self.explicit or not own:  # without files of the user's, none is read
            return path in self.explicit
        return any(layer in own for layer, _ in self.sources.layers(path))

    def is_unstated(self, path: str) -> bool:
        """Return whether no file or override states a value, so that the part's own default applies."""
        return (self.origin(path) or "").startswith(_STAND_INS)


def nearest_origin(origins: Mapping[str, str], path: str) -> str | None:
    """Return the origin of `path`, else of its last descendant, else of its nearest ancestor."""
    if path in origins:
        return origins[path]
    if inside := [origin for leaf, origin in origins.items() if leaf.startswith(path + ".")]:
        return inside[-1]
    return next((origins[above] for above in prefixes(path) if above in origins), None)


def _overridden(files: Mapping[str, str], overrides: Mapping[str, str]) -> dict[str, str]:
    """Return the origins with the overrides on top, without those that an override replaced."""
    below = tuple(f"{path}." for path in overrides)
    kept = {path: origin for path, origin in files.items() if not path.startswith(below)}
    above = {above for path in overrides for above in prefixes(path)} & kept.keys()
    holders = {holder for path in kept if above for holder in prefixes(path.rpartition(".")[0])}
    return {path: origin for path, origin in kept.items() if path not in above - holders} | dict(overrides)
