"""Where the bytes of a checkpoint go: each item of a load's plan, and the memory that it is read into."""

import io

import numpy
import torch
from torch.distributed.checkpoint.planner import LoadItemType, LoadPlanner, ReadItem

from launcher.runtime.checksums import Bytes
from launcher.runtime.tiers.ranges import Runs, box_runs, row_strides
from launcher.runtime.tiers.shards import Piece


class ReadTarget:
    """A part of a piece, and where it goes.

    Args:
        item: Of the plan.
        piece: The piece that contains the part.
        planner: Resolves the tensor that the part goes to.

    Attributes:
        runs: The bytes of the shard to read.
        start, stop: The first of them, and the end.
    """

    def __init__(self, item: ReadItem, piece: Piece, planner: LoadPlanner):
        self._item, self.piece, self._planner = item, piece, planner
        is_object = item.type is LoadItemType.BYTE_IO
        self._target = None if is_object else planner.resolve_tensor(item).detach()
        if is_object:
            self.runs: Runs = [(piece.offset, piece.offset + piece.length)]
        else:
            self.runs = box_runs(piece, item.storage_offsets, item.lengths)
        self.start, self.stop = (self.runs[0][0], self.runs[-1][1]) if self.runs else (piece.offset, piece.offset)
        self._room = _bytes_of(self._target, piece, self.stop - self.start)
        self._is_direct = self._room is not None

    def room(self, start: int, stop: int) -> Bytes:
        """Return the memory for bytes of the shard, all of them between this part's first and last."""
        if self._room is None:
            self._room = numpy.empty(self.stop - self.start, dtype=numpy.uint8)
        return self._room[start - self.start : stop - self.start]

    def put(self, start: int, data: Bytes) -> None:
        """Store bytes of the shard, the first of which is `start`, at their place."""
        first, end = max(start, self.start), min(start + len(data), self.stop)
        if first < end:
            self.room(first, end)[:] = data[first - start : end - start]

    def finish(self) -> None:
        """Pass the data that was read to the planner."""
        if self._target is None:
            self._planner.load_bytes(self._item, io.BytesIO(self.room(self.start, self.stop).tobytes()))
        else:
            if self.runs and not self._is_direct:
                self._target.copy_(self._part())
            self._planner.commit_tensor(self._item, self._target)
        self._room = None

    def _part(self) -> torch.Tensor:
        dtype = self.piece.tensor_dtype
        strides = [stride // dtype.itemsize for stride in row_strides(self.piece.shape, dtype.itemsize)]
        data = torch.from_numpy(self.room(self.start, self.stop)).view(dtype)
        return data.as_strided(tuple(self._item.lengths), strides)


def _bytes_of(target: torch.Tensor | None, piece: Piece, size: int) -> Bytes | None:
    """Return the target's own memory if the part is laid out in it as in the shard; otherwise None."""
    if target is None or target.device.type != "cpu" or target.dtype != piece.dtype or not target.is_contiguous():
        return None
    if not size or not target.dim() or target.numel() * target.element_size() != size:
        return None
    room: Bytes = target.view(-1).view(torch.uint8).numpy()
    return room
