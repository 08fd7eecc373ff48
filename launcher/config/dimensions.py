"""Dimensions of a search space and points of a grid. `search_space` reads them from words: this imports no Hydra."""

import contextlib
import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

from launcher.common.problems import Problem, fail, raise_any

SAMPLERS = ("tpe", "random")
GRID = "grid"
"""In place of a sampler: every combination."""
PRUNERS = ("median",)
DIRECTIONS = ("minimize", "maximize")
COUNTS = {
    "trials": range(1, 10_001),
    "parallel": range(1, 257),
    "seed": range(2**31),
    "startup_trials": range(10**6 + 1),
    "warmup_steps": range(10**6 + 1),
}
"""The numbers that a sweep takes, by name. Samplers use NumPy's generators, whose seeds have 32 bits; half of them
leave room for the number of earlier trials, which a resumed sweep adds. The other bounds are ours: a slip of the keys
starts neither a thousand jobs at once nor a sweep without end."""
MOST_JOBS = 1000
"""Jobs of one grid: each is compiled before the first is launched, or after the one before."""


def is_count(name: str, value: object) -> bool:
    """Return whether a sweep takes a number by one of the names of `COUNTS`."""
    return isinstance(value, int) and not isinstance(value, bool) and value in COUNTS[name]


def allowed_count(name: str) -> str:
    """Return the bounds of a number of `COUNTS` for people."""
    return f"a whole number from {COUNTS[name][0]} to {COUNTS[name][-1]}"


@dataclass(frozen=True, slots=True)
class Dimension:
    """One override of a search, whose value a sampler chooses.

    Args:
        key: What stands before the `=`, with its signs.
        choices: Values as they are written after the `=`; empty for a range of numbers.
        low, high: The bounds of a range, both included.
        step: Distance of its values; None for any number between the bounds.
        is_log: Whether the logarithm is uniform.
    """

    key: str
    choices: tuple[str, ...] = ()
    low: float | int = 0
    high: float | int = 0
    step: float | int | None = None
    is_log: bool = False

    @property
    def is_int(self) -> bool:
        """Whether its values are whole numbers."""
        return isinstance(self.low, int) and isinstance(self.high, int) and isinstance(self.step, int | None)

    @property
    def label(self) -> str:
        """Its key without signs and without the section that most keys share."""
        return self.key.lstrip("+").removeprefix("recipes.")

    def word(self, value: str | float) -> str:
        """Return the override that sets one of its values."""
        return f"{self.key}={value}"

    def extremes(self) -> tuple[str | float, ...]:
        """Return the values that a check must accept: every choice, or both bounds."""
        return self.choices or (self.low, self.high)


def typed(value: str | float) -> str | float:
    """Return a choice as the number or the truth value that its text writes; else the text.

    Source: Hydra, Override grammar, Primitive types.
    """
    if not isinstance(value, str):
        return value
    if value.lower() in ("true", "false"):
        return value.lower() == "true"
    for kind in (int, float):
        with contextlib.suppress(ValueError):
            return number if math.isfinite(number := kind(value)) else value
    return value


def points(found: Sequence[Dimension]) -> tuple[tuple[str | float, ...], ...]:
    """Return every combination of the values of dimensions, the last one changing first.

    Raises:
        ProblemsFound: A dimension has no single values, or the combinations are too many (E002).
    """
    problems: list[Problem] = []
    for each in found:
        if not each.choices and each.step is None:
            message = "an interval has no single values"
            problems.append(Problem("E002", each.label, message, allowed="range(start, stop, step), or a sampler"))
    raise_any(problems)
    count = math.prod(map(_length, found))
    if count > MOST_JOBS:
        raise fail("E002", "grid", f"is {count} jobs", allowed=f"at most {MOST_JOBS}")
    return tuple(itertools.product(*map(_values, found)))


def _length(found: Dimension) -> int:
    if found.choices:
        return len(found.choices)
    return 1 + math.floor((found.high - found.low) / (found.step or 1) + 1e-9)


def _values(found: Dimension) -> Sequence[str | float]:
    if found.choices:
        return found.choices
    values = [found.low + (found.step or 1) * i for i in range(_length(found))]
    return values if found.is_int else [float(f"{value:.12g}") for value in values]
