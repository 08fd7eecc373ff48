"""The files that a launch chooses, composed by Hydra: where it finds recipe files, and how it reads them.

With `hydra_errors`, `hydra_flags` and `hydra_overrides`, all there is of Hydra.
"""

import itertools
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from hydra import version
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra._internal.config_repository import IConfigRepository
from hydra._internal.core_plugins.file_config_source import FileConfigSource
from hydra._internal.defaults_list import create_defaults_list
from hydra._internal.sources_registry import SourcesRegistry
from hydra._internal.utils import create_config_search_path
from hydra.core.config_search_path import SearchPathQuery
from hydra.core.default_element import ResultDefault
from hydra.core.plugins import Plugins
from hydra.errors import HydraException
from hydra.plugins.config_source import ConfigResult, ConfigSource
from omegaconf import MISSING, DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from launcher.common import yaml_io
from launcher.common.paths import COLLECTION
from launcher.common.problems import Problem, ProblemsFound, raise_any
from launcher.common.texts import start_of
from launcher.config import interpolation, resolvers
from launcher.config.collection import CONFIG, SCHEME, USER_RECIPE
from launcher.config.files import Choices, FileCache, Files, FileText, Layer, Reader, shown_path
from launcher.config.plain_values import NotPlain, merge_layers

NEIGHBOURS = "recipes"
"""Group from which Hydra looks up what a user's recipe names without a slash: the files beside it."""

_SHOWN = 60
"""Characters of a faulty value that a Problem repeats."""

MOST_FILES = 2000
"""Files of one composition, counted as often as they are named. The longest published recipe names 20."""
REFUSALS = (HydraException, OmegaConfBaseException, AssertionError, OSError, ValueError, RecursionError)
"""Exceptions that Hydra raises for files that it cannot compose: its own, and Python's that it lets through."""


class TooManyFiles(Exception):
    """A composition reads more than `MOST_FILES`; the argument is the first file above the bound."""


@dataclass
class LoadedFile(ConfigResult):
    """A file as Hydra reads its `defaults`. Its values stay a plain tree: wrapping each takes longer than reading it.

    Args:
        tree: The values of the file.
    """

    tree: dict[str, Any] = field(default_factory=dict)

    def wrap(self) -> None:
        """Let Hydra have the values too."""
        self.config = OmegaConf.create(self.tree)


def _outline(tree: Mapping[str, Any]) -> DictConfig:
    """Return what Hydra looks for in a file before it merges: `defaults`, and whether there is anything else."""
    others = {key: 0 for key, value in tree.items() if key != "defaults" and value != MISSING}
    content = dict(itertools.islice(others.items(), 1))
    return OmegaConf.create({**content, "defaults": tree["defaults"]} if "defaults" in tree else content)


class RecipeFiles(FileConfigSource):
    """Hydra's file source, reading with libyaml, each file once while it is unchanged."""

    def __init__(self, provider: str, path: str):
        super().__init__(provider, path)
        self.reader: Reader | None = None
        """Set for a composition, which merges the values itself; None if Hydra does, for a flag of its own.

        It is not an argument of the constructor, since Hydra calls that.
        """

    def load_config(self, config_path: str) -> ConfigResult:
        path = self.file(config_path)
        file = (self.reader or Reader(FileCache())).read(config_path, path)
        config = _outline(file.tree)
        if self.reader is None or "${" in file.text:
            try:
                config = OmegaConf.create(file.tree)
            except (OmegaConfBaseException, RecursionError) as error:  # the latter from references within references
                raise ProblemsFound(tuple(_unreadable_values(path, file.text))) from error
        return LoadedFile(
            config=config,
            path=f"file://{self.path}",
            provider=self.provider,
            header=ConfigSource._get_header_dict(file.text[:512]),
            tree={key: value for key, value in file.tree.items() if key != "defaults"},
        )

    def file(self, config_path: str) -> Path:
        """Return the file of a config of this source."""
        return Path(self.path, self._normalize_file_name(config_path))

    def is_group(self, config_path: str) -> bool:
        self.look(Path(self.path, config_path))
        return super().is_group(config_path)

    def is_config(self, config_path: str) -> bool:
        self.look(self.file(config_path))
        return super().is_config(config_path)

    def look(self, path: Path) -> None:
        """Let the composition, if there is one, know of a place whose state it depends on."""
        if self.reader:
            self.reader.look(path)


class UserRecipe(RecipeFiles):
    """A recipe file outside the collection, and those beside it that its `defaults` name."""

    @staticmethod
    def scheme() -> str:
        return SCHEME

    def file(self, config_path: str) -> Path:
        if config_path == f"recipes/{USER_RECIPE}":
            return Path(self.path)
        return Path(self.path).parent / self._normalize_file_name(config_path.removeprefix(f"{NEIGHBOURS}/"))

    def is_group(self, config_path: str) -> bool:
        return f"recipes/{USER_RECIPE}".startswith(f"{config_path}/") or not config_path

    def is_config(self, config_path: str) -> bool:
        if not config_path.startswith(f"{NEIGHBOURS}/"):
            return False
        self.look(self.file(config_path))
        return os.path.isfile(self.file(config_path))


