"""The files that a launch chooses, composed: without Hydra, which takes 0.2 s to load, where they have common forms.

The forms of `defaults` that recipes use are followed here. Any other form, and every fault, is `NotPlain`: then Hydra
composes, and has the words for what is wrong. Tests hold both ways to the same composition.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from launcher.common.paths import COLLECTION
from launcher.common.problems import ProblemsFound
from launcher.config.collection import CONFIG, GROUPS, PLAIN_NAME, SCHEME, USER_RECIPE
from launcher.config.files import Choices, FileCache, Files, FileText, Layer, Reader, keep
from launcher.config.plain_values import REFERENCE, NotPlain, merge_layers

_CHOICE = re.compile(rf"({'|'.join(GROUPS)})=(.+)")
_CONFIG = re.compile(r"\w[\w-]*(?:/\w[\w.-]*)*", re.A)
_DEFAULT = re.compile(rf"(/?)({_CONFIG.pattern})@(_here_|_global_)", re.A)
_CALL = re.compile(r"\$\{\w+(?:\.\w+)*:[\w.,\s-]*(?:,\s*(?:\[\]|\{\}))?\}", re.A)
_HEADER = 512
"""Characters at the start of a file in which Hydra looks for the package that its keys belong to."""
_MOST_COMPOSED = 16
"""Compositions kept in memory, at about 0.5 MB each: a sweep over a catalogue must not keep them all."""
_MOST_PARTS = 200
"""Parts of one recipe, one that is named twice counted twice; the longest of the collection has 20."""


class Part(NamedTuple):
    """One of the files that a file is made of.

    Args:
        config: Its path as `defaults` name it.
        file: The file.
        is_global: Whether it sets keys of the top level, and not of what inherits it.
    """

    config: str
    file: FileText
    is_global: bool = False

    def layer(self, package: str) -> tuple[str, dict[str, Any]]:
        """Return the package of its keys, where those of what inherits it have `package`, and its values."""
        return "" if self.is_global else package, {k: v for k, v in self.file.tree.items() if k != "defaults"}


class Parts:
    """Follows the `defaults` of files, each of them once.

    Attributes:
        reader: Reads the files.
    """

    def __init__(self, search: Sequence[str], cache: FileCache):
        """Look in the collection first, then in these folders, and beside these files as `user_place` names them."""
        if any("://" in place.removeprefix(f"{SCHEME}://") for place in search):
            raise NotPlain
        self.reader = Reader(cache)
        self._search = search
        self._known: dict[tuple[Path, str | None], tuple[Part, ...] | None] = {}

    def of(self, config: str, path: Path, base: str | None) -> tuple[Part, ...]:
        """Return a file and all that it inherits, lowest precedence first; a part may be there twice.

        Args:
            config: Its path as `defaults` name it.
            path: Where it is.
            base: Folder of what it names without a slash; None if that is not followed here.

        Raises:
            NotPlain: It has a form or a fault that Hydra has to look at.
        """
        key = path, base
        if key not in self._known:
            self._known[key] = None
            self._known[key] = tuple(self._read(config, path, base))
        if (parts := self._known[key]) is None:  # it leads back to itself, or was refused before
            raise NotPlain
        return parts

    def _read(self, config: str, path: Path, base: str | None) -> Iterator[Part]:
        try:
            file = self.reader.read(config, path)
        except ProblemsFound as error:
            raise NotPlain from error
        defaults = file.tree.get("defaults", [])
        if not isinstance(defaults, list) or defaults.count("_self_") > 1 or "@package" in file.text[:_HEADER]:
            raise NotPlain
        if "hydra" in file.tree or not all(isinstance(key, str) for key in file.tree):
            raise NotPlain
        if "${" in file.text and ("\\" in file.text or "${" in _CALL.sub("", REFERENCE.sub("0", file.text))):
            raise NotPlain
        count = 0
        for default in defaults if "_self_" in defaults else [*defaults, "_self_"]:
            parts = (Part(config, file),) if default == "_self_" else self._inherited(default, base)
            if (count := count + len(parts)) > _MOST_PARTS:
                raise NotPlain
            yield from parts

    def _inherited(self, default: Any, base: str | None) -> tuple[Part, ...]:
        found = _DEFAULT.fullmatch(default) if isinstance(default, str) else None
        if found is None or not (found[1] or base):
            raise NotPlain
        config = found[2] if found[1] else f"{base}/{found[2]}"
        # Hydra looks up what a recipe names without a slash elsewhere if the recipe was not chosen but inherited.
        is_recipe = config.startswith("recipes/")
        parts = self.of(config, self.find(config), None if is_recipe else config.rpartition("/")[0])
        return parts if found[3] == "_here_" else tuple(part._replace(is_global=True) for part in parts)

    def find(self, config: str) -> Path:
        """Return the file of a config, such as `base/elastic/policy`.

        Raises:
            NotPlain: There is none.
        """
        for path in self._places(config):
            if self.reader.look(path):
                return path
        raise NotPlain

    def _places(self, config: str) -> Iterator[Path]:
        yield COLLECTION / f"{config}.yaml"
        for place in self._search:
            recipe = place.removeprefix(f"{SCHEME}://")
            if recipe == place:
                yield Path(place, f"{config}.yaml")
            elif config == f"recipes/{USER_RECIPE}":
                yield Path(recipe)
            elif config.startswith("recipes/"):
                yield Path(recipe).parent / f"{config.removeprefix('recipes/')}.yaml"


@dataclass(frozen=True, slots=True)
class CompositionCache:
    """Made by an entry point and passed to each of its compositions: one reads and composes what the next one needs.

    Args:
        files: The files read so far.
    """

    files: FileCache = field(default_factory=FileCache)
    _composed: dict[Choices, Files] = field(default_factory=dict)

    def composed(self, choices: Choices) -> Files:
        """Return the chosen files composed: as before, while none of them has changed on disk.

        Raises:
            ProblemsFound: A choice or a default that does not exist, or a file that is not YAML.
        """
        known = self._composed.get(choices)
        if known is None or not known.is_current():
            known = _compose(choices, self.files).with_placeholders(self.files)
            keep(self._composed, choices, known, _MOST_COMPOSED)
        return known


def _compose(choices: Choices, cache: FileCache) -> Files:
    try:
        return compose_plain(choices, cache)
    except NotPlain:
        from launcher.config import hydra_errors  # Hydra takes 0.2 s, more than all else of a dry run

        return hydra_errors.compose_files(choices, cache)


def compose_plain(choices: Choices, cache: FileCache) -> Files:
    """Compose the chosen files.

    Raises:
        NotPlain: A choice, or a file, has another form than those that are followed here, or a fault.
    """
    parts = Parts(choices.search, cache)
    chosen = _chosen(choices.words)
    placed: list[tuple[str, Part]] = []
    try:
        root = Part(CONFIG, parts.reader.read(CONFIG, COLLECTION / f"{CONFIG}.yaml"))
        for default in root.file.tree["defaults"]:
            if default == "_self_":
                placed.append(("", root))
                continue
            ((group, option),) = default.items()
            config = f"{group}/{chosen.setdefault(group, option)}"
            path = parts.find(config)
            if group == "cluster" and not path.is_relative_to(COLLECTION):
                raise NotPlain
            placed += [("" if part.is_global else group, part) for part in parts.of(config, path, group)]
        tree = merge_layers(part.layer(package) for package, part in placed)
    except (ProblemsFound, RecursionError) as error:
        raise NotPlain from error
    tree.pop("hydra", None)
    layers = tuple(Layer(part.config, package, part.file.path) for package, part in placed)
    reader = parts.reader
    return Files(tree, chosen["recipes"], chosen["cluster"], layers, reader.references, reader.looked)


def _chosen(words: Sequence[str]) -> dict[str, str]:
    """Return what words choose, by group."""
    found = [_CHOICE.fullmatch(word) for word in words]
    chosen = {match[1]: match[2] for match in found if match and PLAIN_NAME.fullmatch(match[2])}
    if len(chosen) < len(words) or not all(_CONFIG.fullmatch(option) for option in chosen.values()):
        raise NotPlain
    return chosen


def merged(parts: Iterable[Part]) -> dict[str, Any]:
    """Return the values of a recipe's parts, those of the recipe under `recipes`.

    Raises:
        NotPlain: As `merge_layers` raises it.
    """
    return merge_layers(part.layer("recipes") for part in parts)
