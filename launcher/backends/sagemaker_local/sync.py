"""Folders synchronised with a store while the job runs: checkpoints, both ways, and TensorBoard's logs, one way.

Source: Amazon SageMaker API, CheckpointConfig, TensorBoardOutputConfig; SageMaker AI, Checkpoints in SageMaker AI.
"""

import logging
import shutil
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from launcher.backends.sagemaker.request import CHECKPOINTS, TENSORBOARD
from launcher.backends.sagemaker_local.manifests import Entry, path_problems
from launcher.backends.sagemaker_local.objects import Stores
from launcher.backends.sagemaker_local.optml import Host
from launcher.common.problems import ProblemsFound, raise_any
from launcher.runtime.file_kinds import irregular

INTERVAL_S = 2.0
"""Seconds between two scans of the folders. SageMaker does not document its interval."""

_log = logging.getLogger("sync")

_Seen = tuple[int, int]
"""Size in bytes and modification time in nanoseconds."""


@dataclass(frozen=True, slots=True)
class Kept:
    """A folder of every host, below /opt/ml, that is kept in a store's; new hosts receive that if `is_brought`."""

    path: str
    uri: str
    is_brought: bool


def kept(request: Mapping[str, Any]) -> list[Kept]:
    """Return the folders that a request defines to be kept."""
    found = []
    if config := request.get("CheckpointConfig"):
        uri = f"{config['S3Uri'].rstrip('/')}/"
        found.append(Kept(config.get("LocalPath") or CHECKPOINTS, uri, is_brought=True))
    if config := request.get("TensorBoardOutputConfig"):
        uri = f"{config['S3OutputPath'].rstrip('/')}/{request['TrainingJobName']}/tensorboard-output/"
        found.append(Kept(config.get("LocalPath") or TENSORBOARD, uri, is_brought=False))
    return found


@dataclass(slots=True)
class Sync:
    """Synchronises one folder of all hosts.

    Args:
        scratch: Folder for copies of files that may change.
        known: State of each host's files in the store.
        owners: Host whose file the store has, by name.
        notes: Messages for the user, each once.
    """

    folder: Kept
    hosts: Sequence[Host]
    stores: Stores
    scratch: Path
    known: dict[Path, _Seen] = field(default_factory=dict)
    owners: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def bring(self) -> None:
        """Copy the store's content to every host.

        Raises:
            ProblemsFound: The store refuses, or one of its keys is not a path below the folder.
        """
        found = list(self.stores.list(self.folder.uri)) if self.folder.is_brought else []
        entries = [Entry(each.uri.removeprefix(self.folder.uri), (each,)) for each in found]
        raise_any(path_problems(entries))
        for host in self.hosts:
            top = host.real(self.folder.path)
            top.mkdir(parents=True, exist_ok=True)
            self.stores.fetch_all([(each, top / entry.path) for each, entry in zip(found, entries, strict=True)])
            self.known |= {path: seen for _, _, path, seen in self._files([host])}

    def send(self, *, settled: Mapping[Path, _Seen] | None = None) -> dict[Path, _Seen]:
        """Upload changed files; return the current state of every file.

        Args:
            settled: State of the files at the previous scan: only files unchanged since are uploaded.
                None, once no program runs, uploads all.
        """
        now = {}
        for host, name, path, seen in self._files(self.hosts):
            now[path] = seen
            is_settled = settled is None or settled.get(path) == seen
            if is_settled and self.known.get(path) != seen and self._owns(host, name):
                self._put(host, path, name, seen)
        return now

    def left_out(self) -> list[str]:
        """Return messages about entries that are not files, which a store cannot hold."""
        found = []
        for host, name, path, source in self._entries(self.hosts):
            is_lost = path.is_symlink() and not source.is_file()
            if kind := irregular(source) or ("a link to no file" if is_lost else None):
                found.append(f"{self.folder.path}/{name} on {host.name} is {kind}, so it is not uploaded")
        return found

    def _owns(self, host: Host, name: str) -> bool:
        """Return whether the store's file of a name is this host's: the first host to change it owns it."""
        owner = self.owners.setdefault(name, host.name)
        note = f"{self.folder.path}/{name} is on {owner} and on {host.name}: the first is kept"
        if owner != host.name and note not in self.notes:
            self.notes.append(note)
        return owner == host.name

    def _put(self, host: Host, path: Path, name: str, seen: _Seen) -> None:
        """Upload a file, unless it changes meanwhile: then the next scan does."""
        source, copy = host.led(path), self.scratch / "synced"
        try:
            shutil.copyfile(source, copy)
            if _seen(source) == seen:
                self.stores.put(copy, self.folder.uri + name)
                self.known[path] = seen
        except FileNotFoundError:
            return
        finally:
            copy.unlink(missing_ok=True)

    def _files(self, hosts: Sequence[Host]) -> Iterator[tuple[Host, str, Path, _Seen]]:
        """Yield host, name, path and state of every file."""
        for host, name, path, source in self._entries(hosts):
            if source.is_file() and (seen := _seen(source)):
                yield host, name, path, seen

    def _entries(self, hosts: Sequence[Host]) -> Iterator[tuple[Host, str, Path, Path]]:
        """Yield host, name, path, and the path that it leads to, of every entry of the folder."""
        for host in hosts:
            top = host.real(self.folder.path)
            for path in sorted(top.rglob("*")):
                yield host, str(path.relative_to(top)), path, host.led(path)


def _seen(path: Path) -> _Seen | None:
    try:
        found = path.stat()
    except FileNotFoundError:
        return None
    return found.st_size, found.st_mtime_ns


class Syncing:
    """Uploads folders at intervals, beside the job, until it is stopped."""

    def __init__(self, folders: Sequence[Sync], interval_s: float):
        self.folders = folders
        self._interval_s = interval_s
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="sync", daemon=True)
        if folders:
            self._thread.start()

    def finish(self) -> list[str]:
        """Upload the rest, after all programs have ended; return messages for the user."""
        self._stop.set()
        if self.folders:
            self._thread.join()
        for folder in self.folders:
            folder.send()
        return [note for folder in self.folders for note in (*folder.notes, *folder.left_out())]

    def _run(self) -> None:
        looks: list[dict[Path, _Seen]] = [{} for _ in self.folders]
        while not self._stop.wait(self._interval_s):
            try:
                looks = [folder.send(settled=look) for folder, look in zip(self.folders, looks, strict=True)]
            except (ProblemsFound, OSError) as error:
                _log.warning("upload failed; the next scan retries: %s", error)
