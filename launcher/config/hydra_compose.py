"""The files that a launch chooses, composed by Hydra, and why they cannot be."""

import itertools
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import hydra
import omegaconf
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra._internal.config_repository import IConfigRepository
from hydra._internal.defaults_list import create_defaults_list
from hydra._internal.utils import create_config_search_path
from hydra.core.config_search_path import SearchPathQuery
from hydra.core.default_element import ResultDefault
from hydra.errors import HydraException
from hydra.plugins.config_source import ConfigResult
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from launcher.common import yaml_io
from launcher.common.paths import COLLECTION
from launcher.common.problems import ProblemsFound
from launcher.config import defaults_list, file_cache, hydra_sources, layer_merge
from launcher.config.choices import Choices
from launcher.config.collection import CONFIG, clusters
from launcher.config.file_cache import FileCache, FileText, Reader, stamp_of
from launcher.config.hydra_errors import refused, too_many_files, unknown_choice
from launcher.config.hydra_sources import LoadedFile, RecipeFiles, register
from launcher.config.layer_merge import NotPlain, merge_layers
from launcher.config.value_sources import Files, Layer

_MOST_FILES = 2000
"""Files of one composition, counted as often as they are named. The longest published recipe names 20."""
_PARTS = (hydra, omegaconf, hydra_sources, layer_merge, file_cache, yaml_io)
_MADE_BY = (__file__, *(str(part.__file__) for part in _PARTS))
"""The code that composes: what an earlier state of it composed is outdated."""


def compose_files(choices: Choices, cache: FileCache) -> tuple[Files, Collection[FileText]]:
    """Compose the chosen files as `hydra.compose` does, but without Hydra's own configuration.

    That one logs, names folders and starts sweeps; merging it costs as much as merging a recipe.

    Returns:
        The composition, and the files that were read.

    Raises:
        ProblemsFound: A choice or a default that does not exist, or a file that is not YAML.
    """
    register()
    search_path = create_config_search_path(str(COLLECTION))
    for place in reversed(choices.search):  # each goes right behind ours
        search_path.append("user", place, anchor=SearchPathQuery("main", None))
    loader, reader = ConfigLoaderImpl(config_search_path=search_path), Reader(cache)
    _serve(loader.repository, reader)
    try:
        overrides, repository = loader._parse_overrides_and_create_caching_repo(CONFIG, list(choices.words))
        _serve(repository, reader)  # Hydra has read the search path, and made its sources anew
        _bound(repository, choices)
        made_of = create_defaults_list(
            repo=repository,
            config_name=CONFIG,
            overrides_list=overrides,
            prepend_hydra=False,
            skip_missing=False,
        )
        tree = _merged(made_of.defaults, repository, loader)
    except (HydraException, OmegaConfBaseException, AssertionError, OSError, ValueError, RecursionError) as error:
        raise refused(error, choices) from error
    tree.pop("hydra", None)
    chosen = {group: name or "" for group, name in made_of.overrides.known_choices.items()}
    if chosen["cluster"] not in clusters():  # a folder of the user's may have others
        raise unknown_choice("cluster", chosen["cluster"], choices)
    layers = tuple(_layers(made_of.defaults, reader.files))
    if problems := tuple(problem for layer in layers for problem in defaults_list.unplaced(layer.config, layer.file)):
        raise ProblemsFound(problems)
    texts = reader.files.values()
    references = sum(file.text.count("${") for file in texts)
    looked = {**reader.looked, **{module: stamp_of(module) for module in _MADE_BY}}
    return Files(tree, chosen["recipes"], chosen["cluster"], layers, references, looked), texts


def _serve(repository: IConfigRepository, reader: Reader) -> None:
    """Let a repository's sources read by a reader."""
    for source in repository.get_sources():
        if isinstance(source, RecipeFiles):
            source.reader = reader


def _layers(defaults: Sequence[ResultDefault], files: Mapping[str, FileText]) -> Iterator[Layer]:
    """Yield the files that Hydra's defaults list names, lowest precedence first; those of Hydra itself are none."""
    for default in defaults:
        if (config := default.config_path) and config in files:
            package = "" if default.package == "_global_" else default.package or ""
            yield Layer(config, package, files[config].path)


def _merged(layers: Sequence[ResultDefault], repository: Any, loader: ConfigLoaderImpl) -> dict[str, Any]:
    """Return the values of the layers as Hydra merges them: by ourselves where that is the same."""
    loaded = [(layer, repository.load_config(layer.config_path)) for layer in layers]
    try:
        return merge_layers([_plain(layer, file) for layer, file in loaded])
    except (NotPlain, RecursionError):
        for _, file in loaded:
            if isinstance(file, LoadedFile):
                file.wrap()
        config = loader._compose_config_from_defaults_list(defaults=list(layers), repo=repository)
        tree: Any = OmegaConf.to_container(config, resolve=False)
        return dict(tree)


def _plain(layer: ResultDefault, loaded: ConfigResult) -> tuple[str, Mapping[str, Any]]:
    """Return package and values of a layer, unless it is a file of Hydra's own or sets Hydra's keys."""
    if not isinstance(loaded, LoadedFile) or ("hydra" in loaded.tree and not layer.primary):
        raise NotPlain
    package = loaded.header["package"] if layer.package is None else layer.package
    return package or "", loaded.tree


def _bound(repository: Any, choices: Choices) -> None:
    """Let a composition read no more files than `_MOST_FILES`, each as often as `defaults` name it."""
    load, loads = repository.load_config, itertools.count(1)

    def load_bounded(config_path: str) -> Any:
        if next(loads) > _MOST_FILES:
            raise too_many_files(config_path, _MOST_FILES, choices)
        return load(config_path)

    repository.load_config = load_bounded
