"""Batch arithmetic: how the samples of one optimizer step fall on the data-parallel ranks. Pure functions."""

from launcher.specs import BatchSplit

# Source of every formula here: "Using elastic training in Amazon SageMaker HyperPod", sections "Scale Config"
# and "Uneven Batch Size".


def even_split(samples: int, data_parallel_size: int) -> BatchSplit | None:
    """Return the split that gives every rank the same share, or None when there is none."""
    share, rest = divmod(samples, data_parallel_size)
    return BatchSplit(share, share, data_parallel_size) if share and not rest else None


def nearest_split(samples: int, data_parallel_size: int) -> BatchSplit | None:
    """Return the split whose largest share is smallest, or None when a rank would get no sample.

    `samples = small * num_small + (small + 1) * (W - num_small)` has exactly one solution with
    `0 < num_small <= W`, and no other split has a smaller largest share.
    """
    share, rest = divmod(samples, data_parallel_size)
    if not share:
        return None
    return BatchSplit(share, share + 1 if rest else share, data_parallel_size - rest)


def accumulation_steps(share: int, micro_batch_size: int) -> int | None:
    """Return the forward passes for `share` samples, or None when they do not divide."""
    return None if share % micro_batch_size else share // micro_batch_size


def largest_micro_batch(share: int, limit: int) -> int:
    """Return the largest divisor of `share` that is at most `limit` (both at least 1)."""
    return next(size for size in range(min(share, limit), 0, -1) if share % size == 0)
