"""Reading together: each rank reads and checks its part of a checkpoint, and sends what others want of it.

What is sent was checked against the manifest by who sends it, and has a checksum of its own for the way.
"""

from collections.abc import Iterable, Iterator
from typing import Any

import numpy
import torch
from torch.distributed.checkpoint.planner import LoadPlanner

from launcher.runtime.checksums import CHUNK, checksum, new_checksum
from launcher.runtime.tiers.ranges import Block, Layout, cut, merged, num_bytes, overlap
from launcher.runtime.tiers.rank_group import Ranks
from launcher.runtime.tiers.read_plan import Parcel, Sharing, Wanted
from launcher.runtime.tiers.read_targets import Take
from launcher.runtime.tiers.shard_sources import Reason, Shards
from launcher.runtime.tiers.shards import ALIGNMENT, DIGEST, Broken, Manifest, Shard
from launcher.runtime.tiers.tier_errors import TierFailure

WINDOW = 256 << 20
"""Bytes that are read ahead of their check, and bytes that are sent in one message, at most."""

UNSENT = bytes(DIGEST)
"""In place of a message's checksum: the sender could not read what is wanted, and says why when all have read."""


class Exchange:
    """One rank's part of reading a checkpoint. Every rank makes one and runs it once.

    Attributes:
        is_done: Whether it was run.
        reasons: Why shards cannot be used, by the rank that wrote them.
        num_bytes: Read from the tier by this rank.
        sent_bytes: Sent to other ranks.
    """

    def __init__(self, manifest: Manifest, shards: Shards, ranks: Ranks):
        self._shards, self._ranks = shards, ranks
        self._layout = Layout(manifest)
        self._takes: dict[int, dict[int, list[Take]]] = {}
        self._kept: dict[tuple[int, int], numpy.ndarray] = {}
        self._opened: dict[int, Shard] = {}
        self._is_complete = True
        self.reasons: dict[int, Reason] = {}
        self.is_done, self.num_bytes, self.sent_bytes = False, 0, 0

    def run(self, takes: list[Take], planner: LoadPlanner | None) -> None:
        """Read what the takes want; collective. Without a planner this rank only helps the others."""
        self.is_done = True
        for take in takes:
            self._takes.setdefault(take.piece.rank, {}).setdefault(take.piece.offset, []).append(take)
        wanted = {rank: merged(run for take in _all(each) for run in take.runs) for rank, each in self._takes.items()}
        fault = None
        is_shared = not self._shards.is_everywhere and self._ranks.size > 1
        sharing = self._shards.sharing(self._ranks.gather(wanted) if is_shared else [wanted], self._layout)
        left = set(takes)
        try:
            for take in self._read_own(sharing, sharing.own(self._ranks.rank if is_shared else 0), is_shared):
                take.finish(planner)
                left.discard(take)
        except Exception as error:  # the other ranks wait for what this one sends
            fault = error
        if is_shared:
            self._swap(sharing)
        self._close()
        if fault:
            raise fault
        if self._is_complete and not self.reasons:
            for take in [each for each in takes if each in left]:
                take.finish(planner)

    def _read_own(self, sharing: Sharing, own: Wanted, is_shared: bool) -> Iterator[Take]:
        """Read what this rank is to read; yield the takes that are complete with it."""
        sent = self._sent(sharing) if is_shared else {}
        for writer, runs in sorted(own.items()):
            try:
                yield from self._read_shard(writer, runs, sent.get(writer, []))
            except (Broken, TierFailure, OSError) as error:
                self.reasons[writer] = Reason.of(error)

    def _sent(self, sharing: Sharing) -> Wanted:
        """Return what others get of what this rank reads."""
        found: dict[int, list[tuple[int, int]]] = {}
        for taker in range(self._ranks.size) if self._shards.keeps else ():
            if taker != self._ranks.rank:
                for writer, start, stop in sharing.parcels(self._ranks.rank, taker):
                    found.setdefault(writer, []).append((start, stop))
        return {writer: self._layout.whole_blocks(writer, merged(runs)) for writer, runs in found.items()}

    def _read_shard(self, writer: int, runs: list[tuple[int, int]], sent: list[tuple[int, int]]) -> Iterator[Take]:
        shard = self._open(writer)
        waiting = sorted(
            (take for take in _all(self._takes.get(writer, {})) if overlap(take.runs, runs) == take.runs),
            key=lambda take: take.stop,
        )
        for blocks in _windows(block for run in runs for block in self._layout.blocks(writer, *run)):
            shard.fetch(blocks[0].start, blocks[-1].stop)
            for block in blocks:
                self._take(shard, writer, block, bool(overlap(sent, [(block.start, block.stop)])))
            while waiting and waiting[0].stop <= blocks[-1].stop:
                yield waiting.pop(0)

    def _take(self, shard: Shard, writer: int, block: Block, is_sent: bool) -> None:
        takes = [
            take
            for take in self._takes.get(writer, {}).get(block.piece.offset, ())
            if take.start < block.stop and block.start < take.stop
        ]
        if len(takes) == 1 and not is_sent and takes[0].start <= block.start and block.stop <= takes[0].stop:
            _read_block(shard, block, takes[0].room(block.start, block.stop))
            return
        data = numpy.empty(block.stop - block.start, dtype=numpy.uint8)
        _read_block(shard, block, data)
        for take in takes:
            take.put(block.start, data)
        if is_sent:
            self._kept[writer, block.start] = data

    def _swap(self, sharing: Sharing) -> None:
        """Send to each other rank what it wants of what this one has, and receive what the others have."""
        rank, size = self._ranks.rank, self._ranks.size
        for shift in range(1, size):
            target, source = (rank + shift) % size, (rank - shift) % size
            sends, receives = _messages(sharing.parcels(rank, target)), _messages(sharing.parcels(source, rank))
            for number in range(max(len(sends), len(receives))):
                data = self._packed(sends[number]) if number < len(sends) else torch.empty(0, dtype=torch.uint8)
                parcels = receives[number] if number < len(receives) else []
                room = torch.empty(_size(parcels) + DIGEST if parcels else 0, dtype=torch.uint8)
                self._ranks.exchange(data, target, room, source)
                self.sent_bytes += len(data)
                if parcels:
                    self._unpack(parcels, room.numpy(), source)

    def _packed(self, parcels: list[Parcel]) -> torch.Tensor:
        room = torch.empty(_size(parcels) + DIGEST, dtype=torch.uint8)
        data, place = room.numpy(), DIGEST
        digest = UNSENT
        try:
            for writer, start, stop in parcels:
                self._fill(writer, start, data[place : place + stop - start])
                place += stop - start
            digest = checksum(data[DIGEST:])
        except (Broken, TierFailure, OSError) as error:
            self.reasons.setdefault(writer, Reason.of(error))
        data[:DIGEST] = numpy.frombuffer(digest, dtype=numpy.uint8)
        return room

    def _fill(self, writer: int, start: int, room: numpy.ndarray) -> None:
        """Fill `room` with checked bytes of a shard."""
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

    def _unpack(self, parcels: list[Parcel], data: numpy.ndarray, source: int) -> None:
        digest, place = data[:DIGEST].tobytes(), DIGEST
        if digest == UNSENT:
            self._is_complete = False
            return
        if digest != checksum(data[DIGEST:]):
            reason = Reason(f"what rank {source} sent was changed on the way", is_damage=False)
            self.reasons |= {writer: reason for writer, _, _ in parcels}
            return
        for writer, start, stop in parcels:
            for piece in self._layout.pieces(writer, start, stop):
                for take in self._takes.get(writer, {}).get(piece.offset, ()):
                    take.put(start, data[place : place + stop - start])
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


