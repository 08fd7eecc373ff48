"""From a state to a shard: which rank saves what, and the copy that blocks training."""

import io
from dataclasses import dataclass
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
class Span:
    """A piece before it has a checksum."""

    index: MetadataIndex
    offset: int
    length: int
    dtype: torch.dtype | None
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Staged:
    """A shard in its buffer.

    Args:
        spans: The place of each piece.
        size: Bytes of the shard.
        metadata: Of the complete checkpoint, without `storage_data`; on the first rank only.
    """

    spans: tuple[Span, ...]
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
        self._planner = DefaultSavePlanner()
        self._planner.set_up_planner(state, is_coordinator=self._ranks.rank == 0)
        own = self._planner.create_local_plan()
        is_first = self._ranks.rank == 0
        changed, agreed_number = self._ranks.sum((int(own != self._own), number if is_first else 0))
        if changed:
            self._agree(state)
            self._own = own
        return agreed_number

    def _agree(self, state: dict[str, Any]) -> None:
        writer = _PlanOnly()
        try:
            with without_group_warning():
                save(
                    state,
                    storage_writer=writer,
                    planner=self._planner,
                    process_group=self._ranks.group,
                    no_dist=self._ranks.group is None,
                )
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
        spans, offset = [], 0
        for item in tensors:
            spans.append(self._copy_tensor(item, buffer, offset))
            offset += _padded(spans[-1].length)
        if torch.cuda.is_available():
            torch.cuda.synchronize()  # copies from an accelerator are asynchronous
        for item, serialized in objects:
            spans.append(Span(item.index, offset, len(serialized), None, ()))
            buffer.bytes[offset : offset + len(serialized)] = torch.frombuffer(serialized, dtype=torch.uint8)
            offset += _padded(len(serialized))
        return Staged(tuple(spans), offset, self._metadata)

    def _copy_tensor(self, item: WriteItem, buffer: Buffer, offset: int) -> Span:
        data = self._planner.resolve_data(item)
        if not isinstance(data, torch.Tensor):
            raise AssertionError(f"{item.index} is not a tensor")
        tensor = data.detach()
        length = tensor.numel() * tensor.element_size()
        if length:
            room = buffer.bytes[offset : offset + length].view(tensor.dtype).view(tensor.shape)
            room.copy_(tensor, non_blocking=True)
        return Span(item.index, offset, length, tensor.dtype, tuple(tensor.shape))


def pieces_of(staged: Staged, buffer: Buffer, rank: int) -> dict[MetadataIndex, Piece]:
    """Return the pieces of a shard with their checksums."""
    data = buffer.bytes.numpy()
    return {
        span.index: Piece(
            rank,
            span.offset,
            span.length,
            checksums(data[span.offset : span.offset + span.length]),
            span.dtype,
            span.shape,
            BLOCK,
        )
        for span in staged.spans
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
