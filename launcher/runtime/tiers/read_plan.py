"""The plan of a read: which rank reads which bytes of a checkpoint, and to which ranks it sends them.

Each byte is read from a store by a single rank, which sends it to the other ranks that need it. From the nodes'
memory every rank reads the data on its own node, and receives from others only what it needs of the rest.
"""

import bisect
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from launcher.runtime.tiers.shards import DIGEST, Manifest, Piece

Runs = list[tuple[int, int]]
"""Bytes of a shard, as first and end of each run; sorted and disjoint."""

MOST_RUNS = 1 << 16
"""Maximum runs that describe a part of a piece; beyond it, all bytes from the first to the last are read."""


def merged(runs: Iterable[tuple[int, int]], gap: int = 0) -> Runs:
    """Return the runs sorted, joined where they overlap or are at most `gap` bytes apart."""
    found: Runs = []
    for start, stop in sorted(runs):
        if found and start <= found[-1][1] + gap:
            found[-1] = (found[-1][0], max(stop, found[-1][1]))
        elif start < stop:
            found.append((start, stop))
    return found


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
    """Return the bytes of a shard that hold a part of a piece.

    Args:
        piece: In row-major order.
        offsets: First number in each dimension.
        lengths: Numbers in each dimension.
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
    return merged((first + sum(place), first + sum(place) + size) for place in itertools.product(*places))


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
        for piece in manifest.metadata.storage_data.values():
            if piece.length:
                self._pieces.setdefault(piece.rank, []).append(piece)
        for pieces in self._pieces.values():
            pieces.sort(key=lambda piece: piece.offset)
        self._offsets = {rank: [piece.offset for piece in pieces] for rank, pieces in self._pieces.items()}

    def pieces(self, rank: int, start: int, stop: int) -> Iterator[Piece]:
        """Yield the pieces of a shard that overlap a run."""
        pieces, offsets = self._pieces.get(rank, []), self._offsets.get(rank, [])
        for place in range(max(bisect.bisect_right(offsets, start) - 1, 0), len(pieces)):
            if pieces[place].offset >= stop:
                return
            if pieces[place].offset + pieces[place].length > start:
                yield pieces[place]

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
        return merged(found)


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
        elif takers:  # the rank that needs most of the shard reads it for all
            reader = max(takers, key=lambda rank: (num_bytes(takers[rank]), -rank))
            every = merged(run for runs in takers.values() for run in runs)
            given[reader][writer] = layout.covering_blocks(writer, every)
    merged_runs = [{writer: merged(runs) for writer, runs in each.items()} for each in given]
    return ReadPlan(wanted, merged_runs, lambda writer, taker: -1)


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
