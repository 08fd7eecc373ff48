"""From a state to a shard: which rank saves what, and the copy that training waits for."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy
import torch
from torch.distributed.checkpoint import DefaultSavePlanner, StorageWriter, save
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.metadata import Metadata, MetadataIndex
from torch.distributed.checkpoint.planner import SavePlan, SavePlanner, WriteItem, WriteItemType
from torch.distributed.checkpoint.storage import WriteResult
from torch.futures import Future

from launcher.runtime.checksums import checksum
from launcher.runtime.dcp_warnings import without_group_warning
from launcher.runtime.tiers.buffers import Slot
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
    """A shard in its slot.

    Args:
        spans: What lies where.
        size: Bytes of the shard.
        metadata: Of the whole checkpoint, without `storage_data`; on the first rank only.
    """

    spans: tuple[Span, ...]
    size: int
    metadata: Metadata | None


class Stager:
    """Copies one rank's part of a state, as torch.distributed.checkpoint deals it out.

    The plan is made by all ranks together; as long as no rank's state changes its form, it is made once.

    Args:
        ranks: Those that save.
    """

    def __init__(self, ranks: Ranks):
        self._ranks = ranks
        self._own: SavePlan | None = None
        self._dealt: SavePlan | None = None
        self._metadata: Metadata | None = None
        self._planner = DefaultSavePlanner()

    def plan(self, state: dict[str, Any], moment: int) -> int:
        """Settle who saves what of `state`; collective. Return this save's moment, the same on all ranks.

        Args:
            state: As for `torch.distributed.checkpoint.save`.
            moment: Nanoseconds since the epoch; the first rank's counts.

        Raises:
            StateUnfit: It cannot be saved.
        """
        self._planner = DefaultSavePlanner()
        self._planner.set_up_planner(state, is_coordinator=self._ranks.rank == 0)
        own = self._planner.create_local_plan()
        is_first = self._ranks.rank == 0
        changed, agreed = self._ranks.sum((int(own != self._own), moment if is_first else 0))
        if changed:
            self._deal(state)
            self._own = own
        return agreed

    def _deal(self, state: dict[str, Any]) -> None:
        noted = _PlanOnly()
        try:
            with without_group_warning():
                save(
                    state,
                    storage_writer=noted,
                    planner=self._planner,
                    process_group=self._ranks.group,
                    no_dist=self._ranks.group is None,
                )
        except CheckpointException as error:
            raise StateUnfit(str(error)) from error
        self._dealt, self._metadata = noted.plan, noted.metadata

    @property
    def num_bytes(self) -> int:
        """What this rank's tensors take in a shard."""
        return sum(_padded(_size(item)) for item in self._dealt.items)

    def copy(self, slot: Slot) -> Staged:
        """Copy this rank's part of the planned state into a slot: when it returns, training may go on.

        Raises:
            OSError: There is no memory for it.
        """
        objects = [(item, self._serialized(item)) for item in self._dealt.items if _is_object(item)]
        slot.reserve(self.num_bytes + sum(_padded(len(data)) for _, data in objects))
        spans, offset = [], 0
        for item in self._dealt.items:
            if not _is_object(item):
                span = self._copy_tensor(item, slot, offset)
                spans.append(span)
                offset += _padded(span.length)
        if torch.cuda.is_available():
            torch.cuda.synchronize()  # the copies from an accelerator are under way
        for item, data in objects:
            spans.append(Span(item.index, offset, len(data), None, ()))
            slot.bytes[offset : offset + len(data)] = torch.frombuffer(data, dtype=torch.uint8)
            offset += _padded(len(data))
        return Staged(tuple(spans), offset, self._metadata)

    def _copy_tensor(self, item: WriteItem, slot: Slot, offset: int) -> Span:
        tensor = self._planner.resolve_data(item).detach()
        length = tensor.numel() * tensor.element_size()
        if length:
            room = slot.bytes[offset : offset + length].view(tensor.dtype).view(tensor.shape)
            room.copy_(tensor, non_blocking=True)
        return Span(item.index, offset, length, tensor.dtype, tuple(tensor.shape))

    def _serialized(self, item: WriteItem) -> bytearray:
        return bytearray(self._planner.resolve_data(item).getbuffer())


def pieces_of(staged: Staged, slot: Slot, rank: int) -> dict[MetadataIndex, Piece]:
    """Return the pieces of a shard, their checksums computed."""
    data = slot.bytes.numpy()
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


def checksums(data: numpy.ndarray) -> bytes:
    """Return the checksums of the blocks of a piece, one after another; of an empty one none."""
    return b"".join(checksum(data[start : start + BLOCK]) for start in range(0, len(data), BLOCK))


def complete(metadata: Metadata, pieces: Mapping[MetadataIndex, Piece]) -> Metadata:
    """Return the metadata with what lies where."""
    return replace(metadata, storage_data=dict(pieces))


class _PlanOnly(StorageWriter):
    """Takes part in a save for its plan, and writes nothing."""

    def __init__(self) -> None:
        self.plan: SavePlan | None = None
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


def _is_object(item: WriteItem) -> bool:
    return item.type is WriteItemType.BYTE_IO


def _size(item: WriteItem) -> int:
    if _is_object(item):
        return 0
    data = item.tensor_data
    return data.chunk.sizes.numel() * data.properties.dtype.itemsize


def _padded(length: int) -> int:
    return -(-length // ALIGNMENT) * ALIGNMENT
