"""The values of a composition by OmegaConf: overrides set, references resolved, and every fault in them."""

import dataclasses
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, cast

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import GrammarParseError, OmegaConfBaseException, UnsupportedInterpolationType

from launcher.common.problems import Problem, ProblemsFound, fail, first_line, raise_any
from launcher.common.suggestions import did_you_mean, question
from launcher.common.texts import counted, shell_word
from launcher.config import interpolation, resolvers
from launcher.config.collection import GROUPS
from launcher.config.files import POLICY, POLICY_KEY, Files
from launcher.config.overrides import Override, top_level
from launcher.config.plain_values import Effects, Values
from launcher.model.composition import RUN_NAME, Composition, nearest_origin
from launcher.model.config_tree import AUTO, SCALES, get, is_index, leaves, targets
from launcher.model.recipe import RecipeBase
from launcher.model.validation import field_names

_CALLED = re.compile(r"(?<!\\)\$\{([A-Za-z_][\w.]*):", re.A)
"""A function that a reference calls."""
_MOST_PLACES = 3
"""Keys that a Problem suggests."""


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
    effects, has_corrections = _apply(config, overrides)
    has_default_policy = not files.have_policy and _inherit_policy(config)
    found = Values({}, effects, {}, has_default_policy)
    composition = begun(found)
    if files.references + sum(text.count("${") for text in composition.overrides) > interpolation.FEW:
        _refuse_faulty_references(config, composition)
    stated = _give_job_name(config, suffix) if suffix else {}
    tree = _resolve(config, composition)
    if not has_corrections:
        return dataclasses.replace(found, tree=tree, stated=stated)
    recipe = tree["recipes"]
    tree = {**tree, "recipes": {**recipe, "scale_config": AUTO}}
    return dataclasses.replace(found, tree=tree, stated=stated, corrections=recipe["scale_config"])


def _inherit_policy(config: DictConfig) -> bool:
    """Complete an `elastic_policy` that only overrides made by the default one; return whether there is one."""
    policy = OmegaConf.select(config, POLICY_KEY)
    if not OmegaConf.is_dict(policy):
        return False
    default = OmegaConf.select(OmegaConf.load(POLICY.file), "elastic_policy")
    OmegaConf.update(config, POLICY_KEY, OmegaConf.merge(default, policy), merge=False)
    return True


def _give_job_name(config: DictConfig, suffix: str) -> Mapping[str, str]:
    """Set run.name to the job's name; return the stated names, by path."""
    try:
        found = [OmegaConf.select(config, path) for path in interpolation.NAMES]
    except (OmegaConfBaseException, RecursionError):  # reported when all is resolved
        return {}
    written = get(_as_tree(config, resolve=False), RUN_NAME)
    stated, named = interpolation.job_names(found, written, suffix)
    for path, value in named.items():
        OmegaConf.update(config, path, value)
    return stated


def _resolve(config: Any, composition: Composition) -> dict[str, Any]:
    try:
        if any(_foreign(value) for _, value in leaves(_as_tree(config, resolve=False))):
            raise UnsupportedInterpolationType
        return _as_tree(config, resolve=True, throw_on_missing=True)
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
    faults = interpolation.faults(_as_tree(config, resolve=False))
    if problems := tuple(dataclasses.replace(p, where=composition.origin(p.path)) for p in faults):
        raise ProblemsFound(problems)


def _at_their_roots(config: Any, composition: Composition, problems: Sequence[Problem]) -> Iterator[Problem]:
    """Yield the faults that are not of a value referred to, each with the key that is absent and a remedy."""
    tree = _as_tree(config, resolve=False)
    faulty = {tuple(problem.path.split(".")) for problem in problems}
    known = [path for path, _ in leaves(tree)]
    for problem in problems:
        path = tuple(problem.path.split("."))
        text = get(tree, problem.path)
        if problem.code != "E007" or not isinstance(text, str):
            yield problem
        elif target := interpolation.absent(text, path, tree):
            typed = nearest_origin(composition.removed, target)
            named = did_you_mean(target, known)
            if not named and target.partition(".")[0] in (*GROUPS, *top_level()):
                named = f"add {target}=…"
            literal = interpolation.as_text(problem.path, text, f"${{{target}}}")
            remedy = " or ".join(filter(None, (named, literal))) or None
            message = f"refers to {target}, which {f'{typed} removes' if typed else 'does not exist'}"
            remedy = f"leave out {typed}, or give {target} a value" if typed else remedy
            yield dataclasses.replace(problem, message=message, value=text, remedy=remedy)
        elif faulty.isdisjoint(targets(text, path)) or interpolation.leads_back(path, tree):
            yield _in_plain_words(problem, text)


