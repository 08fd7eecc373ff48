"""How a model lies on the ranks, and the precision that it computes in. Public interfaces of PyTorch only."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import nn

from launcher.runtime import in_place
from launcher.runtime.finetune.models import blocks, compute_dtype, language_model
from launcher.runtime.finetune.settings import ParallelSettings
from launcher.runtime.process_group import Place

if TYPE_CHECKING:  # start-up time: torch.distributed.fsdp takes a while to import
    from torch.distributed.fsdp import FSDPModule

REPLICATED = "NO_SHARD"
_HYBRID = ("HYBRID_SHARD", "_HYBRID_SHARD_ZERO2")
_KEEPS_GATHERED = ("SHARD_GRAD_OP", "_HYBRID_SHARD_ZERO2")
"""Source: PyTorch, torch.distributed.fsdp.ShardingStrategy."""


@dataclass(frozen=True, slots=True)
class Plan:
    """How a model lies on the ranks, and in which precision it computes.

    Args:
        mesh: Ranks of `fully_shard`, `(shards,)` or `(replicas, shards)`; empty for complete parameters on each rank.
        exchanges: Whether DistributedDataParallel exchanges the gradients of complete parameters.
        autocast: Precision of the operations on complete parameters; None for that of the parameters.
        shard_dtype: Precision in which `fully_shard` gathers parameters and computes; None for theirs. Gradients are
            reduced, and parameters updated, in 32 bits.
        reshards: Whether blocks drop their gathered parameters after the forward pass. The root, which has embedding
            and head, never does: the backward pass begins with the head.
        offloads: Whether parameters and optimizer state wait in main memory.
        pins: Whether that memory, and the rows of a batch, are pinned.
        prefetches: Whether the next block is gathered during the forward pass of the one before.
    """

    mesh: tuple[int, ...] = ()
    exchanges: bool = False
    autocast: torch.dtype | None = None
    shard_dtype: torch.dtype | None = None
    reshards: bool = True
    offloads: bool = False
    pins: bool = False
    prefetches: bool = False


def plan_of(parallel: ParallelSettings, place: Place, *, freezes: bool) -> Plan:
    """Return how a model lies on the ranks. Looks at no device, so that every kind can be planned anywhere.

    The type of the place's device decides about precision and memory.

    Args:
        freezes: Whether most parameters are frozen, as with adapters.
    """
    has_accelerator = place.device.type != "cpu"
    dtype = compute_dtype(place.device)
    is_alone = place.world_size == 1
    # One rank has nothing to divide. On an accelerator fully_shard still saves memory where all parameters train: it
    # copies them into 16 bits one block at a time. Frozen ones have 16 bits, and would be copied for nothing.
    is_complete = is_alone and not (has_accelerator and (parallel.offloads or not freezes))
    if parallel.sharding == REPLICATED or is_complete:
        return Plan(exchanges=not is_alone, autocast=dtype, pins=has_accelerator)
    mesh: tuple[int, ...] = (place.world_size,)
    if parallel.sharding in _HYBRID and place.nodes > 1 and place.local_world_size > 1:
        mesh = (place.nodes, place.local_world_size)
    return Plan(
        mesh=mesh,
        shard_dtype=dtype,
        reshards=parallel.sharding not in _KEEPS_GATHERED,
        offloads=parallel.offloads,
        pins=has_accelerator,
        prefetches=parallel.prefetches,
    )


def recompute(model: nn.Module) -> None:
    """Recompute the activations of each block in the backward pass instead of keeping them.

    Source: transformers, `PreTrainedModel.activation_checkpointing_enable`; the reentrant form is the older one.
    """
    language_model(model).activation_checkpointing_enable(activation_checkpointing_kwargs={"use_reentrant": False})


def spread(
    root: nn.Module,
    model: nn.Module,
    parallel: ParallelSettings,
    place: Place,
    fill: Callable[[torch.device], None] | None = None,
) -> nn.Module:
    """Return `root` set up for the ranks that train it together; its parameters may be on the meta device.

    Args:
        root: Holds `model`; its forward pass is the only one that training calls. Its attribute `autocast` receives
            the precision of the plan.
        model: Its blocks are sharded one by one.
        fill: Replaces parameters on the meta device by weights; receives the device that they stay on.
    """
    plan = plan_for(model, parallel, place)
    cast(Any, root).autocast = plan.autocast
    if plan.mesh:
        _shard(root, model, plan, place)
    if fill:
        fill(torch.device("cpu") if plan.offloads else place.device)
    return exchanged(root, plan)


def plan_for(model: nn.Module, parallel: ParallelSettings, place: Place) -> Plan:
    """Return how this model lies on the ranks."""
    return plan_of(parallel, place, freezes=any(not each.requires_grad for each in model.parameters()))


def exchanged(root: nn.Module, plan: Plan) -> nn.Module:
    """Return `root` so that its gradients are exchanged, if the plan has DistributedDataParallel for that."""
    if not plan.exchanges:
        return root
    # Parameters and buffers are the same on all ranks, and gradients need no second copy in the buckets. What a
    # change in place brings replaces the first rank's parameters, which may be the ones that it lacks.
    return nn.parallel.DistributedDataParallel(
        root, broadcast_buffers=False, gradient_as_bucket_view=True, init_sync=not in_place.is_on()
    )


def _shard(root: nn.Module, model: nn.Module, plan: Plan, place: Place) -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, fully_shard

    names = ("replicate", "shard")[-len(plan.mesh) :]
    options: dict[str, Any] = {"mesh": init_device_mesh(place.device.type, plan.mesh, mesh_dim_names=names)}
    if plan.shard_dtype:
        options["mp_policy"] = MixedPrecisionPolicy(param_dtype=plan.shard_dtype, reduce_dtype=torch.float32)
    if plan.offloads:
        options["offload_policy"] = CPUOffloadPolicy(pin_memory=plan.pins)
    layers = blocks(model)
    for block in layers:
        fully_shard(block, reshard_after_forward=plan.reshards, **options)
    fully_shard(root, reshard_after_forward=False, **options)
    if plan.prefetches:
        for block, following in zip(layers, layers[1:], strict=False):
            block.set_modules_to_forward_prefetch([following])  # type: ignore[operator]  # fully_shard added it


def exchange_between_nodes(root: nn.Module, enabled: bool) -> None:
    """Exchange gradients between the replicas of hybrid sharding in the next pass, or only add up each rank's shards.

    Every pass gives all trained parameters of these models a gradient, which `fully_shard` relies on.
    """
    if hasattr(root, "set_requires_all_reduce"):
        cast("FSDPModule", root).set_requires_all_reduce(enabled)


def reshard(root: nn.Module) -> None:
    """Drop the gathered parameters that forward passes without a backward pass have left."""
    for module in root.modules():
        if hasattr(module, "reshard"):
            cast("FSDPModule", module).reshard()
