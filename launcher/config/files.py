"""Configuration files as they are read, and what a composition of some of them consists of."""

import os
import re
import stat
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import yaml

from launcher.common import redaction, yaml_io
from launcher.common.paths import COLLECTION
from launcher.common.problems import fail
from launcher.config.overrides import Override
from launcher.model.config_tree import ABSENT, get, leaves, lookup, replaced

MAX_BYTES = 1 << 20
"""Bytes of a file. More does not fit into the ConfigMap that carries a job's configuration.

Source: Kubernetes, ConfigMaps, Motivation.
"""
MAX_REFERENCES = 1000
"""`${…}` of a file; each takes a tenth of a millisecond to parse. The published recipes have two."""
_TOO_DEEP = re.compile(r"(?:\$\{[^{}]*){9}")
"""References within references, nine deep: the time to parse them grows with the square of their depth."""
_Key = TypeVar("_Key")
_Value = TypeVar("_Value")
_MOST_FILES = 4096
"""Files kept; a sweep over a large folder must not keep them all."""
_MOST_PARSED = 256
"""Files kept with their nodes, which take more memory."""
_keeping = threading.Lock()
Stamp = tuple[int, ...]
"""State of a path on disk, which is another one as soon as the file there may have another content."""


def stamp_of(path: str | Path) -> Stamp:
    """Return the times and the size of a file; of anything else only whether it exists."""
    try:
        found = os.stat(path)
    except OSError:
        return ()
    return (found.st_mtime_ns, found.st_ctime_ns, found.st_size) if stat.S_ISREG(found.st_mode) else (0,)


def _leaf_lines(node: yaml.Node | None, path: str) -> Iterator[tuple[str, int]]:
    if isinstance(node, yaml.MappingNode) and node.value:
        for key, value in node.value:
            yield from _leaf_lines(value, f"{path}.{key.value}" if path else key.value)
    elif node is not None:
        yield path, node.start_mark.line + 1
    for i, item in enumerate(node.value) if isinstance(node, yaml.SequenceNode) else ():
        yield from _leaf_lines(item, f"{path}.{i}" if path else str(i))


def keep(known: dict[_Key, _Value], key: _Key, value: _Value, most: int) -> None:
    """Keep a value, in place of the oldest where there are too many. Threads may share the values."""
    with _keeping:  # another thread may add or remove one between any two of these steps
        if len(known) >= most and key not in known:
            del known[next(iter(known))]
        known[key] = value


@dataclass(frozen=True, slots=True)
class FileText:
    """A file as it was read.

    Args:
        path: Where it is.
        stamp: Its state when it was read.
        text: Its content.
        tree: The same, parsed.
    """

    path: Path
    stamp: Stamp
    text: str
    tree: dict[str, Any]


@dataclass(frozen=True, slots=True)
class FileCache:
    """The files that compositions have read so far; one that has changed on disk is read again."""

    _texts: dict[Path, tuple[Stamp, FileText]] = field(default_factory=dict)
    _nodes: dict[Path, tuple[Stamp, tuple[Any, yaml.Node | None]]] = field(default_factory=dict)
    _lines: dict[Path, tuple[Stamp, dict[str, int]]] = field(default_factory=dict)

    def read(self, path: Path) -> FileText:
        """Return a file.

        Raises:
            ProblemsFound: It is unreadable, not YAML, or too large.
        """
        return _current(self._texts, path, _read, _MOST_FILES)

    def nodes(self, path: Path) -> tuple[Any, yaml.Node | None]:
        """Return the tree of a file and the nodes of its values: those of its `defaults` are left out."""
        return _current(self._nodes, path, _parsed, _MOST_PARSED)

    def lines(self, path: Path) -> dict[str, int]:
        """Return dotted path to line of every leaf of a file."""
        return _current(self._lines, path, lambda path, _: dict(_leaf_lines(self.nodes(path)[1], "")), _MOST_PARSED)


def _current(
    known: dict[Path, tuple[Stamp, _Value]], path: Path, made: Callable[[Path, Stamp], _Value], most: int
) -> _Value:
    """Return what is known of a file, made again if it has changed on disk."""
    stamp = stamp_of(path)
    found = known.get(path)
    if found is None or found[0] != stamp:
        found = stamp, made(path, stamp)
        keep(known, path, found, most)
    return found[1]


def _parsed(path: Path, _stamp: Stamp) -> tuple[Any, yaml.Node | None]:
    tree, node = yaml_io.load_with_nodes(path.read_text(encoding="utf-8"))
    if isinstance(node, yaml.MappingNode):
        node.value = [(key, value) for key, value in node.value if key.value != "defaults"]
    return tree, node


class Reader:
    """Reads the files of one composition through a cache. A copy of it is itself, since Hydra copies its sources.

    Attributes:
        files: The files read so far, by their config paths.
        looked: The state of every place where a file or a folder was looked for.
    """

    def __init__(self, cache: FileCache):
        self._cache = cache
        self.files: dict[str, FileText] = {}
        self.looked: dict[str, Stamp] = {}

    def __deepcopy__(self, memo: dict[int, Any]) -> "Reader":
        return self

    def read(self, config_path: str, path: Path) -> FileText:
        """Return the file of a config.

        Raises:
            ProblemsFound: It is unreadable, not YAML, or too large.
        """
        file = self.files[config_path] = self._cache.read(path)
        self.looked[str(path)] = file.stamp
        return file

    @property
    def references(self) -> int:
        """How many `${…}` the files hold."""
        return sum(file.text.count("${") for file in self.files.values())

    def look(self, path: Path) -> bool:
        """Remember the state of a place that is looked at; return whether a file is there."""
        return len(self.looked.setdefault(str(path), stamp_of(path))) > 1


