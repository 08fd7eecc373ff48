"""Where Hydra finds recipe files, and how it reads them. With `compose` and `flags`, all there is of Hydra."""

from collections.abc import Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar

import yaml
from hydra import version
from hydra._internal.core_plugins.file_config_source import FileConfigSource
from hydra._internal.sources_registry import SourcesRegistry
from hydra.core.plugins import Plugins
from hydra.plugins.config_source import ConfigResult, ConfigSource
from omegaconf import OmegaConf

from launcher import yamlio
from launcher.paths import COLLECTION
from launcher.problems import fail

USER_RECIPE = "file/recipe"
"""Choice under `recipes` that stands for a recipe given as a file outside the collection."""


class RecipeFiles(FileConfigSource):
    """Hydra's file source, reading with libyaml, each file once while it is unchanged."""

    read: ClassVar[dict[Path, int]] = {}
    """Files read by the composition under way, with their modification times in nanoseconds."""

    def load_config(self, config_path: str) -> ConfigResult:
        path = self.file(config_path)
        mtime_ns = RecipeFiles.read[path] = path.stat().st_mtime_ns
        text, tree = _read(path, mtime_ns)
        return ConfigResult(
            config=OmegaConf.create(tree),
            path=f"file://{self.path}",
            provider=self.provider,
            header=ConfigSource._get_header_dict(text[:512]),
        )

    def file(self, config_path: str) -> Path:
        """Return the file of a config of this source."""
        return Path(self.path, self._normalize_file_name(config_path))


class UserRecipe(RecipeFiles):
    """A single recipe file outside the collection, seen as `recipes/file/recipe`."""

    @staticmethod
    def scheme() -> str:
        return "recipe"

    def file(self, config_path: str) -> Path:
        return Path(self.path)

    def is_group(self, config_path: str) -> bool:
        return f"recipes/{USER_RECIPE}".startswith(f"{config_path}/") or not config_path

    def is_config(self, config_path: str) -> bool:
        return config_path == f"recipes/{USER_RECIPE}"


@lru_cache(maxsize=1)
def register() -> None:
    """Make Hydra read through these sources, with our resolvers. Idempotent."""
    version.setbase("1.3")
    Plugins.instance()  # registers Hydra's own sources, which must come first
    types = SourcesRegistry.instance().types
    types["file"] = RecipeFiles
    types[UserRecipe.scheme()] = UserRecipe
    for name, function in _RESOLVERS.items():
        OmegaConf.register_new_resolver(name, function, replace=True)


def _divide_ceil(a: int, b: int) -> int:
    return -(-a // b)


_RESOLVERS = {
    "multiply": lambda a, b: a * b,
    "add": lambda *numbers: sum(numbers),
    "divide_ceil": _divide_ceil,
    "divide_floor": lambda a, b: a // b,
}


@lru_cache(maxsize=4096)
def _read(path: Path, mtime_ns: int) -> tuple[str, Any]:
    """Return a file's text and tree. `mtime_ns` is part of the key: a changed file is read again."""
    try:
        text = path.read_text(encoding="utf-8")
        tree = yamlio.load(text) or {}
    except UnicodeDecodeError as error:
        raise fail("E004", str(path), f"not UTF-8: {error.reason} at byte {error.start}") from error
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        place = f"{path}:{mark.line + 1}:{mark.column + 1}" if mark else str(path)
        raise fail("E004", place, f"not valid YAML: {error.problem}") from error
    if not isinstance(tree, dict):
        raise fail("E004", str(path), "a recipe is a mapping of keys", allowed="key: value")
    return text, tree


def locate(layers: Sequence[tuple[str, str]], search: Sequence[str]) -> Iterator[tuple[Path, str]]:
    """Yield file and package of each layer, lowest precedence first.

    Args:
        layers: Config path and package of each, as Hydra's defaults list has them.
        search: Where Hydra looked beside the collection.
    """
    sources = [RecipeFiles("main", f"file://{COLLECTION}")]
    for place in search:
        is_recipe = place.startswith(f"{UserRecipe.scheme()}://")
        sources.append((UserRecipe if is_recipe else RecipeFiles)("user", place))
    for config_path, package in layers:
        for source in sources:
            if source.is_config(config_path):
                yield source.file(config_path), "" if package == "_global_" else package
                break
