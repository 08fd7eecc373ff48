"""The current batch of a job, and how loss and gradients are scaled so that every sample, or every token, counts the
same.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import nn

from launcher.runtime import process_group
from launcher.runtime.sampler import Batch, Draw, StepSampler
from launcher.runtime.stop_consensus import StopConsensus

if TYPE_CHECKING:  # start-up time: torch.distributed.fsdp takes a while to import
    from torch.distributed.fsdp import FSDPModule


class OutsideOfSteps(RuntimeError):
    """The script requested the current batch outside of a batch."""


class MixedDivision(ValueError):
    """Parts of the model divide their gradients by different factors, which no factor of the loss can undo."""


class LossWeighting:
    """The current batch, and the weighting of its loss, with which the ranks share whether one was asked to stop."""

    def __init__(self, model: nn.Module, sampler: StepSampler, event_pending: Callable[[], bool]):
        self.model, self.sampler = model, sampler
        self._event_pending = event_pending
        self._consensus = StopConsensus()
        self._draw: Draw | None = None
        self._loss: torch.Tensor | None = None
        self._reports_loss = False
        self._scale: float | None = None

    @property
    def batch(self) -> Batch:
        """The current batch: its place in the stream and in its step."""
        return self.draw.batch

    @property
    def draw(self) -> Draw:
        """The current batch with the dataset indices that the loader drew for it."""
        if self._draw is None:
            raise OutsideOfSteps("there is a batch only while `steps` is being iterated")
        return self._draw

    @property
    def completes_step(self) -> bool:
        """Whether the optimizer steps after the current batch; always, without micro batches."""
        return self.batch.completes_step

    @property
    def weight(self) -> float:
        """The factor of a loss that is a mean over the samples of the current batch, as `weigh` applies it."""
        return self._sample_share * self._gradient_scale

    def weigh(self, loss: torch.Tensor) -> torch.Tensor:
        """Return the loss to run backward from, and record it for the metrics: the mean over samples.

        The gradient is that of the mean over all samples of the optimizer step, each counted the same, if `loss`
        is a mean over samples. The mean over the tokens of a batch is not: where samples differ in length, the
        result depends on how they are grouped, and so on the number of ranks. Use `weigh_sum` for it.

        A script that calls this or `weigh_sum` does so on all ranks; one that reports no loss multiplies by
        `weight` itself.

        Args:
            loss: Mean over the samples of the current batch, shape `()`.
        """
        return self._add_part(loss, self._sample_share)

    def weigh_sum(self, total: torch.Tensor, step_total: float) -> torch.Tensor:
        """Return the loss to run backward from, and record it for the metrics: the mean over tokens.

        The gradient is that of the sum over the optimizer step divided by `step_total`: the mean over trained tokens
        if `step_total` counts those, or over whatever it counts. It depends neither on the grouping of samples nor
        on the number of ranks.

            job.weigh_sum(cross_entropy(..., reduction="sum"), job.step_sum(trained_tokens)).backward()

        Args:
            total: Sum over the current batch, shape `()`.
            step_total: Divisor of the sums of all ranks and batches of the optimizer step; the same
                number on all ranks, more than 0.
        """
        if not step_total > 0:
            raise ValueError(f"step_total={step_total}: a step needs something to train on; leave such samples out")
        return self._add_part(total, 1 / step_total if self.batch.positions else 0.0)

    def step_sum(self, per_sample: Sequence[float] | torch.Tensor) -> float:
        """Return the sum of `per_sample` over the samples of the current optimizer step, those of all ranks.

        Every rank knows the samples of all others, so nothing is exchanged.

        Args:
            per_sample: One number per sample of the dataset, in the memory of the CPU, as the number of its trained
                tokens; shape `(num_samples,)`. A tensor or an array is not copied.
        """
        batch, stream = self.batch, self.sampler.stream
        numbers = torch.as_tensor(per_sample)
        if numbers.shape != (stream.num_samples,):
            raise ValueError(
                f"per_sample has shape {tuple(numbers.shape)}; the dataset has {stream.num_samples} samples"
            )
        return numbers[stream.indices(range(batch.step_start, batch.step_stop))].sum().item()

    @property
    def _sample_share(self) -> float:
        return len(self.batch.positions) / self.batch.step_samples

    @property
    def _gradient_scale(self) -> float:
        if self._scale is None:
            self._scale = gradient_scale(self.model, self.sampler.world_size)
        return self._scale

    def _add_part(self, loss: torch.Tensor, share: float) -> torch.Tensor:
        """Return `loss` as its `share` of the step's loss, scaled for the exchange of gradients."""
        # Every rank that trains on a part contributes it once.
        own = loss.detach().double() * (share * self.sampler.world_size / process_group.world_size())
        self._loss = own if self._loss is None else self._loss + own
        self._reports_loss = True
        if self.completes_step:
            self._consensus.begin(self._loss, self._event_pending())
        return loss * (share * self._gradient_scale)


