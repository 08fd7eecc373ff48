"""Costs of checkpoints in tiers: how long training pauses, each tier's speed, and a restore, beside lower bounds.

Ranks are forked processes of one gloo group. The state is of plain tensors, each rank's own, all of them touched.
Every time is the slowest rank's; ratios are medians over rounds in which ours and its floor take turns.
"""

import contextlib
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from test_runtime_speed import plain_write_s, run_ranks

from launcher.common import names
from launcher.runtime.durable import sync
from launcher.runtime.tiers.checkpoint_log import CheckpointLog
from launcher.runtime.tiers.checkpoint_manager import CheckpointManager, MemoryTier, StoreTier
from launcher.runtime.tiers.node_memory import NodeMemory
from launcher.runtime.tiers.stores import Folder

STATE_BYTES = 2_000_000_000
SCALE_BYTES = 500_000_000
NUM_TENSORS = 20
ROUNDS = 5
Times = dict[str, list[float]]


def state_of(total_bytes: int) -> dict[str, torch.Tensor]:
    """Return this rank's part of a state of float32 tensors."""
    size = total_bytes // dist.get_world_size() // NUM_TENSORS // 4
    return {f"rank{dist.get_rank()}.{place}": torch.randn(size) for place in range(NUM_TENSORS)}


def slowest(work: Callable[[], object]) -> float:
    """Do `work` on all ranks at once; return the slowest one's seconds."""
    dist.barrier()
    began = time.perf_counter()
    work()
    seconds = torch.tensor(time.perf_counter() - began)
    dist.all_reduce(seconds, dist.ReduceOp.MAX)
    return seconds.item()


def memcpy(source: dict[str, torch.Tensor], target: dict[str, torch.Tensor]) -> None:
    for name, tensor in source.items():
        target[name].copy_(tensor)


@contextlib.contextmanager
def shared_memory() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="recipes-bench-", dir=names.SHARED_MEMORY))
    try:
        yield folder
    finally:
        shutil.rmtree(folder)


def new_manager(memory: Path) -> CheckpointManager:
    rank, size = dist.get_rank(), dist.get_world_size()
    tier = MemoryTier(NodeMemory(memory / "ns", rank, 1), 1, size, 0)
    return CheckpointManager(tier, [], CheckpointLog("ns", rank))


def memory_times(memory: Path, total_bytes: int) -> Times:
    """Return the seconds of saves to memory and of restores, and of a copy of the same bytes beside each."""
    state, target = state_of(total_bytes), state_of(total_bytes)
    manager, times = new_manager(memory), {"memcpy": [], "blocked": [], "save": [], "memcpy back": [], "restore": []}
    for step in range(ROUNDS + 3):  # the first three make the room
        copied = slowest(lambda: memcpy(state, target))
        blocked = slowest(lambda step=step: manager.save(state, step, {}))
        rest = slowest(manager.wait)
        if step >= 3:
            for name, value in (("memcpy", copied), ("blocked", blocked), ("save", blocked + rest)):
                times[name].append(value)
    for _ in range(ROUNDS):
        times["memcpy back"].append(slowest(lambda: memcpy(state, target)))
        times["restore"].append(slowest(lambda: manager.load(lambda _: dict(target))))
    assert all(torch.equal(target[name], tensor) for name, tensor in state.items())
    return times


def disk_times(folder: Path) -> Times:
    """Return the seconds of saves to a disk: torch.save, torch's own writer, ours, and a plain write."""
    rank, state = dist.get_rank(), state_of(STATE_BYTES)
    whole = torch.cat(list(state.values()))
    path = folder / f"plain{rank}"
    times: Times = {"plain write": [], "torch.save": [], "to disk": [], "FileSystemWriter": [], "persistent": []}
    manager = CheckpointManager(None, [StoreTier(Folder(folder / "ours"), 1, 1)], CheckpointLog("ns", rank))
    for step in range(3):
        times["plain write"].append(slowest(lambda: plain_write_s(path, whole)))
        path.unlink()
        times["torch.save"].append(slowest(lambda: torch.save(state, path)))
        path.unlink()
        times["to disk"].append(slowest(lambda: (torch.save(state, path), sync(path))))
        path.unlink()
        writer = dcp.FileSystemWriter(folder / "theirs", sync_files=True)
        times["FileSystemWriter"].append(slowest(lambda writer=writer: dcp.save(state, storage_writer=writer)))
        dist.barrier()
        if rank == 0:
            shutil.rmtree(folder / "theirs")
        manager.save(state, step, {})
        times["persistent"].append(slowest(manager.wait))
    return times


def ratio(times: Times, ours: str, floor: str) -> float:
    return statistics.median(a / b for a, b in zip(times[ours], times[floor], strict=True))


def test_memory_and_disk_at_4_ranks(tmp_path, report):
    with shared_memory() as memory:
        times = run_ranks(4, lambda: memory_times(memory, STATE_BYTES), tmp_path)
    times |= run_ranks(4, lambda: disk_times(tmp_path), tmp_path)
    for name, values in times.items():
        middle = statistics.median(values)
        report(f"{name:18} {middle:7.3f} s  {STATE_BYTES / middle / 1e9:6.2f} GB/s  (min {min(values):.3f} s)")
    report(f"training blocked / memcpy            {ratio(times, 'blocked', 'memcpy'):.2f}")
    report(f"restore from memory / memcpy         {ratio(times, 'restore', 'memcpy back'):.2f}")
    for name, label in (("torch.save", "torch.save, not synced"), ("to disk", "torch.save to disk")):
        faster = statistics.median(times[name]) / statistics.median(times["save"])
        report(f"{label} / save to memory".ljust(42) + f"{faster:.1f}")
    report(f"persistent / plain write             {ratio(times, 'persistent', 'plain write'):.2f}")
    report(f"persistent / FileSystemWriter        {ratio(times, 'persistent', 'FileSystemWriter'):.2f}")


@pytest.mark.parametrize("world_size", [1, 2, 4, 8])
def test_overhead_by_ranks(world_size, tmp_path, report):
    with shared_memory() as memory:
        times = run_ranks(world_size, lambda: memory_times(memory, SCALE_BYTES), tmp_path)
    report(
        f"{world_size} ranks, {SCALE_BYTES / 1e6:.0f} MB: memcpy {statistics.median(times['memcpy']):.3f} s, "
        f"blocked {ratio(times, 'blocked', 'memcpy'):.2f} of it, restore {ratio(times, 'restore', 'memcpy back'):.2f}"
    )


def test_a_small_state(tmp_path, report):
    """What a save costs that has next to nothing to copy: the plan, the agreement, the hand-over."""
    with shared_memory() as memory:
        times = run_ranks(4, lambda: memory_times(memory, 4 * NUM_TENSORS * 4 * 1000), tmp_path)
    report(f"4 ranks, 320 kB: blocked {statistics.median(times['blocked']) * 1e3:.1f} ms")
