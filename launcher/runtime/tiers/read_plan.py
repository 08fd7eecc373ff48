"""Which rank reads which bytes of a checkpoint, and what it then sends to which others.

Every byte that is wanted is read from a store by a single rank, and goes over the network to the others that want it.
From the nodes' memory every rank reads what is on its own node, and gets what it wants of the rest, no more.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence

from launcher.runtime.tiers.ranges import Layout, Runs, merged, num_bytes, overlap

SEGMENT = 8 << 20
"""Bytes, at most a block more, that one of several ranks reads for all before it is another one's turn."""

Wanted = Mapping[int, Runs]
"""The bytes that a rank wants, by the rank that wrote their shard."""

Parcel = tuple[int, int, int]
"""Bytes that are sent: the rank that wrote their shard, the first one, and the end."""


class Sharing:
    """Who reads what for whom; the same on all ranks.

    Args:
        wanted: By each rank, shape `(num_ranks,)`.
        given: By each rank: what it reads for others and itself, shape `(num_ranks,)`.
        giver: Returns which rank gives a shard's bytes to a rank, where that alone decides it; -1 where `given` does.
    """

    def __init__(self, wanted: Sequence[Wanted], given: Sequence[Wanted], giver: Callable[[int, int], int]):
        self._wanted, self._given, self._giver = wanted, given, giver

    def own(self, rank: int) -> Wanted:
        """Return the bytes of complete blocks that a rank reads before anything is sent."""
        return self._given[rank]

    def parcels(self, giver: int, taker: int) -> Iterator[Parcel]:
        """Yield what one rank sends to another one."""
        for writer, runs in sorted(self._wanted[taker].items()):
            decided = self._giver(writer, taker)
            if decided < 0:
                runs = overlap(runs, self._given[giver].get(writer, []))
            for start, stop in runs if decided in (-1, giver) else ():
                yield writer, start, stop


def from_store(wanted: Sequence[Wanted], layout: Layout, *, is_ranged: bool) -> Sharing:
    """Return who reads what from a store.

    Args:
        wanted: By each rank, shape `(num_ranks,)`.
        layout: Of the checkpoint.
        is_ranged: Whether the store gives parts of a shard: else one rank reads it for all.
    """
    given: list[dict[int, Runs]] = [{} for _ in wanted]
    turn = 0
    for writer in sorted({writer for each in wanted for writer in each}):
        takers = {rank: each[writer] for rank, each in enumerate(wanted) if each.get(writer)}
        if not takers:
            continue
        if not is_ranged:
            most = max(takers, key=lambda rank, of=takers: (num_bytes(of[rank]), -rank))
            every = merged(run for runs in takers.values() for run in runs)
            given[most][writer] = layout.whole_blocks(writer, every)
            continue
        blocks = {rank: layout.whole_blocks(writer, runs) for rank, runs in takers.items()}
        for start, stop, ranks in _segments(blocks):
            for part in _parts(layout, writer, start, stop) if len(ranks) > 1 else [(start, stop)]:
                given[ranks[turn % len(ranks)]].setdefault(writer, []).append(part)
                turn += len(ranks) > 1
    given = [{writer: merged(runs) for writer, runs in each.items()} for each in given]
    return Sharing(wanted, given, lambda writer, taker: -1)


def _segments(runs: Mapping[int, Runs]) -> Iterator[tuple[int, int, tuple[int, ...]]]:
    """Yield the longest runs that the same ranks want, and which."""
    edges = sorted(
        (place, is_begin, rank)
        for rank, each in runs.items()
        for start, stop in each
        for place, is_begin in ((start, True), (stop, False))
    )
    active: set[int] = set()
    last = 0
    for place, is_begin, rank in edges:
        if active and place > last:
            yield last, place, tuple(sorted(active))
        last = place
        (active.add if is_begin else active.discard)(rank)


def _parts(layout: Layout, writer: int, start: int, stop: int) -> Iterator[tuple[int, int]]:
    first, end = start, start
    for block in layout.blocks(writer, start, stop):
        if block.stop - first > SEGMENT and end > first:
            yield first, end
            first = block.start
        end = block.stop
    yield first, end


def from_nodes(
    wanted: Sequence[Wanted], layout: Layout, nodes: Sequence[str], holder: Callable[[int, str], str]
) -> Sharing:
    """Return who reads what from the memory of the nodes.

    Args:
        wanted: By each rank, shape `(num_ranks,)`.
        layout: Of the checkpoint.
        nodes: The node of each rank, shape `(num_ranks,)`.
        holder: Returns the node whose copy of a shard a node takes.
    """
    ranks_on = {node: [rank for rank, each in enumerate(nodes) if each == node] for node in nodes}

    def giver(writer: int, taker: int) -> int:
        node = holder(writer, nodes[taker])
        return taker if node == nodes[taker] else ranks_on[node][taker % len(ranks_on[node])]

    own = [
        {writer: layout.whole_blocks(writer, runs) for writer, runs in each.items() if giver(writer, rank) == rank}
        for rank, each in enumerate(wanted)
    ]
    return Sharing(wanted, own, giver)
