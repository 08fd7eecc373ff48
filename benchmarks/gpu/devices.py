"""The device of a stage: where it is, when its work is done, how much memory it took, and what it can do at best."""

import gc
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch


def device() -> torch.device:
    """Return the first GPU, or the CPU."""
    return torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")


def wait_for(where: torch.device) -> None:
    """Wait until the device has done its work."""
    if where.type == "cuda":
        torch.cuda.synchronize(where)


def free(where: torch.device) -> None:
    """Give memory back that nothing refers to any more, and start counting the peak anew."""
    gc.collect()
    if where.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(where)


def peak_bytes(where: torch.device) -> int | None:
    """Return the most memory that tensors took since the last `free`; None on the CPU."""
    return torch.cuda.max_memory_allocated(where) if where.type == "cuda" else None


def seconds_of(work: Callable[[], object], where: torch.device) -> float:
    """Do `work`; return the seconds until the device has done it."""
    wait_for(where)
    began = time.perf_counter()
    work()
    wait_for(where)
    return time.perf_counter() - began


def median_s(work: Callable[[], object], where: torch.device, rounds: int = 7, warmup: int = 2) -> float:
    """Return the median time of `work`, in seconds, after some rounds that do not count."""
    times = [seconds_of(work, where) for _ in range(warmup + rounds)]
    return statistics.median(times[warmup:])


def matmul_flops(where: torch.device, *, tiny: bool) -> float:
    """Return the operations per second of a matrix product of random numbers, in bf16 on a GPU."""
    size = 256 if tiny else 8192
    dtype = torch.bfloat16 if where.type == "cuda" else torch.float32
    left, right = (torch.randn(size, size, device=where, dtype=dtype) for _ in range(2))
    return 2 * size**3 / median_s(lambda: left @ right, where)


@dataclass(frozen=True, slots=True)
class Copies:
    """Bytes per second of copies between host and device, from and to pinned and pageable memory."""

    to_host: float
    to_device: float
    to_pageable_host: float
    from_pageable_host: float


def copies(where: torch.device, num_bytes: int) -> Copies:
    """Return the speeds of copies of `num_bytes`; on the CPU, those of copies in its memory."""
    on_device = torch.empty(num_bytes, dtype=torch.uint8, device=where).random_()
    pageable = torch.zeros(num_bytes, dtype=torch.uint8)
    pinned = pageable.pin_memory() if where.type == "cuda" else torch.zeros_like(pageable)

    def speed(target: torch.Tensor, source: torch.Tensor) -> float:
        return num_bytes / median_s(lambda: target.copy_(source), where, rounds=5)

    return Copies(
        to_host=speed(pinned, on_device),
        to_device=speed(on_device, pinned),
        to_pageable_host=speed(pageable, on_device),
        from_pageable_host=speed(on_device, pageable),
    )
