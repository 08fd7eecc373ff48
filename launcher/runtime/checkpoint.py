"""Checkpoints that load at any number of ranks and are published atomically.

A checkpoint is a folder of torch.distributed.checkpoint files and a `progress.json`. It is written under a temporary
name, synced, renamed, and only then named by the pointer file `latest`. Every piece has a checksum that is verified
when it is read: a damaged checkpoint is passed over for the newest older one that is intact. Other files in the same
folder, and folders such as `step-1000`, are not touched.

Files are synced here: DCP syncs a file before its last bytes are flushed, and the rename could then publish a hole.
"""

import functools
import os
import shutil
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar, cast

import torch.distributed as dist

from launcher.runtime import agent, process_group
from launcher.runtime.checkpoint_folder import (
    LATEST,
    LAUNCH,
    METADATA,
    PARTIAL_PREFIX,
    PROGRESS,
    Progress,
    Published,
    candidates,
    name_of,
    point_to,
    pointed,
    published,
    remove,
    remove_leftovers,
    sealed,
    step_of,
    written,
)
from launcher.runtime.checkpoint_search import (
    Candidate,
    CheckpointBroken,
    Damaged,
    Search,
    Source,
    Unavailable,
    together,
)
from launcher.runtime.content import Content
from launcher.runtime.durable import sync, write_text
from launcher.runtime.process_group import barrier, rank, without_group_warning
from launcher.runtime.tiers.checkpoint_log import BROKEN, CheckpointLog

PATIENCE_S = 60.0
"""Seconds for which a failing file system is retried before loading fails."""

TIER = "folder"
"""Name of this kind of checkpoint in the records, beside the names of tiers."""

_Value = TypeVar("_Value")
_Loaded = tuple[Path, Progress, dict[str, Any]]


class CheckpointUnsaved(RuntimeError):
    """A checkpoint could not be written or published. Checkpoints published before still exist."""


class FolderInUse(CheckpointUnsaved):
    """Something that is not a checkpoint has the name of the one to publish."""


def latest_progress(folder: Path) -> tuple[Path, Progress] | None:
    """Return the newest complete published checkpoint under `folder` and its progress, or None.

    Its files have the sizes written; their content is not read.

    Raises:
        CheckpointBroken: There are checkpoints, and none of them is complete.
    """
    reasons = []
    for path in candidates(folder):
        try:
            return path, published(path, step_of(path)).progress
        except Damaged as error:
            reasons.append(f"step {step_of(path)}: {error}")
    if reasons:
        raise CheckpointBroken(reasons)
    return None


class LaunchMark:
    """The file, visible to the first rank, that names the launch which took the checkpoints last. Collective."""

    def __init__(self, folder: Path):
        self._launch_file = folder / LAUNCH

    def is_taken_by(self, launch: str) -> bool:
        """Return whether `launch` took the checkpoints last; the same on all ranks."""
        marker = self._launch_file
        # One view for all ranks: a network file system may show a file to other machines later.
        is_first = rank() == 0
        return process_group.share(is_first and marker.is_file() and marker.read_text("utf-8").strip() == launch)

    def take(self, launch: str) -> None:
        """Record that later checkpoints belong to `launch`."""
        if rank() == 0:
            self._launch_file.parent.mkdir(parents=True, exist_ok=True)
            write_text(self._launch_file, launch + "\n")


