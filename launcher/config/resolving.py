"""Overrides set, and references resolved, by OmegaConf, and every reference that leads to none."""

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from launcher.common.problems import Problem, ProblemsFound, fail, first_line
from launcher.common.suggestions import did_you_mean
from launcher.config import interpolation, resolvers
from launcher.config.applying import apply, as_tree
from launcher.config.effects import Values
from launcher.config.overrides import Override
from launcher.config.value_sources import POLICY, Files
from launcher.model.composition import Composition, nearest_origin
from launcher.model.config_tree import AUTO, get, leaves


def valued(
    files: Files, overrides: Sequence[Override], suffix: str | None, begun: Callable[[Values], Composition]
) -> Values:
    """Return the values of a composition.

    Args:
        files: The chosen files.
        overrides: Those that set or remove values.
        suffix: End of the job's name, as `compose` takes it.
        begun: Returns the composition without its values, for the origin of each fault.

    Raises:
        ProblemsFound: A value that cannot be set, or that refers to nothing; every such value is reported.
    """
    resolvers.register()
    try:
        config = OmegaConf.create(dict(files.tree))
    except (OmegaConfBaseException, ValueError, RecursionError) as error:
        raise fail("E004", f"recipes={files.recipe}", first_line(error)) from error
    effects, has_corrections = apply(config, overrides)
    found = Values({}, effects, {}, _inherit_policy(config, files.tree))
    composition = begun(found)
    if files.references + sum(text.count("${") for text in composition.overrides) > interpolation.FEW:
        _refuse_faulty_references(config, composition)
    stated = _give_job_name(config, suffix) if suffix else {}
    tree = _resolve(config, composition)
    recipe = tree["recipes"]
    corrections = recipe["scale_config"] if has_corrections else None
    tree = {**tree, "recipes": {**recipe, "scale_config": AUTO}} if has_corrections else tree
    return dataclasses.replace(found, tree=tree, stated=stated, corrections=corrections)


def _inherit_policy(config: DictConfig, of_files: Mapping[str, Any]) -> bool:
    """Complete an `elastic_policy` that only overrides made by the default one; return whether there is one."""
    key = "recipes.elastic_policy"
    policy = OmegaConf.select(config, key)
    if not OmegaConf.is_dict(policy) or get(of_files, key) is not None:
        return False
    default = OmegaConf.select(OmegaConf.load(POLICY.file), "elastic_policy")
    OmegaConf.update(config, key, OmegaConf.merge(default, policy), merge=False)
    return True


def _give_job_name(config: DictConfig, suffix: str) -> Mapping[str, str]:
    """Set run.name to the job's name; return the stated names, by path."""
    try:
        found = [OmegaConf.select(config, path) for path in interpolation.NAMES]
    except (OmegaConfBaseException, RecursionError):  # reported when all is resolved
        return {}
    written = get(as_tree(config, resolve=False), interpolation.RUN_NAME)
    stated, named = interpolation.job_names(found, written, suffix)
    for path, value in named.items():
        OmegaConf.update(config, path, value)
    return stated


def _resolve(config: Any, composition: Composition) -> dict[str, Any]:
    try:
        return as_tree(config, resolve=True, throw_on_missing=True)
    except RecursionError:
        _refuse_faulty_references(config, composition)
        raise fail("E007", "recipes", "refers to another value through too many others") from None
    except OmegaConfBaseException:
        first: dict[str, Problem] = {}  # a value that refers to a faulty one fails with the same words
        found = _at_their_roots(config, composition, list(_unresolved(config, "")))
        for problem in sorted(found, key=lambda p: p.path not in composition.explicit):
            message = problem.message if problem.code == "E007" else problem.path
            first.setdefault(message, dataclasses.replace(problem, where=composition.origin(problem.path)))
        missing = [problem for problem in first.values() if problem.code == "E006"]
        follows = "MissingMandatoryValue while resolving"
        others = [p for p in first.values() if p not in missing and not (missing and p.message.startswith(follows))]
        raise ProblemsFound((*missing, *others)) from None


def _refuse_faulty_references(config: DictConfig, composition: Composition) -> None:
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


def _unresolved(node: Any, path: str) -> Iterator[Problem]:
    """Yield a Problem for each leaf that refers to something absent or is still `???`.

    Args:
        node: A container of a configuration.
        path: Its dotted path.
    """
    keys = node.keys() if OmegaConf.is_dict(node) else range(len(node))
    for key in keys:
        here = f"{path}.{key}" if path else str(key)
        try:
            if OmegaConf.is_missing(node, key):
                yield Problem("E006", here, "needs a value", remedy=f"add {here}=…")
                continue
            value = node[key]
        except OmegaConfBaseException as error:
            line = first_line(error)
            is_long = line.startswith("RecursionError")
            yield Problem("E007", here, "refers to another value through too many others" if is_long else line)
            continue
        if OmegaConf.is_config(value):
            yield from _unresolved(value, here)
