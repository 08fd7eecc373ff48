"""Expected cost of a recipe's checkpoints: sizes and times at each of its sizes. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from launcher.checkpointing.cadence import RATE_PER_NODE_HOUR, Saving, mtbf_s
from launcher.checkpointing.sizes import GB, Share, share
from launcher.model.checked_recipe import CheckedRecipe
from launcher.model.checkpoint_content import Content, Sharding
from launcher.model.checkpointing import Checkpointing, Estimate

RESTART_S, COPY_GB_PER_S, MEMORY_GB_PER_S, PERSISTENT_GB_PER_S = 300.0, 40.0, 10.0, 1.0
"""Defaults of the recipe's estimate. Our own choice, on the slow side: measure yours."""
WAITING, PERSISTENT, MEMORY = "persistent storage, training waits", "persistent storage", "memory"
WAYS = (WAITING, PERSISTENT, MEMORY)
"""Ways of saving: to persistent storage while training waits, in the background, and to memory in the background."""


@dataclass(frozen=True, slots=True)
class Forecast:
    """Forecast for a recipe's checkpoints. Rates in GB/s per node, times in seconds.

    Args:
        content: Content of a checkpoint.
        ranks_per_node: Processes per node.
        sizes: Numbers of nodes the job may have, ascending.
        section: The recipe's section; an empty one if it has none.
        failures_per_node_hour: Failures of one node per hour.
        restart_s: Time from a failure until training continues.
        step_s: Time of one optimizer step; None if unknown.
        copy_rate: Rate from the devices to main memory.
        memory_rate: Rate to the memory tier.
        persistent_rate: Rate to persistent storage.
        storage_rate: Total rate of persistent storage for all nodes; None without a bound.
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

    def share(self, nodes: int) -> Share:
        """Return how a checkpoint is spread over the ranks at a size."""
        return self.share_of(self.content.sharding, nodes)

    def share_of(self, sharding: Sharding, nodes: int) -> Share:
        """Return the same for another sharding of states."""
        content = self.content
        return share(content.total_bytes, sharding, nodes, self.ranks_per_node, is_dealt=content.is_dealt)

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

    def saving(self, way: str, nodes: int) -> Saving:
        """Return the cost of one of `WAYS` of saving at a size."""
        copy_s, failures_s = self.copy_s(nodes), mtbf_s(self.failures_per_node_hour, nodes)
        save_s = copy_s + (self.memory_s(nodes) if way == MEMORY else self.persistent_s(nodes))
        blocked_s = save_s if way == WAITING else copy_s
        return Saving(blocked_s, save_s, self.restart_s, failures_s)


def forecast(
    checked: CheckedRecipe, estimate: Estimate | None = None, model_config: Mapping[str, Any] | None = None
) -> Forecast | None:
    """Return the forecast for a checked recipe's checkpoints; None if its parameters are unknown.

    Args:
        checked: The recipe.
        estimate: Estimate that replaces the recipe's own.
        model_config: A model's config.json that replaces the recipe's model.

    Raises:
        UnknownArchitecture: The configuration's architecture is not supported.
    """
    section = checked.recipe.checkpointing or Checkpointing()
    known = estimate or section.estimate or Estimate()
    content = _content(checked, known, model_config)
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
    )


def _content(checked: CheckedRecipe, known: Estimate, model_config: Mapping[str, Any] | None) -> Content | None:
    """Return what a family saves, with what is known in its place; None while the parameters are unknown."""
    own = checked.recipe.content(None if known.parameters else model_config, checked.published_model)
    saved = known.parameters or own.saved
    if not saved:
        return None
    parameters = own.parameters if saved == own.saved else None
    return Content(
        saved,
        known.dtype or own.dtype,
        known.optimizer or own.optimizer,
        known.sharding or own.sharding,
        parameters,
        own.is_dealt,
    )
