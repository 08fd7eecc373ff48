"""References of a configuration to their values, and every reference that leads to none."""

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any, cast

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from launcher.common.problems import Problem, ProblemsFound, fail
from launcher.common.suggestions import did_you_mean
from launcher.config import interpolation
from launcher.model.composition import Composition, nearest_origin
from launcher.model.config_tree import get, leaves


def resolve(config: Any, composition: Composition) -> dict[str, Any]:
    try:
        return as_tree(config, resolve=True, throw_on_missing=True)
    except RecursionError:
        refuse_faulty_references(config, composition)
        raise fail("E007", "recipes", "refers to another value through too many others") from None
    except OmegaConfBaseException:
        first: dict[str, Problem] = {}  # a value that refers to a faulty one fails with the same words
        found = _at_their_roots(config, composition, list(interpolation.unresolved(config, "")))
        for problem in sorted(found, key=lambda p: p.path not in composition.explicit):
            message = problem.message if problem.code == "E007" else problem.path
            first.setdefault(message, dataclasses.replace(problem, where=composition.origin(problem.path)))
        missing = [problem for problem in first.values() if problem.code == "E006"]
        follows = "MissingMandatoryValue while resolving"
        others = [p for p in first.values() if p not in missing and not (missing and p.message.startswith(follows))]
        raise ProblemsFound((*missing, *others)) from None


def refuse_faulty_references(config: DictConfig, composition: Composition) -> None:
    faults = interpolation.faults(as_tree(config, resolve=False))
    if problems := tuple(dataclasses.replace(p, where=composition.origin(p.path)) for p in faults):
        raise ProblemsFound(problems)


def _at_their_roots(config: Any, composition: Composition, problems: Sequence[Problem]) -> Iterator[Problem]:
    """Yield the faults that are not of a value referred to, each with the key that is absent and a remedy."""
    tree = as_tree(config, resolve=False)
    faulty = {tuple(problem.path.split(".")) for problem in problems}
    known = [path for path, _ in leaves(tree)]
    for problem in problems:
        path = tuple(problem.path.split("."))
        text = get(tree, problem.path)
        if problem.code != "E007" or not isinstance(text, str):
            yield problem
        elif target := interpolation.absent(text, path, tree):
            typed = nearest_origin(composition.removed, target)
            remedy = did_you_mean(target, known) or f"add {target}=…"
            message = f"refers to {target}, which {f'{typed} removes' if typed else 'does not exist'}"
            remedy = f"leave out {typed}, or give {target} a value" if typed else remedy
            yield dataclasses.replace(problem, message=message, value=text, remedy=remedy)
        elif faulty.isdisjoint(interpolation.targets(text, path)) or interpolation.leads_back(path, tree):
            yield problem


def as_tree(config: Any, *, resolve: bool, throw_on_missing: bool = False) -> dict[str, Any]:
    """Return a configuration as plain dictionaries, whose keys are texts."""
    tree = OmegaConf.to_container(config, resolve=resolve, throw_on_missing=throw_on_missing)
    return cast(dict[str, Any], tree)
