"""How a model is spread over the ranks. Public interfaces of PyTorch only."""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from launcher.runtime.finetune.models import blocks, language_model
from launcher.runtime.finetune.settings import ParallelSettings
from launcher.runtime.process_group import Place

REPLICATED = "NO_SHARD"
_HYBRID = ("HYBRID_SHARD", "_HYBRID_SHARD_ZERO2")
_KEEPS_GATHERED = ("SHARD_GRAD_OP", "_HYBRID_SHARD_ZERO2")
"""Source: PyTorch, torch.distributed.fsdp.ShardingStrategy."""


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
        root: Holds `model`; its forward pass is the only one that training calls.
        model: Its blocks are sharded one by one.
        parallel: How.
        place: Of this process, which has joined the process group.
        fill: Replaces parameters on the meta device by weights; receives the device that they stay on.
    """
    # One rank on the CPU has nothing to divide; an accelerator also gets its precision from fully_shard.
    is_alone = place.world_size == 1 and place.device.type == "cpu"
    if is_alone or parallel.sharding == REPLICATED:
        if fill:
            fill(place.device)
        return root if is_alone else nn.parallel.DistributedDataParallel(root)
    from torch.distributed.fsdp import fully_shard  # start-up time: replicas do without it

    options = _options(parallel, place)
    layers = blocks(model)
    for block in layers:
        fully_shard(block, **options)
    fully_shard(root, **options)
    if parallel.prefetches:
        for block, following in zip(layers, layers[1:], strict=False):
            block.set_modules_to_forward_prefetch([following])  # type: ignore[operator]  # fully_shard added it
    if fill:
        fill(torch.device("cpu") if parallel.offloads else place.device)
    return root


def _options(parallel: ParallelSettings, place: Place) -> dict[str, Any]:
    """Return the arguments of `fully_shard`."""
    from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy

    options: dict[str, Any] = {
        "mesh": _mesh(parallel, place),
        "reshard_after_forward": parallel.sharding not in _KEEPS_GATHERED,
    }
    if place.device.type == "cuda":
        options["mp_policy"] = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    if parallel.offloads:
        options["offload_policy"] = CPUOffloadPolicy(pin_memory=place.device.type == "cuda")
    return options


def _mesh(parallel: ParallelSettings, place: Place) -> Any:
    """Return the ranks in one dimension, or in two: replicas on the nodes, shards within each."""
    from torch.distributed.device_mesh import init_device_mesh

    kind = place.device.type
    if parallel.sharding in _HYBRID and place.nodes > 1 and place.local_world_size > 1:
        shape = (place.nodes, place.local_world_size)
        return init_device_mesh(kind, shape, mesh_dim_names=("replicate", "shard"))
    return init_device_mesh(kind, (place.world_size,), mesh_dim_names=("shard",))
