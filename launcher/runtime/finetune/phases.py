"""The time of the parts of an optimizer step."""

import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch


class Phases:
    """Adds up how long the parts of a step take, over its micro batches.

    Args:
        device: Whose work is waited for at the borders, which costs speed.
        is_used: Whether to measure at all.
    """

    def __init__(self, device: torch.device, *, is_used: bool):
        self._is_used, self._device = is_used, device
        self._times_s: Counter[str] = Counter()

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Add the time of the body to that of the part `name`."""
        if not self._is_used:
            yield
            return
        began = self._now()
        yield
        self._times_s[name] += self._now() - began  # type: ignore[assignment]  # seconds

    def take(self) -> Mapping[str, float]:
        """Return the seconds of each part since the last call, by the name of the metric; empty if not measured."""
        found = {f"time/{name}_s": float(seconds) for name, seconds in self._times_s.items()}
        self._times_s.clear()
        return found

    def _now(self) -> float:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        return time.perf_counter()
