"""The sources of a checkpoint's shards: a store that all ranks reach, or the memory of the nodes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from launcher.runtime.tiers.node_memory import NodeMemory
from launcher.runtime.tiers.rank_group import Ranks
from launcher.runtime.tiers.read_plan import Layout, ReadPlan, Wanted, from_nodes, from_store
from launcher.runtime.tiers.shards import Broken, Manifest, Shard
from launcher.runtime.tiers.stores import Store


@dataclass(frozen=True, slots=True)
class Reason:
    """Why a shard cannot be used, and whether it is proven broken."""

    text: str
    is_damage: bool

    @staticmethod
    def of(error: Exception) -> "Reason":
        """Return the reason in an error."""
        return Reason(str(error), isinstance(error, Broken))


class Shards(Protocol):
    """The shards of a save.

    Args:
        is_everywhere: Whether every rank can read all it needs by itself.
        keeps: Whether data to send is kept when this rank reads it; otherwise it is read when it is sent.
    """

    is_everywhere: bool
    keeps: bool

    def plan(self, wanted: Sequence[Wanted], layout: Layout) -> ReadPlan:
        """Return which rank reads which bytes; `wanted` has shape `(num_ranks,)`."""

    def open(self, writer: int) -> Shard:
        """Return the shard of a rank.

        Raises:
            Broken: It is damaged.
            TierFailure: It cannot be read now.
            OSError: As above.
        """


class StoreShards:
    """The shards of a save in a store."""

    is_everywhere, keeps = False, True

    def __init__(self, store: Store, manifest: Manifest):
        self._store, self._manifest = store, manifest

    def plan(self, wanted: Sequence[Wanted], layout: Layout) -> ReadPlan:
        return from_store(wanted, layout, is_ranged=self._store.is_ranged)

    def open(self, writer: int) -> Shard:
        return self._store.open(self._manifest.key, writer, self._manifest.sizes[writer])


@dataclass(frozen=True, slots=True)
class Copy:
    """A shard in the memory of a node.

    Args:
        node: Its name.
        is_replica: Whether it is a copy of a neighbour's.
    """

    node: str
    is_replica: bool


class Nodes:
    """The shards of one save in the memory of several nodes.

    Args:
        memory: This rank's view of its node.
        nodes: The node of each rank, shape `(num_ranks,)`.
        copies: The copies of each shard, by the rank that wrote it; the best first.
    """

    keeps = False

    def __init__(
        self,
        memory: NodeMemory,
        ranks: Ranks,
        nodes: list[str],
        copies: Mapping[int, list[Copy]],
        manifest: Manifest,
    ):
        self._memory, self._nodes, self._copies, self._manifest = memory, nodes, copies, manifest
        self._here = nodes[ranks.rank]
        self.is_everywhere = all(set(nodes) <= {copy.node for copy in each} for each in copies.values())

    def chosen(self, writer: int, node: str) -> Copy:
        """Return the copy that a rank on `node` uses: the one on its own node, otherwise the best."""
        near = [copy for copy in self._copies[writer] if copy.node == node]
        return (near or self._copies[writer])[0]

    def plan(self, wanted: Sequence[Wanted], layout: Layout) -> ReadPlan:
        nodes = [self._here] if self.is_everywhere else self._nodes
        return from_nodes(wanted, layout, nodes, lambda writer, node: self.chosen(writer, node).node)

    def open(self, writer: int) -> Shard:
        copy, manifest = self.chosen(writer, self._here), self._manifest
        return self._memory.open(manifest.key, writer, manifest.sizes[writer], is_replica=copy.is_replica)
