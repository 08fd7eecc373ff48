"""Overrides to one resolved tree, with the origin of every value.

With `applying`, `effects`, `chosen`, `sources` and `flags`, all there is of Hydra.
"""

import copy
import dataclasses
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from launcher.common import redaction
from launcher.common.paths import COLLECTION
from launcher.common.problems import Problem, ProblemsFound, fail, shown
from launcher.common.suggestions import did_you_mean
from launcher.config import interpolation, override_text, recipe_files, slips
from launcher.config.applying import apply
from launcher.config.effects import Effects, unused
from launcher.config.hydra_compose import (
    ALL_RECIPES,
    GROUPS,
    REMEDY_SYNTAX,
    Choices,
    Files,
    clusters,
    compose_files,
    first_line,
)
from launcher.config.hydra_sources import USER_RECIPE, UserRecipe, find, is_group
from launcher.config.value_sources import FileLayers
from launcher.model.composition import Composition, UnusedOverride, nearest_origin
from launcher.model.config_tree import AUTO, get, leaves, replaced

_SCRIPT_RECIPE = "training/custom/script"
"""Recipe of a launch that names a script and no recipe."""
_CONTRACT, _CONTRACT_FILES = "cluster.contract", "cluster/contract"
_SEARCH_PATH = "hydra.searchpath"
_POLICY = ("base/elastic/policy", "recipes")
"""Layer of files that holds the default `elastic_policy`, and its package."""


def compose(overrides: Sequence[str], cwd: Path, suffix: str | None = None) -> Composition:
    """Compose `overrides` over the recipe collection.

    Hydra composes the files that the overrides choose; that result is kept while those files are unchanged.
    Values are then set on a copy one by one, so that each faulty override is reported, not only the first.

    Args:
        overrides: Hydra overrides, as on the command line; `recipes=` may stand anywhere.
        cwd: Folder that relative recipe files are looked up in.
        suffix: End of the job's name. If given, what refers to run.name gets the name of the job, so that paths made
            of it are different for each job. run.name itself stays as it is stated.

    Raises:
        ProblemsFound: A malformed override, an unknown recipe or cluster, a file that is not YAML, a value
            that refers to nothing. Every fault that can be told apart is reported.
    """
    overrides = recipe_files.spelled(overrides, cwd)
    parsed = _parse(overrides)
    choices = _choices(parsed, cwd)
    files = compose_files(choices)
    config = copy.deepcopy(files.config)
    values = [o for o in parsed if not _is_choice(o) and not o.is_hydra_override()]
    effects, has_corrections = apply(config, values)
    has_default_policy = _inherit_policy(config, files.config)
    composition = _begun(overrides, parsed, files, choices, effects, has_default_policy=has_default_policy)
    if files.references + sum(text.count("${") for text in overrides) > interpolation.FEW:
        _refuse_faulty_references(config, composition)
    stated = interpolation.give_job_name(config, suffix) if suffix else {}
    tree = _resolve(config, composition)
    for path, name in stated.items():
        tree = replaced(tree, path, name)
    tree["training_config"] = tree.get("training_config") or composition.recipe
    return dataclasses.replace(
        composition,
        tree={**tree, "recipes": {**tree["recipes"], "scale_config": AUTO}} if has_corrections else tree,
        corrections=tree["recipes"]["scale_config"] if has_corrections else {},
        name_paths=tuple(stated) or composition.name_paths,
        unused=(*_unused_choices(parsed, composition), *effects.unused(values)),
    )


def _begun(
    overrides: Sequence[str],
    parsed: Sequence[Override],
    files: Files,
    choices: Choices,
    effects: Effects,
    *,
    has_default_policy: bool,
) -> Composition:
    """Return the composition without its values."""
    chosen = _chosen(parsed)
    layers = (_POLICY, *files.layers) if has_default_policy else files.layers
    return Composition(
        tree={},
        recipe=str(chosen["recipes"].value()) if "recipes" in chosen else files.recipe,
        backend="contract" if files.has_contract else files.cluster,
        overrides=tuple(overrides),
        explicit=effects.explicit,
        removed=effects.removed,
        chosen={key.lstrip("+~"): shown(override.input_line) for key, override in chosen.items()},
        has_default_policy=has_default_policy,
        sources=FileLayers(layers, choices.search, [each for each in parsed if not _is_choice(each)]),
    )


