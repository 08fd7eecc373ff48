"""From a state to a shard: which rank saves what, and the copy that blocks training."""

import io
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.metadata import Metadata, MetadataIndex
from torch.distributed.checkpoint.planner import SavePlan, SavePlanner, WriteItem
from torch.distributed.checkpoint.state_dict_saver import save
from torch.distributed.checkpoint.storage import StorageWriter, WriteResult
from torch.futures import Future

from launcher.runtime.checksums import Bytes, checksum
from launcher.runtime.process_group import without_group_warning
from launcher.runtime.tiers.buffers import Buffer
from launcher.runtime.tiers.rank_group import Ranks
from launcher.runtime.tiers.shards import ALIGNMENT, BLOCK, Piece


class StateUnfit(RuntimeError):
    """torch.distributed.checkpoint cannot save this state."""


@dataclass(frozen=True, slots=True)
class Staged:
    """A shard in its buffer.

    Args:
        pieces: Without their checksums.
        size: Bytes of the shard.
        metadata: Of the complete checkpoint, without `storage_data`; on the first rank only.
    """

    pieces: dict[MetadataIndex, Piece]
    size: int
    metadata: Metadata | None


class Stager:
    """Copies one rank's part of a state, as torch.distributed.checkpoint distributes it.

    All ranks plan together; the plan is reused while no rank's state changes its structure.
    """

    def __init__(self, ranks: Ranks):
        self._ranks = ranks
        self._own: SavePlan | None = None
        self._agreed = SavePlan([])
        self._metadata: Metadata | None = None
        self._planner = DefaultSavePlanner()

    def plan(self, state: dict[str, Any], number: int) -> int:
        """Agree on which rank saves what of `state`; collective. Return the first rank's number of the save.

        Raises:
            StateUnfit: It cannot be saved.
        """
        is_first = self._ranks.rank == 0
        self._planner = DefaultSavePlanner()
        self._planner.set_up_planner(state, is_coordinator=is_first)
        own = self._planner.create_local_plan()
        changed, agreed_number = self._ranks.sum((int(own != self._own), number if is_first else 0))
        if changed:
            self._agree(state)
            self._own = own
        return agreed_number

    def _agree(self, state: dict[str, Any]) -> None:
        writer, group = _PlanOnly(), self._ranks.group
        try:
            with without_group_warning():
                save(state, storage_writer=writer, planner=self._planner, process_group=group, no_dist=group is None)
        except CheckpointException as error:
            raise StateUnfit(str(error)) from error
        self._agreed, self._metadata = writer.plan, writer.metadata

    def copy(self, buffer: Buffer) -> Staged:
        """Copy this rank's part of the planned state into a buffer; when it returns, training may continue.

        Raises:
            OSError: There is not enough memory.
        """
        tensors, objects, size = [], [], 0
        for item in self._agreed.items:
            if item.tensor_data:
                tensors.append(item)
                size += _padded(item.tensor_data.chunk.sizes.numel() * item.tensor_data.properties.dtype.itemsize)
                continue
            data = self._planner.resolve_data(item)
            if not isinstance(data, io.BytesIO):
                raise AssertionError(f"{item.index} is not an object")
            objects.append((item, data.getbuffer()))
            size += _padded(len(data.getbuffer()))
        buffer.reserve(size)
        pieces, offset = {}, 0
        for item in tensors:
            pieces[item.index] = piece = self._copy_tensor(item, buffer, offset)
            offset += _padded(piece.length)
        if torch.cuda.is_available():
            torch.cuda.synchronize()  # copies from an accelerator are asynchronous
        for item, serialized in objects:
            pieces[item.index] = Piece(self._ranks.rank, offset, len(serialized), b"", None, (), BLOCK)
            buffer.bytes[offset : offset + len(serialized)] = torch.frombuffer(serialized, dtype=torch.uint8)
            offset += _padded(len(serialized))
        return Staged(pieces, offset, self._metadata)

    def _copy_tensor(self, item: WriteItem, buffer: Buffer, offset: int) -> Piece:
        data = self._planner.resolve_data(item)
        if not isinstance(data, torch.Tensor):
            raise AssertionError(f"{item.index} is not a tensor")
        tensor = data.detach()
        length = tensor.numel() * tensor.element_size()
        if length:
            room = buffer.bytes[offset : offset + length].view(tensor.dtype).view(tensor.shape)
            room.copy_(tensor, non_blocking=True)
        return Piece(self._ranks.rank, offset, length, b"", tensor.dtype, tuple(tensor.shape), BLOCK)


def pieces_of(staged: Staged, buffer: Buffer) -> dict[MetadataIndex, Piece]:
    """Return the pieces of a shard with their checksums."""
    data = buffer.bytes.numpy()
    return {
        index: replace(piece, checksum=checksums(data[piece.offset : piece.offset + piece.length]))
        for index, piece in staged.pieces.items()
    }


def checksums(data: Bytes) -> bytes:
    """Return the concatenated checksums of the blocks of a piece; empty for an empty piece."""
    return b"".join(checksum(data[start : start + BLOCK]) for start in range(0, len(data), BLOCK))


class _PlanOnly(StorageWriter):
    """Takes part in a save for its plan only; writes nothing."""

    def __init__(self) -> None:
        self.plan = SavePlan([])
        self.metadata: Metadata | None = None

    def reset(self, checkpoint_id: object = None) -> None:
        pass

    def set_up_storage_writer(self, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        pass

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        return plan

    def prepare_global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
        return plans

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        self.plan = plan
        done: Future[list[WriteResult]] = Future()
        done.set_result([])
        return done

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        self.metadata = metadata

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: object) -> bool:
        return True


def _padded(length: int) -> int:
    return -(-length // ALIGNMENT) * ALIGNMENT
