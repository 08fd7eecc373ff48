"""Gradients of uneven batches, so that every sample, or every token, counts the same."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, cast

from torch import nn

if TYPE_CHECKING:  # start-up time: torch.distributed.fsdp takes a while to import
    from torch.distributed.fsdp import FSDPModule


class MixedDivision(ValueError):
    """Parts of the model divide their gradients by different factors, which no factor of the loss can undo."""


def gradient_scale(model: nn.Module, dp_size: int) -> float:
    """Return the factor that undoes the division of gradients by the number of ranks.

    DistributedDataParallel and fully_shard divide the sum of the ranks' gradients by the number of ranks. Where
    several ranks train on the same samples (tensor parallelism beside data parallelism), each of those gradients
    is either not part of the sum or part of it several times: the number of data-parallel ranks is the factor.
    `set_gradient_divide_factor` changes it.

    Args:
        model: Plain, in DistributedDataParallel, or after fully_shard.
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
        factors_found = " and ".join(map(str, sorted(divisors)))
        raise MixedDivision(
            f"modules divide gradients by {factors_found}: call set_gradient_divide_factor on each of them"
        )
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
