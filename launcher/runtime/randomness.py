"""The states of the random number generators of this process."""

import random
import sys
from typing import Any

import torch

SEED_STRIDE = 1_000_003
"""A prime, large enough that seeds of all ranks and of two restarts differ."""


def state() -> dict[str, Any]:
    """Return the states of the generators of Python, PyTorch and, if it is imported, NumPy."""
    states: dict[str, Any] = {"python": random.getstate(), "cpu": torch.get_rng_state()}
    if torch.cuda.is_available():
        states["cuda"] = torch.cuda.get_rng_state()
    if numpy := sys.modules.get("numpy"):
        states["numpy"] = numpy.random.get_state()
    return states


def restore(states: dict[str, Any]) -> None:
    """Restore the states that `state` returned."""
    random.setstate(states["python"])
    torch.set_rng_state(states["cpu"])
    if "cuda" in states and torch.cuda.is_available():
        torch.cuda.set_rng_state(states["cuda"])
    if "numpy" in states and (numpy := sys.modules.get("numpy")):
        numpy.random.set_state(states["numpy"])


def reseed(rank: int, step: int) -> None:
    """Seed this rank for its part of training from `step` on, if it has no saved state."""
    seed = (torch.initial_seed() + SEED_STRIDE * (step + 1) + rank) % 2**32
    random.seed(seed)
    torch.manual_seed(seed)
    if numpy := sys.modules.get("numpy"):
        numpy.random.seed(seed)
