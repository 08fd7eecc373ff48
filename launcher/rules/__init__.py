"""Checks of a recipe, and notices about it: one module for each subject.

A rule is a generator with a code and a source. One with an E code yields Problems of a `CheckedRecipe`; one with an N
code yields Notices of a `PlannedRecipe`, which has no Problems. Each creates them with the function it receives,
which adds its code.
"""

import functools
import importlib
import pkgutil
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from typing import Any, NamedTuple

from launcher.checkpointing.forecast import Forecast, forecast
from launcher.common.problems import Notice, Problem
from launcher.model import backend_registry, family_registry
from launcher.model.checked_recipe import CheckedRecipe
from launcher.model.config_tree import related
from launcher.model.job_spec import JobSpec

SIZES = tuple(
    f"recipes.elastic_policy.{key}" for key in ("is_elastic", "min_nodes", "max_nodes", "replica_increment_step")
)
"""The keys that determine the sizes of a job: needed by every rule about sizes."""

BATCH, SAME_FOLDER = "<batch>", "<same folder>"
"""Placeholders in a rule's needs for keys that vary by family: those that distribute samples to ranks, and
those that let a restarted job resume from its folder."""

ORDER = (
    *("N173", "N139", "N146", "N165", "N169", "N183", "N168", "N167", "N195", "N194"),  # what was typed, users' files
    *("N109", "N110", "N111", "N112", "N113", "N137", "N104"),  # the sizes, and what holds at each
    *("N161", "N160", "N162", "N163", "N164"),  # the hardware
    *("N101", "N108", "N102", "N103", "N124", "N125", "N115"),  # differences from the recipe
    *("N105", "N116", "N106", "N181", "N182", "N197", "N198"),
    *("N174", "N175", "N177", "N180"),  # what a trainer does differently
    *("N107", "N127", "N128", "N193", "N126", "N118", "N440", "N441", "N442"),  # possible oversights
    *("N133", "N134", "N199", "N130", "N131", "N138", "N132", "N135"),  # checkpoints
    *("N117", "N166", "N170", "N172", "N171", "N136", "N184", "N185"),  # the cluster's own
    *("N186", "N187", "N188", "N189", "N192"),
    *("N460", "N461"),  # the family's own
)
"""The order in which a launch prints its notices; unlisted ones come last."""


class PlannedRecipe(NamedTuple):
    """A checked recipe and the job that was planned from it."""

    checked: CheckedRecipe
    job: JobSpec
    forecast: Forecast | None
    """Expected cost of its checkpoints; None if unknown or not needed."""


MakeProblem = Callable[..., Problem]
MakeNotice = Callable[[str], Notice]
Check = Callable[[CheckedRecipe, MakeProblem], Iterator[Problem]]
Advice = Callable[[PlannedRecipe, MakeNotice], Iterator[Notice]]


class Rule(NamedTuple):
    """A rule with an E code, or one piece of advice about a valid job, with an N code."""

    code: str
    needs: tuple[str, ...]
    """Dotted paths it reads, prefixes of them allowed, BATCH or SAME_FOLDER. It is skipped if one of them is itself
    faulty, so that each fault is reported once."""
    source: str
    check: Callable[..., Iterator[Any]]
    """A Check or Advice; its docstring is the reason."""
    is_usual: bool = False
    """Whether each elastic job with the default settings of its cluster gets the notice: a launch only names it."""

    @property
    def reason(self) -> str:
        """The reason for the rule."""
        return " ".join((self.check.__doc__ or "").split())

    @property
    def clusters(self) -> tuple[str, ...]:
        """The choices of `cluster` it applies to; none if it applies to all."""
        return tuple(each.choice for each in backend_registry.descriptions() if self._is_in(*_rules_of(each.name)))

    def applies(self, backend: str, model_type: str) -> bool:
        """Return whether it applies to a family's jobs on a backend."""
        return self._is_in(__name__, *_packages(backend, model_type))

    def needs_any(self, faulty: frozenset[str]) -> bool:
        """Return whether one of the keys it needs is faulty."""
        return any(related(need, bad) for need in self.needs for bad in faulty)

    def _is_in(self, *packages: str) -> bool:
        return f"{self.check.__module__}.".startswith(tuple(f"{each}." for each in packages))

    def problems(self, checked: CheckedRecipe, *, is_faulty: bool) -> list[Problem]:
        """Return the Problems of a recipe.

        The stand-in for a faulty value may be of any type, so a rule may fail on it. The rule runs again once
        the fault is fixed.
        """
        try:
            return list(self.check(checked, functools.partial(Problem, self.code)))
        except (AttributeError, LookupError, TypeError, ValueError):
            if is_faulty:
                return []
            raise

    def notices(self, planned: PlannedRecipe) -> Iterator[Notice]:
        """Yield the Notices of a planned recipe."""
        return self.check(planned, functools.partial(Notice, self.code))


