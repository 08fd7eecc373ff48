"""Which rows of the tensors of a state each rank has, and which go from rank to rank.

A tensor is cut along its first dimension, as `fully_shard` does, into the pieces of `torch.chunk`; one without
dimensions has a single row.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from launcher.runtime import process_group
from launcher.runtime.checksums import checksum

Ranges = Mapping[str, Sequence[tuple[int, int]]]
"""Rows of each tensor by path, as ascending ranges of first row and the row after the last."""


class NotByRows(ValueError):
    """A tensor is divided in another way than by rows."""


class Part(NamedTuple):
    """Consecutive rows of a tensor, from the row `start` on; contiguous."""

    start: int
    rows: torch.Tensor

    @property
    def stop(self) -> int:
        """The row after the last."""
        return self.start + len(self.rows)

    def cut(self, start: int, stop: int) -> torch.Tensor:
        """Return a view of these rows of the tensor."""
        return self.rows[start - self.start : stop - self.start]


Parts = Mapping[str, Sequence[Part]]
"""What a rank has of each tensor, by path."""


class Move(NamedTuple):
    """Rows of a tensor that go from one rank to another."""

    path: str
    start: int
    stop: int
    source: int
    target: int


def is_sharded(tensor: torch.Tensor) -> bool:
    """Return whether a tensor lies on a mesh of ranks."""
    return hasattr(tensor, "device_mesh")


def num_rows(shape: torch.Size) -> int:
    """Return the number of rows of a tensor."""
    return shape[0] if shape else 1


def chunk(rows: int, place: int, count: int) -> tuple[int, int]:
    """Return the range of the piece `place` of `count` pieces.

    Source: torch.chunk; torch.distributed.tensor.Shard cuts likewise.
    """
    size = -(-rows // count)
    return min(place * size, rows), min((place + 1) * size, rows)


def part_of(tensor: torch.Tensor) -> Part:
    """Return what this rank has of a tensor, in the tensor's own memory if that is contiguous.

    Raises:
        NotByRows: It is divided in another way.
    """
    start, local = 0, tensor.detach()
    if is_sharded(tensor):
        from torch.distributed.tensor import DTensor

        assert isinstance(tensor, DTensor)
        start, local = _first_row(tensor), local.to_local()  # type: ignore[attr-defined]  # of a DTensor
    return Part(start, (local if local.dim() else local.reshape(1)).contiguous())


def _first_row(tensor: "torch.distributed.tensor.DTensor") -> int:
    mesh, sharded = tensor.device_mesh, [each for each in tensor.placements if not each.is_replicate()]
    if not sharded:
        return 0
    if len(sharded) > 1 or not sharded[0].is_shard(0):
        raise NotByRows(f"a tensor lies on its mesh as {tensor.placements}")
    dimension = tensor.placements.index(sharded[0])
    place = (mesh.get_coordinate() or [0] * mesh.ndim)[dimension]
    return chunk(num_rows(tensor.shape), place, mesh.size(dimension))[0]


def ranges_of(parts: Parts) -> dict[str, list[tuple[int, int]]]:
    """Return the rows that a rank has, a range for each part: a move is of one part."""
    return {
        path: sorted((each.start, each.stop) for each in of_path if len(each.rows)) for path, of_path in parts.items()
    }


def united(ranges: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return ranges as ascending ones that neither touch nor are empty."""
    found: list[tuple[int, int]] = []
    for start, stop in sorted(ranges):
        if found and start <= found[-1][1]:
            found[-1] = (found[-1][0], max(stop, found[-1][1]))
        elif start < stop:
            found.append((start, stop))
    return found


def held_by(ranges: Iterable[Ranges], path: str) -> list[tuple[int, int]]:
    """Return the rows of a tensor that some of several ranks have."""
    return united(each for of_rank in ranges for each in of_rank.get(path, ()))


def without(ranges: Iterable[tuple[int, int]], removed: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return the part of ranges that is not in the `removed` ones, which ascend."""
    found = []
    for start, stop in ranges:
        for first, last in removed:
            if first < stop and last > start:
                found.append((start, max(start, first)))
                start = min(stop, last)
        found.append((start, stop))
    return united(found)


def moves(lacking: Sequence[Ranges], having: Mapping[int, Ranges], row_bytes: Mapping[str, int]) -> list[Move]:
    """Return the moves that give all ranks what they lack, in one order for all of them.

    Where several ranks have a row, the one that sends the fewest bytes so far sends it.

    Args:
        lacking: Of each rank.
        having: Of those ranks that send.
        row_bytes: Bytes of a row, by path.
    """
    loads, found = dict.fromkeys(having, 0), []
    for path in sorted(row_bytes, key=lambda each: (-row_bytes[each], each)):
        for target, lacks in enumerate(lacking):
            for first, stop in lacks.get(path, ()):
                start = first
                while start < stop:
                    ends = {rank: _end(ranges.get(path, ()), start) for rank, ranges in having.items()}
                    source = min((rank for rank in ends if ends[rank] > start), key=lambda each: (loads[each], each))
                    end = min(stop, ends[source])
                    loads[source] += (end - start) * row_bytes[path]
                    found.append(Move(path, start, end, source, target))
                    start = end
    return found


def _end(ranges: Sequence[tuple[int, int]], row: int) -> int:
    """Return the row up to which ranges go on from `row`; `row` if they do not have it."""
    return next((stop for start, stop in ranges if start <= row < stop), row)


def exchange(plan: Sequence[Move], sent: Parts, received: Parts) -> None:
    """Execute the moves of all ranks, straight between their tensors: nothing is copied on the way. Collective."""
    rank, works = process_group.rank(), []
    for move in plan:
        if move.source == rank:
            works.append(dist.isend(_rows(sent, move), dst=move.target))
        elif move.target == rank:
            works.append(dist.irecv(_rows(received, move), src=move.source))
    for work in works:
        if work:
            work.wait()


def checksums(plan: Sequence[Move], sent: Parts, received: Parts) -> tuple[list[bytes], list[bytes]]:
    """Return the checksums of what this rank has sent, and of what it has received, in the order of the moves."""
    rank = process_group.rank()
    return (
        [checksum(as_bytes(_rows(sent, each))) for each in plan if each.source == rank],
        [checksum(as_bytes(_rows(received, each))) for each in plan if each.target == rank],
    )


def as_bytes(tensor: torch.Tensor) -> Any:
    """Return the bytes of a tensor, in main memory."""
    return tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy()


def _rows(parts: Parts, move: Move) -> torch.Tensor:
    part = next(each for each in parts[move.path] if each.start <= move.start and move.stop <= each.stop)
    return part.cut(move.start, move.stop)


def copy(own: Parts, target: Parts) -> None:
    """Copy what a rank has of each tensor into its parts of the `target`."""
    for path, parts in target.items():
        for part in parts:
            for each in own.get(path, ()):
                start, stop = max(part.start, each.start), min(part.stop, each.stop)
                if start < stop:
                    part.cut(start, stop).copy_(each.cut(start, stop))
