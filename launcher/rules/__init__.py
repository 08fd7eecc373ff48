"""Checks of a recipe, and notices about it: one module for each subject.

A rule is a generator with a code and a source. One with an E code yields Problems of a `CheckedRecipe`; one with an N
code yields Notices of a `PlannedRecipe`, which has no Problems. Each creates them with the function it receives,
which adds its code.
"""

import functools
import importlib
import pkgutil
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cache

from launcher.checkpointing.forecast import Forecast, forecast
from launcher.common.problems import Notice, Problem
from launcher.model import backend_registry
from launcher.model.checked_recipe import CheckedRecipe
from launcher.model.config_tree import related
from launcher.model.job_spec import JobSpec

SIZES = tuple(
    f"recipes.elastic_policy.{key}" for key in ("is_elastic", "min_nodes", "max_nodes", "replica_increment_step")
)
"""The keys that determine the sizes of a job: needed by every rule about sizes."""

BATCH, SAME_FOLDER = "<batch>", "<same folder>"
"""Placeholders in a rule's needs for keys that vary by family: those that distribute samples to ranks, and the
one that keeps a restarted job in its folder."""

ORDER = (
    *("N173", "N139", "N146", "N165", "N168", "N167", "N195"),  # what was typed, and what is in the user's files
    *("N109", "N110", "N111", "N112", "N113", "N104"),  # the sizes, and what holds at each
    *("N161", "N160", "N162", "N163", "N164"),  # the hardware
    *("N101", "N108", "N102", "N103", "N124", "N125", "N115", "N105", "N116", "N106"),  # differences from the recipe
    *("N174", "N175", "N180"),  # what a trainer does differently
    *("N107", "N127", "N128", "N126", "N118"),  # possible oversights
    *("N133", "N134", "N130", "N131", "N138", "N132", "N135"),  # checkpoints
    *("N117", "N166", "N170", "N172", "N171", "N136", "N186", "N188"),  # the cluster's own
)
"""The order in which a launch prints its notices; unlisted ones come last."""


@dataclass(frozen=True, slots=True)
class PlannedRecipe:
    """A checked recipe and the job that was planned from it.

    Args:
        checked: The recipe.
        job: The job.
        forecast: Expected cost of its checkpoints; None if unknown or not needed.
    """

    checked: CheckedRecipe
    job: JobSpec
    forecast: Forecast | None


MakeProblem = Callable[..., Problem]
MakeNotice = Callable[[str], Notice]
Check = Callable[[CheckedRecipe, MakeProblem], Iterator[Problem]]
Advice = Callable[[PlannedRecipe, MakeNotice], Iterator[Notice]]


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule.

    Args:
        code: The code of its Problems.
        needs: Dotted paths it reads, prefixes of them allowed, BATCH or SAME_FOLDER. It is skipped if one of them is
            itself faulty, so that each fault is reported once.
        source: The rule's source.
        check: Yields the Problems of a CheckedRecipe; its docstring is the reason.
    """

    code: str
    needs: tuple[str, ...]
    source: str
    check: Check

    @property
    def reason(self) -> str:
        """The reason for the rule."""
        return _reason(self.check)

    @property
    def clusters(self) -> tuple[str, ...]:
        """The choices of `cluster` it applies to; none if it applies to all."""
        return _clusters(self.check)

    def applies(self, backend: str, faulty: frozenset[str]) -> bool:
        """Return whether it applies to a backend's jobs and none of the keys it needs is faulty."""
        return _is_about(self.check, backend) and not any(related(need, bad) for need in self.needs for bad in faulty)

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


@dataclass(frozen=True, slots=True)
class NoticeRule:
    """One piece of advice about a valid job.

    Args:
        code: The code of its Notices.
        source: The rule's source.
        advice: Yields the Notices of a PlannedRecipe; its docstring is the reason.
        is_usual: Whether each elastic job with the default settings of its cluster gets it: a launch only names it.
    """

    code: str
    source: str
    advice: Advice
    is_usual: bool = False

    @property
    def reason(self) -> str:
        """The reason for the notice."""
        return _reason(self.advice)

    @property
    def clusters(self) -> tuple[str, ...]:
        """The choices of `cluster` it applies to; none if it applies to all."""
        return _clusters(self.advice)

    def applies(self, backend: str) -> bool:
        """Return whether it applies to a backend's jobs."""
        return _is_about(self.advice, backend)

    def notices(self, planned: PlannedRecipe) -> Iterator[Notice]:
        """Yield the Notices of a planned recipe."""
        return self.advice(planned, functools.partial(Notice, self.code))


