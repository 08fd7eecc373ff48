"""Overrides to one resolved tree, with the origin of every value.

With `chosen`, `sources` and `flags`, all there is of Hydra.
"""

import copy
import dataclasses
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from launcher import catalogue, override_text, provenance, recipe_files, references
from launcher.chosen import GROUPS, REMEDY_SYNTAX, Choices, compose_files, first_line
from launcher.nearest import did_you_mean
from launcher.paths import COLLECTION
from launcher.problems import Problem, ProblemsFound, fail, shown
from launcher.provenance import Setting
from launcher.scales import AUTO, get, leaves
from launcher.sources import USER_RECIPE, UserRecipe, find, locate

_SCRIPT_RECIPE = "training/custom/script"
"""Recipe of a launch that names a script and no recipe."""
_SCALES = "recipes.scale_config"
_CONTRACT = "cluster.contract"
_POLICY = ("base/elastic/policy", "recipes")
"""Layer of files that holds the default `elastic_policy`, and its package."""


@dataclass(frozen=True)
class Composition:
    """What the overrides mean.

    Args:
        tree: The whole configuration, resolved; every key a string.
        recipe: The recipe as the user named it.
        backend: The chosen cluster, or `contract` for the container contract on this machine.
        overrides: As typed.
        explicit: Dotted path of every leaf an override sets, to that override.
        corrections: What overrides of single sizes set where `scale_config` is `auto`, by size; None removes one.
        has_default_policy: Whether overrides make a recipe without an `elastic_policy` elastic, by the default.
    """

    tree: Mapping[str, Any]
    recipe: str
    backend: str
    overrides: tuple[str, ...]
    explicit: Mapping[str, str]
    corrections: Mapping[str, Any] = field(kw_only=True, default_factory=dict)
    has_default_policy: bool = field(kw_only=True, default=False)
    _layers: tuple[tuple[str, str], ...] = field(repr=False, compare=False)
    _search: tuple[str, ...] = field(repr=False, compare=False)

    def origin(self, path: str) -> str | None:
        """Return what set `path`: an override, or `file:line`. None when nothing did.

        A path that no leaf has is answered by its last descendant or, failing that, its nearest ancestor.
        """
        return provenance.nearest(self.origins, path)

    @cached_property
    def origins(self) -> dict[str, str]:
        """The origin of every leaf, dotted path to `file:line` or override."""
        chosen = {text.partition("=")[0]: text for text in self.overrides if text.partition("=")[0] in GROUPS}
        files = provenance.leaf_origins(locate(self._layers, self._search))
        return provenance.overridden(files, {**self.removed, **self.explicit}) | chosen

    @property
    def removed(self) -> dict[str, str]:
        """Dotted path of every key that an override removes, to that override."""
        return {_placed(text[1:].partition("=")[0]): shown(text) for text in self.overrides if text.startswith("~")}

    def settings(self, path: str) -> tuple[Setting, ...]:
        """Return every place that sets the leaf `path`, lowest precedence first: files, then overrides as typed."""
        layers, typed = self._places
        return (*provenance.settings(layers, path), *filter(None, (_setting(o, path) for o in typed)))

    @cached_property
    def _places(self) -> tuple[tuple[tuple[Path, str], ...], tuple[Override, ...]]:
        """The layers of files, and the overrides of values; finding and parsing them takes longer than asking."""
        typed = tuple(override for override in _parse(self.overrides) if not _is_choice(override))
        return tuple(locate(self._layers, self._search)), typed

    def refers_to(self, *names: str) -> bool:
        """Tell whether a file may refer to a key of one of these names, as `${name}` does."""
        files = (file.read_text(encoding="utf-8") for file, _ in locate(self._layers, self._search))
        lines = (line for text in files if "${" in text for line in text.splitlines() if "${" in line)
        return any(name in line for line in lines for name in names)

    def layers(self, path: str) -> tuple[tuple[int, Any], ...]:
        """Return number and value of each layer of files that sets `path`, lowest precedence first."""
        numbered = enumerate(locate(self._layers, self._search))
        found = ((i, setting) for i, layer in numbered for setting in provenance.settings([layer], path))
        return tuple((i, setting.value) for i, setting in found if setting.path == path)


