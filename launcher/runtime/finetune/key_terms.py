"""What can become of a key of a fine-tuning recipe, and of its values: terms and conditions of a table of keys."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

_METERING = "metering_callback.MeteringCallback"
_LAUNCHER = "read by the launcher"


class Treatment(StrEnum):
    """What becomes of a key, or of a value."""

    DONE = "done"
    """It has the effect that it is described with."""
    NOTICED = "noticed"
    """It has no effect; a notice reports that where the value is not a published one."""
    REFUSED = "refused"
    """A job with such a value does not start."""


@dataclass(frozen=True, slots=True)
class Recipe:
    """The keys of a compiled recipe at one size, as conditions read them."""

    config: Mapping[str, Any] = field(repr=False)
    is_elastic: bool = False

    def value(self, path: str) -> Any:
        """Return the value of a dotted path; None if it is absent."""
        found: Any = self.config
        for name in path.split("."):
            found = found.get(name) if isinstance(found, Mapping) else None
        return found


Holds = Callable[[Any, Recipe], bool | str | None]


@dataclass(frozen=True, slots=True)
class Condition:
    """Values of a key that are treated otherwise than the key itself.

    Args:
        treatment: NOTICED or REFUSED.
        when: Which values, in words.
        holds: Returns whether a value is one of them; or, as a text, what is wrong with it, in place of the reason.
        reason: What happens to them, and why.
        remedy: What to set instead; "" if the reason names it.
    """

    treatment: Treatment
    when: str
    holds: Holds
    reason: str
    remedy: str = ""


@dataclass(frozen=True, slots=True)
class Key:
    """One key, or a section whose keys are treated alike.

    Args:
        path: Dotted, from the top of the recipe.
        treatment: Of values to which the condition does not apply: DONE or NOTICED.
        effect: What the trainer does with it, or why it does nothing.
        condition: Values that are treated otherwise.
    """

    path: str
    treatment: Treatment
    effect: str
    condition: Condition | None = None

    @property
    def has_effect(self) -> bool:
        """Whether its values have an effect."""
        return self.treatment is Treatment.DONE


@dataclass(frozen=True, slots=True)
class Finding:
    """A value of a key that is noticed or refused, and why."""

    key: str
    value: Any
    condition: Condition
    reason: str

    @property
    def is_refused(self) -> bool:
        """Whether the job does not start with it, rather than with a notice."""
        return self.condition.treatment is Treatment.REFUSED


@dataclass(frozen=True, slots=True)
class KeyTable:
    """What the open trainer does with every key of a family's recipes.

    Args:
        sections: Keys by the title of their section, in the order of the reference.
    """

    sections: Mapping[str, tuple[Key, ...]]

    @property
    def keys(self) -> tuple[Key, ...]:
        """The keys of all sections."""
        return tuple(key for keys in self.sections.values() for key in keys)

    def key_of(self, path: str) -> Key | None:
        """Return the key of a dotted path, or the section above it that is treated as one; None without either."""
        by_path = {key.path: key for key in self.keys}
        while path:
            if found := by_path.get(path):
                return found
            path = path.rpartition(".")[0]
        return None

    def findings(self, recipe: Recipe) -> Iterator[Finding]:
        """Yield each value of a recipe that is noticed or refused, in the order of the table."""
        for key in self.keys:
            value = recipe.value(key.path)
            if value is None and recipe.value(key.path.rpartition(".")[0]) is None and "." in key.path:
                continue  # the section is absent, such as that of adapters
            if key.condition and (found := key.condition.holds(value, recipe)):
                reason = found if isinstance(found, str) else key.condition.reason
                yield Finding(key.path, value, key.condition, reason)


def refused(when: str, holds: Holds, reason: str, remedy: str = "") -> Condition:
    """Return the condition of values that are refused."""
    return Condition(Treatment.REFUSED, when, holds, reason, remedy)


def only(reason: str, *allowed: object) -> Condition:
    """Return the condition that refuses all values but the allowed ones, of which the first is the remedy."""
    names = list(map(_written, allowed))
    return refused(f"other than {', '.join(names)}", not_in(*allowed), reason, names[0])


def noticed(when: str, holds: Holds, reason: str) -> Condition:
    """Return the condition of values that are noticed."""
    return Condition(Treatment.NOTICED, when, holds, reason)


def done(path: str, effect: str, condition: Condition | None = None) -> Key:
    """Return a key that has an effect."""
    return Key(path, Treatment.DONE, effect, condition)


def ignored(path: str, reason: str, *published: object, condition: Condition | None = None) -> Key:
    """Return a key without an effect; values other than the published ones are noticed, if any are given."""
    if published:
        when = f"other than {', '.join(map(_written, published))}"
        condition = noticed(when, not_in(*published), reason)
    return Key(path, Treatment.NOTICED, reason, condition)


def _written(value: object) -> str:
    """Return a value as a recipe has it."""
    return "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def section(path: str, *keys: Key) -> tuple[Key, ...]:
    """Return keys with their paths from the top of the recipe."""
    return tuple(replace(key, path=f"{path}.{key.path}") for key in keys)


def is_true(value: Any, _: Recipe) -> bool:
    """Return whether a value is true, or given."""
    return bool(value)


def not_in(*allowed: object) -> Callable[[Any, Recipe], bool]:
    """Return the condition of all values but the allowed ones."""
    return lambda value, _: value not in allowed


def is_above_one(value: Any, _: Recipe) -> bool:
    """Return whether a number is above 1."""
    return bool((value or 1) > 1)


def dropout_beside(path: str) -> Condition:
    """Return the condition of a dropout of adapters, by the path of their `target_parameters`."""
    return refused(
        "above 0 with target_parameters",
        lambda value, recipe: value and bool(recipe.value(path)),
        "PEFT cannot apply dropout to an adapter of a parameter, as those of target_parameters are",
        "0.0",
    )


def callbacks(path: str, reason: str) -> Key:
    """Return the key of callbacks, of which only the published one may be named; `reason` refuses others."""
    return ignored(
        path,
        "the published callback meters usage inside the image; it is not imported",
        condition=refused(
            f"a _target_ other than {_METERING}",
            lambda value, _: any(each.get("_target_") != _METERING for each in value or ()),
            reason,
            "[]",
        ),
    )


LAUNCHER_KEYS = (
    *(done(name, _LAUNCHER) for name in ("display_name", "version", "labels", "instance_types", "instance_specs")),
    *(done(name, _LAUNCHER) for name in ("elastic_policy", "planner", "resources", "trainer")),
    *(done(name, "run by the entrypoint of an image of your own") for name in ("pre_script", "post_script")),
    done("training_cfg", "is for a script of your own; a recipe with a trainer refuses it"),
    done("checkpointless", "is for a feature of the vendor's that the launcher refuses"),
    done("checkpointing", "tiers of checkpoints, kept by the launcher's runtime"),
    done("run.name", "named in results"),
    done("run.model_type", "chooses the trainer"),
    done("run.hf_access_token", "HF_TOKEN of every worker, for gated models"),
)
"""Keys that the recipes of every family have, and that mean the same in each."""
