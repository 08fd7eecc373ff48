"""Checks that a recipe must pass, one module for each subject; each rule has a code and a source.

A rule is a generator of Problems over a `CheckedRecipe`, made with the `problem` it is given (that knows its code).
It names the keys it reads, and is left out when one of them is faulty in itself, so that one fault is reported once.
"""

import functools
import importlib
import pkgutil
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cache

from launcher.common.problems import Problem
from launcher.model.backend_registry import backends, rule_modules
from launcher.model.checked_recipe import CheckedRecipe

Check = Callable[[CheckedRecipe, Callable[..., Problem]], Iterator[Problem]]

SIZES = tuple(
    f"recipes.elastic_policy.{key}" for key in ("is_elastic", "min_nodes", "max_nodes", "replica_increment_step")
)
"""The keys that say which sizes a job may take: what a rule about sizes needs."""

_SAME_RULES = {"contract": "sm_jobs"}
"""Backend whose jobs keep the rules of another one: a training job on this machine, those of training jobs."""

BATCH, SAME_FOLDER = "<batch>", "<same folder>"
"""Stand among the needs of a rule for keys that each family has elsewhere: those that deal samples to ranks, and the
one that keeps a restarted job in its folder."""

_rules: list["Rule"] = []


@dataclass(frozen=True, slots=True)
class Rule:
    """One check.

    Args:
        code: The code of its Problems.
        needs: Dotted paths it reads, prefixes of them allowed, BATCH or SAME_FOLDER.
        source: Where the rule comes from.
        backend: The only cluster it is about; None for all.
        check: Yields the Problems of a CheckedRecipe; its docstring is the reason.
    """

    code: str
    needs: tuple[str, ...]
    source: str
    check: Check
    backend: str | None = None

    @property
    def reason(self) -> str:
        """Why it is a rule, in a sentence or two."""
        return " ".join((self.check.__doc__ or "").split())

    def applies(self, backend: str, faulty: frozenset[str]) -> bool:
        """Tell whether it is about this cluster and none of the keys it needs is faulty."""
        return self.backend in (None, _SAME_RULES.get(backend, backend)) and not any(
            related(need, bad) for need in self.needs for bad in faulty
        )

    def problems(self, checked: CheckedRecipe, *, is_faulty: bool) -> list[Problem]:
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


def rule(code: str, *needs: str, source: str, backend: str | None = None) -> Callable[[Check], Check]:
    """Register the decorated generator as the rule `code`."""

    def register(check: Check) -> Check:
        _rules.append(Rule(code, needs, source, check, backend))
        return check

    return register


@cache
def all_rules() -> tuple[Rule, ...]:
    """Return every rule, by code."""
    for backend in backends():
        rules_for(backend)
    return tuple(sorted(_rules, key=lambda rule: rule.code))


@cache
def rules_for(backend: str) -> tuple[Rule, ...]:
    """Return the rules that may be about a cluster, by code; those of other backends are not imported."""
    for module in pkgutil.iter_modules(__path__):
        importlib.import_module(f"{__name__}.{module.name}")
    for name in rule_modules(backend):
        importlib.import_module(name)
    return tuple(sorted(_rules, key=lambda rule: rule.code))


def faulty_needs(checked: CheckedRecipe, faulty: Iterable[str]) -> frozenset[str]:
    """Return the needs that faulty keys affect: the keys themselves, and what stands for one of them."""
    paths, keys = frozenset(faulty), checked.recipe.keys
    own = {BATCH: keys.batch.dealt_by if keys.batch else (), SAME_FOLDER: (keys.same_folder,)}
    return paths | {
        need
        for need, names in own.items()
        if any(related(f"recipes.{name}", path) for name in names if name for path in paths)
    }


def related(a: str, b: str) -> bool:
    """Return whether two dotted paths are the same or one holds the other."""
    return a == b or a.startswith(b + ".") or b.startswith(a + ".")
