"""What is wrong with a sweep before anything of it is written, all at once."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from launcher.api import values
from launcher.api.plan import Plan
from launcher.api.sweeps import choosing
from launcher.api.sweeps.record import Description
from launcher.common.problems import Problem, ProblemsFound, fail, gathering, raise_any
from launcher.config.dimensions import COUNTS, DIRECTIONS, GRID, PRUNERS, SAMPLERS, Dimension, allowed_count, is_count
from launcher.config.dimensions import points as grid_points
from launcher.config.overrides import unclosed
from launcher.job_store import tracking
from launcher.model import backend_registry

_METRIC = re.compile(r"[\w./ -]{1,250}")
"""Source: mlflow.utils.validation, names of metrics."""


def dimensions(grid: Mapping[str, Any] | None, space: Mapping[str, Any] | None) -> tuple[Dimension, ...]:
    """Return the dimensions of a grid, or of a space.

    Args:
        grid: Lists of values by key, or texts in Hydra's grammar (`range(1,5)`).
        space: The same, and intervals.

    Raises:
        ProblemsFound: Every key and value that no dimension is made of.
    """
    if (grid is None) == (space is None):
        raise fail("E725", "launcher.sweep", "needs either a grid or a space", allowed="grid={…} or space={…}")
    name, given = ("grid", grid) if grid is not None else ("space", space)
    if not isinstance(given, Mapping) or not given:
        raise fail("E725", name, "must be a mapping of keys to values", value=given, allowed="{key: [value, …]}")
    from launcher.config import search_space  # which imports Hydra

    problems: list[Problem] = []
    found: list[Dimension] = []
    for key, alternatives in given.items():
        with gathering(problems):
            found.append(_dimension(key, alternatives))
            if grid is not None and not found[-1].choices and found[-1].step is None:
                remedy = "space={…} in place of grid: a sampler chooses its values"
                allowed = "[value, …], or range(start, stop, step)"
                message = "an interval has no single values, which a grid needs"
                raise fail("E002", found[-1].label, message, allowed=allowed, remedy=remedy)
    raise_any((*problems, *search_space.repeated(found)))
    return tuple(found)


def _dimension(key: str, alternatives: Any) -> Dimension:
    """Return the dimension of a key: of a text in Hydra's grammar, or of values."""
    from launcher.config import search_space

    if isinstance(alternatives, str):
        (word,) = values.words({key: None})
        sign = f"{word.partition('=')[0]}="
        try:
            return search_space.dimensions([f"{sign}{alternatives}"])[0]
        except ProblemsFound as error:
            raise ProblemsFound(tuple(_of_space(each, key, sign, alternatives) for each in error.problems)) from error
    if hasattr(alternatives, "tolist"):  # an array of NumPy
        alternatives = alternatives.tolist()
    if isinstance(alternatives, bytes | bytearray) or not isinstance(alternatives, Sequence) or not alternatives:
        allowed = "[value, …], or 'interval(low, high)'"
        raise fail("E725", str(key), "must have a list of values", value=alternatives, allowed=allowed)
    words = [word.partition("=") for value in alternatives for word in values.words({key: value})]
    return Dimension(words[0][0], tuple(dict.fromkeys(text for _, _, text in words)))


def _of_space(problem: Problem, key: str, sign: str, text: str) -> Problem:
    """Return the Problem of an override that is not written as one as that of a text of a grid or space."""
    from launcher.config import hydra_overrides

    if problem.code != "E001":
        return problem
    closed = text + unclosed(text)
    remedy = closed if closed != text and hydra_overrides.parsed(f"{sign}{closed}") else None
    return replace(problem, path=key, value=text, allowed=hydra_overrides.SWEEPS, remedy=remedy)


def checked(plan: Plan, description: Description, faults: Iterable[Problem] = ()) -> Plan:
    """Return the plan of the first trial of a sweep without faults.

    Args:
        faults: Those that its description does not show.

    Raises:
        ProblemsFound: Every fault of it and of its jobs, each once.
    """
    found = [*faults, *_settings(description), *choosing.problems(description)]
    if plan.problems and not plan.overrides:  # its recipe is not known
        raise ProblemsFound((*found, *plan.problems))
    plans: list[Plan] = []
    for point in _checked_points(description):
        with gathering(found):
            plans.append(plan.trial(choosing.texts(description.dimensions, point)))
    if plans:
        found += _unrunnable(plans[0], description)
    raise_any({(each.code, each.path, each.message): each for each in found}.values())
    return plans[0]


def _settings(description: Description) -> Iterator[Problem]:
    for name in COUNTS:
        if not is_count(name, value := getattr(description, name)):
            yield Problem("E725", name, "is not a valid number", value=value, allowed=allowed_count(name))
    samplers = (GRID,) if description.is_grid else SAMPLERS
    for name, choices in (("direction", DIRECTIONS), ("sampler", samplers), ("pruner", (None, *PRUNERS))):
        if getattr(description, name) not in choices:
            allowed = ", ".join(map(str, choices))
            yield Problem("E725", name, "is not supported", value=getattr(description, name), allowed=allowed)
    objective = description.objective
    if objective is None and (not description.is_grid or description.pruner):
        remedy = "objective='loss', or another metric of the job; hydra.sweeper.objective=loss on a command line"
        yield Problem("E725", "objective", "is missing: a sampler and a pruner need one", remedy=remedy)
    elif objective is not None and not (isinstance(objective, str) and _METRIC.fullmatch(objective)):
        yield Problem("E725", "objective", "is not the name of a metric", value=objective)


def _unrunnable(plan: Plan, description: Description) -> Iterator[Problem]:
    """Yield why a sweep could not run its jobs, or read their objective."""
    job = plan.job
    for each in description.dimensions:
        if each.label == "cluster":
            yield Problem("E725", "cluster", "a sweep runs on one cluster", remedy="a sweep for each")
    mode = backend_registry.described(job.backend).launch_mode(job.settings)
    for key in ("dry_run", "server_dry_run"):
        if job.config[key]:
            remedy = "leave it out; --multirun without a sweeper writes the bundle of every job"
            yield Problem("E725", key, "a sweep launches its jobs", value=True, remedy=remedy)
    if mode.is_written_only:
        yield Problem("E725", "cluster", "a sweep launches its jobs, and this cluster only writes bundles")
    is_shared = backend_registry.described(job.backend).files.are_shared(job.settings)
    if description.objective and not is_shared and not tracking.is_tracked(job):
        message = "cannot be read: the job's files are elsewhere, and it has no MLflow run"
        remedy = "set recipes.training_config.mlflow.tracking_uri, or leave out objective"
        yield Problem("E725", "objective", message, value=description.objective, remedy=remedy)


def _checked_points(description: Description) -> Iterator[tuple[str | float, ...]]:
    """Yield the points that are compiled before a sweep starts.

    All of a grid; of a space each extreme of each dimension, beside the first ones of the others.
    """
    found = description.dimensions
    if description.is_grid:
        yield from grid_points(found)
        return
    first = [each.extremes()[0] for each in found]
    yield tuple(first)
    for i, each in enumerate(found):
        for value in each.extremes()[1:]:
            yield (*first[:i], value, *first[i + 1 :])
