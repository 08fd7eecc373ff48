"""From shards to a state: each rank reads and checks its part of a checkpoint, and sends others what they need of it.

torch.distributed.checkpoint plans a read; the data is read, checked and exchanged here. The sender checks the data
against the manifest; each message has a checksum of its own.
"""

import contextlib
import io
import itertools
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy
import torch
from torch.distributed.checkpoint.metadata import Metadata
from torch.distributed.checkpoint.planner import LoadItemType, LoadPlan, LoadPlanner, ReadItem
from torch.distributed.checkpoint.storage import StorageReader
from torch.futures import Future

from launcher.runtime.checked_io import load_alone
from launcher.runtime.checkpoint_search import StateMismatch
from launcher.runtime.checksums import Bytes, checksum, filled
from launcher.runtime.rows import united
from launcher.runtime.tiers.rank_group import Ranks
from launcher.runtime.tiers.read_plan import (
    Block,
    Layout,
    ReadPlan,
    Runs,
    Shards,
    Transfer,
    Wanted,
    box_runs,
    cut,
    overlap,
    row_strides,
    windows,
)
from launcher.runtime.tiers.shards import DIGEST, Broken, Manifest, Piece, Shard, TierFailure


@dataclass(frozen=True, slots=True)
class Reason:
    """Why a shard cannot be used, and whether it is proven broken."""

    text: str
    is_damage: bool

    @staticmethod
    def of(error: Exception) -> "Reason":
        """Return the reason in an error."""
        return Reason(str(error), isinstance(error, Broken))


class ShardsBroken(RuntimeError):
    """Some of a checkpoint's shards cannot be used: `reasons` of each rank, by the rank that wrote the shard."""

    def __init__(self, reasons: list[dict[int, Reason]]):
        super().__init__("; ".join(sorted({reason.text for each in reasons for reason in each.values()})))
        self.reasons = reasons

    @property
    def is_damage(self) -> bool:
        """Whether a shard is proven broken; if not, it may be readable later."""
        return any(reason.is_damage for each in self.reasons for reason in each.values())


@dataclass(frozen=True, slots=True)
class Reading:
    """The cost of reading a checkpoint: bytes that this rank and all ranks read, and seconds of the slowest rank."""

    num_bytes: int
    total_bytes: int
    sent_bytes: int
    slowest_s: float


def read_state(state: dict[str, Any], manifest: Manifest, shards: Shards, ranks: Ranks) -> Reading:
    """Load a checkpoint, written by any number of ranks, into `state`; collective.

    Raises:
        ShardsBroken: On all ranks, if one could not use a shard; `state` then holds parts of it.
        StateMismatch: On all ranks, if the `state` of one does not match the checkpoint.
    """
    exchange = Exchange(manifest, shards, ranks)
    reader, mismatch, began = _Reader(manifest, exchange), "", time.perf_counter()
    try:
        load_alone(state, reader)
    except StateMismatch as error:
        mismatch = str(error)
    if not exchange.is_done:
        exchange.run([])  # the others wait for what this rank sends
    results = ranks.gather(
        (exchange.reasons, mismatch, exchange.num_bytes, exchange.sent_bytes, time.perf_counter() - began)
    )
    reasons, mismatches, sizes, sent, times = zip(*results, strict=True)
    if any(mismatches):
        raise StateMismatch(next(filter(None, mismatches)))
    if any(reasons):
        raise ShardsBroken(list(reasons))
    return Reading(exchange.num_bytes, sum(sizes), sum(sent), max(times))


