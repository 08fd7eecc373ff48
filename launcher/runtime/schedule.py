"""The learning rate as a function of how much of the training is done."""

import math

from launcher.runtime.training_config import Schedule


class UnknownSchedule(ValueError):
    """This trainer does not support the recipe's `lr_scheduler`."""


def learning_rate(schedule: Schedule, progress: float) -> float:
    """Return the learning rate when `progress` (0 to 1) of all samples are done.

    It has no state to restore and does not depend on the number of ranks.

    Raises:
        UnknownSchedule: `schedule.kind` is neither `cosine` nor `constant`.

    Source: Loshchilov and Hutter, SGDR: Stochastic Gradient Descent with Warm Restarts (2017),
        equation 5, one cycle down to zero.
    """
    if schedule.kind not in ("cosine", "constant"):
        raise UnknownSchedule(f"lr_scheduler={schedule.kind!r}; this trainer supports cosine and constant")
    warmup = schedule.warmup_ratio
    if progress < warmup:
        return schedule.peak * progress / warmup
    if schedule.kind == "constant":
        return schedule.peak
    return schedule.peak * (1 + math.cos(math.pi * (progress - warmup) / max(1 - warmup, 1e-12))) / 2
