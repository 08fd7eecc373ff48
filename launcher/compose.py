"""Overrides to one resolved tree, with the origin of every value.

With `sources` and `flags`, all there is of Hydra.
"""

import copy
import dataclasses
import difflib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra._internal.defaults_list import create_defaults_list
from hydra._internal.utils import create_config_search_path
from hydra.core.config_search_path import SearchPathQuery
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException, MissingConfigException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from launcher import provenance
from launcher.paths import COLLECTION
from launcher.problems import Problem, ProblemsFound, fail, shown
from launcher.scales import leaves
from launcher.sources import USER_RECIPE, RecipeFiles, UserRecipe, locate, register

CONFIG = "config"
_GROUPS = ("recipes", "cluster")


@dataclass(frozen=True)
class Composition:
    """What the overrides mean.

    Args:
        tree: The whole configuration, resolved; every key a string.
        recipe: The recipe as the user named it.
        backend: The chosen cluster.
        overrides: As typed.
        explicit: Dotted path of every leaf an override sets, to that override.
    """

    tree: Mapping[str, Any]
    recipe: str
    backend: str
    overrides: tuple[str, ...]
    explicit: Mapping[str, str]
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
        chosen = {text.partition("=")[0]: text for text in self.overrides if text.partition("=")[0] in _GROUPS}
        files = provenance.leaf_origins(locate(self._layers, self._search))
        return provenance.overridden(files, self.explicit) | chosen


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
    parsed = _parse(overrides)
    choices = _choices(parsed, cwd)
    files = _compose_files(choices)
    config = copy.deepcopy(files.config)
    values = [o for o in parsed if not _is_choice(o) and not o.is_hydra_override()]
    if problems := tuple(filter(None, (_set(config, override) for override in values))):
        raise ProblemsFound(problems)
    composition = Composition(
        tree={},
        recipe=next((str(o.value()) for o in parsed if o.key_or_group == "recipes"), files.recipe),
        backend=files.cluster,
        overrides=tuple(overrides),
        explicit=_explicit(values),
        _layers=files.layers,
        _search=choices.search,
    )
    tree = _resolve(config, composition)
    tree["training_config"] = tree.get("training_config") or composition.recipe
    return dataclasses.replace(composition, tree=tree)


@dataclass(frozen=True, slots=True)
class _Files:
    """What Hydra made of the chosen files, before any value is overridden."""

    config: DictConfig
    recipe: str
    cluster: str
    layers: tuple[tuple[str, str], ...]
    read: Mapping[Path, int]

    def is_current(self) -> bool:
        """Tell whether every file is as it was when it was read."""
        return all(path.is_file() and path.stat().st_mtime_ns == mtime for path, mtime in self.read.items())


@dataclass(frozen=True, slots=True)
class _Choices:
    """Overrides that choose files, as Hydra gets them, and the folders and files it looks in beside ours."""

    words: tuple[str, ...]
    search: tuple[str, ...]


_composed: dict[_Choices, _Files] = {}


def _compose_files(choices: _Choices) -> _Files:
    known = _composed.get(choices)
    if known is None or not known.is_current():
        known = _composed[choices] = _compose_anew(choices)
    return known