def _in_plain_words(problem: Problem, text: str) -> Problem:
    """Return the fault of a reference that calls a function, or leads back to itself, without OmegaConf's words."""
    if problem.message == "Recursive interpolation detected":
        remedy = "give it a value, or refer to another key"
        return dataclasses.replace(problem, message="leads back to itself", value=text, remedy=remedy)
    if unknown := re.match(r"Unsupported interpolation type (.+)", problem.message):
        message, allowed = f"calls {unknown[1]}, which is not a function of references", ", ".join(resolvers.NAMES)
        near = did_you_mean(unknown[1], resolvers.NAMES)
        return dataclasses.replace(problem, message=message, value=text, allowed=allowed, remedy=near)
    if (fault := re.match(r"(\w+) raised while resolving interpolation: (.*)", problem.message)) is None:
        return problem
    if fault[1] == "ValueError":
        message, _, stated = fault[2].partition("; ")
        return dataclasses.replace(problem, message=message, value=text, remedy=stated or None)
    message = "calls a function with arguments that it does not take"
    return dataclasses.replace(problem, message=message, value=text, allowed=resolvers.FORMS)


def _foreign(text: Any) -> str | None:
    """Return a function that a text calls and the launcher does not have, although the process may: Hydra's `now`."""
    called = re.findall(_CALLED, str(text)) if isinstance(text, str | list) else ()
    return next((name for name in called if name not in resolvers.NAMES), None)


def _unresolved(node: Any, path: str) -> Iterator[Problem]:
    """Yield a Problem for each leaf that refers to something absent or is still `???`.

    Args:
        node: A container of a configuration.
        path: Its dotted path.
    """
    keys = node.keys() if OmegaConf.is_dict(node) else range(len(node))
    texts: Any = OmegaConf.to_container(node)
    for key in keys:
        here = f"{path}.{key}" if path else str(key)
        if foreign := _foreign(texts[key]):
            yield Problem("E007", here, f"Unsupported interpolation type {foreign}")
            continue
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


def _apply(config: DictConfig, values: Sequence[Override]) -> tuple[Effects, bool]:
    """Set every value on `config`.

    Returns:
        The effect of each override, and whether some change single sizes while the sizes are planned.

    Raises:
        ProblemsFound: An override cannot be applied; every such override is reported.
    """
    is_planned = _is_planned(config, values)
    corrections = [o for o in values if is_planned and o.key.startswith(f"{SCALES}.")]
    base = [o for o in values if not (is_planned and o.key.startswith(f"{SCALES}."))]
    effects = Effects()
    problems = _apply_all(config, base, _set, effects)
    if corrections:
        OmegaConf.update(config, SCALES, {}, merge=False, force_add=True)
        problems += _apply_all(config, corrections, _correct, effects)
    raise_any(problems)
    return effects, bool(corrections)


def _apply_all(
    config: DictConfig,
    values: Sequence[Override],
    setter: Callable[[DictConfig, Override], Problem | None],
    effects: Effects,
) -> list[Problem]:
    """Apply overrides in order and record their effects; return their faults."""
    problems = []
    for override in values:
        landing = _landing(config, override)
        if problem := setter(config, override):
            problems.append(problem)
        else:
            effects.note(override, landing)
    return problems


def _landing(config: DictConfig, override: Override) -> list[str]:
    """Return the dotted path of every leaf that an override is about to set, or of the key it removes."""
    key = override.key
    if override.is_delete:
        return [key]
    found = leaves(override.value, key)
    return [path for path, value in found if value != {} or not _keys_at(config, path)]


def _keys_at(config: DictConfig, path: str) -> bool:
    """Return whether a path holds a non-empty mapping, to which an empty one adds nothing."""
    try:
        node = OmegaConf.select(config, path)
    except OmegaConfBaseException:
        return False
    return OmegaConf.is_dict(node) and bool(node.keys())


def _set(config: DictConfig, override: Override) -> Problem | None:
    """Apply one value override to `config`; return its fault, if any."""
    key, where = override.key, override.shown
    if override.package is not None:
        return Problem("E003", key, "a value cannot be given a package with @", where=where)
    try:
        if problem := _unreachable(config, key, where):
            return problem
        if override.is_delete:
            return _remove(config, override)
        if key.partition(".")[0] in config and (place := _misplaced(config, key)):
            return Problem("E101", key, "unknown key", remedy=question([place]), where=where)
        if isinstance(override.value, dict) and OmegaConf.is_list(OmegaConf.select(config, key)):
            given = shell_word(f"{key}=[{where.partition('=')[2]}]") if where == override.text else None
            return Problem("E003", key, "is a list", remedy=given, where=where)
        if isinstance(override.value, list) and OmegaConf.is_dict(OmegaConf.select(config, key)):
            return Problem("E003", key, "is a mapping", remedy=f"'{key}={{NAME: value}}'", where=where)
        OmegaConf.update(config, key, override.value, merge=True, force_add=True)
    except GrammarParseError as error:
        texts = ((path, text) for path, text in leaves(override.value, key) if isinstance(text, str))
        found = next(filter(None, (interpolation.unreadable(*each) for each in texts)), None)
        return dataclasses.replace(found or Problem("E003", key, first_line(error)), where=where)
    except (OmegaConfBaseException, ValueError, TypeError, IndexError) as error:
        return Problem("E003", key, first_line(error), where=where)
    return None


