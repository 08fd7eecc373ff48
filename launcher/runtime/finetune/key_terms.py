"""What can become of a key of a fine-tuning recipe, and of its values: terms and conditions of a table of keys."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import PurePosixPath
from typing import Any

from launcher.runtime.finetune.architectures import is_hub_name
from launcher.runtime.finetune.data.errors import DataError
from launcher.runtime.finetune.data.settings import chain_of

ARGS = "training_config.training_args"
MODEL = "training_config.model_config"
DATA = "training_config.datasets"
STEPS = f"{DATA}.preprocessor_cfgs"
METERING = "metering_callback.MeteringCallback"


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


def leads_elsewhere(value: Any, _: Recipe) -> bool:
    """Return whether a path leads out of the folder that it is in."""
    path = PurePosixPath(str(value or ""))
    return path.is_absolute() or ".." in path.parts


def chain_fault(value: Any, recipe: Recipe) -> str | None:
    """Return what is wrong with the preprocessing steps; None if nothing is."""
    try:
        chain_of(value or (), recipe.value(f"{ARGS}.trainer_type"))
    except DataError as error:
        return str(error)
    return None


def has_revision_of_folder(value: Any, recipe: Recipe) -> bool:
    """Return whether a revision is given for a model that is not named as on the Hub."""
    model = str(recipe.value(f"{MODEL}.model_name_or_path") or "")
    return bool(value and model) and not is_hub_name(model)


def template_of_image(value: Any, recipe: Recipe) -> bool:
    """Return whether a chat template is named that only the published image has."""
    names = [value, *(step.get("chat_template_name") for step in recipe.value(STEPS) or ())]
    return any(name and "/" not in name for name in names)


def differs_from_threshold(value: Any, recipe: Recipe) -> bool:
    """Return whether a norm is not the one that gradients are clipped at."""
    clips = recipe.value(f"{ARGS}.gradient_clipping")
    return bool(clips) and bool(value != recipe.value(f"{ARGS}.gradient_clipping_threshold"))


def differs_from_weight_decay(value: Any, recipe: Recipe) -> bool:
    """Return whether both names of weight decay are given, with different values."""
    decay = recipe.value(f"{ARGS}.weight_decay")
    return bool(value and decay and value != decay)


def is_dpo(recipe: Recipe) -> bool:
    """Return whether the technique is preference optimization."""
    return bool(recipe.value(f"{ARGS}.trainer_type") == "dpo")
