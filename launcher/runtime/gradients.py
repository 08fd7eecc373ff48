"""Gradients of uneven batches, so that every sample counts the same."""

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn


def loss_weight(num_samples: int, samples_per_step: int, world_size: int) -> float:
    """Return the factor for the mean loss of one forward pass of `num_samples` samples.

    DistributedDataParallel and fully_shard average over ranks, so a rank's gradient must be scaled by its
    part of the step times the world size for the average to be the mean over all samples.

    Source: PyTorch documentation, DistributedDataParallel: gradients are averaged across processes;
        torch.distributed.fsdp.fully_shard: gradients are divided by the data-parallel size.
    """
    return num_samples * world_size / samples_per_step


@contextmanager
def gradient_exchange(model: nn.Module, enabled: bool) -> Iterator[None]:
    """Exchange gradients between ranks in the passes inside, or only add them up on each rank."""
    if hasattr(model, "set_requires_gradient_sync"):  # fully_shard
        model.set_requires_gradient_sync(enabled)
        yield
    elif hasattr(model, "no_sync") and not enabled:  # DistributedDataParallel
        with model.no_sync():
            yield
    else:
        yield
