"""Checkpoints that load at any number of ranks and are never seen half-written.

A checkpoint is a folder of torch.distributed.checkpoint files and one `progress.json`. It is written
under a temporary name, renamed, and only then named by the pointer file `latest`.
"""

import json
import shutil
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from launcher.runtime import agent
from launcher.runtime.durable import sync_folder, write_text

LATEST = "latest"
PROGRESS = "progress.json"
PARTIAL_PREFIX = ".partial-"


class CheckpointMissing(RuntimeError):
    """The pointer file names a checkpoint that is no longer there."""


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
        CheckpointMissing: The pointer names a folder without a checkpoint.
    """
    pointer = folder / LATEST
    if not pointer.exists():
        return None
    path = folder / pointer.read_text(encoding="utf-8").strip()
    if not (path / PROGRESS).exists():
        raise CheckpointMissing(f"{pointer} names {path.name}, which holds no checkpoint")
    return path, Progress(**json.loads((path / PROGRESS).read_text(encoding="utf-8")))


class Checkpoints:
    """The checkpoints of one training run. Every method is collective: all ranks call it.

    Args:
        folder: Seen by all ranks; made when missing.
        keep: Published checkpoints to keep; 0 keeps all.
    """

    def __init__(self, folder: Path, keep: int = 0):
        self.folder = folder
        self.keep = keep

    def save(self, model: nn.Module, optimizer: torch.optim.Optimizer, progress: Progress) -> Path:
        """Write and publish a checkpoint; return its folder once every rank can rely on it.

        A step that is already the published one is not written again.
        """
        import torch.distributed.checkpoint as dcp

        path = self.folder / f"step-{progress.step:08d}"
        if (latest := self.latest()) and latest[1].step == progress.step:
            return latest[0]
        partial = self.folder / f"{PARTIAL_PREFIX}{path.name}"
        if _rank() == 0:
            self.folder.mkdir(parents=True, exist_ok=True)
            shutil.rmtree(partial, ignore_errors=True)
        _barrier()
        state = _state(model, optimizer) | {"random": {_random_key(): _random_state()}}
        dcp.save(state, checkpoint_id=partial, no_dist=not dist.is_initialized())
        if _rank() == 0:
            self._publish(partial, path, progress)
        _barrier()
        agent.report_checkpoint(path, progress.step)
        return path

    def load(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> Progress | None:
        """Load the newest published checkpoint into `model` and `optimizer`, whatever wrote it.

        Random states are restored where the number of ranks is the same; otherwise the caller's stay.

        Returns:
            The checkpoint's progress, or None when there is none.
        """
        latest = self.latest()
        if _rank() == 0:
            self._discard_unpublished(latest[0] if latest else None)
        if latest is None:
            return None
        import torch.distributed.checkpoint as dcp
        from torch.distributed.checkpoint.state_dict import set_state_dict

        path, progress = latest
        state = _state(model, optimizer)
        same_ranks = progress.world_size == _world_size()
        if same_ranks:
            state["random"] = {_random_key(): _random_state()}
        dcp.load(state, checkpoint_id=path, no_dist=not dist.is_initialized())
        set_state_dict(model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
        if same_ranks:
            _restore_random_state(state["random"][_random_key()])
        return progress

    def latest(self) -> tuple[Path, Progress] | None:
        """Return the newest published checkpoint and its progress, or None; the same on all ranks."""
        # Rank 0's view for all: a network file system may show the pointer to others later.
        found = [latest_progress(self.folder) if _rank() == 0 else None]
        if dist.is_initialized():
            dist.broadcast_object_list(found, src=0)
        return found[0]

    def clear(self) -> None:
        """Remove every checkpoint of the folder."""
        if _rank() == 0:
            (self.folder / LATEST).unlink(missing_ok=True)
            self._discard_unpublished(None)
        _barrier()

    def _publish(self, partial: Path, path: Path, progress: Progress) -> None:
        write_text(partial / PROGRESS, json.dumps(asdict(progress)))
        shutil.rmtree(path, ignore_errors=True)
        partial.rename(path)
        sync_folder(self.folder)
        write_text(self.folder / LATEST, path.name + "\n")
        published = sorted(self.folder.glob("step-*"))
        for old in published[: -self.keep] if self.keep else ():
            if old != path:
                shutil.rmtree(old)

    def _discard_unpublished(self, latest: Path | None) -> None:
        for folder in (*self.folder.glob(f"{PARTIAL_PREFIX}*"), *self.folder.glob("step-*")):
            if folder.name.startswith(PARTIAL_PREFIX) or latest is None or folder.name > latest.name:
                shutil.rmtree(folder)


def _state(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    from torch.distributed.checkpoint.state_dict import get_state_dict

    model_state, optimizer_state = get_state_dict(model, optimizer)
    return {"model": model_state, "optimizer": optimizer_state}


def _random_state() -> dict[str, torch.Tensor]:
    state = {"cpu": torch.get_rng_state()}
    return state | {"cuda": torch.cuda.get_rng_state()} if torch.cuda.is_available() else state


def _restore_random_state(state: dict[str, torch.Tensor]) -> None:
    torch.set_rng_state(state["cpu"])
    if "cuda" in state:
        torch.cuda.set_rng_state(state["cuda"])


def _random_key() -> str:
    return f"rank{_rank()}"


def _rank() -> int:
    return dist.get_rank() if dist.is_initialized() else 0


def _world_size() -> int:
    return dist.get_world_size() if dist.is_initialized() else 1


def _barrier() -> None:
    if dist.is_initialized():
        dist.barrier()
