"""What checksums cost a plain checkpoint: writing with fsync, and loading, each with and without them in turn.

One process, float32 tensors. The time without checksums is that of torch.distributed.checkpoint alone.
"""

import os
import shutil
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed.checkpoint as dcp

from launcher.runtime.checked_io import CheckedReader, CheckedWriter
from launcher.runtime.checkpoint_folder import PROGRESS, Progress, published, sealed
from launcher.runtime.checksums import checksum
from launcher.runtime.durable import sync
from launcher.runtime.process_group import without_group_warning

STATE_BYTES = int(os.environ.get("RECIPES_STATE_BYTES", "1000000000"))
NUM_TENSORS = 20
ROUNDS = 9


def state() -> dict[str, torch.Tensor]:
    size = STATE_BYTES // NUM_TENSORS // 4
    return {f"tensor{place}": torch.randn(size) for place in range(NUM_TENSORS)}


def written_s(saved: dict[str, torch.Tensor], writer: dcp.FileSystemWriter, folder: Path) -> tuple[float, float]:
    """Return the seconds of writing and syncing, and of the processor meanwhile."""
    began, processor = time.perf_counter(), time.process_time()
    with without_group_warning():
        dcp.save(dict(saved), storage_writer=writer, no_dist=True)
    for path in folder.iterdir():
        sync(path)
    return time.perf_counter() - began, time.process_time() - processor


def loaded_s(load: Callable[[dict[str, torch.Tensor]], None], target: dict[str, torch.Tensor]) -> tuple[float, float]:
    began, processor = time.perf_counter(), time.process_time()
    load(target)
    return time.perf_counter() - began, time.process_time() - processor


def plain_load(folder: Path) -> Callable[[dict[str, torch.Tensor]], None]:
    def load(target: dict[str, torch.Tensor]) -> None:
        with without_group_warning():
            dcp.load(target, storage_reader=dcp.FileSystemReader(folder), no_dist=True)

    return load


def checked_load(folder: Path) -> Callable[[dict[str, torch.Tensor]], None]:
    return lambda target: CheckedReader(folder, published(folder, 1)).load_into(target)


def line(name: str, without: list[tuple[float, float]], with_: list[tuple[float, float]]) -> str:
    """Return medians and paired ratios of seconds and of processor seconds."""
    medians = [statistics.median(each[0] for each in times) for times in (without, with_)]
    walls, processors = (
        [ours[place] / floor[place] for ours, floor in zip(with_, without, strict=True)] for place in (0, 1)
    )
    return (
        f"{name}: {medians[0]:.3f} s without, {medians[1]:.3f} s with; ratio {statistics.median(walls):.3f} "
        f"(processor {statistics.median(processors):.3f})"
    )


def test_checksums_cost_little(tmp_path, report):
    """Target: at most 6 % of writing and syncing."""
    saved, target = state(), state()
    times: dict[str, list[tuple[float, float]]] = {
        name: [] for name in ("write", "checked write", "load", "checked load")
    }
    plain, checked = tmp_path / "plain", tmp_path / "checked"
    for number in range(ROUNDS):
        kinds = [("write", plain, dcp.FileSystemWriter), ("checked write", checked, CheckedWriter)]
        for name, folder, writer in kinds[:: 1 if number % 2 else -1]:
            shutil.rmtree(folder, ignore_errors=True)
            own = writer(folder) if writer is CheckedWriter else writer(folder, sync_files=False)
            times[name].append(written_s(saved, own, folder))
        (checked / PROGRESS).write_text(sealed(checked, Progress(1)))
        loads = [("load", plain_load(plain)), ("checked load", checked_load(checked))]
        for name, load in loads[:: 1 if number % 2 else -1]:
            times[name].append(loaded_s(load, target))
    assert all(torch.equal(target[name], saved[name]) for name in saved)
    data = saved["tensor0"].numpy()
    began = time.perf_counter()
    for _ in range(20):
        checksum(data)
    rate = 20 * data.nbytes / (time.perf_counter() - began) / 1e9
    report(f"{STATE_BYTES / 1e9:g} GB, {ROUNDS} rounds; hashing {rate:.1f} GB/s")
    report(line("write and fsync", times["write"], times["checked write"]))
    report(line("load", times["load"], times["checked load"]))