def _unreachable(config: DictConfig, key: str, where: str) -> Problem | None:
    """Return why a key cannot be reached: a list on the path lacks the item, or a reference blocks the path."""
    node: Any = config
    names = key.split(".")
    for i, name in enumerate(names):
        word: str | int = name
        if OmegaConf.is_list(node):
            if not (is_index(name) and int(name) < len(node)):
                return _no_item(".".join(names[:i]), len(node), key, where)
            word = int(name)
        elif not OmegaConf.is_dict(node) or word not in node:
            return None
        if OmegaConf.is_interpolation(node, word) and i < len(names) - 1:
            above = ".".join(names[: i + 1])
            message = f"cannot be set: {above} is {node._get_node(word)._value()}"
            return Problem("E003", key, message, remedy="set the key that it refers to", where=where)
        node = node._get_node(word) if not OmegaConf.is_missing(node, word) else None
    return None


def _no_item(path: str, length: int, key: str, where: str) -> Problem:
    allowed = f"0 to {length - 1}" if length > 1 else "0" if length else None
    remedy = f"give the list: {path}=[…]"
    return Problem("E003", key, f"{path} has {counted(length, 'item')}", allowed=allowed, remedy=remedy, where=where)


def _remove(config: DictConfig, override: Override) -> Problem | None:
    """Remove a key; return why that cannot be done, if it cannot."""
    key, where = override.key, override.shown
    parent, _, name = key.rpartition(".")
    node = OmegaConf.select(config, parent) if parent else config
    if OmegaConf.is_list(node):
        remedy = f"give the items that stay: {parent}=[…]"
        return Problem("E008", key, "a single item cannot be removed", remedy=remedy, where=where)
    if not OmegaConf.is_dict(node) or name not in node:
        place = _misplaced(config, key)
        near = question([f"~{place}"] if place else ())
        return Problem("E008", key, "cannot be removed: no such key exists", remedy=near, where=where)
    if override.value not in (None, "") and OmegaConf.select(config, key) != override.value:
        remedy = f"~{key} removes it, whatever its value"
        return Problem("E008", key, "cannot be removed: it has another value", remedy=remedy, where=where)
    del node[name]
    return None


def _misplaced(config: DictConfig, key: str) -> str | None:
    """Return where a key is that was given without the words before it, None if it is in place or not known."""
    head, _, rest = key.partition(".")
    if head in config and (not rest or OmegaConf.is_dict(config[head])):
        return None
    tree = _as_tree(config, resolve=False)
    found = [path for path, _ in leaves(tree) if path.endswith(f".{key}") and not path.startswith(SCALES)]
    if found:
        return " or ".join(found[:_MOST_PLACES])
    return next((f"{part}.{key}" for part in _parts_with(tree, head)), None)


def _parts_with(tree: Mapping[str, Any], head: str) -> list[str]:
    """Return which of recipe and cluster have a key, or where a recipe may have it."""
    of_parts = [name for name in ("recipes", "cluster") if (names := tree.get(name)) and head in names]
    if not of_parts and head in field_names(RecipeBase):
        return ["recipes"]
    return of_parts


def _is_planned(config: DictConfig, values: Sequence[Override]) -> bool:
    """Return whether the sizes are planned: then overrides of single sizes have no mapping to be set in."""
    stated = [None if o.is_delete else o.value for o in values if o.key == SCALES]
    return (stated[-1] if stated else OmegaConf.select(config, SCALES)) == AUTO


def _correct(config: DictConfig, override: Override) -> Problem | None:
    """Apply an override of a single size; one that is removed is null."""
    if override.is_delete and override.key.count(".") == SCALES.count(".") + 1:
        OmegaConf.update(config, override.key, None, force_add=True)
        return None
    return _set(config, override)


def _as_tree(config: Any, *, resolve: bool, throw_on_missing: bool = False) -> dict[str, Any]:
    """Return a configuration as plain dictionaries, whose keys are texts."""
    tree = OmegaConf.to_container(config, resolve=resolve, throw_on_missing=throw_on_missing)
    return cast(dict[str, Any], tree)
