"""Gradients of uneven batches, weighted so that every sample counts the same."""

from collections.abc import Callable, Iterator
from contextlib import nullcontext

import torch
from torch import nn


def loss_weight(num_samples: int, samples_per_step: int, world_size: int) -> float:
    """Return the factor for the mean loss of one forward pass of `num_samples` samples.

    DistributedDataParallel averages over ranks, so a rank's gradient must be scaled by its part of
    the step times the world size for the average to be the mean over all samples.

    Source: PyTorch documentation, DistributedDataParallel: gradients are averaged across processes.
    """
    return num_samples * world_size / samples_per_step


def micro_batches(num_samples: int, micro: int) -> Iterator[range]:
    """Yield the parts, of at most `micro`, that a rank's `num_samples` samples are processed in.

    A rank without samples gets one empty part: it must still take part in the gradient exchange.
    """
    for start in range(0, max(num_samples, 1), micro):
        yield range(start, min(start + micro, num_samples))


def accumulate_gradients(
    model: nn.Module,
    mean_loss: Callable[[torch.Tensor], torch.Tensor],
    batch: torch.Tensor,
    *,
    micro: int,
    samples_per_step: int,
    world_size: int,
) -> torch.Tensor:
    """Run forward and backward over a rank's samples of one optimizer step.

    Args:
        model: Wrapped in DistributedDataParallel, or plain on a single process.
        mean_loss: Returns the mean loss of some rows of `batch`; it calls `model`.
        batch: One sample a row; no rows where this rank has none in this step.
        micro: Most rows in one forward pass.
        samples_per_step: Samples of all ranks.
        world_size: Number of ranks.

    Returns:
        This rank's part of the mean loss over all samples, shape `()`: the sum over ranks is the loss.
    """
    parts = list(micro_batches(len(batch), micro))
    loss = torch.zeros((), device=batch.device)
    for part in parts:
        is_last = part is parts[-1]
        rows = batch[part.start : part.stop] if part else batch.new_zeros((1, *batch.shape[1:]))
        with nullcontext() if is_last or not hasattr(model, "no_sync") else model.no_sync():
            weighted = mean_loss(rows) * loss_weight(len(part), samples_per_step, world_size)
            weighted.backward()
        loss += weighted.detach() / world_size
    return loss