def _inherit_policy(config: DictConfig, of_files: DictConfig) -> bool:
    """Lay the default `elastic_policy` under one that overrides made where the files have none; tell whether."""
    key = "recipes.elastic_policy"
    policy = OmegaConf.select(config, key)
    if not OmegaConf.is_dict(policy) or OmegaConf.select(of_files, key) is not None:
        return False
    default = OmegaConf.load(find(_POLICY[0], ()))["elastic_policy"]
    OmegaConf.update(config, key, OmegaConf.merge(default, policy), merge=False)
    return True


def _parse(overrides: Sequence[str]) -> list[Override]:
    parser, parsed = OverridesParser.create(), []
    words, problems = slips.joined(overrides)
    for text in words:
        try:
            parsed.append(_read(parser, text))
        except ProblemsFound as error:
            problems += error.problems
        else:
            problems += _faults(parsed[-1])
    if problems:
        raise ProblemsFound(tuple(problems))
    return parsed


def _read(parser: OverridesParser, text: str) -> Override:
    if problem := override_text.unreadable(text):
        raise ProblemsFound((problem,))
    try:
        override = parser.parse_override(text)
    except (HydraException, RecursionError) as error:
        message = first_line(error) if "=" in text and shown(text) == text else "is not written as an override"
        remedy = slips.remedy(text) or REMEDY_SYNTAX
        raise fail("E001", shown(text), message, remedy=remedy) from error
    except ValueError as error:  # of a number that Python does not convert
        raise fail("E001", shown(text), override_text.TOO_LONG_A_NUMBER) from error
    override.key_or_group = _placed(override.key_or_group)
    redaction.learn(override.value() if override.value_type else None, override.key_or_group)
    return override


def _faults(override: Override) -> Iterator[Problem]:
    """Yield what is wrong with an override by itself, and make the keys in its value texts."""
    text = shown(override.input_line)
    if problem := override_text.respelled(override):
        yield problem
    if problem := override_text.hydra_fault(override) if override.is_hydra_override() else _key_problem(override):
        yield problem
    if override.is_sweep_override():
        yield Problem("E002", text, "sweeps over several values", remedy="add --multirun, or quote the value")


def _placed(key: str) -> str:
    """Return where a key stands: the published `training_cfg` is a part of the recipe."""
    return f"recipes.{key}" if key.partition(".")[0] == "training_cfg" else key


def _key_problem(override: Override) -> Problem | None:
    """Return what is wrong with the key of an override, or with the choice it makes, before any file is read."""
    key, where = override.key_or_group, shown(override.input_line)
    if not key:
        return Problem("E001", where, "names no key", remedy=REMEDY_SYNTAX)
    if key in GROUPS and override.is_delete():
        return Problem("E005", key, "cannot be removed: a launch has one", where=where)
    if key in GROUPS and not isinstance(override.value(), str):
        remedy = ALL_RECIPES if key == "recipes" else f"{key}=NAME, NAME one of {', '.join(clusters())}"
        return Problem("E005", key, "must name one", remedy=remedy, where=where)
    if key in GROUPS and override.package is not None:
        return Problem("E005", key, "is chosen without a package: leave out the @", where=where)
    return None


def _is_choice(override: Override) -> bool:
    """Tell an override that chooses a file (`cluster=k8s`) from one that sets a value."""
    return override.key_or_group in GROUPS or "/" in override.key_or_group


def _choices(parsed: Sequence[Override], cwd: Path) -> Choices:
    """Return what the overrides choose; `cluster_type` chooses where `cluster` does not, and a contract its keys."""
    words, chosen = [], {override.key_or_group: override.value() for override in parsed}
    search = [override_text.folder(f) for o in parsed if o.key_or_group == _SEARCH_PATH for f in o.value()]
    folders = [str(COLLECTION), *search]
    files = _chosen(parsed)
    for override in files.values():
        if override.key_or_group == "recipes" and (user_recipe := _recipe_file(override, cwd, folders)):
            search.append(f"{UserRecipe.scheme()}://{user_recipe}")
            words.append(f"recipes={USER_RECIPE}")
        else:
            words.append(override.input_line)
    if problems := tuple(filter(None, (_group_problem(override, search) for override in files.values()))):
        raise ProblemsFound(problems)
    if isinstance(chosen.get("cluster_type"), str) and "cluster" not in chosen:
        words.append(f"cluster={chosen['cluster_type']}")
    is_local = chosen.get("cluster", chosen.get("cluster_type")) in (None, "local")
    if _CONTRACT_FILES in chosen and not is_local:
        raise fail(
            "E005", _CONTRACT_FILES, "is a part of cluster=local", remedy=f"cluster=local {_CONTRACT}=sagemaker"
        )
    if chosen.get(_CONTRACT) == "sagemaker" and is_local:
        words.append("+cluster/contract=sagemaker")
    if "recipes" not in chosen and any(key.startswith("recipes.training_cfg") for key in chosen):
        words.append(f"recipes={_SCRIPT_RECIPE}")
    return Choices(tuple(words), tuple(search))