def _all(takes: dict[int, list[Take]]) -> Iterable[Take]:
    return (take for each in takes.values() for take in each)


def _windows(blocks: Iterable[Block]) -> Iterator[list[Block]]:
    """Yield blocks that are read at once: between pieces are a few bytes at most, which are read with them."""
    found: list[Block] = []
    for block in blocks:
        if found and (block.start - found[-1].stop >= ALIGNMENT or block.stop - found[0].start > WINDOW):
            yield found
            found = []
        found.append(block)
    if found:
        yield found


def _messages(parcels: Iterable[Parcel]) -> list[list[Parcel]]:
    """Return parcels in messages of a limited size."""
    messages: list[list[Parcel]] = [[]]
    left = WINDOW
    for writer, first, end in parcels:
        for start, stop in cut([(first, end)], WINDOW):
            if stop - start > left:
                messages.append([])
                left = WINDOW
            messages[-1].append((writer, start, stop))
            left -= stop - start
    return messages if messages[0] else []


def _size(parcels: list[Parcel]) -> int:
    return num_bytes([(start, stop) for _, start, stop in parcels])


def _read_block(shard: Shard, block: Block, room: numpy.ndarray) -> None:
    """Read a block and compare it with its checksum in one pass.

    Raises:
        Broken: They differ; `room` then holds what was found.
    """
    state: Any = new_checksum()
    for start in range(0, len(room), CHUNK):
        part = room[start : start + CHUNK]
        shard.read(block.start + start, part)
        state.update(part)
    if state.digest() != block.digest:
        raise Broken(f"the shard of rank {block.piece.rank} is changed at byte {block.start}")