def _compose_anew(choices: _Choices) -> _Files:
    """Compose the chosen files as `hydra.compose` does, but without Hydra's own configuration.

    That one logs, names folders and starts sweeps; merging it costs as much as merging a recipe.
    """
    register()
    RecipeFiles.read = {}
    search_path = create_config_search_path(str(COLLECTION))
    for place in reversed(choices.search):  # each goes right behind ours
        search_path.append("user", place, anchor=SearchPathQuery("main", None))
    loader = ConfigLoaderImpl(config_search_path=search_path)
    try:
        overrides, repository = loader._parse_overrides_and_create_caching_repo(CONFIG, list(choices.words))
        defaults = create_defaults_list(
            repo=repository,
            config_name=CONFIG,
            overrides_list=overrides,
            prepend_hydra=False,
            skip_missing=False,
        )
        config = loader._compose_config_from_defaults_list(defaults=defaults.defaults, repo=repository)
    except RecursionError:
        raise fail(
            "E005", "defaults", "a recipe's defaults lead back to itself", value=" ".join(choices.words)
        ) from None
    except MissingConfigException as error:
        raise _missing_config(error, choices.words) from error
    except (HydraException, OmegaConfBaseException, ValueError) as error:
        raise fail("E003", " ".join(choices.words), _first_line(error), remedy=_REMEDY_SYNTAX) from error
    del config["hydra"]
    chosen = defaults.overrides.known_choices
    layers = tuple((d.config_path, d.package or "") for d in defaults.defaults if d.config_path)
    return _Files(config, chosen["recipes"], chosen["cluster"], layers, RecipeFiles.read)


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
        else:
            OmegaConf.update(config, key, override.value(), merge=True, force_add=True)
    except (OmegaConfBaseException, ValueError, TypeError, IndexError) as error:
        return Problem("E003", key, _first_line(error), where=shown(override.input_line))
    return None


def recipe_names() -> list[str]:
    """Return the path of every recipe in the collection, sorted."""
    root = COLLECTION / "recipes"
    return sorted(str(path.relative_to(root).with_suffix("")) for path in root.rglob("*.yaml"))


_REMEDY_SYNTAX = "key=value sets a key, ~key removes one; quote values with spaces or commas: key='\"a, b\"'"


def _parse(overrides: Sequence[str]) -> list[Override]:
    parser, parsed, problems = OverridesParser.create(), [], []
    for text in overrides:
        try:
            override = parser.parse_override(text)
        except HydraException as error:
            message = _first_line(error) if shown(text) == text else "is not written as an override"
            problems.append(Problem("E001", shown(text), message, remedy=_REMEDY_SYNTAX))
            continue
        if override.key_or_group in _GROUPS and not isinstance(override.value(), str):
            problems.append(Problem("E005", override.key_or_group, "must name one", where=shown(text)))
        if override.is_hydra_override() and (problem := _hydra_problem(override)):
            problems.append(problem)
        if override.is_sweep_override():
            problems.append(
                Problem(
                    "E002",
                    shown(text),
                    "sweeps over several values",
                    remedy="add --multirun, or quote the value",
                )
            )
        parsed.append(override)
    if problems:
        raise ProblemsFound(tuple(problems))
    return parsed


def _hydra_problem(override: Override) -> Problem | None:
    """Return what is wrong with an override of Hydra's own settings, of which only the search path is ours."""
    key, value, text = override.key_or_group, override.value(), shown(override.input_line)
    if key != "hydra.searchpath":
        return Problem(
            "E009", key, "is a setting of Hydra that no launch reads", allowed="hydra.searchpath", where=text
        )
    folders = value if isinstance(value, list) else [value]
    if not isinstance(value, list) or not all(isinstance(folder, str) for folder in folders):
        return Problem(
            "E009", key, "is a list of folders", value=value, remedy=f"{key}=[/path/to/folder]", where=text
        )
    absent = [f for f in folders if "://" not in f and not Path(f).is_dir()]
    return Problem("E009", key, "no such folder", value=", ".join(absent), where=text) if absent else None


def _is_choice(override: Override) -> bool:
    """Tell an override that chooses a file (`cluster=k8s`) from one that sets a value."""
    return override.key_or_group in _GROUPS or "/" in override.key_or_group


def _choices(parsed: Sequence[Override], cwd: Path) -> _Choices:
    """Return what the overrides choose; `cluster_type` chooses where `cluster` does not."""
    words, search, chosen = [], [], {o.key_or_group: o.value() for o in parsed}
    for override in parsed:
        if override.key_or_group == "hydra.searchpath":
            search += [str(path) for path in override.value()]
        elif override.key_or_group == "recipes" and (user_recipe := _recipe_file(override, cwd)):
            search.append(f"{UserRecipe.scheme()}://{user_recipe}")
            words.append(f"recipes={USER_RECIPE}")
        elif _is_choice(override) and not override.is_hydra_override():
            words.append(override.input_line)
    if isinstance(chosen.get("cluster_type"), str) and "cluster" not in chosen:
        words.append(f"cluster={chosen['cluster_type']}")
    return _Choices(tuple(words), tuple(search))


