"""The tiers of a job: their place, how often they are saved to, and how many checkpoints they keep."""

from dataclasses import dataclass

from launcher.runtime.tiers.node_memory import NodeMemory
from launcher.runtime.tiers.stores import Store


@dataclass(frozen=True, slots=True)
class StoreTier:
    """A store, how often it is saved to, and how many checkpoints it keeps.

    Args:
        store: The store.
        frequency: Optimizer steps between two saves.
        retention: Published checkpoints kept.
    """

    store: Store
    frequency: int
    retention: int


@dataclass(frozen=True, slots=True)
class MemoryTier:
    """The memory of the nodes.

    Args:
        memory: This rank's view of its node.
        frequency: Optimizer steps between two saves.
        ranks_per_node: The first rank of each node writes the manifests there.
        replicas: Number of neighbour nodes that each keep a copy.
    """

    memory: NodeMemory
    frequency: int
    ranks_per_node: int
    replicas: int

    def neighbours(self, rank: int, world_size: int) -> list[tuple[int, int]]:
        """Return, for each replica, the rank that keeps this rank's shard and the one whose shard this rank keeps."""
        steps = [self.ranks_per_node * (1 + copy) for copy in range(self.replicas)]
        return [((rank + step) % world_size, (rank - step) % world_size) for step in steps if step < world_size]
