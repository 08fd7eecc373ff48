"""Checkpoints that load at any number of ranks and are never seen half-written.

A checkpoint is a folder of torch.distributed.checkpoint files and one `progress.json`. It is written
under a temporary name, synced, renamed, and only then named by the pointer file `latest`.
"""

import json
import pickle
import shutil
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import nn

from launcher.runtime import agent, randomness
from launcher.runtime.durable import sync, write_text
from launcher.runtime.process_group import barrier, rank, world_size

LATEST = "latest"
PROGRESS = "progress.json"
PARTIAL_PREFIX = ".partial-"


class CheckpointBroken(RuntimeError):
    """The published checkpoint is not there, or not whole."""


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
    """

    step: int = 0
    cursor: int = 0
    world_size: int = 0


def latest_progress(folder: Path) -> tuple[Path, Progress] | None:
    """Return the newest published checkpoint under `folder` and its progress, or None.

    Raises:
        CheckpointBroken: The pointer names a folder that lacks a file, or in which one is cut short.
    """
    pointer = folder / LATEST
    if not pointer.exists():
        return None
    path = folder / pointer.read_text(encoding="utf-8").strip()
    if not (path / PROGRESS).exists():
        raise CheckpointBroken(f"{pointer} names {path.name}, which holds no checkpoint")
    written = json.loads((path / PROGRESS).read_text(encoding="utf-8"))
    files, found = written.pop("files"), _sizes(path)
    if broken := sorted(name for name, size in files.items() if found.get(name) != size):
        raise CheckpointBroken(f"{path} is not whole: {', '.join(broken)} missing or not of the size written")
    return path, Progress(**written)


class Checkpoints:
    """The checkpoints of one training run. Every method is collective: all ranks call it.

    Args:
        folder: Seen by all ranks; made when missing.
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
        """
        import torch.distributed.checkpoint as dcp

        path = self.folder / f"step-{progress.step:08d}"
        latest = self._found()
        if isinstance(latest, tuple) and latest[1].step == progress.step:
            return latest[0]
        partial = self.folder / f"{PARTIAL_PREFIX}{path.name}"
        if rank() == 0:
            self.folder.mkdir(parents=True, exist_ok=True)
            shutil.rmtree(partial, ignore_errors=True)
        barrier()
        state = _state(model, optimizer) | {"random": {_random_key(): pickle.dumps(randomness.state())}}
        if scheduler:
            state["scheduler"] = pickle.dumps(scheduler.state_dict())
        # Its own sync comes before it has handed its last bytes to the system.
        writer = dcp.FileSystemWriter(partial, sync_files=False)
        with _without_group_warning():
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
        if rank() == 0:
            self._discard_unpublished(latest[0] if latest else None)
        if latest is None:
            return None
        import torch.distributed.checkpoint as dcp
        from torch.distributed.checkpoint.state_dict import set_state_dict

        path, progress = latest
        state = _state(model, optimizer)
        same_ranks = progress.world_size == world_size()
        if same_ranks:
            state["random"] = {_random_key(): b""}
        if scheduler:
            state["scheduler"] = b""
        with _without_group_warning():
            dcp.load(state, checkpoint_id=path, no_dist=not dist.is_initialized())
        set_state_dict(model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
        if scheduler:
            scheduler.load_state_dict(pickle.loads(state["scheduler"]))
        if same_ranks:
            randomness.restore(pickle.loads(state["random"][_random_key()]))
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
            self._discard_unpublished(None)
        barrier()

    def _found(self) -> tuple[Path, Progress] | CheckpointBroken | None:
        # Rank 0's view for all: a network file system may show the pointer to others later.
        found = [_latest_or_error(self.folder) if rank() == 0 else None]
        if dist.is_initialized():
            dist.broadcast_object_list(found, src=0)
        return found[0]

    def _publish(self, partial: Path, path: Path, progress: Progress) -> None:
        write_text(partial / PROGRESS, json.dumps(asdict(progress) | {"files": _sizes(partial)}))
        shutil.rmtree(path, ignore_errors=True)
        partial.rename(path)
        sync(self.folder)
        write_text(self.folder / LATEST, path.name + "\n")
        published = sorted(self.folder.glob("step-*"))
        for old in published[: -self.keep] if self.keep else ():
            if old != path:
                shutil.rmtree(old)

    def _discard_unpublished(self, latest: Path | None) -> None:
        for folder in (*self.folder.glob(f"{PARTIAL_PREFIX}*"), *self.folder.glob("step-*")):
            if folder.name.startswith(PARTIAL_PREFIX) or latest is None or folder.name > latest.name:
                shutil.rmtree(folder)


def _latest_or_error(folder: Path) -> tuple[Path, Progress] | CheckpointBroken | None:
    try:
        return latest_progress(folder)
    except CheckpointBroken as error:
        return error


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
def _without_group_warning() -> Iterator[None]:
    # A script of one process is as it should be.
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "torch.distributed is disabled", UserWarning)
        yield


def _state(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    from torch.distributed.checkpoint.state_dict import get_state_dict

    model_state, optimizer_state = get_state_dict(model, optimizer)
    return {"model": model_state, "optimizer": optimizer_state}


def _random_key() -> str:
    return f"rank{rank()}"
