"""Sizes of checkpoints, and the parts that each rank holds and writes.

GiB are 2**30 bytes, GB are 1e9. The document on managed tiered checkpointing divides by 2**30 and writes GB.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from launcher.checkpointing.architecture import Weight
from launcher.model.checkpointing import Sharding

GIB, GB = 2**30, 10**9


@dataclass(frozen=True, slots=True)
class Share:
    """Distribution of a checkpoint over the ranks, in bytes.

    Args:
        sharding: How states are sharded.
        held: State that one rank holds.
        written: Maximum that one rank writes.
        writers: Number of ranks that write.
        node_written: Maximum that one node writes.
    """

    sharding: Sharding
    held: int
    written: int
    writers: int
    node_written: int


def share(total_bytes: int, sharding: Sharding, nodes: int, ranks_per_node: int, *, is_dealt: bool = False) -> Share:
    """Return the distribution of a checkpoint over the ranks.

    `fsdp` shards over all ranks, `hsdp` over those of a node with a replica on each node, `ddp` not at all. Of
    replicas each part is written once, spread evenly; of `ddp` one rank writes everything unless it `is_dealt` out.

    Source: AWS, managed tiered checkpointing, Solution overview (FSDP and DDP); PyTorch,
    torch.distributed.checkpoint: saves of replicated tensors are deduplicated over the ranks (HSDP, and DDP dealt).
    """
    ranks = nodes * ranks_per_node
    if sharding == "ddp" and not is_dealt:
        return Share(sharding, total_bytes, total_bytes, 1, total_bytes)
    group = {"fsdp": ranks, "hsdp": ranks_per_node, "ddp": 1}[sharding]
    held, written, on_node = (-(-total_bytes // parts) for parts in (group, ranks, nodes))
    return Share(sharding, held, written, ranks, on_node)


def lora_parameters(weights: Iterable[Weight], peft: Mapping[str, Any]) -> int:
    """Return the trained parameters of low-rank adapters.

    Routers, and experts that are one parameter, are not linear layers: only `target_parameters` reaches the latter.

    Args:
        weights: Weights of the model.
        peft: The recipe's `peft_config`.

    Source: Hu et al., LoRA (2021), section 4.1: r·(inputs + outputs) each; PEFT, LoraConfig: all-linear omits
    the head, bias, use_dora (Liu et al., DoRA (2024): one magnitude for each output), target_parameters.
    """
    total, weights = 0, tuple(weights)
    for weight in weights:
        is_adapted = _is_adapted(weight, peft)
        if is_adapted:
            each = peft["r"] * (weight.inputs + weight.outputs)
            total += weight.count * (each + (weight.outputs if peft.get("use_dora") else 0))
        if peft["bias"] == "all" or (peft["bias"] == "lora_only" and is_adapted):
            total += weight.count * weight.biases
    return total


def _is_adapted(weight: Weight, peft: Mapping[str, Any]) -> bool:
    targets, excluded = peft["target_modules"], peft.get("exclude_modules") or ()
    if weight.kind == "experts":
        return _is_named(weight.name, peft.get("target_parameters") or ())
    if weight.kind not in ("linear", "head") or _is_named(weight.name, excluded):
        return False
    if targets == "all-linear":
        return weight.kind == "linear"
    return _is_named(weight.name, [targets] if isinstance(targets, str) else targets)


def _is_named(name: str, names: Iterable[str]) -> bool:
    """Return whether a weight is one of `names`, each its name or the end of it from a dot on."""
    return any(name == each or name.endswith(f".{each}") for each in names)


SERVICE_HOST_COPIES = 4
"""Copies of a node's part in the pods' memory, beside the service's: three saves that are staged at once, and one as
the body of a request. Source: launcher/runtime/tiers, CheckpointManager and MemoryService; the vendor's own writer
has two, amzn-sagemaker-checkpointing 1.1.3, checkpointing/filesystem/writer.py."""


def memory_needed(node_bytes: int, retention: int, replicas: int, host_copies: int = 1) -> int:
    """Return the maximum bytes of main memory that the memory tier uses on one node.

    Each node holds `retention` checkpoints and the one being written, of its own and of `replicas` neighbours, and
    the host copies that the devices' state is first copied to.

    Source: AWS, managed tiered checkpointing, Solution overview: a copy in the instance's memory, then a replica on
    adjacent nodes.
    """
    return node_bytes * ((retention + 1) * (1 + replicas) + host_copies)