# Filled by the two decorators while the modules of rules are imported, and never changed after that.
_rules: list[Rule] = []
_notice_rules: list[NoticeRule] = []


def rule(code: str, *needs: str, source: str) -> Callable[[Check], Check]:
    """Register the decorated generator of Problems as the rule `code`, for the backend of its module."""

    def register(check: Check) -> Check:
        _rules.append(Rule(code, needs, source, check))
        return check

    return register


def notice_rule(code: str, *, source: str, is_usual: bool = False) -> Callable[[Advice], Advice]:
    """Register the decorated generator of Notices as the rule `code`, for the backend of its module."""

    def register(advice: Advice) -> Advice:
        _notice_rules.append(NoticeRule(code, source, advice, is_usual))
        return advice

    return register


@cache  # these four: a backend's rules do not change once its modules are imported
def all_rules() -> tuple[Rule, ...]:
    """Return every rule with an E code, by code."""
    for backend in backend_registry.names():
        _import(backend)
    return _by_code()


@cache
def all_notice_rules() -> tuple[NoticeRule, ...]:
    """Return every rule with an N code, in the order in which notices are printed."""
    for backend in backend_registry.names():
        _import(backend)
    return _in_order()


@cache
def rules_for(backend: str) -> tuple[Rule, ...]:
    """Return the rules that may apply to a cluster, by code; those of other backends are not imported."""
    _import(backend)
    return _by_code()


@cache
def notice_rules_for(backend: str) -> tuple[NoticeRule, ...]:
    """Return the notice rules for a cluster, in the order in which notices are printed."""
    _import(backend)
    return tuple(each for each in _in_order() if each.applies(backend))


def notices(checked: CheckedRecipe, job: JobSpec, expected: Forecast | None = None) -> tuple[Notice, ...]:
    """Return all notices about a planned job, in the order in which they are printed. Pure.

    Args:
        checked: The recipe.
        job: The job that was planned from it.
        expected: Cost of its checkpoints, instead of the forecast from the recipe.
    """
    applied = notice_rules_for(checked.backend)
    planned = PlannedRecipe(checked, job, expected or _forecast(checked))
    return tuple(notice for each in applied for notice in each.notices(planned))


def _forecast(checked: CheckedRecipe) -> Forecast | None:
    is_timed = checked.elastic and checked.elastic.use_graceful_shutdown
    return forecast(checked) if is_timed or checked.recipe.checkpointing else None


def _is_about(generator: Check | Advice, backend: str) -> bool:
    """Return whether a rule applies to a backend's jobs: one of this package, or of the backend's modules."""
    return any(_is_in(generator.__module__, each) for each in (__name__, *_rules_of(backend)))


def _clusters(generator: Check | Advice) -> tuple[str, ...]:
    described = backend_registry.descriptions()
    return tuple(
        each.choice for each in described if any(_is_in(generator.__module__, own) for own in _rules_of(each.name))
    )


@cache  # looking for modules reads folders
def _rules_of(backend: str) -> tuple[str, ...]:
    return backend_registry.described(backend).rules()


def _is_in(module: str, package: str) -> bool:
    return module == package or module.startswith(f"{package}.")


def _reason(generator: Check | Advice) -> str:
    return " ".join((generator.__doc__ or "").split())


def _import(backend: str) -> None:
    """Import the modules of rules for every cluster and for this one, so that they are registered."""
    for package in (__name__, *_rules_of(backend)):
        for module in pkgutil.iter_modules(getattr(importlib.import_module(package), "__path__", ())):
            importlib.import_module(f"{package}.{module.name}")


def faulty_needs(checked: CheckedRecipe, faulty: Iterable[str]) -> frozenset[str]:
    """Return the needs that faulty keys affect: the keys themselves, and placeholders for one of them."""
    paths, keys = frozenset(faulty), checked.recipe.keys
    own = {BATCH: keys.batch.dealt_by if keys.batch else (), SAME_FOLDER: (keys.same_folder,)}
    return paths | {
        need
        for need, names in own.items()
        if any(related(f"recipes.{name}", path) for name in names if name for path in paths)
    }


def _by_code() -> tuple[Rule, ...]:
    return tuple(sorted(_rules, key=lambda each: each.code))


def _in_order() -> tuple[NoticeRule, ...]:
    places = {code: place for place, code in enumerate(ORDER)}
    return tuple(sorted(_notice_rules, key=lambda each: (places.get(each.code, len(places)), each.code)))
