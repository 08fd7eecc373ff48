"""What can become of a key of a fine-tuning recipe, and of its values: the terms of the table in `keys`."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any


class Treatment(StrEnum):
    """What becomes of a key, or of a value."""

    DONE = "done"
    """It has the effect that it is described with."""
    NOTICED = "noticed"
    """It has no effect; a notice says so where the value is not a published one."""
    REFUSED = "refused"
    """A job with such a value does not start."""


@dataclass(frozen=True, slots=True)
class Recipe:
    """A compiled recipe, as conditions read it.

    Args:
        config: Its keys at one size.
        is_elastic: Whether the job changes its size.
    """

    config: Mapping[str, Any] = field(repr=False)
    is_elastic: bool = False

    def value(self, path: str) -> Any:
        """Return the value of a dotted path; None if it is absent."""
        found: Any = self.config
        for name in path.split("."):
            found = found.get(name) if isinstance(found, Mapping) else None
        return found


@dataclass(frozen=True, slots=True)
class Condition:
    """Values of a key that are treated otherwise than the key itself.

    Args:
        treatment: NOTICED or REFUSED.
        when: Which values, in words.
        holds: Returns whether a value is one of them.
        reason: What happens to them, and why.
        remedy: What to set instead; "" if the reason says it.
        detail: Returns what is wrong with this value, in place of the reason; None for no more than the reason.
    """

    treatment: Treatment
    when: str
    holds: Callable[[Any, Recipe], bool]
    reason: str
    remedy: str = ""
    detail: Callable[[Recipe], str | None] | None = None


@dataclass(frozen=True, slots=True)
class Key:
    """One key, or a section whose keys are treated alike.

    Args:
        path: Dotted, from the top of the recipe.
        treatment: Of values to which no condition applies: DONE or NOTICED.
        effect: What the trainer does with it, or why it does nothing.
        conditions: Values that are treated otherwise.
    """

    path: str
    treatment: Treatment
    effect: str
    conditions: tuple[Condition, ...] = ()

    @property
    def has_effect(self) -> bool:
        """Whether its values have an effect."""
        return self.treatment is Treatment.DONE


@dataclass(frozen=True, slots=True)
class Finding:
    """A value that is noticed or refused.

    Args:
        key: Path of the key.
        value: The value.
        condition: Why.
        reason: What happens to it, and why.
    """

    key: str
    value: Any
    condition: Condition
    reason: str

    @property
    def is_refused(self) -> bool:
        """Whether the job does not start with it, rather than with a notice."""
        return self.condition.treatment is Treatment.REFUSED


def refused(when: str, holds: Callable[[Any, Recipe], bool], reason: str, remedy: str = "") -> tuple[Condition, ...]:
    """Return the condition of values that are refused."""
    return (Condition(Treatment.REFUSED, when, holds, reason, remedy),)


def noticed(when: str, holds: Callable[[Any, Recipe], bool], reason: str) -> tuple[Condition, ...]:
    """Return the condition of values that are noticed."""
    return (Condition(Treatment.NOTICED, when, holds, reason),)


def done(path: str, effect: str, conditions: tuple[Condition, ...] = ()) -> Key:
    """Return a key that has an effect."""
    return Key(path, Treatment.DONE, effect, conditions)


def ignored(path: str, reason: str, *published: object) -> Key:
    """Return a key without an effect; values other than the published ones are noticed, if any are given."""
    when = "other than " + ", ".join("null" if each is None else str(each).lower() for each in published)
    conditions = noticed(when, lambda value, _: value not in published, reason) if published else ()
    return Key(path, Treatment.NOTICED, reason, conditions)