def _recipe_file(override: Override, cwd: Path) -> Path | None:
    """Return the file that `recipes=` names, or None when it names a recipe of the collection."""
    name = str(override.value())
    if not name.endswith((".yaml", ".yml")):
        return None
    path = (cwd / Path(name).expanduser()).resolve()
    if not path.is_file():
        raise fail("E005", "recipes", "no such file", value=name, remedy="give a path under recipes/ without .yaml")
    return path


def _resolve(config: Any, composition: Composition) -> dict[str, Any]:
    try:
        return OmegaConf.to_container(config, resolve=True, throw_on_missing=True)
    except OmegaConfBaseException:
        first: dict[str, Problem] = {}  # a value that refers to a faulty one fails with the same words
        for problem in sorted(_unresolved(config, ""), key=lambda p: p.path not in composition.explicit):
            message = problem.message if problem.code == "E007" else problem.path
            first.setdefault(message, dataclasses.replace(problem, where=composition.origin(problem.path)))
        missing = [problem for problem in first.values() if problem.code == "E006"]
        follows = "MissingMandatoryValue while resolving"
        others = [p for p in first.values() if p not in missing and not (missing and p.message.startswith(follows))]
        raise ProblemsFound((*missing, *others)) from None


def _unresolved(node: Any, path: str) -> Iterator[Problem]:
    """Yield a Problem for each leaf that refers to something absent or is still `???`."""
    keys = node.keys() if OmegaConf.is_dict(node) else range(len(node))
    for key in keys:
        here = f"{path}.{key}" if path else str(key)
        try:
            if OmegaConf.is_missing(node, key):
                yield Problem("E006", here, "needs a value", remedy=f"add {here}=…")
                continue
            value = node[key]
        except OmegaConfBaseException as error:
            yield Problem("E007", here, _first_line(error))
            continue
        if OmegaConf.is_config(value):
            yield from _unresolved(value, here)


def _explicit(values: Sequence[Override]) -> dict[str, str]:
    explicit: dict[str, str] = {}
    for override in values:
        if not override.is_delete() and override.value() != {}:
            for path, _ in leaves(override.value(), override.key_or_group):
                explicit.pop(path, None)
                explicit[path] = shown(override.input_line)
    return explicit


def _missing_config(error: MissingConfigException, words: Sequence[str]) -> ProblemsFound:
    """Tell a choice that does not exist from a file whose `defaults` names one that does not."""
    missing = error.missing_cfg_file or ""
    for group in _GROUPS:
        name = missing.removeprefix(f"{group}/")
        if missing.startswith(f"{group}/") and f"{group}={name}" in words:
            return _unknown_choice(group, name)
    return fail(
        "E005",
        "defaults",
        "a recipe's defaults name a file that does not exist",
        value=missing,
        remedy="a path begins with /, from recipes_collection/ or the search path, and ends without .yaml",
    )


def _unknown_choice(group: str, name: str) -> ProblemsFound:
    known = recipe_names() if group == "recipes" else clusters()
    near = difflib.get_close_matches(name, known, n=3, cutoff=0.5) or known[:8]
    return fail(
        "E005",
        group,
        f"there is no {group.removesuffix('s')} of that name",
        value=name,
        allowed=", ".join(known) if group == "cluster" else None,
        remedy=f"did you mean {' or '.join(f'{group}={n}' for n in near[:3])}?",
    )


def clusters() -> list[str]:
    """Return the clusters a job can be compiled for, sorted."""
    return sorted(path.stem for path in (COLLECTION / "cluster").glob("*.yaml"))


def _first_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__