class Checkpoints(LaunchMark):
    """The checkpoints of one training run. Every method is collective: all ranks call it.

    Args:
        folder: Visible to all ranks; created if missing. One run at a time saves to it, any number may read.
        keep: Published checkpoints to keep; 0 keeps all.
        log: None for one that writes to the console.
        patience_s: Seconds for which a failing file system is retried before `load` fails.
        max_bytes: Disk space of published checkpoints; the oldest are removed while they take more, but never the
            newest one. None for no limit.
        every: Optimizer steps between two saves; 0 for one at the end only.
    """

    def __init__(
        self,
        folder: Path,
        keep: int = 0,
        log: CheckpointLog | None = None,
        patience_s: float = PATIENCE_S,
        max_bytes: float | None = None,
        every: int = 0,
    ):
        super().__init__(folder)
        self.folder, self.keep, self.max_bytes = folder, keep, max_bytes
        self._every, self._patience_s = every, patience_s
        self._log = log or CheckpointLog(folder.name, rank())
        self._intact: Path | None = None
        self._damaged: set[Path] = set()

    def is_due(self, step: int) -> bool:
        """Return whether a checkpoint is saved after this step."""
        return bool(self._every) and step % self._every == 0

    def save(self, content: Content, progress: Progress, *, is_last: bool = True, is_late: bool = False) -> None:
        """Write and publish a checkpoint; return once every rank can rely on it.

        A step that is published and intact is not written again. If the file system fails on a rank, nothing partial
        is left, and the failure is recorded, or raised if this is the last save. A late save is like any other: there
        is one place for all.

        Raises:
            CheckpointUnsaved: The last save failed; on all ranks. FolderInUse, if something that is not a checkpoint
                has the name of this one.
        """
        began, step, num_bytes = time.perf_counter(), progress.step, 0
        try:
            if self._save(content, progress):
                with suppress(OSError):  # it is saved, whatever its size
                    num_bytes = _size(self.folder / name_of(step)) if rank() == 0 else 0
                self._record("saved", step, began, num_bytes=num_bytes)
        except CheckpointUnsaved as error:
            if is_last:
                raise
            if rank() == 0:
                continues = "training continues, and saves again when the next one is due"
                self._log.failed(step, TIER, f"{error}; {continues}")
            self._record("failed", step, began, detail=str(error))

    def _save(self, content: Content, progress: Progress) -> bool:
        """Return whether a checkpoint was written."""
        path = self.folder / name_of(progress.step)
        if process_group.share(_all_can(lambda: rank() == 0 and self._is_saved(path))):
            return False
        state = content.state()
        partial = self.folder / f"{PARTIAL_PREFIX}{path.name}"
        try:
            _all_can(lambda: self._make_room(path) if rank() == 0 else None)
            _write(partial, state)
            _all_can(lambda: _sync_own_files(partial))
            _all_can(lambda: self._publish(partial, path, progress) if rank() == 0 else None)
        except CheckpointUnsaved:
            if rank() == 0:
                shutil.rmtree(partial, ignore_errors=True)
            raise
        self._intact = path
        agent.report_checkpoint(path, progress.step)
        return True

    def load(self, content: Content, only: Path | None = None) -> Progress | None:
        """Load the newest intact published checkpoint, written by any number of ranks; None if there is none.

        Random states are restored if the number of ranks is the same; otherwise every rank is seeded by its rank and
        the step. Newer, damaged checkpoints are passed over with a warning.

        Args:
            only: The checkpoint to load in place of the newest one.

        Raises:
            CheckpointBroken: There are checkpoints, and all are damaged.
            CheckpointUnavailable: The file system failed for longer than the patience.
            StateMismatch: The checkpoint is of another model or optimizer.
        """
        began = time.perf_counter()
        search = Search(process_group, self._patience_s)
        paths = [only] if only else search.patiently(lambda: _from_first(lambda: candidates(self.folder)))

        def candidate(path: Path) -> Candidate[_Loaded]:
            load = functools.partial(self._load, path, content)
            return Candidate(f"step {step_of(path)}", [Source(str(self.folder), load)])

        try:
            loaded = search.newest([candidate(path) for path in paths])
        except CheckpointBroken as error:
            self._record(BROKEN, 0, began, detail=str(error))  # the timeline needs to know what is lost
            raise
        if loaded is None:
            return None
        path, progress, state = loaded
        self._intact, self._damaged = path, set(paths[: paths.index(path)])
        content.put(state, progress.step, functools.partial(self._log.warn_once, progress.step))
        if detail := "; ".join(search.passed_over):
            resumes = f"resumes from step {progress.step}, the newest that is intact"
            self._log.warn_once(progress.step, f"{resumes}; passed over: {detail}")
            self._record("loaded", progress.step, began, detail=detail)
        return progress

    def _load(self, path: Path, content: Content) -> _Loaded:
        from launcher.runtime.checked_io import CheckedReader  # start-up time: a new training loads nothing

        stated: Published = _from_first(lambda: published(path, step_of(path)))
        reader = together(process_group, lambda: CheckedReader(path, stated, is_first=rank() == 0))
        if not stated.is_verifiable:
            self._log.warn_once(stated.progress.step, "it was saved without checksums: its content is not verified")
        state = content.form(reader.metadata, stated.progress.world_size)
        together(process_group, lambda: reader.load_into(state))
        return path, stated.progress, state

    def latest(self) -> tuple[Path, Progress] | None:
        """Return `latest_progress` on all ranks, or raise its CheckpointBroken there."""
        search = Search(process_group, self._patience_s)

        def find() -> tuple[tuple[Path, Progress] | None, Sequence[str]]:
            try:
                return latest_progress(self.folder), ()
            except CheckpointBroken as error:
                return None, error.tried

        found, broken = search.patiently(lambda: _from_first(find))
        if broken:
            raise CheckpointBroken(broken)
        return found

    def clear(self) -> None:
        """Remove every checkpoint of the folder."""
        if rank() == 0:
            (self.folder / LATEST).unlink(missing_ok=True)
            remove_leftovers(self.folder)
            for path in written(self.folder):
                remove(path)
        barrier()
        self._intact, self._damaged = None, set()

    def begin_at(self, path: Path | None) -> None:
        """Make a checkpoint of this folder the newest one; with None, make the next save write whatever is there."""
        if rank() == 0:
            point_to(path) if path else (self.folder / LATEST).unlink(missing_ok=True)
        barrier()
        self._intact, self._damaged = None, set()

    def _is_saved(self, path: Path) -> bool:
        """Return whether `path` is published and intact; it is read in full unless this object saved or loaded it."""
        if path in self._damaged or pointed(self.folder) != path:
            return False
        from launcher.runtime.checked_io import CheckedReader  # start-up time, as in `_load`

        try:
            stated = published(path, step_of(path))
            if self._intact != path:
                CheckedReader(path, stated).verify()
        except Damaged:
            return False
        return True

    def _make_room(self, path: Path) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        remove_leftovers(self.folder)
        if os.path.lexists(path) and path not in self._damaged and path not in written(self.folder):
            raise FolderInUse(f"{path} already exists and is not a checkpoint; it is left unchanged")

    def _publish(self, partial: Path, path: Path, progress: Progress) -> None:
        write_text(partial / PROGRESS, sealed(partial, progress))
        if os.path.lexists(path):  # also a link to nothing
            remove(path)
        partial.rename(path)
        try:
            sync(self.folder)
            point_to(path)
        except OSError:
            if pointed(self.folder) != path:
                remove(path)
            raise
        self._damaged.discard(path)
        try:
            self._retire(path)
        except OSError as error:
            self._log.warn_once(progress.step, f"older checkpoints were not removed: {error}")

    def _retire(self, path: Path) -> None:
        """Remove checkpoints older than those kept."""
        if not self.keep and self.max_bytes is None:
            return
        # Newer ones remain: this run may have passed them over for a passing reason.
        older = [each for each in written(self.folder) if each <= path]
        kept = [each for each in older if each not in self._damaged][-self.keep :]
        while self.max_bytes is not None and len(kept) > 1 and sum(map(_size, kept)) > self.max_bytes:
            kept = kept[1:]
        for each in older:
            if each < kept[0]:
                remove(each)

    def _record(self, event: str, step: int, began: float, *, num_bytes: int = 0, detail: str = "") -> None:
        seconds = time.perf_counter() - began
        self._log.record(event, step, TIER, num_bytes, seconds, seconds, detail=detail)


