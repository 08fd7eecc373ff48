"""Search spaces: what the sweeps of Hydra's grammar mean to a sampler, and the syntax of Hydra's Optuna sweeper.

Source: Hydra, Optuna Sweeper plugin, Usage; its distributions of overrides (choice, range, interval, the tag log).
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from hydra.core.override_parser.types import ChoiceSweep, Glob, IntervalSweep, Override, QuotedString, RangeSweep

from launcher.common.problems import Problem, ProblemsFound, fail, gathering, raise_any, shown
from launcher.config import hydra_overrides, multirun
from launcher.config.dimensions import DIRECTIONS, GRID, PRUNERS, SAMPLERS, Dimension, allowed_count, is_count
from launcher.config.overrides import typed_key, unreadable

_SWEEPER, _SAMPLER, _PRUNER = "hydra/sweeper", "hydra/sweeper/sampler", "hydra/sweeper/pruner"
_PREFIX = "hydra.sweeper."
_PARAMS = "hydra.sweeper.params"
_COUNTS = {
    "n_trials": "trials",
    "n_jobs": "parallel",
    "sampler.seed": "seed",
    "pruner.n_startup_trials": "startup_trials",
    "pruner.n_warmup_steps": "warmup_steps",
}
_TEXTS = {"direction": "direction", "study_name": "name", "objective": "objective"}
_SETTINGS = {argument: f"{_PREFIX}{name}" for name, argument in {**_COUNTS, **_TEXTS}.items()} | {
    "sampler": _SAMPLER,
    "pruner": _PRUNER,
}
"""Argument of `launcher.sweep` to the setting of the sweeper that gives it."""


@dataclass(frozen=True, slots=True)
class SearchWords:
    """What a command line for a sweeper requests.

    Args:
        fixed: The overrides that every job has.
        settings: Arguments of `launcher.sweep` that were set, by name.
    """

    fixed: tuple[str, ...]
    dimensions: tuple[Dimension, ...]
    settings: Mapping[str, Any] = field(default_factory=dict)


def dimensions(words: Sequence[str]) -> tuple[Dimension, ...]:
    """Return the dimensions of overrides that all sweep.

    Raises:
        ProblemsFound: Every override that is not a sweep a sampler can draw from (E002), or is not readable (E001).
    """
    found: list[Dimension] = []
    problems: list[Problem] = []
    for text in words:
        with gathering(problems):
            override = _parsed(text)
            if not override.is_sweep_override():
                raise fail("E002", shown(text), "has one value", allowed="choice(…), range(…) or interval(…)")
            found.append(_dimension(override, text))
    problems += repeated(found)
    raise_any(problems)
    return tuple(found)


def as_typed(problem: Problem) -> Problem:
    """Return a Problem of a sweep's argument as one of the sweeper's setting that gave it; others as they are."""
    return replace(problem, path=_SETTINGS.get(problem.path, problem.path)) if problem.code == "E725" else problem


def is_search(words: Sequence[str]) -> bool:
    """Return whether a command line names a sweeper, or sets one up."""
    return any(word.lstrip("+").startswith((f"{_SWEEPER}=", f"{_SWEEPER}/", _PREFIX)) for word in words)


def read(words: Sequence[str]) -> SearchWords:
    """Return what a command line for a sweeper requests.

    Raises:
        ProblemsFound: Every word of it that is not understood or not supported.
    """
    problems: list[Problem] = []
    settings: dict[str, Any] = {}
    fixed: list[str] = []
    swept: list[str] = []
    for text in words:
        with gathering(problems):
            key = typed_key(text)
            if key == _PARAMS or key.startswith(f"{_PARAMS}."):
                swept += _params(text)
            elif key.startswith((_SWEEPER, _PREFIX.rstrip("."))):
                settings |= _setting(text, key)
            else:
                (swept if _parsed(text).is_sweep_override() else fixed).append(text)
    found: tuple[Dimension, ...] = ()
    with gathering(problems):
        found = dimensions(swept)
    if not swept and not problems:
        allowed = "key=choice(a,b), key=range(…) or key=interval(…)"
        problems.append(Problem("E002", _SWEEPER, "no override sweeps over values", allowed=allowed))
    raise_any(problems)
    return SearchWords(tuple(fixed), found, settings)


def _parsed(text: str) -> Override:
    if problem := unreadable(text):
        raise ProblemsFound((problem,))
    hydra_overrides.read(text)  # whose Problem of an override that is not written as one is the usual
    override = hydra_overrides.parsed(text)
    assert override
    return override


def _dimension(override: Override, text: str) -> Dimension:
    key, value = override.get_key_element(), override._value
    match value:
        case IntervalSweep():
            return _interval(key, value, text)
        case RangeSweep(shuffle=True) | ChoiceSweep(shuffle=True):
            message = "has a random order, so that an interrupted sweep could not be resumed"
            raise fail("E002", shown(text), message, remedy="leave out shuffle")
        case RangeSweep() if value.step > 0:
            return _range(key, value, text)
        case Glob():
            raise fail("E002", shown(text), "a glob is not a choice of a search", allowed="choice(a,b)")
    choices = tuple(dict.fromkeys(word.partition("=")[2] for word in multirun.choices(text)))
    if isinstance(value, ChoiceSweep) and "log" in value.tags:
        raise fail("E002", shown(text), "choices have no logarithm", allowed="tag(log, interval(low, high))")
    return Dimension(key, choices)


def _interval(key: str, sweep: IntervalSweep, text: str) -> Dimension:
    low, high = sweep.start, sweep.end
    assert low is not None and high is not None
    if not (math.isfinite(low) and math.isfinite(high)):
        raise fail("E002", shown(text), "has a bound that is not finite")
    if low > high:
        raise fail("E002", shown(text), "is reversed", remedy=f"interval({high},{low})")
    return _checked(Dimension(key, low=low, high=high, is_log=_has_log(sweep.tags, text)), text)


def _range(key: str, sweep: RangeSweep, text: str) -> Dimension:
    if problem := multirun.range_problem(sweep, text):
        raise ProblemsFound((problem,))
    values = list(sweep.range())
    found = Dimension(key, low=values[0], high=values[-1], step=sweep.step, is_log=_has_log(sweep.tags, text))
    if found.is_log and not (found.is_int and sweep.step == 1):
        raise fail(
            "E002", shown(text), "a range with steps has no logarithm", allowed="tag(log, interval(low, high))"
        )
    return _checked(found, text)


def _checked(found: Dimension, text: str) -> Dimension:
    if found.is_log and found.low <= 0:
        raise fail("E002", shown(text), "has no logarithm at its lower bound", value=found.low, allowed="above 0")
    return found


def _has_log(tags: set[str], text: str) -> bool:
    if unknown := sorted(tags - {"log"}):
        raise fail("E002", shown(text), "has a tag that no sampler reads", value=", ".join(unknown), allowed="log")
    return "log" in tags


def repeated(found: Sequence[Dimension]) -> Iterator[Problem]:
    """Yield a Problem for each dimension of a key that has one already."""
    seen: set[str] = set()
    for each in found:
        if each.label in seen:
            yield Problem("E002", each.label, "sweeps twice", allowed="one sweep of a key")
        seen.add(each.label)


def _params(text: str) -> Iterator[str]:
    """Yield the overrides that `hydra.sweeper.params` stands for: a mapping, or one of its keys."""
    key, _, rest = text.lstrip("+").partition("=")
    if key != _PARAMS:
        value = _parsed(text)._value
        yield f"{key.removeprefix(f'{_PARAMS}.')}={value.text if isinstance(value, QuotedString) else rest}"
        return
    found = _parsed(text)._value
    if not isinstance(found, Mapping) or not found:
        allowed = "{key: 'interval(low, high)', …}"
        raise fail("E009", _PARAMS, "must be a mapping of keys to sweeps", value=shown(rest), allowed=allowed)
    for name, value in found.items():
        yield f"{name}={value.text if isinstance(value, QuotedString) else value}"


def _setting(text: str, key: str) -> dict[str, Any]:
    """Return the argument of `launcher.sweep` that a setting of the sweeper is."""
    value = _parsed(text).value()
    name = key.removeprefix(_PREFIX)
    if key == _SWEEPER:
        _one_of(key, value, ("optuna",))
        return {}
    if key == _SAMPLER:
        return {"sampler": _one_of(key, value, (*SAMPLERS, GRID))}
    if key == _PRUNER:
        return {"pruner": _one_of(key, value, PRUNERS)}
    if name == "direction":
        return {"direction": _one_of(key, value, DIRECTIONS)}
    if name in _TEXTS:
        if not isinstance(value, str) or not value:
            raise fail("E009", key, "must be a text", value=value)
        return {_TEXTS[name]: value}
    if name in _COUNTS:
        if not is_count(_COUNTS[name], value):
            raise fail("E009", key, "is not a valid number", value=value, allowed=allowed_count(_COUNTS[name]))
        return {_COUNTS[name]: value}
    known = (_SWEEPER, _SAMPLER, _PRUNER, *(f"{_PREFIX}{each}" for each in (*_TEXTS, *_COUNTS)), f"{_PARAMS}.…")
    raise fail("E009", key, "is a setting of the sweeper that is not supported", allowed=", ".join(known))


def _one_of(key: str, value: object, allowed: Sequence[str]) -> str:
    if value not in allowed:
        raise fail("E009", key, "is not supported", value=value, allowed=", ".join(allowed))
    return str(value)
