"""A seeded split of samples by their position, which keeps no list of them."""

import math

import numpy
import numpy.typing

Positions = numpy.typing.NDArray[numpy.uint64]
"""Positions of samples in their file, shape `(n,)`."""

_ROUNDS = 6
_MIX = (0xBF58476D1CE4E5B9, 0x94D049BB133111EB)
"""Source: Steele, Lea, Flood, Fast splittable pseudorandom number generators (2014): the finalizer of SplitMix64."""
_GOLDEN = 0x9E3779B97F4A7C15


def num_trained(num_samples: int, ratio: float) -> int:
    """Return how many of `num_samples` a split trains on: `ratio` of them, rounded up; at least one."""
    return min(num_samples, math.ceil(num_samples * ratio - 1e-9))


def is_trained(positions: Positions, num_samples: int, ratio: float, seed: int) -> numpy.typing.NDArray[numpy.bool_]:
    """Return for each of `positions` whether it belongs to the training part, shape `(n,)`.

    Exactly `num_trained` of the positions `0 … num_samples - 1` do. A position's part depends on the seed and the
    number of samples only, never on the tokenizer or on samples that are dropped.
    """
    return permuted(positions, num_samples, seed) < numpy.uint64(num_trained(num_samples, ratio))


def permuted(positions: Positions, num_samples: int, seed: int) -> Positions:
    """Return where a keyed permutation of `0 … num_samples - 1` moves each position, shape `(n,)`.

    Source: Black, Rogaway, Ciphers with arbitrary finite domains (2002): a Feistel network with cycle walking.
    """
    half = max(1, (max(num_samples - 1, 1).bit_length() + 1) // 2)
    moved = _feistel(positions.astype(numpy.uint64), half, seed)
    while (outside := moved >= numpy.uint64(num_samples)).any():
        moved[outside] = _feistel(moved[outside], half, seed)
    return moved


def _feistel(values: Positions, half: int, seed: int) -> Positions:
    mask = numpy.uint64((1 << half) - 1)
    left, right = values >> numpy.uint64(half), values & mask
    for number in range(_ROUNDS):
        key = numpy.uint64((seed * _GOLDEN + (number + 1) * _MIX[0]) & (2**64 - 1))
        left, right = right, left ^ (_mixed(right + key) & mask)
    return (left << numpy.uint64(half)) | right


def _mixed(values: Positions) -> Positions:
    values = (values ^ (values >> numpy.uint64(30))) * numpy.uint64(_MIX[0])
    values = (values ^ (values >> numpy.uint64(27))) * numpy.uint64(_MIX[1])
    return values ^ (values >> numpy.uint64(31))
