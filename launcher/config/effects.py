"""The effects of the overrides of a launch: which one sets or removes a key in the end, and which have no effect."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from launcher.config.overrides import Override
from launcher.model.composition import UnusedOverride
from launcher.model.config_tree import AUTO, SCALES, lookup, prefixes


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
        return tuple(_unused_value(override) for override in values if id(override) not in used)


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


def _unused_value(override: Override) -> UnusedOverride:
    if not override.is_delete and override.value == {}:
        key = override.key
        return unused(override, f"{{}} adds no key to those of {key}; ~{key} removes them")
    return unused(override)


def unused(override: Override, reason: str = "a later override decides") -> UnusedOverride:
    """Return an override that changes nothing, as it may be shown, and why."""
    return UnusedOverride(override.shown, reason)