def shown_path(file: Path) -> Path:
    """Return the path of a file as it is shown: from the collection's folder if it is in there."""
    return file.relative_to(COLLECTION) if file.is_relative_to(COLLECTION) else file


def _read(path: Path, stamp: Stamp) -> FileText:
    text = _text(path)
    if (count := text.count("${")) > MAX_REFERENCES:
        raise fail("E004", str(path), f"holds {count} references", allowed=f"at most {MAX_REFERENCES} times ${{…}}")
    if deep := _TOO_DEEP.search(text):
        place = f"{path}:{text.count(chr(10), 0, deep.start()) + 1}"
        raise fail("E004", place, "references are nested more than 8 deep")
    try:
        tree = yaml_io.load(text, yaml_io.MAX_VALUES) or {}
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        place = f"{path}:{mark.line + 1}:{mark.column + 1}" if mark else str(path)
        raise fail("E004", place, f"not valid YAML: {error.problem}") from error
    if not path.is_relative_to(COLLECTION):
        redaction.learn(tree)
    if not isinstance(tree, dict):
        raise fail("E004", str(path), "must be a mapping of keys", allowed="key: value")
    return FileText(path, stamp, text, tree)


def _text(path: Path) -> str:
    try:
        with path.open("rb") as file:
            raw = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise fail("E004", str(path), f"cannot be read: {error.strerror}") from error
    if len(raw) > MAX_BYTES:
        allowed = "at most 1 MiB, all that a ConfigMap carries to a job"
        raise fail("E004", str(path), f"is {path.stat().st_size / MAX_BYTES:.1f} MiB", allowed=allowed)
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line, column = raw.count(b"\n", 0, error.start) + 1, error.start - raw.rfind(b"\n", 0, error.start)
        message = f"not UTF-8: {error.reason}, byte {raw[error.start]:#04x}"
        raise fail("E004", f"{path}:{line}:{column}", message, remedy="save the file as UTF-8") from error


class Layer(NamedTuple):
    """One file of a composition.

    Args:
        config: Its path as `defaults` name it.
        package: Dotted prefix of its keys, may be empty.
        file: Where it is.
    """

    config: str
    package: str
    file: Path


POLICY = Layer("base/elastic/policy", "recipes", COLLECTION / "base/elastic/policy.yaml")
"""The file that holds the default `elastic_policy`."""
POLICY_KEY = "recipes.elastic_policy"
MISSING = "???"
"""A value that is still to be given."""


@dataclass(frozen=True, slots=True)
class Files:
    """The chosen files as Hydra composes them, before any value is overridden.

    Args:
        tree: Their values, merged; references stay references.
        recipe: The chosen recipe.
        cluster: The chosen cluster.
        layers: Name and package of each file, lowest precedence first.
        references: How many `${…}` they hold.
        looked: The state of every place where a file was looked for, and of the code that composed them.
    """

    tree: Mapping[str, Any]
    recipe: str
    cluster: str
    layers: tuple[Layer, ...]
    references: int
    looked: Mapping[str, Stamp]

    @property
    def have_policy(self) -> bool:
        """Whether they have an `elastic_policy`, so that one made by overrides is not completed by the default."""
        return get(self.tree, POLICY_KEY) not in (None, MISSING)

    def is_current(self) -> bool:
        """Return whether every file is as it was when it was read, and no other one has appeared before it."""
        return all(stamp_of(path) == stamp for path, stamp in self.looked.items())

    def with_placeholders(self, cache: FileCache) -> "Files":
        """Return them with each `???` of the user's that no later file replaces; Hydra keeps what is inherited."""
        own = [i for i, layer in enumerate(self.layers) if not layer.file.is_relative_to(COLLECTION)]
        own = [i for i in own if MISSING in cache.read(self.layers[i].file).text]
        if not own:
            return self
        values, tree = [(layer.package, cache.read(layer.file).tree) for layer in self.layers], self.tree
        for i in own:
            package, given = values[i]
            for path, value in leaves({key: value for key, value in given.items() if key != "defaults"}, package):
                if value == MISSING and not any(_has(path, *later) for later in values[i + 1 :]):
                    tree = replaced(tree, path, MISSING)
        return replace(self, tree=tree)


def _has(path: str, package: str, tree: Mapping[str, Any]) -> bool:
    """Return whether a file, whose keys are in a package, has a value at a path, or below it."""
    below = path.removeprefix(f"{package}.") if package else path
    return f"{package}.".startswith(f"{path}.") or lookup(tree, below) not in (ABSENT, MISSING)


@dataclass(frozen=True, slots=True)
class Choices:
    """The files that overrides choose.

    Args:
        words: The overrides that choose, as Hydra gets them.
        search: The folders and files that it looks in beside ours.
        typed: Those overrides by group and package, as typed; two command lines may spell the same choices.
        shown: The same as they may be shown, and those of values that choose the cluster, under `cluster`.
    """

    words: tuple[str, ...]
    search: tuple[str, ...]
    typed: Mapping[str, Override] = field(default_factory=dict, compare=False)
    shown: Mapping[str, str] = field(default_factory=dict, compare=False)
