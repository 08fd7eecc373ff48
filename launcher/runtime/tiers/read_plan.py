"""The plan of a read: which rank reads which bytes of a checkpoint, and to which ranks it sends them.

Each byte is read from a store by a single rank, which sends it to the other ranks that need it. From the nodes'
memory every rank reads the data on its own node, and receives from others only what it needs of the rest.
"""

import bisect
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from launcher.runtime.rows import united
from launcher.runtime.tiers.node_memory import NodeMemory
from launcher.runtime.tiers.shards import ALIGNMENT, DIGEST, Manifest, Piece, Shard
from launcher.runtime.tiers.stores import Store

Runs = list[tuple[int, int]]
"""Bytes of a shard, as first and end of each run; sorted and disjoint."""

MOST_RUNS = 1 << 16
"""Maximum runs that describe a part of a piece; beyond it, all bytes from the first to the last are read."""


def overlap(first: Runs, second: Runs) -> Runs:
    """Return the bytes that are in both."""
    found, place, other = [], 0, 0
    while place < len(first) and other < len(second):
        start, stop = max(first[place][0], second[other][0]), min(first[place][1], second[other][1])
        if start < stop:
            found.append((start, stop))
        if first[place][1] <= second[other][1]:
            place += 1
        else:
            other += 1
    return found


def num_bytes(runs: Runs) -> int:
    """Return the number of bytes in runs."""
    return sum(stop - start for start, stop in runs)


def cut(runs: Runs, size: int) -> Iterator[tuple[int, int]]:
    """Yield the runs in parts of at most `size` bytes."""
    for start, stop in runs:
        for first in range(start, stop, size):
            yield first, min(first + size, stop)


def box_runs(piece: Piece, offsets: Sequence[int], lengths: Sequence[int]) -> Runs:
    """Return the bytes of a shard that hold a part of a piece, which is in row-major order.

    The part has `lengths` numbers in each dimension, from `offsets` on.
    """
    if 0 in lengths:
        return []
    item = piece.tensor_dtype.itemsize
    strides = row_strides(piece.shape, item)
    inner = len(lengths)  # from this dimension on, the part is one run
    while inner and (inner == len(lengths) or lengths[inner] == piece.shape[inner]):
        inner -= 1
    first = piece.offset + sum(offset * stride for offset, stride in zip(offsets, strides, strict=True))
    last = sum((length - 1) * stride for length, stride in zip(lengths, strides, strict=True))
    if math.prod(lengths[:inner]) > MOST_RUNS:
        return [(first, first + last + item)]
    size = lengths[inner] * strides[inner] if lengths else item
    places = [range(0, length * stride, stride) for length, stride in zip(lengths[:inner], strides, strict=False)]
    return united((first + sum(place), first + sum(place) + size) for place in itertools.product(*places))


def row_strides(shape: Sequence[int], size: int) -> list[int]:
    """Return the distance in bytes of neighbours in each dimension of a row-major array of items of `size`."""
    return [math.prod(shape[dimension + 1 :]) * size for dimension in range(len(shape))]


@dataclass(frozen=True, slots=True)
class Block:
    """Bytes of a shard that have a checksum."""

    piece: Piece
    start: int
    stop: int
    digest: bytes