@cache  # Hydra's plugins and OmegaConf's resolvers are of the process, and looking for plugins takes 50 ms
def register() -> None:
    """Make Hydra read through these sources, with our resolvers. Idempotent."""
    version.setbase("1.3")
    Plugins.instance()  # registers Hydra's own sources, which must come first
    types = SourcesRegistry.instance().types
    types["file"] = RecipeFiles
    types[SCHEME] = UserRecipe
    resolvers.register()


def _unreadable_values(path: Path, text: str) -> Iterator[Problem]:
    """Yield a Problem for each value whose `${…}` is not written as a reference."""
    pending = [yaml_io.load_nodes(text)]
    seen: set[int] = set()  # an alias leads back to its anchor
    while pending:
        node = pending.pop()
        if isinstance(node, yaml.CollectionNode) and id(node) not in seen:
            is_mapping = isinstance(node, yaml.MappingNode)
            pending += reversed([value for _, value in node.value] if is_mapping else node.value)
            seen.add(id(node))
        elif isinstance(node, yaml.ScalarNode) and (fault := interpolation.unreadable("", node.value)):
            mark, value = node.start_mark, start_of(node.value, _SHOWN)
            yield replace(fault, code="E004", path=f"{path}:{mark.line + 1}:{mark.column + 1}", value=value)


def compose_files(choices: Choices, cache: FileCache) -> Files:
    """Compose the chosen files as `hydra.compose` does, but without Hydra's own configuration.

    That one logs, names folders and starts sweeps; merging it costs as much as merging a recipe.

    Raises:
        ProblemsFound: A file that is not YAML.
        TooManyFiles: Too many of them.
        Exception: One of `REFUSALS`, as Hydra raises it.
    """
    register()
    search_path = create_config_search_path(str(COLLECTION))
    for place in reversed(choices.search):  # each goes right behind ours
        search_path.append("user", place, anchor=SearchPathQuery("main", None))
    loader, reader = ConfigLoaderImpl(config_search_path=search_path), Reader(cache)
    _serve(loader.repository, reader)
    overrides, repository = loader._parse_overrides_and_create_caching_repo(CONFIG, list(choices.words))
    _serve(repository, reader)  # Hydra has read the search path, and made its sources anew
    _bound(repository)
    made_of = create_defaults_list(
        repo=repository,
        config_name=CONFIG,
        overrides_list=overrides,
        prepend_hydra=False,
        skip_missing=False,
    )
    layers = tuple(_layers(made_of.defaults, reader.files))
    try:
        tree = _merged(made_of.defaults, repository, loader)
    except REFUSALS:
        raise_any(_mixed(layers, cache))
        raise
    tree.pop("hydra", None)
    chosen = {group: name or "" for group, name in made_of.overrides.known_choices.items()}
    return Files(tree, chosen["recipes"], chosen["cluster"], layers, reader.references, reader.looked)


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


def _mixed(layers: Sequence[Layer], cache: FileCache) -> Iterator[Problem]:
    """Yield a Problem for each list of a file in place of another file's mapping, and the reverse.

    Args:
        layers: The files, lowest precedence first. Of two the later is at fault, or the user's.
        cache: The files read so far.
    """
    known: dict[str, tuple[Any, Layer]] = {}
    for layer in layers:
        tree = {key: value for key, value in cache.read(layer.file).tree.items() if key != "defaults"}
        for path, value in _values(tree, layer.package):
            (other, below), known[path] = known.get(path, (None, layer)), (value, layer)
            if {type(other), type(value)} != {dict, list}:
                continue
            is_theirs = layer.file.is_relative_to(COLLECTION) and not below.file.is_relative_to(COLLECTION)
            faulty, meant, at = (other, value, below) if is_theirs else (value, other, layer)
            kind = "a mapping" if isinstance(meant, dict) else "a list"
            inside = path.removeprefix(f"{at.package}.")
            lines = [line for leaf, line in cache.lines(at.file).items() if f"{leaf}.".startswith(f"{inside}.")]
            where = f"{shown_path(at.file)}:{min(lines, default=1)}"
            yield Problem("E102", path, f"should be {kind}", value=faulty, allowed=kind, where=where)


def _values(tree: Any, path: str) -> Iterator[tuple[str, Any]]:
    """Yield dotted path and value of everything in a tree, a mapping before its values."""
    yield path, tree
    for key, value in tree.items() if isinstance(tree, dict) else ():
        yield from _values(value, f"{path}.{key}" if path else key)


def _plain(layer: ResultDefault, loaded: ConfigResult) -> tuple[str, Mapping[str, Any]]:
    """Return package and values of a layer, unless it is a file of Hydra's own or sets Hydra's keys."""
    if not isinstance(loaded, LoadedFile) or ("hydra" in loaded.tree and not layer.primary):
        raise NotPlain
    package = loaded.header["package"] if layer.package is None else layer.package
    return package or "", loaded.tree


def _bound(repository: Any) -> None:
    """Let a composition read no more files than `MOST_FILES`, each as often as `defaults` name it."""
    load, loads = repository.load_config, itertools.count(1)

    def load_bounded(config_path: str) -> Any:
        if next(loads) > MOST_FILES:
            raise TooManyFiles(config_path)
        return load(config_path)

    repository.load_config = load_bounded