def gradient_scale(model: nn.Module, dp_size: int) -> float:
    """Return the factor that undoes the division of gradients by the number of ranks.

    DistributedDataParallel and fully_shard divide the sum of the ranks' gradients by the number of ranks. Where
    several ranks train on the same samples (tensor parallelism beside data parallelism), each of those gradients
    is either not part of the sum or part of it several times: the number of data-parallel ranks is the factor.
    `set_gradient_divide_factor` changes it.

    Args:
        dp_size: Ranks that train on different samples.

    Raises:
        MixedDivision: Some modules divide by another factor than others.

    Source: PyTorch documentation, DistributedDataParallel: gradients are averaged across processes;
        torch.distributed.fsdp.fully_shard: gradients are divided by the data-parallel size;
        FSDPModule.set_gradient_divide_factor: sets a custom divide factor.
    """
    groups = list(_parameter_groups(model))
    factors = [getattr(group, "gradient_divide_factor", None) for group in groups]
    if all(factor is None for factor in factors):
        return dp_size
    sizes: list[int] = [group.mesh_info.mesh.size() for group in groups]
    divisors = {float(factor or size) for factor, size in zip(factors, sizes, strict=True)}
    if len(divisors) > 1:
        found = " and ".join(map(str, sorted(divisors)))
        raise MixedDivision(f"modules divide gradients by {found}: call set_gradient_divide_factor on each of them")
    return divisors.pop() * dp_size / sizes[0]


def _parameter_groups(model: nn.Module) -> Iterator[Any]:
    # Of fully_shard: the factor has a public setter but no getter. Older versions of torch have one group per module.
    for module in model.modules():
        if hasattr(module, "_get_fsdp_state"):
            state: Any = cast("FSDPModule", module)._get_fsdp_state()
            found = getattr(state, "_fsdp_param_groups", None)
            groups = [state._fsdp_param_group] if found is None else found
            yield from (group for group in groups if group is not None)


@contextmanager
def gradient_exchange(model: nn.Module, enabled: bool) -> Iterator[None]:
    """Exchange gradients between ranks in the passes inside, or only accumulate them on each rank.

    Sharded gradients are reduced in every pass, whatever `enabled`: until then each rank would hold the gradients of
    the complete model. A script that gives every trained parameter a gradient in every pass may leave the exchange
    between the replicas of hybrid sharding to the last pass of a step, which takes no more memory:
    `model.set_requires_all_reduce(job.completes_step)`.

    Source: PyTorch documentation, FSDPModule.set_requires_gradient_sync and set_requires_all_reduce.
    """
    if hasattr(model, "set_requires_gradient_sync"):  # fully_shard
        if not is_sharded(model):
            cast("FSDPModule", model).set_requires_gradient_sync(enabled)
        yield
    elif hasattr(model, "no_sync") and not enabled:  # DistributedDataParallel
        with cast(nn.parallel.DistributedDataParallel, model).no_sync():
            yield
    else:
        yield


def is_sharded(model: nn.Module) -> bool:
    """Return whether fully_shard keeps parameters elsewhere: divided among ranks, or in the memory of the CPU."""
    # Not read off the parameters: those that a forward pass gathered, and no backward pass followed, are plain ones.
    return any(
        getattr(group.mesh_info, "shard_mesh_size", 1) > 1 or any(each.offload_to_cpu for each in group.fsdp_params)
        for group in _parameter_groups(model)
    )
