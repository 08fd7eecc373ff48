"""What the machine can do at best: the floors that the figures of other stages stand beside."""

import tempfile
from pathlib import Path

import torch

from benchmarks.gpu import devices
from benchmarks.gpu.results import Measurement, Results
from launcher.runtime.durable import sync

GIB = 2**30


def floors(results: Results) -> None:
    """Measure a matrix product, copies in the device's memory and over PCIe, and writes to disk."""
    where, tiny = devices.device(), results.tiny
    num_bytes = 2**20 if tiny else GIB
    flops = devices.matmul_flops(where, tiny=tiny)
    results.add(Measurement("matrix product", flops / 1e12, "TFLOP/s", shape={"size": 256 if tiny else 8192}))
    source = torch.empty(num_bytes, dtype=torch.uint8, device=where).random_()
    target = torch.empty_like(source)
    seconds = devices.median_s(lambda: target.copy_(source), where)
    size = {"bytes": num_bytes}
    results.add(
        Measurement(
            "copy in the device's memory, bytes read and written", 2 * num_bytes / seconds / 1e9, "GB/s", shape=size
        )
    )
    found = devices.copies(where, num_bytes)
    for name, speed in (
        ("device to pinned host memory", found.to_host),
        ("pinned host memory to device", found.to_device),
        ("device to pageable host memory", found.to_pageable_host),
        ("pageable host memory to device", found.from_pageable_host),
    ):
        results.add(Measurement(name, speed / 1e9, "GB/s", shape=size))
    results.add(Measurement("write and fsync to disk", disk_speed(num_bytes) / 1e9, "GB/s", shape=size))


def disk_speed(num_bytes: int, folder: Path | None = None) -> float:
    """Return the bytes per second of one write of random bytes that ends with fsync.

    Args:
        num_bytes: To write.
        folder: On the disk; None for that of temporary files.
    """
    content = torch.empty(num_bytes, dtype=torch.uint8).random_().numpy()
    with tempfile.TemporaryDirectory(dir=folder) as own:
        file = Path(own) / "content"

        def write() -> None:
            content.tofile(file)
            sync(file)

        return num_bytes / devices.seconds_of(write, torch.device("cpu"))