class Layout:
    """The places of pieces and their blocks in the shards of a checkpoint."""

    def __init__(self, manifest: Manifest):
        self._pieces: dict[int, list[Piece]] = {}
        for piece in sorted(manifest.metadata.storage_data.values(), key=lambda piece: piece.offset):
            if piece.length:
                self._pieces.setdefault(piece.rank, []).append(piece)

    def pieces(self, rank: int, start: int, stop: int) -> Iterator[Piece]:
        """Yield the pieces of a shard that overlap a run."""
        pieces = self._pieces.get(rank, [])
        first = bisect.bisect_right(pieces, start, key=lambda piece: piece.offset) - 1
        for piece in itertools.islice(pieces, max(first, 0), None):
            if piece.offset >= stop:
                return
            if piece.offset + piece.length > start:
                yield piece

    def blocks(self, rank: int, start: int, stop: int) -> Iterator[Block]:
        """Yield the blocks of a shard that overlap a run."""
        for piece in self.pieces(rank, start, stop):
            size = piece.block or piece.length
            first, end = max(start - piece.offset, 0) // size, min(stop - piece.offset, piece.length)
            for number in range(first, -(-end // size)):
                begin = piece.offset + number * size
                digest = piece.checksum[number * DIGEST : (number + 1) * DIGEST]
                yield Block(piece, begin, min(begin + size, piece.offset + piece.length), digest)

    def covering_blocks(self, rank: int, runs: Runs) -> Runs:
        """Return the bytes of all blocks that overlap the runs."""
        found = []
        for start, stop in runs:
            for piece in self.pieces(rank, start, stop):
                size, end = piece.block or piece.length, min(stop - piece.offset, piece.length)
                first = piece.offset + max(start - piece.offset, 0) // size * size
                found.append((first, piece.offset + min(-(-end // size) * size, piece.length)))
        return united(found)


def windows(blocks: Iterable[Block], limit: int) -> Iterator[list[Block]]:
    """Yield blocks that are read at once, with the padding between pieces: at most `limit` bytes, or one block."""
    found: list[Block] = []
    for block in blocks:
        if found and (block.start - found[-1].stop >= ALIGNMENT or block.stop - found[0].start > limit):
            yield found
            found = []
        found.append(block)
    if found:
        yield found


SEGMENT = 8 << 20
"""Bytes, or one block, that one rank reads for all before the next rank takes its turn."""

Wanted = Mapping[int, Runs]
"""The bytes that a rank needs, by the rank that wrote their shard."""

Transfer = tuple[int, int, int]
"""Bytes to send: the rank that wrote their shard, the first byte, and the end."""


@dataclass(frozen=True, slots=True)
class ReadPlan:
    """Which rank reads which bytes for which ranks; the same on all ranks.

    Args:
        wanted: The bytes that each rank needs, shape `(num_ranks,)`.
        given: The bytes, in complete blocks, that each rank reads before anything is sent, shape `(num_ranks,)`.
        giver: Returns the rank that sends a shard's bytes to a rank; None if `given` decides it.
    """

    wanted: Sequence[Wanted]
    given: Sequence[Wanted]
    giver: Callable[[int, int], int] | None = None

    def transfers(self, giver: int, taker: int) -> Iterator[Transfer]:
        """Yield the bytes that one rank sends to another."""
        for writer, runs in sorted(self.wanted[taker].items()):
            if self.giver is None:
                runs = overlap(runs, self.given[giver].get(writer, []))
            elif self.giver(writer, taker) != giver:
                continue
            for start, stop in runs:
                yield writer, start, stop


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
        """Return the shard of a rank; Broken if it is damaged, TierFailure or OSError if it cannot be read now."""


class StoreShards:
    """The shards of a save in a store."""

    is_everywhere, keeps = False, True

    def __init__(self, store: Store, manifest: Manifest):
        self._store, self._manifest = store, manifest

    def plan(self, wanted: Sequence[Wanted], layout: Layout) -> ReadPlan:
        given: list[dict[int, Runs]] = [{} for _ in wanted]
        turns = itertools.count()
        for writer in sorted({writer for each in wanted for writer in each}):
            takers = {rank: each[writer] for rank, each in enumerate(wanted) if each.get(writer)}
            if takers and self._store.is_ranged:
                _divide(takers, layout, writer, given, turns)
            elif takers:  # the rank that needs most of the shard reads it for all
                reader = max(takers, key=lambda rank: (num_bytes(takers[rank]), -rank))
                every = united(run for runs in takers.values() for run in runs)
                given[reader][writer] = layout.covering_blocks(writer, every)
        return ReadPlan(wanted, [{writer: united(runs) for writer, runs in each.items()} for each in given])

    def open(self, writer: int) -> Shard:
        return self._store.open(self._manifest.key, writer, self._manifest.sizes[writer])


def _divide(
    takers: Mapping[int, Runs], layout: Layout, writer: int, given: list[dict[int, Runs]], turns: Iterator[int]
) -> None:
    """Let the ranks that need the same bytes of a shard take turns in reading them."""
    blocks = {rank: layout.covering_blocks(writer, runs) for rank, runs in takers.items()}
    for start, stop, ranks in _segments(blocks):
        if len(ranks) == 1:
            given[ranks[0]].setdefault(writer, []).append((start, stop))
            continue
        for part in windows(layout.blocks(writer, start, stop), SEGMENT):
            given[ranks[next(turns) % len(ranks)]].setdefault(writer, []).append((part[0].start, part[-1].stop))


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


@dataclass(frozen=True, slots=True)
class Copy:
    """A shard in the memory of a node. `is_replica` is whether it is a copy of a neighbour's."""

    node: str
    is_replica: bool


class Nodes:
    """The shards of one save in the memory of several nodes.

    Args:
        here: This rank's node.
        nodes: The node of each rank, shape `(num_ranks,)`.
        copies: The copies of each shard, by the rank that wrote it; the best first.
    """

    keeps = False

    def __init__(
        self, memory: NodeMemory, here: str, nodes: list[str], copies: Mapping[int, list[Copy]], manifest: Manifest
    ):
        self._memory, self._here, self._nodes, self._copies, self._manifest = memory, here, nodes, copies, manifest
        self.is_everywhere = all(set(nodes) <= {copy.node for copy in each} for each in copies.values())

    def chosen(self, writer: int, node: str) -> Copy:
        """Return the copy that a rank on `node` uses: the one on its own node, otherwise the best."""
        near = [copy for copy in self._copies[writer] if copy.node == node]
        return (near or self._copies[writer])[0]

    def plan(self, wanted: Sequence[Wanted], layout: Layout) -> ReadPlan:
        nodes = [self._here] if self.is_everywhere else self._nodes
        ranks_on = {node: [rank for rank, each in enumerate(nodes) if each == node] for node in nodes}

        def giver(writer: int, taker: int) -> int:
            node = self.chosen(writer, nodes[taker]).node
            return taker if node == nodes[taker] else ranks_on[node][taker % len(ranks_on[node])]

        def read_by(rank: int) -> Wanted:
            own = {writer: runs for writer, runs in wanted[rank].items() if giver(writer, rank) == rank}
            return {writer: layout.covering_blocks(writer, runs) for writer, runs in own.items()}

        return ReadPlan(wanted, [read_by(rank) for rank in range(len(wanted))], giver)

    def open(self, writer: int) -> Shard:
        is_replica = self.chosen(writer, self._here).is_replica
        return self._memory.open(self._manifest.key, writer, self._manifest.sizes[writer], is_replica=is_replica)
