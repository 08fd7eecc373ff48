"""Expected cost of a recipe's checkpoints: bytes and times at each of its sizes, and how often to save. Pure.

Times are in seconds. GiB are 2**30 bytes, GB are 1e9: the document on managed tiered checkpointing divides by 2**30
and writes GB.
"""

import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from launcher.model.checked_recipe import CheckedRecipe
from launcher.model.checkpointing import Checkpointing, Content, Estimate, Sharding

GIB, GB = 2**30, 10**9
RATE_PER_NODE_HOUR = 419 / (54 * 24 * 2048)
"""Failures of one node per hour: 419 in 54 days of 16,384 GPUs, eight per node.

Source: Grattafiori et al., The Llama 3 Herd of Models (2024), section 3.3.4.
"""
_EXPONENT_LIMIT = 700
"""Largest exponent x for which e**x is a float."""
RESTART_S, COPY_GB_PER_S, MEMORY_GB_PER_S, PERSISTENT_GB_PER_S = 300.0, 40.0, 10.0, 1.0
"""Defaults of the recipe's estimate. Our own choice, on the slow side: measure yours."""
WAITING, PERSISTENT, MEMORY = "persistent storage, training waits", "persistent storage", "memory"
WAYS = (WAITING, PERSISTENT, MEMORY)
"""Ways of saving: to persistent storage while training waits, in the background, and to memory in the background."""


@dataclass(frozen=True, slots=True)
class Share:
    """Distribution of a checkpoint over the ranks, in bytes.

    Args:
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


@functools.lru_cache  # the ways of saving at a size ask for the same one
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


@dataclass(frozen=True, slots=True)
class Saving:
    """The cost of one way of saving.

    Args:
        blocked_s: Time for which training stops.
        save_s: Time after which the checkpoint can be loaded; at least `blocked_s`.
        restart_s: Time from a failure until training continues.
        mtbf_s: Mean time between two failures of the job.
    """

    blocked_s: float
    save_s: float
    restart_s: float
    mtbf_s: float

    @property
    def interval_s(self) -> float:
        """Training between two saves with the least expected loss; never so short that two saves overlap."""
        return max(daly(self.blocked_s, self.mtbf_s), self.save_s - self.blocked_s, math.ulp(1.0))

    def goodput(self, interval_s: float) -> float:
        """Return the expected fraction of time, 0 to 1, in which training makes lasting progress.

        A failure also loses the work of a save in progress: `save_s` minus the time that training waits for.

        Args:
            interval_s: Training between two saves.

        Source: Daly, A higher order estimate of the optimum checkpoint interval for restart dumps (2006), equation
        of the complete cost function, T = M·e^(R/M)·(e^((τ+δ)/M) − 1)·Ts/τ; the time of a save under way, which that
        model does not have, is added to R.
        """
        mtbf, lost = self.mtbf_s, self.restart_s + self.save_s - self.blocked_s
        exponent = (interval_s + self.blocked_s) / mtbf
        if max(exponent, lost / mtbf) > _EXPONENT_LIMIT:
            return 0.0
        return interval_s / (mtbf * math.exp(lost / mtbf) * math.expm1(exponent))


def young(cost_s: float, mtbf_s: float) -> float:
    """Return the interval of the first order.

    Source: Young, A first order approximation to the optimum checkpoint interval (1974): √(2·δ·M).
    """
    return math.sqrt(2 * cost_s * mtbf_s)


def daly(cost_s: float, mtbf_s: float) -> float:
    """Return the interval of the higher order, the training between two saves.

    Source: Daly (2006), τ = √(2δM)·(1 + ⅓·√(δ/2M) + ⅑·(δ/2M)) − δ where δ < 2M, else M.
    """
    if cost_s >= 2 * mtbf_s:
        return mtbf_s
    part = cost_s / (2 * mtbf_s)
    return young(cost_s, mtbf_s) * (1 + math.sqrt(part) / 3 + part / 9) - cost_s


def mtbf_s(rate_per_node_hour: float, nodes: int) -> float:
    """Return the mean time between failures of a job whose nodes fail independently, any one of which stops it."""
    return 3600 / (rate_per_node_hour * nodes)


@dataclass(frozen=True, slots=True)
class Copies:
    """The cost of copies with neighbours: every so many steps, in main memory of each node, and while training waits.

    Source: launcher.runtime.neighbours.
    """

    every: int
    node_bytes: int
    blocked_s: float


@dataclass(frozen=True, slots=True)
class Forecast:
    """Forecast for a recipe's checkpoints. Rates in GB/s per node, times in seconds.

    Args:
        sizes: Numbers of nodes the job may have, ascending.
        section: The recipe's section; an empty one if it has none.
        restart_s: Time from a failure until training continues.
        step_s: Time of one optimizer step; None if unknown.
        copy_rate: Rate from the devices to main memory.
        memory_rate: Rate to the memory tier.
        persistent_rate: Rate to persistent storage.
        storage_rate: Total rate of persistent storage for all nodes; None without a bound.
        assumed_model: The published model whose weights were counted, if the job's are in a folder and only the
            recipe's files name it; else empty.
    """

    content: Content
    ranks_per_node: int
    sizes: tuple[int, ...]
    section: Checkpointing
    failures_per_node_hour: float
    restart_s: float
    step_s: float | None
    copy_rate: float
    memory_rate: float
    persistent_rate: float
    storage_rate: float | None
    assumed_model: str = ""

    def share(self, nodes: int, sharding: Sharding | None = None) -> Share:
        """Return how a checkpoint is spread over the ranks at a size: by the recipe's sharding, or another."""
        total, sharding = self.content.total_bytes, sharding or self.content.sharding
        return share(total, sharding, nodes, self.ranks_per_node, is_dealt=self.content.is_dealt)

    def copy_s(self, nodes: int) -> float:
        """Return how long training waits while the state is copied to main memory."""
        return self.share(nodes).node_written / (self.copy_rate * GB)

    def persistent_s(self, nodes: int) -> float:
        """Return the time of a checkpoint to persistent storage: that of the slowest node, or of the storage."""
        own = self.share(nodes).node_written / (self.persistent_rate * GB)
        shared = self.content.total_bytes / (self.storage_rate * GB) if self.storage_rate else 0.0
        return max(own, shared)

    def memory_s(self, nodes: int) -> float:
        """Return how long a checkpoint takes to the memory tier."""
        return self.share(nodes).node_written / (self.memory_rate * GB)

    def copies(self, nodes: int) -> "Copies | None":
        """Return the cost of copies of a sharded state with neighbours; None if the recipe asks for none."""
        every = self.section.copy_every
        if every is None or self.content.sharding != "fsdp" or nodes < 2:
            return None
        node_bytes = self.share(nodes).node_written
        # Two copies are kept, each of a node's own rows and of those of its neighbour.
        blocked_s = self.copy_s(nodes) + self.memory_s(nodes)
        return Copies(every, 4 * node_bytes, blocked_s)

    def saving(self, way: str, nodes: int) -> Saving:
        """Return the cost of one of `WAYS` of saving at a size."""
        copy_s = self.copy_s(nodes)
        save_s = copy_s + (self.memory_s(nodes) if way == MEMORY else self.persistent_s(nodes))
        blocked_s = save_s if way == WAITING else copy_s
        return Saving(blocked_s, save_s, self.restart_s, mtbf_s(self.failures_per_node_hour, nodes))


