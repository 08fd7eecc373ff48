"""The plan of a read: which rank reads which bytes of a checkpoint, and to which ranks it sends them.

Each byte is read from a store by a single rank, which sends it to the other ranks that need it. From the nodes'
memory every rank reads the data on its own node, and receives from others only what it needs of the rest.
"""

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence

from launcher.runtime.tiers.ranges import Layout, Runs, merged, num_bytes, overlap

SEGMENT = 8 << 20
"""Bytes, plus at most one block, that one rank reads for all before the next rank takes its turn."""

Wanted = Mapping[int, Runs]
"""The bytes that a rank needs, by the rank that wrote their shard."""

Transfer = tuple[int, int, int]
"""Bytes to send: the rank that wrote their shard, the first byte, and the end."""


class ReadPlan:
    """Which rank reads which bytes for which ranks; the same on all ranks.

    Args:
        wanted: The bytes that each rank needs, shape `(num_ranks,)`.
        given: The bytes that each rank reads for itself and others, shape `(num_ranks,)`.
        giver: Returns the rank that sends a shard's bytes to a rank; -1 if `given` decides it.
    """

    def __init__(self, wanted: Sequence[Wanted], given: Sequence[Wanted], giver: Callable[[int, int], int]):
        self._wanted, self._given, self._giver = wanted, given, giver

    def own(self, rank: int) -> Wanted:
        """Return the bytes, in complete blocks, that a rank reads before anything is sent."""
        return self._given[rank]

    def transfers(self, giver: int, taker: int) -> Iterator[Transfer]:
        """Yield the bytes that one rank sends to another."""
        for writer, runs in sorted(self._wanted[taker].items()):
            decided = self._giver(writer, taker)
            if decided < 0:
                runs = overlap(runs, self._given[giver].get(writer, []))
            for start, stop in runs if decided in (-1, giver) else ():
                yield writer, start, stop


def from_store(wanted: Sequence[Wanted], layout: Layout, *, is_ranged: bool) -> ReadPlan:
    """Return which rank reads which bytes from a store.

    Args:
        wanted: The bytes that each rank needs, shape `(num_ranks,)`.
        layout: Of the checkpoint.
        is_ranged: Whether the store can read parts of a shard; otherwise one rank reads a shard for all.
    """
    given: list[dict[int, Runs]] = [{} for _ in wanted]
    turns = itertools.count()
    for writer in sorted({writer for each in wanted for writer in each}):
        takers = {rank: each[writer] for rank, each in enumerate(wanted) if each.get(writer)}
        if takers and is_ranged:
            _divide(takers, layout, writer, given, turns)
        elif takers:
            _give_to_one(takers, layout, writer, given)
    merged_runs = [{writer: merged(runs) for writer, runs in each.items()} for each in given]
    return ReadPlan(wanted, merged_runs, lambda writer, taker: -1)


def _give_to_one(takers: Mapping[int, Runs], layout: Layout, writer: int, given: list[dict[int, Runs]]) -> None:
    """Let the rank that needs most of a shard read it for all."""
    reader = max(takers, key=lambda rank: (num_bytes(takers[rank]), -rank))
    every = merged(run for runs in takers.values() for run in runs)
    given[reader][writer] = layout.covering_blocks(writer, every)


def _divide(
    takers: Mapping[int, Runs], layout: Layout, writer: int, given: list[dict[int, Runs]], turns: Iterator[int]
) -> None:
    """Let the ranks that need the same bytes of a shard take turns in reading them."""
    blocks = {rank: layout.covering_blocks(writer, runs) for rank, runs in takers.items()}
    for start, stop, ranks in _segments(blocks):
        if len(ranks) == 1:
            given[ranks[0]].setdefault(writer, []).append((start, stop))
            continue
        for part in _parts(layout, writer, start, stop):
            given[ranks[next(turns) % len(ranks)]].setdefault(writer, []).append(part)


def _segments(runs: Mapping[int, Runs]) -> Iterator[tuple[int, int, tuple[int, ...]]]:
    """Yield the longest runs that the same ranks need, and these ranks."""
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
) -> ReadPlan:
    """Return which rank reads which bytes from the memory of the nodes.

    Args:
        wanted: The bytes that each rank needs, shape `(num_ranks,)`.
        layout: Of the checkpoint.
        nodes: The node of each rank, shape `(num_ranks,)`.
        holder: Returns the node from which a node takes its copy of a shard.
    """
    ranks_on = {node: [rank for rank, each in enumerate(nodes) if each == node] for node in nodes}

    def giver(writer: int, taker: int) -> int:
        node = holder(writer, nodes[taker])
        return taker if node == nodes[taker] else ranks_on[node][taker % len(ranks_on[node])]

    own = [
        {writer: layout.covering_blocks(writer, runs) for writer, runs in each.items() if giver(writer, rank) == rank}
        for rank, each in enumerate(wanted)
    ]
    return ReadPlan(wanted, own, giver)
