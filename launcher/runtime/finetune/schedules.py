"""The learning rate, by transformers' names, as a function of how much of the training is done.

It has no state to restore and does not depend on the number of ranks.
"""

import math
from collections.abc import Callable

from launcher.runtime.training_config import Schedule

MIN_RATIO = 0.1
"""Lowest learning rate, as a part of the highest, of schedules with a minimum if lr_min_ratio is null: our own."""

DECAY_PART = 0.2
"""Part of the training in which `warmup_stable_decay` decays. No recipe key gives it: our own choice.

Source: Hu et al., MiniCPM (2024), section 4: 10 % of the steps suffice, 20 % is safe.
"""


class ScheduleUnknown(ValueError):
    """The open trainer does not have the recipe's `lr_scheduler`."""


def _cosine(progress: float) -> float:
    return (1 + math.cos(math.pi * progress)) / 2


def _stable_decay(progress: float) -> float:
    return _cosine(max(0.0, progress - (1 - DECAY_PART)) / DECAY_PART)


_SHAPES: dict[str, Callable[[float], float]] = {
    "constant": lambda progress: 1.0,
    "constant_with_warmup": lambda progress: 1.0,
    "linear": lambda progress: 1 - progress,
    "polynomial": lambda progress: 1 - progress,  # power 1, transformers' default
    "cosine": _cosine,
    "cosine_with_restarts": _cosine,  # one cycle, transformers' default
    "cosine_with_min_lr": _cosine,
    "cosine_warmup_with_min_lr": _cosine,
    "warmup_stable_decay": _stable_decay,
}
"""Height of the learning rate between the lowest and the highest after the warmup, 0 to 1, by how much of the rest is
done, 0 to 1."""
_WITH_MINIMUM = ("cosine_with_min_lr", "cosine_warmup_with_min_lr", "warmup_stable_decay")
"""Shapes that end at `MIN_RATIO`, where the recipe gives no other end."""

NAMES = (*sorted(_SHAPES), "inverse_sqrt")


def learning_rate(schedule: Schedule, progress: float) -> float:
    """Return the learning rate when `progress` (0 to 1) of all samples are done.

    Raises:
        ScheduleUnknown: The open trainer does not have `schedule.kind`.

    Source: transformers, `optimization.py`; Loshchilov and Hutter, SGDR (2017), equation 5, for the cosine.
    """
    if schedule.kind not in NAMES:
        raise ScheduleUnknown(f"lr_scheduler={schedule.kind!r}; the open trainer supports {', '.join(NAMES)}")
    warmup = schedule.warmup_ratio
    if progress < warmup and schedule.kind != "constant":
        lowest = MIN_RATIO if schedule.kind == "warmup_stable_decay" else 0.0
        return schedule.peak * (lowest + (1 - lowest) * progress / warmup)
    if schedule.kind == "inverse_sqrt":
        return schedule.peak * math.sqrt((warmup or 1.0) / max(progress, warmup or 1.0))
    rest = min(1.0, (progress - warmup) / (1 - warmup)) if warmup < 1 else 0.0
    least = MIN_RATIO if schedule.kind in _WITH_MINIMUM else 0.0
    least = least if schedule.min_ratio is None else schedule.min_ratio
    return schedule.peak * (least + (1 - least) * _SHAPES[schedule.kind](max(rest, 0.0)))
