"""Where Hydra finds recipe files, and how it reads them.

With `compose`, `chosen` and `flags`, all there is of Hydra.
"""

import itertools
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from hydra import version
from hydra._internal.core_plugins.file_config_source import FileConfigSource
from hydra._internal.sources_registry import SourcesRegistry
from hydra.core.plugins import Plugins
from hydra.plugins.config_source import ConfigResult, ConfigSource
from omegaconf import MISSING, DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from launcher.common import yaml_io
from launcher.common.paths import COLLECTION
from launcher.common.problems import Problem, ProblemsFound
from launcher.config import resolvers
from launcher.config.file_cache import FileCache, Reader
from launcher.config.recipe_files import SCHEME, USER_RECIPE

_NEIGHBOURS = "recipes"
"""Group from which Hydra looks up what that file's `defaults` name without a slash: the files beside it."""

_SHOWN = 60
"""Characters of a faulty value that a Problem repeats."""


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
        return Path(self.path).parent / self._normalize_file_name(config_path.removeprefix(f"{_NEIGHBOURS}/"))

    def is_group(self, config_path: str) -> bool:
        return f"recipes/{USER_RECIPE}".startswith(f"{config_path}/") or not config_path

    def is_config(self, config_path: str) -> bool:
        if not config_path.startswith(f"{_NEIGHBOURS}/"):
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
        elif isinstance(node, yaml.ScalarNode) and "${" in node.value:
            try:
                OmegaConf.create([node.value])
            except (OmegaConfBaseException, RecursionError):
                mark, value = node.start_mark, node.value if len(node.value) < _SHOWN else f"{node.value[:_SHOWN]}…"
                place = f"{path}:{mark.line + 1}:{mark.column + 1}"
                yield Problem(
                    "E004", place, "is not a valid reference", value=value, allowed="${key.of.the.configuration}"
                )


def find(config_path: str, search: Sequence[str]) -> Path | None:
    """Return the file of a config, as `/base/…` in `defaults` names it without the slash; None when there is none."""
    return next((source.file(config_path) for source in _sources(search) if source.is_config(config_path)), None)


def known_configs(search: Sequence[str]) -> list[str]:
    """Return every config that `defaults` could name, sorted, as `find` takes it."""
    names: set[str] = set()
    for source in _sources(search):
        place = Path(source.path)
        if isinstance(source, UserRecipe):
            names |= {f"{_NEIGHBOURS}/{file.stem}" for file in place.parent.glob("*.yaml")}
        else:
            names |= {str(file.relative_to(place).with_suffix("")) for file in place.rglob("*.yaml")}
    return sorted(names)


def is_group(config_path: str, search: Sequence[str]) -> bool:
    """Return whether a path names a folder of configs to choose from."""
    return any(source.is_group(config_path) for source in _sources(search))


def _sources(search: Sequence[str]) -> list[RecipeFiles]:
    sources = [RecipeFiles("main", f"file://{COLLECTION}")]
    for place in search:
        is_recipe = place.startswith(f"{SCHEME}://")
        sources.append((UserRecipe if is_recipe else RecipeFiles)("user", place))
    return sources
