"""The compositions of the files that launches choose: each made once while none of these files changes.

Only a composition that is not kept loads Hydra. What is on disk is a file for each choice, below XDG_CACHE_HOME: it
holds no value that is or may be secret, and one that is damaged, foreign or outdated counts as absent.
"""

import contextlib
import hashlib
import json
import os
import stat
import tempfile
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from launcher import VERSION
from launcher.common import redaction
from launcher.common.paths import COLLECTION
from launcher.config.files import Choices, FileCache, Files, FileText, Layer, keep, stamp_of

_MOST_COMPOSED = 16
"""Compositions kept in memory, at about 0.5 MB each: a sweep over a catalogue must not keep them all."""
_MOST_KEPT = 256
"""Compositions kept on disk, at about 20 KB each; the oldest are removed."""
_LARGEST = 1 << 22
"""Bytes of a composition on disk. The files it is made of have at most 1 MiB each, and most 2 KB."""
_SETTLED_NS = 2_000_000_000
"""Age of a file of which a composition is kept: a younger one may change without another time, as file systems
count it. Source: Git, racy-git: the same problem, and the same answer."""


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
        body = json.dumps(
            {**kept, "references": files.references, "looked": {**files.looked, __file__: stamp_of(__file__)}}
        )
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