# Filled by the two decorators while the modules of rules are imported, and never changed after that.
_rules: list[Rule] = []


def rule(code: str, *needs: str, source: str) -> Callable[[Check], Check]:
    """Register the decorated generator of Problems as the rule `code`, for the backend of its module."""

    def register(check: Check) -> Check:
        _rules.append(Rule(code, needs, source, check))
        return check

    return register


def notice_rule(code: str, *, source: str, is_usual: bool = False) -> Callable[[Advice], Advice]:
    """Register the decorated generator of Notices as the rule `code`, for the backend of its module."""

    def register(advice: Advice) -> Advice:
        _rules.append(Rule(code, (), source, advice, is_usual))
        return advice

    return register


def all_rules() -> tuple[Rule, ...]:
    """Return every rule with an E code, by code."""
    _import_all()
    return _by_code()


def all_notice_rules() -> tuple[Rule, ...]:
    """Return every rule with an N code, in the order in which notices are printed."""
    _import_all()
    return _in_order()


@cache  # these two: the rules about a family and a backend do not change once their modules are imported
def rules_for(backend: str, model_type: str) -> tuple[Rule, ...]:
    """Return the rules for a family's jobs on a cluster, by code; others are not imported."""
    _import(*_packages(backend, model_type))
    return tuple(each for each in _by_code() if each.applies(backend, model_type))


@cache
def notice_rules_for(backend: str, model_type: str) -> tuple[Rule, ...]:
    """Return the notice rules for a family's jobs on a cluster, in the order in which notices are printed."""
    _import(*_packages(backend, model_type))
    return tuple(each for each in _in_order() if each.applies(backend, model_type))


def notices(checked: CheckedRecipe, job: JobSpec, expected: Forecast | None = None) -> tuple[Notice, ...]:
    """Return all notices about a planned job, in the order in which they are printed. Pure.

    The cost of its checkpoints is forecast from the recipe if it is not given.
    """
    planned = PlannedRecipe(checked, job, expected or _forecast(checked))
    advice = notice_rules_for(checked.backend, job.model_type)
    return tuple(notice for each in advice for notice in each.notices(planned))


def _forecast(checked: CheckedRecipe) -> Forecast | None:
    is_timed = checked.elastic and checked.elastic.use_graceful_shutdown
    return forecast(checked) if is_timed or checked.recipe.checkpointing else None


@cache  # looking for modules reads folders
def _rules_of(backend: str) -> tuple[str, ...]:
    return backend_registry.described(backend).rules()


@cache
def _packages(backend: str, model_type: str) -> tuple[str, ...]:
    return *_rules_of(backend), *family_registry.rules(model_type)


def _import_all() -> None:
    backends = (package for name in backend_registry.names() for package in _rules_of(name))
    _import(*backends, *(package for name in family_registry.names() for package in family_registry.rules(name)))


@cache
def _import(*packages: str) -> None:
    """Import the modules of rules for every job, and those of packages, so that they are registered."""
    for package in (__name__, *packages):
        for module in pkgutil.iter_modules(getattr(importlib.import_module(package), "__path__", ())):
            importlib.import_module(f"{package}.{module.name}")


def faulty_needs(checked: CheckedRecipe, faulty: Iterable[str]) -> frozenset[str]:
    """Return the needs that faulty keys affect: the keys themselves, and placeholders for one of them."""
    paths, keys = frozenset(faulty), checked.recipe.keys
    own = {BATCH: keys.batch.dealt_by if keys.batch else (), SAME_FOLDER: (keys.same_folder, keys.resumes)}
    return paths | {
        need
        for need, names in own.items()
        if any(related(f"recipes.{name}", path) for name in names if name for path in paths)
    }


def _by_code() -> tuple[Rule, ...]:
    return tuple(sorted((each for each in _rules if each.code.startswith("E")), key=lambda each: each.code))


def _in_order() -> tuple[Rule, ...]:
    places = {code: place for place, code in enumerate(ORDER)}
    advice = (each for each in _rules if each.code.startswith("N"))
    return tuple(sorted(advice, key=lambda each: (places.get(each.code, len(places)), each.code)))
