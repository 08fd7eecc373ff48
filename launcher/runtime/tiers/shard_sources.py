"""Where the shards of a checkpoint are read from: a store that all ranks reach, or the memory of the nodes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from launcher.runtime.tiers.node_memory import NodeMemory
from launcher.runtime.tiers.ranges import Layout
from launcher.runtime.tiers.rank_group import Ranks
from launcher.runtime.tiers.read_plan import Sharing, Wanted, from_nodes, from_store
from launcher.runtime.tiers.shards import Broken, Key, Manifest, Shard
from launcher.runtime.tiers.stores import Store


@dataclass(frozen=True, slots=True)
class Reason:
    """Why a shard cannot be used, and whether it is proven broken."""

    text: str
    is_damage: bool

    @staticmethod
    def of(error: Exception) -> "Reason":
        """Return the reason that an error gives."""
        return Reason(str(error), isinstance(error, Broken))


class Shards(Protocol):
    """The shards of a save.

    Args:
        is_everywhere: Whether every rank reads all it wants by itself.
        keeps: Whether what is sent is kept from when it was read for this rank; else it is read when it is sent.
    """

    is_everywhere: bool
    keeps: bool

    def sharing(self, wanted: Sequence[Wanted], layout: Layout) -> Sharing:
        """Return who reads what, where these bytes are wanted, shape `(num_ranks,)`."""

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

    def sharing(self, wanted: Sequence[Wanted], layout: Layout) -> Sharing:
        return from_store(wanted, layout, is_ranged=self._store.is_ranged)

    def open(self, writer: int) -> Shard:
        return self._store.open(self._manifest.key, writer, self._manifest.sizes[writer])


@dataclass(frozen=True, slots=True)
class Copy:
    """A shard in the memory of a node.

    Args:
        node: Which one.
        is_replica: Whether it is a copy of a neighbour's.
    """

    node: str
    is_replica: bool


class Nodes:
    """Shards of one save in the memory of several nodes, and which rank gives one away.

    Args:
        memory: This rank's view of its node.
        nodes: The node of each rank, shape `(num_ranks,)`.
        copies: Which nodes have a shard, by the rank that wrote it; the best first.
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
        """Return the copy that a rank on `node` takes: the one on its own node, else the best there is."""
        near = [copy for copy in self._copies[writer] if copy.node == node]
        return (near or self._copies[writer])[0]

    def sharing(self, wanted: Sequence[Wanted], layout: Layout) -> Sharing:
        nodes = [self._here] if self.is_everywhere else self._nodes
        return from_nodes(wanted, layout, nodes, lambda writer, node: self.chosen(writer, node).node)

    def open(self, writer: int) -> Shard:
        copy, manifest = self.chosen(writer, self._here), self._manifest
        return self._memory.open(manifest.key, writer, manifest.sizes[writer], is_replica=copy.is_replica)


def copies_of(key: Key, holdings: list[tuple[str, list[tuple[int, bool]]]]) -> dict[int, list[Copy]]:
    """Return who has which shard of a save, by the rank that wrote it; originals before replicas.

    Args:
        key: The save.
        holdings: Of each node once: its name, and writer and `is_replica` of each shard of `key` there.
    """
    found: dict[int, set[tuple[bool, str]]] = {}
    for node, shards in holdings:
        for writer, is_replica in shards:
            found.setdefault(writer, set()).add((is_replica, node))
    return {writer: [Copy(node, replica) for replica, node in sorted(each)] for writer, each in found.items()}