def _size(checkpoint: Path) -> int:
    return sum(file.stat().st_size for file in checkpoint.iterdir())


def _from_first(find: Callable[[], _Value]) -> _Value:
    """Return the first rank's result; its Damaged or Unavailable is raised on all ranks."""
    found = together(process_group, lambda: find() if rank() == 0 else None)
    return cast(_Value, process_group.share(found))  # the first rank's is not None


def _write(folder: Path, state: dict[str, Any]) -> None:
    """Write the files of torch.distributed.checkpoint; collective, and so is CheckpointUnsaved."""
    # Start-up time: not before the first save.
    from torch.distributed.checkpoint.api import CheckpointException
    from torch.distributed.checkpoint.state_dict_saver import save

    from launcher.runtime.checked_io import CheckedWriter

    try:
        with without_group_warning():
            save(state, storage_writer=CheckedWriter(folder), no_dist=not dist.is_initialized())
    except CheckpointException as error:
        failures = {place: failure for place, (failure, _) in error.failures.items()}
        # torch reports a full disk as a RuntimeError, and an object it cannot serialize as NotImplementedError.
        passing = (isinstance(each, OSError | RuntimeError | MemoryError) for each in failures.values())
        if not all(passing) or any(isinstance(each, NotImplementedError) for each in failures.values()):
            raise  # a retry cannot help: the state cannot be saved
        reasons = "; ".join(f"rank {place}: {failure}" for place, failure in failures.items())
        raise CheckpointUnsaved(reasons) from error


def _all_can(work: Callable[[], _Value]) -> _Value:
    """Return the result of `work`; collective. A failure of one rank's file system is raised on all ranks."""

    def attempt() -> _Value:
        try:
            return work()
        except (OSError, Unavailable) as error:
            raise CheckpointUnsaved(f"rank {rank()}: {error}") from error

    return together(process_group, attempt, (FolderInUse, CheckpointUnsaved))


def _sync_own_files(folder: Path) -> None:
    # Each rank its own: on a network file system only the machine that wrote a file can sync it.
    # Source: torch.distributed.checkpoint.FileSystemWriter names a rank's files __RANK_N.distcp.
    for path in folder.glob(f"__{rank()}_*"):
        sync(path)
    if rank() == 0:
        sync(folder / METADATA)
