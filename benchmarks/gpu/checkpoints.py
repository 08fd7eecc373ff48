"""Checkpoints of a training on the device: how long it is blocked, and how long a restore takes, beside copies."""

import shutil
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from benchmarks.gpu import devices
from benchmarks.gpu.floors import disk_speed
from benchmarks.gpu.results import Results, median_of
from benchmarks.gpu.shapes import QWEN_600M, Shape, training_of
from benchmarks.gpu.training import Meter, Pace, joined, trained
from launcher.common import names
from launcher.runtime.checkpoint import Checkpoints
from launcher.runtime.checkpoint_folder import Progress
from launcher.runtime.content import Content
from launcher.runtime.finetune.trainer import FineTuning
from launcher.runtime.process_group import Place
from launcher.runtime.tiers.checkpoint_manager import CheckpointManager
from launcher.runtime.tiers.tier_settings import Cadence, TierSettings
from launcher.runtime.tiers.training import manager_of

ROUNDS = 3
FREE_COPIES = 5
"""Copies of the state that main memory must have room for: two saves and the one being written, and floors."""


@dataclass(frozen=True, slots=True)
class Saved:
    """A trained state, and what copies of as many bytes take.

    Args:
        content: Of a checkpoint.
        num_bytes: Of its tensors.
        copies: Speeds of copies between device and host.
    """

    content: Content
    num_bytes: int
    copies: devices.Copies


def checkpoints(results: Results) -> None:
    """Save and restore the state of a full training of Qwen3 0.6B: 7 GB in memory, then on disk."""
    shape = Shape(QWEN_600M, 1024, 2, 1, recomputes=True)
    with tempfile.TemporaryDirectory() as folder:
        trainer = _stepped(shape.tiny() if results.tiny else shape, Path(folder), joined(), results)
        saved = _saved(trainer, tiny=results.tiny)
        results.facts["state_bytes"] = saved.num_bytes
        _memory(saved, results)
        _disk(saved, Path(folder), results)


def _stepped(shape: Shape, folder: Path, place: Place, results: Results) -> FineTuning:
    """Return the open trainer after some steps: AdamW has its state then."""
    training = training_of(shape, folder, tiny=results.tiny)
    return trained(training, place, Meter(Pace(0, 1), results.budget, place.device), folder)


def _saved(trainer: FineTuning, *, tiny: bool) -> Saved:
    content = Content(trainer.root, trainer.optimizer)
    tensors = _tensors(content.state())
    num_bytes = sum(each.numel() * each.element_size() for each in tensors)
    return Saved(content, num_bytes, devices.copies(trainer.place.device, min(num_bytes, 2**20 if tiny else 2**30)))


def _tensors(state: Any) -> list[torch.Tensor]:
    """Return the tensors in a state, this rank's part of sharded ones."""
    if isinstance(state, dict):
        return [each for value in state.values() for each in _tensors(value)]
    if isinstance(state, list):
        return [each for value in state for each in _tensors(value)]
    if isinstance(state, torch.Tensor):
        return [state.to_local() if hasattr(state, "to_local") else state]
    return []


def _memory(saved: Saved, results: Results) -> None:
    """Measure the memory tier: what training waits for, and a restore."""
    free = shutil.disk_usage(names.SHARED_MEMORY).free
    if free < FREE_COPIES * saved.num_bytes:
        results.problem(f"{names.SHARED_MEMORY} has {free / 1e9:.1f} GB free: too little for {FREE_COPIES} copies")
        return
    blocked, completed, restored, where = [], [], [], devices.device()
    with _manager() as manager:
        for step in range(1, ROUNDS + 3):  # the first two make the room
            state, progress = saved.content.state(), asdict(Progress(step, world_size=1))
            waited = devices.seconds_of(lambda: manager.save(state, step, progress), where)  # noqa: B023
            rest = devices.seconds_of(manager.wait, where)
            if step > 2:
                blocked.append(waited)
                completed.append(waited + rest)
            if not results.budget.fits(4 * completed[-1] if completed else 0):
                break
        for _ in range(ROUNDS):
            restored.append(devices.seconds_of(lambda: _restore(manager, saved.content), where))
    to_host, to_device = saved.num_bytes / saved.copies.to_host, saved.num_bytes / saved.copies.to_device
    shape = {"bytes": saved.num_bytes}
    pinned = {"floor": to_host, "floor_name": "copy to pinned memory", "shape": shape}
    results.add(
        median_of("save to memory: training blocked", "s", blocked, **pinned),
        median_of("save to memory: complete", "s", completed, **pinned),
        median_of(
            "restore from memory", "s", restored, floor=to_device, floor_name="copy from pinned memory", shape=shape
        ),
    )


@contextmanager
def _manager() -> Iterator[CheckpointManager]:
    """Yield the manager of a memory tier of its own, and remove what it holds."""
    settings = TierSettings(f"bench-gpu-{uuid.uuid4().hex}", Cadence(1, 1), None)
    manager = manager_of(settings, None)
    try:
        yield manager
    finally:
        manager.clear()


def _restore(manager: CheckpointManager, content: Content) -> None:
    found = manager.load(lambda manifest: content.form(manifest.metadata, manifest.world_size))
    assert found is not None
    content.put(found.state, found.step, print)


def _disk(saved: Saved, folder: Path, results: Results) -> None:
    """Measure checkpoints of a folder: training waits for them; and their restore."""
    kept, where = Checkpoints(folder / "checkpoints", keep=1), devices.device()
    speed = disk_speed(min(saved.num_bytes, 2**30), folder)
    saves, loads = [], []
    for step in range(1, ROUNDS + 1):
        if saves and not results.budget.fits(2 * (saves[-1] + loads[-1])):
            break
        progress = Progress(step, world_size=1)
        saves.append(devices.seconds_of(lambda progress=progress: kept.save(saved.content, progress), where))
        loads.append(devices.seconds_of(lambda: kept.load(saved.content), where))
    floor = saved.num_bytes / speed
    shape = {"bytes": saved.num_bytes}
    results.add(
        median_of("save to a folder", "s", saves, floor=floor, floor_name="write and fsync", shape=shape),
        median_of(
            "restore from a folder",
            "s",
            loads,
            floor=saved.num_bytes / saved.copies.to_device,
            floor_name="copy from pinned memory",
            shape=shape,
        ),
    )
