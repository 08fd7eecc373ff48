"""Checkpoints that load at any number of ranks and are never seen half-written.

A checkpoint is a folder of torch.distributed.checkpoint files and one `progress.json`. It is written
under a temporary name, synced, renamed, and only then named by the pointer file `latest`. What else is in the
same folder, be it named `step-1000`, is not touched.
"""

import json
import pickle
import re
import shutil
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol, TypeVar

import torch
import torch.distributed as dist
from torch import nn

from launcher.runtime import agent, randomness
from launcher.runtime.durable import sync, write_text
from launcher.runtime.process_group import barrier, rank, world_size

LATEST = "latest"
PROGRESS = "progress.json"
LAUNCH = "launch"
"""File beside the pointer: the launch that took the folder last."""

PARTIAL_PREFIX = ".partial-"
REMOVED_PREFIX = ".removed-"

_NAME = re.compile(r"step-\d{8}")
_LEFTOVER_NAME = re.compile(rf"({re.escape(PARTIAL_PREFIX)}|{re.escape(REMOVED_PREFIX)}){_NAME.pattern}")

_Found = TypeVar("_Found")


class CheckpointBroken(RuntimeError):
    """The published checkpoint is not there, or not whole."""


class FolderInUse(RuntimeError):
    """Where a checkpoint is to be published there is something that is none."""


class Scheduler(Protocol):
    """What a learning-rate scheduler of PyTorch offers."""

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state_dict: dict[str, Any]) -> None: ...


@dataclass(frozen=True, slots=True)
class Progress:
    """How far training is.

    Args:
        step: Optimizer steps done.
        cursor: Samples consumed since the start of training, over all epochs.
        world_size: Ranks that wrote the checkpoint.
        num_samples: Size of the dataset that the cursor counts; None where it was not written down.
        seed: Of the order that the cursor counts in, likewise.
    """

    step: int = 0
    cursor: int = 0
    world_size: int = 0
    num_samples: int | None = None
    seed: int | None = None


def latest_progress(folder: Path) -> tuple[Path, Progress] | None:
    """Return the newest published checkpoint under `folder` and its progress, or None.

    Raises:
        CheckpointBroken: The pointer names a folder that lacks a file, or in which one is cut short; or there
            are checkpoints without a pointer, and none of them is whole.
    """
    pointer = folder / LATEST
    if pointer.exists():
        return _whole(folder / pointer.read_text(encoding="utf-8").strip())
    # A folder gets its name only when all in it is on disk: a lost pointer is no reason to lose the work too.
    written = _written(folder)
    for path in reversed(written):
        with suppress(CheckpointBroken):
            return _whole(path)
    if written:
        raise CheckpointBroken(f"{folder} has no file {LATEST}, and none of its checkpoints is whole")
    return None


class Checkpoints:
    """The checkpoints of one training run. Every method is collective: all ranks call it.

    Args:
        folder: Seen by all ranks; made when missing. One run at a time saves to it, any number read.
        keep: Published checkpoints to keep; 0 keeps all.
    """

    def __init__(self, folder: Path, keep: int = 0):
        self.folder = folder
        self.keep = keep

    def save(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        progress: Progress,
        scheduler: Scheduler | None = None,
    ) -> Path:
        """Write and publish a checkpoint; return its folder once every rank can rely on it.

        A step that is already the published one is not written again.

        Raises:
            FolderInUse: Something that is no checkpoint has the name of this one.
        """
        import torch.distributed.checkpoint as dcp

        path = self.folder / f"step-{progress.step:08d}"
        latest = self._found()
        if isinstance(latest, tuple) and latest[1].step == progress.step:
            return latest[0]
        partial = self.folder / f"{PARTIAL_PREFIX}{path.name}"
        if not _of_first_rank(lambda: self._make_room(path)):
            raise FolderInUse(f"{path} is in the way: it is no checkpoint, and is left as it is")
        state = model_state(model, optimizer) | {"random": {random_key(): pickle.dumps(randomness.state())}}
        if scheduler:
            state["scheduler"] = pickle.dumps(scheduler.state_dict())
        # Its own sync comes before it has handed its last bytes to the system.
        writer = dcp.FileSystemWriter(partial, sync_files=False)
        with without_group_warning():
            dcp.save(state, storage_writer=writer, no_dist=not dist.is_initialized())
        _sync_own_files(partial)
        barrier()
        if rank() == 0:
            self._publish(partial, path, progress)
        barrier()
        agent.report_checkpoint(path, progress.step)
        return path

    def load(
        self, model: nn.Module, optimizer: torch.optim.Optimizer, scheduler: Scheduler | None = None
    ) -> Progress | None:
        """Load the newest published checkpoint, whatever number of ranks wrote it.

        Random states are restored where the number of ranks is the same; otherwise every rank is seeded
        anew, by its rank and the step.

        Returns:
            The checkpoint's progress, or None when there is none.

        Raises:
            CheckpointBroken: It is not there, or not whole.
        """
        latest = self.latest()
        if latest is None:
            return None
        import torch.distributed.checkpoint as dcp

        path, progress = latest
        state = model_state(model, optimizer)
        same_ranks = progress.world_size == world_size()
        if same_ranks:
            state["random"] = {random_key(): b""}
        if scheduler:
            state["scheduler"] = b""
        with without_group_warning():
            dcp.load(state, checkpoint_id=path, no_dist=not dist.is_initialized())
        put_model_state(model, optimizer, state)
        if scheduler:
            scheduler.load_state_dict(pickle.loads(state["scheduler"]))
        if same_ranks:
            randomness.restore(pickle.loads(state["random"][random_key()]))
        else:
            randomness.reseed(rank(), progress.step)
        return progress

    def latest(self) -> tuple[Path, Progress] | None:
        """Return the newest published checkpoint and its progress, or None; the same on all ranks.

        Raises:
            CheckpointBroken: It is not there, or not whole; on all ranks alike.
        """
        found = self._found()
        if isinstance(found, CheckpointBroken):
            raise found
        return found

    def clear(self) -> None:
        """Remove every checkpoint of the folder."""
        if rank() == 0:
            (self.folder / LATEST).unlink(missing_ok=True)
            self._remove_leftovers()
            for path in _written(self.folder):
                _remove(path)
        barrier()

    def is_taken_by(self, launch: str) -> bool:
        """Return whether `launch` is the one that took the folder last; the same on all ranks."""
        marker = self.folder / LAUNCH
        return _of_first_rank(lambda: marker.exists() and marker.read_text(encoding="utf-8").strip() == launch)

    def take(self, launch: str) -> None:
        """Write down that the checkpoints from here on are those of `launch`."""
        if rank() == 0:
            self.folder.mkdir(parents=True, exist_ok=True)
            write_text(self.folder / LAUNCH, launch + "\n")

    def _found(self) -> tuple[Path, Progress] | CheckpointBroken | None:
        return _of_first_rank(lambda: _latest_or_error(self.folder))

    def _make_room(self, path: Path) -> bool:
        self.folder.mkdir(parents=True, exist_ok=True)
        self._remove_leftovers()
        return not path.exists() or path in _written(self.folder)

    def _publish(self, partial: Path, path: Path, progress: Progress) -> None:
        write_text(partial / PROGRESS, json.dumps(asdict(progress) | {"files": _sizes(partial)}))
        if path.exists():
            _remove(path)
        partial.rename(path)
        sync(self.folder)
        write_text(self.folder / LATEST, path.name + "\n")
        written = _written(self.folder)
        published = [each for each in written if each <= path]
        # A later step got its name but never the pointer's; this run has just done other steps instead.
        for each in written[len(published) :]:
            _remove(each)
        for each in published[: -self.keep] if self.keep else ():
            _remove(each)

    def _remove_leftovers(self) -> None:
        # Of a save or a removal that was killed. Only who saves does this: a reader would end a running save.
        for path in self.folder.glob(".*"):
            if _LEFTOVER_NAME.fullmatch(path.name):
                shutil.rmtree(path)


