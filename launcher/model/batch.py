"""Batch arithmetic: how the samples of one optimizer step are distributed to the data-parallel ranks. Pure
functions."""

import math
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from launcher.model.job_spec import BatchSplit
from launcher.runtime.shares import passes

# Source of every formula here: "Using elastic training in Amazon SageMaker HyperPod", sections "Scale Config"
# and "Uneven Batch Size".


def nearest_split(samples: int, data_parallel_size: int) -> BatchSplit | None:
    """Return the split whose largest share is smallest, or None when a rank would get no sample.

    `samples = small * num_small + (small + 1) * (W - num_small)` has exactly one solution with
    `0 < num_small <= W`, and no other split has a smaller largest share.
    """
    share, rest = divmod(samples, data_parallel_size)
    if not share:
        return None
    return BatchSplit(share, share + 1 if rest else share, data_parallel_size - rest)


def largest_micro_batch(share: int, limit: int) -> int:
    """Return the largest divisor of `share` that is at most `limit` (both at least 1).

    A divisor above the square root has its counterpart below, so no more numbers are tried.
    """
    root = math.isqrt(share)
    for counterpart in range(-(-share // limit), root + 1):
        if share % counterpart == 0:
            return share // counterpart
    return next(size for size in range(min(root, limit), 0, -1) if share % size == 0)


class Fit(NamedTuple):
    """How one size trains its samples; the passes are those of the ranks with the larger share."""

    split: BatchSplit
    micro_batch_size: int
    grad_accumulation: int


def fit(samples: int, data_parallel_size: int, max_micro_batch_size: int) -> Fit | None:
    """Return how `samples` per optimizer step are trained best, or None when a rank would get none.

    Minimizes first the largest share, so that ranks idle least; then the number of passes;
    then their micro batch. Equal shares are split into equal passes, because a trainer
    that accumulates them supports only one size of pass.
    """
    split = nearest_split(samples, data_parallel_size)
    if split is None:
        return None
    if split.is_even:
        micro = largest_micro_batch(split.large, max_micro_batch_size)
        return Fit(split, micro, split.large // micro)
    return Fit(split, *passes(split.large, max_micro_batch_size))


def divisors(number: int, least: int = 1, most: int | None = None) -> str:
    """Return the divisors of a number from `least` to `most`, by default the number itself, for people.

    A divisor above the square root has its counterpart below, so no more numbers are tried, and none above `most`.
    """
    most = most or number
    found = {each for each in range(1, min(math.isqrt(number), most) + 1) if number % each == 0}
    found |= {number // each for each in found}
    return ", ".join(str(each) for each in sorted(found) if least <= each <= most)


def no_faster_than(shares: Iterable[float]) -> Iterator[int | None]:
    """Yield for each size, smallest first, the index of the first smaller one that is as fast; None if none is.

    The largest share of a size, per sample if the batches differ, determines the time of its step: one that is not
    smaller than that of fewer ranks gains nothing from its ranks.
    """
    fastest: tuple[float, int] | None = None
    for index, share in enumerate(shares):
        if fastest is None or share < fastest[0]:
            fastest = share, index
            yield None
        else:
            yield fastest[1]
