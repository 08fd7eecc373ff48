"""Configuration files, and the compositions of those that a launch chooses: each made once while nothing changes.

Only a composition that is not kept loads Hydra. What is on disk is a file for each choice, below XDG_CACHE_HOME: it
holds no value that is or may be secret, and one that is damaged, foreign or outdated counts as absent.
"""

import contextlib
import hashlib
import json
import os
import re
import stat
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import yaml

from launcher import VERSION
from launcher.common import redaction, yaml_io
from launcher.common.paths import COLLECTION
from launcher.common.problems import fail
from launcher.config.choices import Choices

MAX_BYTES = 1 << 20
"""Bytes of a file. More does not fit into the ConfigMap that carries a job's configuration.

Source: Kubernetes, ConfigMaps, Motivation.
"""

MAX_REFERENCES = 1000
"""`${…}` of a file; each takes a tenth of a millisecond to parse. The published recipes have two."""

_TOO_DEEP = re.compile(r"(?:\$\{[^{}]*){9}")
"""References within references, nine deep: the time to parse them grows with the square of their depth."""

_MOST_COMPOSED = 16
"""Compositions kept in memory, at about 0.5 MB each: a sweep over a catalogue must not keep them all."""
_MOST_KEPT = 256
"""Compositions kept on disk, at about 20 KB each; the oldest are removed."""
_LARGEST = 1 << 22
"""Bytes of a composition on disk. The files it is made of have at most 1 MiB each, and most 2 KB."""
_SETTLED_NS = 2_000_000_000
"""Age of a file of which a composition is kept: a younger one may change without another time, as file systems
count it. Source: Git, racy-git: the same problem, and the same answer."""

Stamp = tuple[int, ...]
"""State of a path on disk, which is another one as soon as the file there may have another content."""
_Key = TypeVar("_Key")
_Value = TypeVar("_Value")
_MOST_FILES = 4096
"""Files kept; a sweep over a large folder must not keep them all."""
_MOST_PARSED = 256
"""Files kept with their nodes, which take more memory."""


def stamp_of(path: str | Path) -> Stamp:
    """Return the times and the size of a file; of anything else only whether it exists."""
    try:
        found = os.stat(path)
    except OSError:
        return ()
    return (found.st_mtime_ns, found.st_ctime_ns, found.st_size) if stat.S_ISREG(found.st_mode) else (0,)


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
    """The files that compositions have read so far."""

    _texts: dict[Path, FileText] = field(default_factory=dict)
    _nodes: dict[Path, tuple[Stamp, Any, yaml.Node | None]] = field(default_factory=dict)

    def read(self, path: Path) -> FileText:
        """Return a file, read again if it has changed on disk.

        Raises:
            ProblemsFound: It is unreadable, not YAML, or too large.
        """
        stamp = stamp_of(path)
        known = self._texts.get(path)
        if known is None or known.stamp != stamp:
            known = FileText(path, stamp, *_read(path))
            keep(self._texts, path, known, _MOST_FILES)
        return known

    def nodes(self, path: Path) -> tuple[Any, yaml.Node | None]:
        """Return the tree of a file and the nodes of its values, read again if it has changed on disk."""
        stamp = stamp_of(path)
        known = self._nodes.get(path)
        if known is None or known[0] != stamp:
            known = stamp, yaml_io.load(path.read_text(encoding="utf-8")), value_nodes(path)
            keep(self._nodes, path, known, _MOST_PARSED)
        return known[1:]


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

    def look(self, path: Path) -> None:
        """Remember the state of a place that is about to be looked at."""
        self.looked.setdefault(str(path), stamp_of(path))


def value_nodes(file: Path) -> yaml.Node | None:
    """Return the YAML nodes of a file's values: those of its `defaults` are left out."""
    node = yaml_io.load_nodes(file.read_text(encoding="utf-8"))
    if isinstance(node, yaml.MappingNode):
        node.value = [(key, value) for key, value in node.value if key.value != "defaults"]
    return node


def keep(known: dict[_Key, _Value], key: _Key, value: _Value, most: int) -> None:
    """Keep a value, in place of the oldest where there are too many."""
    if len(known) >= most and key not in known:
        del known[next(iter(known))]
    known[key] = value


