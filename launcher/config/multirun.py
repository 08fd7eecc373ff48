"""`--multirun`: the jobs that sweeps over several values stand for."""

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Any

from hydra.core.override_parser.types import Glob, Override, RangeSweep, ValueType

from launcher.common.problems import Problem, ProblemsFound, gathering, raise_any, shown
from launcher.config import hydra_overrides, overrides
from launcher.config.collection import GROUPS, clusters, recipe_names
from launcher.config.dimensions import MOST_JOBS
from launcher.config.overrides import unreadable


def jobs(words: Sequence[str]) -> list[list[str]]:
    """Return the overrides of every job that sweeps stand for: all combinations, the last sweep changing first.

    Raises:
        ProblemsFound: A sweep is not understood, or they stand for too many jobs.
    """
    problems: list[Problem] = []
    found: list[list[str]] = []
    for text in words:
        with gathering(problems):
            found.append(choices(text))
    if not problems and (count := math.prod(map(len, found))) > MOST_JOBS:
        problems.append(Problem("E002", "--multirun", f"is {count} jobs", allowed=f"at most {MOST_JOBS}"))
    raise_any(problems)
    return [list(words) for words in itertools.product(*found)]


def choices(text: str) -> list[str]:
    """Return the overrides that one expands to: itself, if it does not sweep."""
    if problem := unreadable(text):
        raise ProblemsFound((problem,))
    override = None if overrides.plain(text) else hydra_overrides.parsed(text)
    if override is None or not override.is_sweep_override():
        return [text]  # the launch has better words for one that cannot be parsed
    if problem := _fault(override, text):
        raise ProblemsFound((problem,))
    glob = override._value
    values = _globbed(override, glob) if isinstance(glob, Glob) else override.sweep_string_iterator()
    return [f"{override.get_key_element()}={value}" for value in values]


def _fault(override: Override, text: str) -> Problem | None:
    value: Any = override._value
    if problem := hydra_overrides.respelled(override, override.key_or_group):
        return problem
    if override.value_type is ValueType.INTERVAL_SWEEP:
        return Problem("E002", shown(text), "an interval has no single values", allowed="range(start, stop, step)")
    if isinstance(value, Glob) and override.key_or_group not in GROUPS:
        return Problem("E002", shown(text), "a glob chooses recipes or clusters only", allowed="a,b or range(…)")
    return range_problem(value, text) if isinstance(value, RangeSweep) else None


def range_problem(sweep: RangeSweep, text: str) -> Problem | None:
    """Return what is wrong with the number of values of a range; None if nothing is."""
    count = _length(sweep)
    if 0 < count <= MOST_JOBS:
        return None
    what = f"is {count:g} values" if math.isfinite(count) else "does not end"
    return Problem("E002", shown(text), what, allowed=f"1 to {MOST_JOBS}")


def _length(sweep: RangeSweep) -> float:
    """Return how many values a range has, without making them."""
    start, stop, step = sweep.start, sweep.stop, sweep.step
    if start is None or stop is None or any(abs(bound) >= 1e300 for bound in (start, stop, step)) or step == 0:
        return math.inf
    return max(0, math.ceil((stop - start) / step))


def _globbed(override: Override, glob: Glob) -> Iterator[str]:
    """Return the recipes or clusters that a glob matches, at least one."""
    known = recipe_names() if override.key_or_group == "recipes" else clusters()
    if not (found := glob.filter(known)):
        raise ProblemsFound((Problem("E002", shown(override.input_line or ""), "matches nothing"),))
    return iter(found)