def _chosen(parsed: Sequence[Override]) -> dict[str, Override]:
    """Return the overrides that choose files, by group and package; of several choices of one group the last."""
    choices = [override for override in parsed if _is_choice(override) and not override.is_hydra_override()]
    return {override.input_line.partition("=")[0]: override for override in choices}


def _unused_choices(parsed: Sequence[Override], composition: Composition) -> Iterator[UnusedOverride]:
    """Yield each choice that a later one replaces, and each search path that has none of the files."""
    used = list(map(id, _chosen(parsed).values()))
    for override in parsed:
        if override.key_or_group == _SEARCH_PATH:
            if not any(
                composition.sources.has_file_in(Path(override_text.folder(each))) for each in override.value()
            ):
                yield unused(override, "no file of this launch comes from there")
        elif _is_choice(override) and id(override) not in used:
            yield unused(override)


def _group_problem(override: Override, search: Sequence[str]) -> Problem | None:
    """Return what is wrong with an override whose key has slashes, as only those of groups of files have."""
    group, value, where = override.key_or_group, override.value(), shown(override.input_line)
    if group in GROUPS:
        return None
    if not is_group(group, search):
        remedy = f"dots lead to a key: {group.replace('/', '.')}=…"
        return Problem("E005", group, "is not a group of files to choose from", remedy=remedy, where=where)
    names = value if isinstance(value, list) else [value]
    if not override.is_delete() and not (names and all(isinstance(name, str) and name for name in names)):
        return Problem("E005", group, "must name a file of this group", where=where)
    return None


def search_path(overrides: Sequence[str]) -> list[Path]:
    """Return the folders that `hydra.searchpath` adds among overrides.

    Raises:
        ProblemsFound: It is no list of folders, or one is not there.
    """
    parsed = _parse([text for text in overrides if text.lstrip("+").startswith("hydra.searchpath=")])
    return [Path(override_text.folder(folder)) for override in parsed for folder in override.value()]


def _recipe_file(override: Override, cwd: Path, search: Sequence[str]) -> Path | None:
    """Return the file that `recipes=` names, or None when it names a recipe that Hydra finds."""
    name = str(override.value())
    if not name.endswith(recipe_files.ENDINGS):
        return recipe_files.in_folders(name, search)
    path = recipe_files.existing(name, cwd)
    if path and not os.path.isfile(path):
        raise fail("E005", "recipes", "is no regular file", value=name, allowed="a YAML file")
    if path is None:
        path = Path(cwd, os.path.expanduser(name))
        near = did_you_mean(path.name, [file.name for file in path.parent.glob("*.y*ml")])
        remedy = near or "a recipe of the collection is a path under recipes/ without .yaml"
        raise fail("E005", "recipes", "no such file", value=name, remedy=remedy)
    return path


def _refuse_faulty_references(config: DictConfig, composition: Composition) -> None:
    faults = interpolation.faults(OmegaConf.to_container(config, resolve=False))
    if problems := tuple(dataclasses.replace(p, where=composition.origin(p.path)) for p in faults):
        raise ProblemsFound(problems)


def _resolve(config: Any, composition: Composition) -> dict[str, Any]:
    try:
        return OmegaConf.to_container(config, resolve=True, throw_on_missing=True)
    except RecursionError:
        _refuse_faulty_references(config, composition)
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


def _at_their_roots(config: Any, composition: Composition, problems: Sequence[Problem]) -> Iterator[Problem]:
    """Yield the faults that are not of a value referred to, each with the key that is absent and a remedy."""
    tree = OmegaConf.to_container(config, resolve=False)
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
            message = f"refers to {target}, which {f'{typed} removes' if typed else 'is not there'}"
            remedy = f"leave out {typed}, or give {target} a value" if typed else remedy
            yield dataclasses.replace(problem, message=message, value=text, remedy=remedy)
        elif faulty.isdisjoint(interpolation.targets(text, path)) or interpolation.leads_back(path, tree):
            yield problem