def _read(path: Path) -> tuple[str, dict[str, Any]]:
    """Return a file's text and tree."""
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
    return text, tree


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

    def is_current(self) -> bool:
        """Return whether every file is as it was when it was read, and no other one has appeared before it."""
        return all(stamp_of(path) == stamp for path, stamp in self.looked.items())


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
            known = read(choices) or _compose(choices, self.files)
            keep(self._composed, choices, known, _MOST_COMPOSED)
        return known


def _compose(choices: Choices, cache: FileCache) -> Files:
    from launcher.config import hydra_errors  # Hydra takes 0.2 s, more than all else of a dry run

    files, texts = hydra_errors.compose_files(choices, cache)
    if _may_keep(choices, files, texts):
        _write(_place(choices), files)
    return files


def read(choices: Choices) -> Files | None:
    """Return what an earlier process composed of these choices; None if there is nothing, or it is outdated."""
    try:
        digest, _, body = _own_text(_place(choices)).partition("\n")
        if hashlib.sha256(body.encode()).hexdigest() != digest:
            return None
        kept = json.loads(body)
        looked = {path: tuple(state) for path, state in kept["looked"].items()}
        layers = tuple(Layer(config, package, Path(file)) for config, package, file in kept["layers"])
        files = Files(kept["tree"], kept["recipe"], kept["cluster"], layers, kept["references"], looked)
    except (OSError, ValueError):
        return None
    return files if files.is_current() else None


def _own_text(path: Path) -> str:
    """Return the text of a file that nobody but this user can have written; a pipe or another device is not opened.

    Raises:
        OSError: It does not exist, or is another user's.
    """
    with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC), encoding="utf-8") as file:
        for found in (os.fstat(file.fileno()), os.stat(path.parent)):
            if found.st_uid != os.geteuid() or found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
                raise PermissionError
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise FileNotFoundError
        return file.read(_LARGEST)


def _place(choices: Choices) -> Path:
    """Return the file of a composition. Relative folders of the search path are of the current folder.

    Raises:
        OSError: This user has no home, or this process no current folder.
    """
    home = os.environ.get("XDG_CACHE_HOME", "")
    root = Path(home) if os.path.isabs(home) else Path(os.path.expanduser("~"), ".cache")
    if not root.is_absolute():
        raise FileNotFoundError
    about = [VERSION, str(COLLECTION), choices.words, choices.search, os.getcwd() if choices.search else ""]
    name = hashlib.sha256(json.dumps(about).encode()).hexdigest()
    return root / "recipe-launcher" / f"{name}.json"


def _may_keep(choices: Choices, files: Files, texts: Iterable[FileText]) -> bool:
    """Return whether a composition holds nothing secret, and depends on nothing but files that have settled."""
    latest = time.time_ns() - _SETTLED_NS
    if any(state > latest for stamp in files.looked.values() for state in stamp[:2]):
        return False
    chosen = (*choices.words, *(str(text.tree.get("defaults")) for text in texts))
    if any("${" in words for words in chosen):  # a default may be chosen by an environment variable
        return False
    return not any(True for text in texts for _ in redaction.secrets_of(text.tree))


def _write(path: Path, files: Files) -> None:
    """Keep a composition on disk, atomically; where that cannot be done, the next process composes again."""
    layers = [(layer.config, layer.package, str(layer.file)) for layer in files.layers]
    kept = {"tree": files.tree, "recipe": files.recipe, "cluster": files.cluster, "layers": layers}
    try:
        body = json.dumps({**kept, "references": files.references, "looked": files.looked})
        if json.loads(body)["tree"] != files.tree or redaction.masked(body) != body:
            return
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(prefix="unfinished-", dir=path.parent)
        try:
            with open(handle, "w", encoding="utf-8") as file:
                file.write(f"{hashlib.sha256(body.encode()).hexdigest()}\n{body}")
            os.replace(name, path)
        except BaseException:
            os.unlink(name)
            raise
        for outdated in _outdated(path.parent):
            os.unlink(outdated)
    except (OSError, ValueError, TypeError, RecursionError):
        return


def _outdated(folder: Path) -> Iterator[str]:
    """Yield the files that are too many, the oldest first."""
    with contextlib.suppress(FileNotFoundError), os.scandir(folder) as entries:
        found = sorted((entry.stat().st_mtime_ns, entry.path) for entry in entries)
        yield from (path for _, path in found[:-_MOST_KEPT])