class ReadTarget:
    """A part of a piece, and where it goes: `runs` are the bytes of the shard to read, from `start` to `stop`."""

    def __init__(self, item: ReadItem, piece: Piece, planner: LoadPlanner):
        self._item, self.piece, self._planner = item, piece, planner
        is_object = item.type is LoadItemType.BYTE_IO
        self._target = None if is_object else planner.resolve_tensor(item).detach()
        whole: Runs = [(piece.offset, piece.offset + piece.length)]
        self.runs = whole if is_object else box_runs(piece, item.storage_offsets, item.lengths)
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
                dtype = self.piece.tensor_dtype
                strides = [stride // dtype.itemsize for stride in row_strides(self.piece.shape, dtype.itemsize)]
                data = torch.from_numpy(self.room(self.start, self.stop)).view(dtype)
                self._target.copy_(data.as_strided(tuple(self._item.lengths), strides))
            self._planner.commit_tensor(self._item, self._target)
        self._room = None


def _bytes_of(target: torch.Tensor | None, piece: Piece, size: int) -> Bytes | None:
    """Return the target's own memory if the part is laid out in it as in the shard; otherwise None."""
    if target is None or target.device.type != "cpu" or target.dtype != piece.dtype or not target.is_contiguous():
        return None
    if not size or not target.dim() or target.numel() * target.element_size() != size:
        return None
    room: Bytes = target.view(-1).view(torch.uint8).numpy()
    return room


WINDOW = 256 << 20
"""Maximum bytes that are read ahead of their check, and maximum bytes of a message."""

UNSENT = bytes(DIGEST)
"""In place of a message's checksum: the sender could not read the data; it reports why once all have read."""


class Exchange:
    """One rank's part of reading a checkpoint. Every rank creates one and runs it once.

    Attributes:
        reasons: Why shards cannot be used, by the rank that wrote them.
    """

    def __init__(self, manifest: Manifest, shards: Shards, ranks: Ranks):
        self._shards, self._ranks = shards, ranks
        self._layout = Layout(manifest)
        self._targets: dict[int, dict[int, list[ReadTarget]]] = {}
        self._kept: dict[tuple[int, int], Bytes] = {}
        self._opened: dict[int, Shard] = {}
        self._is_complete = True
        self.reasons: dict[int, Reason] = {}
        self.is_done, self.num_bytes, self.sent_bytes = False, 0, 0

    def run(self, targets: list[ReadTarget]) -> None:
        """Read the data of the targets; collective. Without targets this rank only helps the others."""
        self.is_done = True
        for target in targets:
            self._targets.setdefault(target.piece.rank, {}).setdefault(target.piece.offset, []).append(target)
        left = set(targets)
        is_shared = not self._shards.is_everywhere and self._ranks.size > 1
        plan = self._shards.plan(self._ranks.gather(self._wanted()) if is_shared else [self._wanted()], self._layout)
        with contextlib.ExitStack() as stack:
            stack.callback(self._close)
            if is_shared:
                stack.callback(self._swap, plan)  # after an error, too: the other ranks wait for it
            for target in self._read_own(plan, plan.given[self._ranks.rank if is_shared else 0], is_shared):
                target.finish()
                left.discard(target)
        if self._is_complete and not self.reasons:
            for target in [each for each in targets if each in left]:
                target.finish()

    def _wanted(self) -> Wanted:
        return {
            writer: united(run for target in itertools.chain.from_iterable(by_piece.values()) for run in target.runs)
            for writer, by_piece in self._targets.items()
        }

    def _read_own(self, plan: ReadPlan, own: Wanted, is_shared: bool) -> Iterator[ReadTarget]:
        """Read this rank's part of the plan; yield the targets that are complete with it."""
        sent = self._sent(plan) if is_shared else {}
        for writer, runs in sorted(own.items()):
            try:
                yield from self._read_shard(writer, runs, sent.get(writer, []))
            except (Broken, TierFailure, OSError) as error:
                self.reasons[writer] = Reason.of(error)

    def _sent(self, plan: ReadPlan) -> Wanted:
        """Return the bytes, of those that this rank reads, that it sends to others."""
        found: dict[int, list[tuple[int, int]]] = {}
        for taker in range(self._ranks.size) if self._shards.keeps else ():
            if taker != self._ranks.rank:
                for writer, start, stop in plan.transfers(self._ranks.rank, taker):
                    found.setdefault(writer, []).append((start, stop))
        return {writer: self._layout.covering_blocks(writer, united(runs)) for writer, runs in found.items()}

    def _read_shard(
        self, writer: int, runs: list[tuple[int, int]], sent: list[tuple[int, int]]
    ) -> Iterator[ReadTarget]:
        shard, targets = self._open(writer), itertools.chain.from_iterable(self._targets.get(writer, {}).values())
        complete = (target for target in targets if overlap(target.runs, runs) == target.runs)
        waiting = sorted(complete, key=lambda target: target.stop)
        for blocks in windows((block for run in runs for block in self._layout.blocks(writer, *run)), WINDOW):
            shard.fetch(blocks[0].start, blocks[-1].stop)
            for block in blocks:
                self._take(shard, writer, block, bool(overlap(sent, [(block.start, block.stop)])))
            while waiting and waiting[0].stop <= blocks[-1].stop:
                yield waiting.pop(0)

    def _take(self, shard: Shard, writer: int, block: Block, is_sent: bool) -> None:
        targets = [
            target
            for target in self._targets.get(writer, {}).get(block.piece.offset, ())
            if target.start < block.stop and block.start < target.stop
        ]
        if len(targets) == 1 and not is_sent and targets[0].start <= block.start and block.stop <= targets[0].stop:
            _read_block(shard, block, targets[0].room(block.start, block.stop))
            return
        data = numpy.empty(block.stop - block.start, dtype=numpy.uint8)
        _read_block(shard, block, data)
        for target in targets:
            target.put(block.start, data)
        if is_sent:
            self._kept[writer, block.start] = data

    def _swap(self, plan: ReadPlan) -> None:
        """Send each other rank the bytes it needs of those read here, and receive theirs."""
        rank, size = self._ranks.rank, self._ranks.size
        for shift in range(1, size):
            target, source = (rank + shift) % size, (rank - shift) % size
            sends, receives = _messages(plan.transfers(rank, target)), _messages(plan.transfers(source, rank))
            for sent, received in itertools.zip_longest(sends, receives, fillvalue=()):
                data, room = self._packed(sent), _room_for(received)
                self._ranks.exchange(data, target, room, source)
                self.sent_bytes += len(data)
                self._unpack(received, room.numpy(), source)

    def _packed(self, transfers: Sequence[Transfer]) -> torch.Tensor:
        room = _room_for(transfers)
        if not transfers:
            return room
        data, place, digest = room.numpy(), DIGEST, UNSENT
        try:
            for writer, start, stop in transfers:
                self._fill(writer, start, data[place : place + stop - start])
                place += stop - start
            digest = checksum(data[DIGEST:])
        except (Broken, TierFailure, OSError) as error:
            self.reasons.setdefault(writer, Reason.of(error))
        data[:DIGEST] = numpy.frombuffer(digest, dtype=numpy.uint8)
        return room

    def _fill(self, writer: int, start: int, room: Bytes) -> None:
        stop = start + len(room)
        for block in self._layout.blocks(writer, start, stop):
            data = self._kept.get((writer, block.start))
            if data is None:
                if self._shards.keeps:
                    raise TierFailure(f"the shard of rank {writer} was not read")
                data = numpy.empty(block.stop - block.start, dtype=numpy.uint8)
                _read_block(self._open(writer), block, data)
            first, end = max(start, block.start), min(stop, block.stop)
            room[first - start : end - start] = data[first - block.start : end - block.start]

    def _unpack(self, transfers: Sequence[Transfer], data: Bytes, source: int) -> None:
        if not transfers:
            return
        digest, place = data[:DIGEST].tobytes(), DIGEST
        if digest == UNSENT:
            self._is_complete = False
            return
        if digest != checksum(data[DIGEST:]):
            reason = Reason(f"data from rank {source} was changed in transit", is_damage=False)
            self.reasons |= {writer: reason for writer, _, _ in transfers}
            return
        for writer, start, stop in transfers:
            for piece in self._layout.pieces(writer, start, stop):
                for target in self._targets.get(writer, {}).get(piece.offset, ()):
                    target.put(start, data[place : place + stop - start])
            place += stop - start

    def _open(self, writer: int) -> Shard:
        if writer not in self._opened:
            self._opened[writer] = self._shards.open(writer)
        return self._opened[writer]

    def _close(self) -> None:
        for shard in self._opened.values():
            self.num_bytes += shard.moved
            shard.close()
        self._opened.clear()
        self._kept.clear()


class _Reader(StorageReader):
    """Passes the plan of torch.distributed.checkpoint to the exchange, which reads the data."""

    def __init__(self, manifest: Manifest, exchange: Exchange):
        self._manifest, self._exchange = manifest, exchange

    def reset(self, checkpoint_id: object = None) -> None:
        pass

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        return self._manifest.metadata

    def set_up_storage_reader(self, metadata: Metadata, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        pass

    def prepare_local_plan(self, plan: LoadPlan) -> LoadPlan:
        return plan

    def prepare_global_plan(self, plans: list[LoadPlan]) -> list[LoadPlan]:
        return plans

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        pieces = self._manifest.metadata.storage_data
        self._exchange.run([ReadTarget(item, pieces[item.storage_index], planner) for item in plan.items])
        done: Future[None] = Future()
        done.set_result(None)
        return done

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: object) -> bool:
        return True


def _messages(transfers: Iterable[Transfer]) -> list[list[Transfer]]:
    messages: list[list[Transfer]] = [[]]
    left = WINDOW
    for writer, first, end in transfers:
        for start, stop in cut([(first, end)], WINDOW):
            if stop - start > left:
                messages.append([])
                left = WINDOW
            messages[-1].append((writer, start, stop))
            left -= stop - start
    return messages if messages[0] else []


def _room_for(transfers: Sequence[Transfer]) -> torch.Tensor:
    """Return the memory of a message: a checksum, and the bytes of the transfers; nothing for none."""
    size = DIGEST + sum(stop - start for _, start, stop in transfers) if transfers else 0
    return torch.empty(size, dtype=torch.uint8)


def _read_block(shard: Shard, block: Block, room: Bytes) -> None:
    """Read a block and compare it with its checksum in one pass; if they differ, `room` holds what was found."""
    if filled(room, lambda start, part: shard.read(block.start + start, part)) != block.digest:
        raise Broken(f"the shard of rank {block.piece.rank} is changed at byte {block.start}")