def forecast(
    checked: CheckedRecipe, estimate: Estimate | None = None, model_config: Mapping[str, Any] | None = None
) -> Forecast | None:
    """Return the forecast for a checked recipe's checkpoints; None if its parameters are unknown.

    Args:
        estimate: Estimate that replaces the recipe's own.
        model_config: A model's config.json that replaces the recipe's model; UnknownArchitecture if not supported.
    """
    # Defaults are valid: validating them would build the validators of both, for every launch.
    section = checked.recipe.checkpointing or Checkpointing.model_construct()
    known = estimate or section.estimate or Estimate.model_construct()
    model = checked.recipe.counted_model(checked.composition.sources)
    content = _content(checked, known, model_config, model)
    if content is None:
        return None
    return Forecast(
        content=content,
        ranks_per_node=checked.devices,
        sizes=tuple(scale.nodes for scale in checked.sizes),
        section=section,
        failures_per_node_hour=known.failures_per_node_hour or RATE_PER_NODE_HOUR,
        restart_s=known.restart_s or RESTART_S,
        step_s=known.step_s,
        copy_rate=known.copy_gb_per_s or COPY_GB_PER_S,
        memory_rate=known.memory_gb_per_s or MEMORY_GB_PER_S,
        persistent_rate=known.persistent_gb_per_s or PERSISTENT_GB_PER_S,
        storage_rate=known.storage_gb_per_s,
        assumed_model="" if known.parameters or model_config or model == checked.published_model else model,
    )


def _content(
    checked: CheckedRecipe, known: Estimate, model_config: Mapping[str, Any] | None, model: str
) -> Content | None:
    """Return what a family saves, with what is known in its place; None while the parameters are unknown."""
    own = checked.recipe.content(None if known.parameters else model_config, model)
    saved = known.parameters or own.saved
    if not saved:
        return None
    kinds = (known.dtype or own.dtype, known.optimizer or own.optimizer, known.sharding or own.sharding)
    return Content(saved, *kinds, own.parameters if saved == own.saved else None, own.is_dealt)
