"""Conditions on the values of keys, for the table in `keys`."""

from collections.abc import Callable
from pathlib import PurePosixPath
from typing import Any

from launcher.runtime.finetune.data.errors import DataError
from launcher.runtime.finetune.data.steps import chain_of
from launcher.runtime.finetune.key_terms import Recipe

ARGS = "training_config.training_args"
MODEL = "training_config.model_config"
DATA = "training_config.datasets"
STEPS = f"{DATA}.preprocessor_cfgs"
METERING = "metering_callback.MeteringCallback"


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


def chain_fault(recipe: Recipe) -> str | None:
    """Return what is wrong with the preprocessing steps; None if nothing is."""
    try:
        chain_of(recipe.value(STEPS) or (), recipe.value(f"{ARGS}.trainer_type"))
    except DataError as error:
        return str(error)
    return None


def has_revision_of_folder(value: Any, recipe: Recipe) -> bool:
    """Return whether a revision is given for a model that is no name on the Hub."""
    model = str(recipe.value(f"{MODEL}.model_name_or_path") or "")
    return bool(value and model) and (model.count("/") != 1 or model.startswith((".", "/", "~")))


def template_of_image(value: Any, recipe: Recipe) -> bool:
    """Return whether a chat template is named that only the published image has."""
    names = [value, *(step.get("chat_template_name") for step in recipe.value(STEPS) or ())]
    return any(name and "/" not in name for name in names)


def has_other_callbacks(value: Any, _: Recipe) -> bool:
    """Return whether there is a callback other than the published one."""
    return any(each.get("_target_") != METERING for each in value or ())


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