def _latest_or_error(folder: Path) -> tuple[Path, Progress] | CheckpointBroken | None:
    try:
        return latest_progress(folder)
    except CheckpointBroken as error:
        return error


def _of_first_rank(find: Callable[[], _Found]) -> _Found:
    # One view for all: a network file system may show a file to others later.
    found = [find() if rank() == 0 else None]
    if dist.is_initialized():
        dist.broadcast_object_list(found, src=0)
    return found[0]


def _written(folder: Path) -> list[Path]:
    """Return the checkpoints in `folder`, published or not, in the order of their steps."""
    return sorted(
        path for path in folder.glob("step-*") if _NAME.fullmatch(path.name) and (path / PROGRESS).is_file()
    )


def _whole(path: Path) -> tuple[Path, Progress]:
    try:
        written = json.loads((path / PROGRESS).read_text(encoding="utf-8"))
        files = dict(written.pop("files"))
        progress = Progress(**written)
    except (FileNotFoundError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointBroken(f"{path} holds no checkpoint") from error
    found = _sizes(path)
    if broken := sorted(name for name, size in files.items() if found.get(name) != size):
        raise CheckpointBroken(f"{path} is not whole: {', '.join(broken)} missing or not of the size written")
    return path, progress


def _remove(path: Path) -> None:
    # Its name goes at once: killed on the way, no half of it is left that could be taken for a checkpoint.
    removed = path.with_name(f"{REMOVED_PREFIX}{path.name}")
    path.rename(removed)
    shutil.rmtree(removed)


def _sizes(folder: Path) -> dict[str, int]:
    """Return the size in bytes of each file of torch.distributed.checkpoint in `folder`, by name."""
    return {path.name: path.stat().st_size for path in sorted(folder.iterdir()) if path.name != PROGRESS}


def _sync_own_files(folder: Path) -> None:
    # Each rank its own: on a network file system only the machine that wrote a file can sync it.
    # Source: torch.distributed.checkpoint.FileSystemWriter names a rank's files __RANK_N.distcp.
    for path in folder.glob(f"__{rank()}_*"):
        sync(path)
    if rank() == 0:
        sync(folder / ".metadata")


@contextmanager
def without_group_warning() -> Iterator[None]:
    """Keep torch.distributed.checkpoint from warning of a script of one process."""
    # A script of one process is as it should be.
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "torch.distributed is disabled", UserWarning)
        yield


def model_state(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """Return the parts of a state that any number of ranks can load."""
    from torch.distributed.checkpoint.state_dict import get_state_dict

    model_state, optimizer_state = get_state_dict(model, optimizer)
    return {"model": model_state, "optimizer": optimizer_state}


def put_model_state(model: nn.Module, optimizer: torch.optim.Optimizer, state: dict[str, Any]) -> None:
    """Take over a state of the form of `model_state`."""
    from torch.distributed.checkpoint.state_dict import set_state_dict

    set_state_dict(model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])


def random_key() -> str:
    """Return the name of this rank's random state."""
    return f"rank{rank()}"
