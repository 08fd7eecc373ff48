"""Ranges of bytes in shards: runs of bytes to read, and the blocks of pieces, which have a checksum each."""

import bisect
import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
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
