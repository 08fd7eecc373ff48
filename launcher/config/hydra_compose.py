"""The files that a launch chooses, composed by Hydra, and why they cannot be."""

import itertools
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra._internal.defaults_list import create_defaults_list
from hydra._internal.utils import create_config_search_path
from hydra.core.config_search_path import SearchPathQuery
from hydra.errors import HydraException, MissingConfigException
from omegaconf import DictConfig
from omegaconf.errors import OmegaConfBaseException

from launcher.common.paths import COLLECTION
from launcher.common.problems import ProblemsFound, fail
from launcher.common.suggestions import nearest
from launcher.config import defaults_list
from launcher.config.hydra_sources import RecipeFiles, count_references, known_configs, register

CONFIG = "config"
GROUPS = ("recipes", "cluster")
REMEDY_SYNTAX = "key=value sets a key, ~key removes one; quote values with spaces or commas: key='\"a, b\"'"
ALL_RECIPES = "recipes list shows all recipes"
_MOST_NEAR = 3
"""Names that a Problem suggests."""
_NOT_CHOSEN = re.compile(r"Could not override '([^']+)'\. No match in the defaults list")
_MOST_FILES = 2000
"""Files of one composition, counted as often as they are named. The longest published recipe names 20."""


@dataclass(frozen=True, slots=True)
class Files:
    """What Hydra made of the chosen files, before any value is overridden."""

    config: DictConfig
    recipe: str
    cluster: str
    layers: tuple[tuple[str, str], ...]
    read: Mapping[Path, int]
    references: int

    def is_current(self) -> bool:
        """Tell whether every file is as it was when it was read."""
        return all(os.path.isfile(path) and path.stat().st_mtime_ns == mtime for path, mtime in self.read.items())


@dataclass(frozen=True, slots=True)
class Choices:
    """Overrides that choose files, as Hydra gets them, and the folders and files it looks in beside ours."""

    words: tuple[str, ...]
    search: tuple[str, ...]


_composed: dict[Choices, Files] = {}
_MOST_COMPOSED = 16
"""Compositions kept, at about 0.5 MB each: a sweep over a catalogue must not keep them all."""


def compose_files(choices: Choices) -> Files:
    """Return the chosen files composed: as before, while none of them has changed on disk.

    Raises:
        ProblemsFound: A choice or a default that does not exist, or a file that is not YAML.
    """
    known = _composed.get(choices)
    if known is None or not known.is_current():
        if len(_composed) >= _MOST_COMPOSED:
            del _composed[next(iter(_composed))]
        known = _composed[choices] = _compose_anew(choices)
    return known


def _compose_anew(choices: Choices) -> Files:
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
        _bound(repository)
        made_of = create_defaults_list(
            repo=repository,
            config_name=CONFIG,
            overrides_list=overrides,
            prepend_hydra=False,
            skip_missing=False,
        )
        config = loader._compose_config_from_defaults_list(defaults=made_of.defaults, repo=repository)
    except (HydraException, OmegaConfBaseException, AssertionError, OSError, ValueError, RecursionError) as error:
        raise _refused(error, choices) from error
    del config["hydra"]
    chosen = made_of.overrides.known_choices
    if chosen["cluster"] not in clusters():  # a folder of the user's may have others
        raise _unknown_choice("cluster", chosen["cluster"], choices)
    layers = tuple((d.config_path, d.package or "") for d in made_of.defaults if d.config_path)
    if problems := tuple(p for config, _ in layers for p in defaults_list.unplaced(config, choices.search)):
        raise ProblemsFound(problems)
    return Files(config, chosen["recipes"], chosen["cluster"], layers, RecipeFiles.read, count_references())


def _bound(repository: Any) -> None:
    """Let a composition read no more files than `_MOST_FILES`, each as often as `defaults` name it."""
    load, loads = repository.load_config, itertools.count(1)

    def load_bounded(config_path: str) -> Any:
        if next(loads) > _MOST_FILES:
            raise fail("E005", "defaults", f"they name more than {_MOST_FILES} files", value=config_path)
        return load(config_path)

    repository.load_config = load_bounded


def _refused(error: Exception, choices: Choices) -> ProblemsFound:
    """Say what Hydra would not compose: a choice that does not exist, or faulty `defaults` behind one that does."""
    missing = error.missing_cfg_file or "" if isinstance(error, MissingConfigException) else ""
    chosen = [(group, option.strip("'\"")) for group, _, option in (word.partition("=") for word in choices.words)]
    for group, option in chosen:
        if group in GROUPS and (missing == f"{group}/{option}" or "${" in option):
            return _unknown_choice(group, option, choices)
    if problems := tuple(p for group, option in chosen for p in defaults_list.faults(group, option, choices.search)):
        return ProblemsFound(problems)
    message = first_line(error)
    if absent := _NOT_CHOSEN.match(message):
        return fail("E003", absent[1], "no file of this group is chosen yet", remedy=f"+{absent[1]}=… adds one")
    return fail("E003", " ".join(choices.words), message, remedy=REMEDY_SYNTAX)


def _unknown_choice(group: str, name: str, choices: Choices) -> ProblemsFound:
    names = (config.partition("/") for config in known_configs(choices.search))
    known = clusters() if group == "cluster" else [path for folder, _, path in names if folder == group]
    near = nearest(name, known, cutoff=0.5) or ([] if name else known)
    remedy = f"did you mean {' or '.join(f'{group}={n}' for n in near[:_MOST_NEAR])}?" if near else None
    return fail(
        "E005",
        group,
        f"there is no {group.removesuffix('s')} of that name",
        value=name,
        allowed=", ".join(known) if group == "cluster" else None,
        remedy=_from_list(name, known) or remedy or ALL_RECIPES if group == "recipes" else remedy,
    )


def _from_list(name: str, known: Sequence[str]) -> str | None:
    """Return the listing to choose from where a name of a recipe is absent, or a part of many names."""
    count = sum(name.lower() in other.lower() for other in known)
    if not name:
        return ALL_RECIPES
    if count <= _MOST_NEAR or not re.fullmatch(r"[\w./-]+", name):
        return None
    return f"recipes list {name} shows the {count} recipes with this in their names"


def clusters() -> list[str]:
    """Return the clusters a job can be compiled for, sorted."""
    return sorted(path.stem for path in (COLLECTION / "cluster").glob("*.yaml"))


def first_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__
