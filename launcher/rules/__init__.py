"""Checks that a recipe must pass, one module for each subject; each rule has a code and a source.

A rule is a generator of Problems over a `CheckedRecipe`, made with the `problem` it is given (that knows its code).
It names the keys it reads, and is left out when one of them is faulty in itself, so that one fault is reported once.
"""

import functools
import importlib
import pkgutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

from launcher.common.problems import Problem
from launcher.model import backend_registry

Check = Callable[[Any, Callable[..., Problem]], Iterator[Problem]]

SIZES = tuple(
    f"recipes.elastic_policy.{key}" for key in ("is_elastic", "min_nodes", "max_nodes", "replica_increment_step")
)
"""The keys that say which sizes a job may take: what a rule about sizes needs."""

_rules: list["Rule"] = []


@dataclass(frozen=True, slots=True)
class Rule:
    """One check.

    Args:
        code: The code of its Problems.
        needs: Dotted paths it reads, prefixes of them allowed.
        source: Where the rule comes from.
        check: Yields the Problems of a CheckedRecipe; its docstring is the reason.
    """

    code: str
    needs: tuple[str, ...]
    source: str
    check: Check

    @property
    def reason(self) -> str:
        """Why it is a rule, in a sentence or two."""
        return " ".join((self.check.__doc__ or "").split())

    @property
    def clusters(self) -> tuple[str, ...]:
        """The choices of `cluster` that it is limited to, as a backend's own rule is; none for a rule of all."""
        return tuple(
            each.choice for each in backend_registry.descriptions() if self.check.__module__ in each.rule_modules
        )

    def applies(self, backend: str, faulty: frozenset[str]) -> bool:
        """Return whether it is about jobs of a backend and none of the keys it needs is faulty."""
        module = self.check.__module__
        is_about = module.startswith(f"{__name__}.") or module in backend_registry.described(backend).rule_modules
        return is_about and not any(related(need, bad) for need in self.needs for bad in faulty)

    def problems(self, checked: Any, *, is_faulty: bool) -> list[Problem]:
        """Return the Problems of a draft.

        What stands in for a faulty value may be of any type, so that a rule may fail on it. It is asked again once
        the fault is mended.
        """
        try:
            return list(self.check(checked, functools.partial(Problem, self.code)))
        except (AttributeError, LookupError, TypeError, ValueError):
            if is_faulty:
                return []
            raise


def rule(code: str, *needs: str, source: str) -> Callable[[Check], Check]:
    """Register the decorated generator as the rule `code`: for all jobs, or those of the backend it is written in."""

    def register(check: Check) -> Check:
        _rules.append(Rule(code, needs, source, check))
        return check

    return register


@cache
def all_rules() -> tuple[Rule, ...]:
    """Return every rule, by code."""
    for backend in backend_registry.names():
        rules_for(backend)
    return tuple(sorted(_rules, key=lambda rule: rule.code))


@cache
def rules_for(backend: str) -> tuple[Rule, ...]:
    """Return the rules that may be about a cluster, by code; those of other backends are not imported."""
    for module in pkgutil.iter_modules(__path__):
        importlib.import_module(f"{__name__}.{module.name}")
    for name in backend_registry.described(backend).rule_modules:
        importlib.import_module(name)
    return tuple(sorted(_rules, key=lambda rule: rule.code))


def related(a: str, b: str) -> bool:
    """Tell whether two dotted paths are the same or one holds the other."""
    return a == b or a.startswith(b + ".") or b.startswith(a + ".")