def compose(overrides: Sequence[str], cwd: Path) -> Composition:
    """Compose `overrides` over the recipe collection.

    Hydra composes the files that the overrides choose; that result is kept while those files are unchanged.
    Values are then set on a copy one by one, so that each faulty override is reported, not only the first.

    Args:
        overrides: Hydra overrides, as on the command line; `recipes=` may stand anywhere.
        cwd: Folder that relative recipe files are looked up in.

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
    has_corrections = _apply(config, values)
    has_default_policy = _inherit_policy(config, files.config)
    composition = Composition(
        tree={},
        recipe=next((str(o.value()) for o in parsed if o.key_or_group == "recipes"), files.recipe),
        backend="contract" if files.has_contract else files.cluster,
        overrides=tuple(overrides),
        explicit=_explicit(values),
        has_default_policy=has_default_policy,
        _layers=(_POLICY, *files.layers) if has_default_policy else files.layers,
        _search=choices.search,
    )
    if files.references + sum(text.count("${") for text in overrides) > references.FEW:
        _refuse_faulty_references(config, composition)
    tree = _resolve(config, composition)
    corrected = {}
    if has_corrections:
        corrected = tree["recipes"]["scale_config"]
        tree["recipes"]["scale_config"] = AUTO
    tree["training_config"] = tree.get("training_config") or composition.recipe
    return dataclasses.replace(composition, tree=tree, corrections=corrected)


def _apply(config: DictConfig, values: Sequence[Override]) -> bool:
    """Set every value on `config`; tell whether some are of single sizes while the sizes are planned.

    Raises:
        ProblemsFound: What an override asks for cannot be done; every such override is told.
    """
    corrections = _corrections(config, values)
    found = [_set(config, override) for override in values if override not in corrections]
    if corrections:
        OmegaConf.update(config, _SCALES, {}, merge=False, force_add=True)
        found += [_correct(config, override) for override in corrections]
    if problems := tuple(filter(None, found)):
        raise ProblemsFound(problems)
    return bool(corrections)


def _set(config: DictConfig, override: Override) -> Problem | None:
    """Apply one value override to `config`; return what is wrong with it, if anything."""
    key = override.key_or_group
    if override.package is not None:
        return Problem("E003", key, "a value cannot be given a package with @", where=shown(override.input_line))
    try:
        if override.is_delete():
            parent, _, name = key.rpartition(".")
            node = OmegaConf.select(config, parent) if parent else config
            if not OmegaConf.is_dict(node) or name not in node:
                return Problem(
                    "E008", key, "cannot be removed: there is no such key", where=shown(override.input_line)
                )
            del node[name]
        elif inside := _of_recipe(config, key):
            remedy = f"did you mean {inside}?"
            return Problem("E101", key, "unknown key", remedy=remedy, where=shown(override.input_line))
        else:
            if isinstance(override.value(), dict) and OmegaConf.is_list(OmegaConf.select(config, key)):
                remedy = f'"{key}=[{override.input_line.partition("=")[2]}]"'
                return Problem("E003", key, "is a list", remedy=remedy, where=shown(override.input_line))
            OmegaConf.update(config, key, override.value(), merge=True, force_add=True)
    except (OmegaConfBaseException, ValueError, TypeError, IndexError) as error:
        return Problem("E003", key, first_line(error), where=shown(override.input_line))
    return None


def _inherit_policy(config: DictConfig, of_files: DictConfig) -> bool:
    """Lay the default `elastic_policy` under one that overrides made where the files have none; tell whether."""
    key = "recipes.elastic_policy"
    policy = OmegaConf.select(config, key)
    if not OmegaConf.is_dict(policy) or OmegaConf.select(of_files, key) is not None:
        return False
    default = OmegaConf.load(find(_POLICY[0], ()))["elastic_policy"]
    OmegaConf.update(config, key, OmegaConf.merge(default, policy), merge=False)
    return True


def _of_recipe(config: DictConfig, key: str) -> str | None:
    """Return where a key stands that was given without `recipes.`, below a key of the launch that holds no others."""
    head, _, rest = key.partition(".")
    is_leaf = head in config and not OmegaConf.is_dict(config[head])
    return f"recipes.{key}" if rest and is_leaf and OmegaConf.is_dict(config.recipes.get(head)) else None


def _corrections(config: DictConfig, values: Sequence[Override]) -> list[Override]:
    """Return the overrides of single sizes where the sizes are planned: they have no mapping to be set in."""
    said = [o.value() for o in values if o.key_or_group == _SCALES and not o.is_delete()]
    if (said[-1] if said else OmegaConf.select(config, _SCALES)) != AUTO:
        return []
    return [override for override in values if override.key_or_group.startswith(f"{_SCALES}.")]


def _correct(config: DictConfig, override: Override) -> Problem | None:
    """Apply an override of a single size; one that is removed is null."""
    if override.is_delete() and override.key_or_group.count(".") == _SCALES.count(".") + 1:
        OmegaConf.update(config, override.key_or_group, None, force_add=True)
        return None
    return _set(config, override)


def _parse(overrides: Sequence[str]) -> list[Override]:
    parser, parsed, problems = OverridesParser.create(), [], []
    for text in overrides:
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
        remedy = f"recipes={text}" if text in catalogue.names() else REMEDY_SYNTAX
        raise fail("E001", shown(text), message, remedy=remedy) from error
    except ValueError as error:  # of a number that Python does not convert
        raise fail("E001", shown(text), override_text.TOO_LONG_A_NUMBER) from error
    override.key_or_group = _placed(override.key_or_group)
    return override


def _faults(override: Override) -> Iterator[Problem]:
    """Yield what is wrong with an override by itself, and make the keys in its value texts."""
    text = shown(override.input_line)
    if problem := override_text.respelled(override):
        yield problem
    if override.key_or_group in GROUPS and override.is_delete():
        yield Problem("E005", override.key_or_group, "cannot be removed: a launch has one", where=text)
    elif override.key_or_group in GROUPS and not isinstance(override.value(), str):
        yield Problem("E005", override.key_or_group, "must name one", where=text)
    if override.is_hydra_override() and (problem := override_text.hydra_fault(override)):
        yield problem
    if override.is_sweep_override():
        yield Problem("E002", text, "sweeps over several values", remedy="add --multirun, or quote the value")


def _placed(key: str) -> str:
    """Return where a key stands: the published `training_cfg` is a part of the recipe."""
    return f"recipes.{key}" if key.partition(".")[0] == "training_cfg" else key


def _is_choice(override: Override) -> bool:
    """Tell an override that chooses a file (`cluster=k8s`) from one that sets a value."""
    return override.key_or_group in GROUPS or "/" in override.key_or_group


def _choices(parsed: Sequence[Override], cwd: Path) -> Choices:
    """Return what the overrides choose; `cluster_type` chooses where `cluster` does not, and a contract its keys."""
    words, chosen = [], {o.key_or_group: o.value() for o in parsed}
    search = [override_text.folder(f) for o in parsed if o.key_or_group == "hydra.searchpath" for f in o.value()]
    folders = [str(COLLECTION), *search]
    for override in parsed:
        if override.key_or_group == "recipes" and (user_recipe := _recipe_file(override, cwd, folders)):
            search.append(f"{UserRecipe.scheme()}://{user_recipe}")
            words.append(f"recipes={USER_RECIPE}")
        elif _is_choice(override) and not override.is_hydra_override():
            words.append(override.input_line)
    if isinstance(chosen.get("cluster_type"), str) and "cluster" not in chosen:
        words.append(f"cluster={chosen['cluster_type']}")
    is_local = chosen.get("cluster", chosen.get("cluster_type")) in (None, "local")
    if chosen.get(_CONTRACT) == "sagemaker" and is_local:
        words.append("+cluster/contract=sagemaker")
    if "recipes" not in chosen and any(key.startswith("recipes.training_cfg") for key in chosen):
        words.append(f"recipes={_SCRIPT_RECIPE}")
    return Choices(tuple(words), tuple(search))


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
    faults = references.faults(OmegaConf.to_container(config, resolve=False))
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
        found = _at_their_roots(config, composition, list(references.unresolved(config, "")))
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
        elif target := references.absent(text, path, tree):
            typed = provenance.nearest(composition.removed, target)
            remedy = did_you_mean(target, known) or f"add {target}=…"
            message = f"refers to {target}, which {f'{typed} removes' if typed else 'is not there'}"
            remedy = f"leave out {typed}, or give {target} a value" if typed else remedy
            yield dataclasses.replace(problem, message=message, value=text, remedy=remedy)
        elif faulty.isdisjoint(references.targets(text, path)) or references.leads_back(path, tree):
            yield problem


def _explicit(values: Sequence[Override]) -> dict[str, str]:
    explicit: dict[str, str] = {}
    for override in values:
        if not override.is_delete() and override.value() != {}:
            for path, _ in leaves(override.value(), override.key_or_group):
                explicit.pop(path, None)
                explicit[path] = shown(override.input_line)
    return explicit


def _setting(override: Override, path: str) -> Setting | None:
    """Return what an override sets or removes at a leaf, None when it is about other keys."""
    key, origin = override.key_or_group, shown(override.input_line)
    if path != key and not path.startswith(f"{key}."):
        return None
    if override.is_delete():
        return Setting(key, None, origin, is_override=True)
    if not isinstance(override.value(), dict):
        return Setting(key, override.value(), origin, is_override=True)
    inside = dict(leaves(override.value(), key))
    return Setting(path, inside[path], origin, is_override=True) if path in inside else None
