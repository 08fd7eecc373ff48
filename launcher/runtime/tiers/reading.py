"""From shards to a state: a reader for torch.distributed.checkpoint that trusts nothing it has not checked."""

import contextlib
import io
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch.distributed.checkpoint import StorageReader, load
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.metadata import Metadata
from torch.distributed.checkpoint.planner import LoadItemType, LoadPlan, LoadPlanner, ReadItem
from torch.futures import Future

from launcher.runtime.checkpoint import without_group_warning
from launcher.runtime.tiers.memory import NodeMemory
from launcher.runtime.tiers.ranks import Ranks
from launcher.runtime.tiers.shards import Broken, BytesShard, Key, Manifest, Piece, Shard, read_checked
from launcher.runtime.tiers.stores import Store, TierFailure


class StateMismatch(RuntimeError):
    """The checkpoint is of another model or optimizer."""


class ShardsBroken(RuntimeError):
    """Some of a checkpoint's shards cannot be used.

    Args:
        reasons: What each rank could not use, by the rank that wrote it, shape `(num_ranks,)`.
    """

    def __init__(self, reasons: "list[dict[int, Reason]]"):
        super().__init__("; ".join(sorted({reason.text for each in reasons for reason in each.values()})))
        self.reasons = reasons

    @property
    def is_damage(self) -> bool:
        """Whether a shard is proven broken; otherwise it may be readable later."""
        return any(reason.is_damage for each in self.reasons for reason in each.values())


@dataclass(frozen=True, slots=True)
class Reason:
    """Why a shard cannot be used, and whether it is proven broken."""

    text: str
    is_damage: bool

    @staticmethod
    def of(error: Exception) -> "Reason":
        """Return the reason that an error gives."""
        return Reason(str(error), isinstance(error, Broken))


Shards = Callable[[list[int]], Iterator[tuple[int, Shard | Reason]]]
"""Gives the shards of these ranks one after another, each one or why there is none. Collective."""


@dataclass(frozen=True, slots=True)
class Reading:
    """What reading a checkpoint took.

    Args:
        num_bytes: Read by this rank.
        total_bytes: Read by all ranks.
        slowest_s: Seconds of the rank that took longest.
    """

    num_bytes: int
    total_bytes: int
    slowest_s: float


def read_state(state: dict[str, Any], manifest: Manifest, shards: Shards, ranks: Ranks) -> Reading:
    """Load a checkpoint into `state`, whatever number of ranks wrote it; collective.

    Raises:
        ShardsBroken: On all ranks, where one could not use a shard; `state` then holds parts of it.
        StateMismatch: On all ranks, where one's `state` is not of this checkpoint's form.
    """
    reader, mismatch, began = _Reader(manifest, shards), "", time.perf_counter()
    try:
        with without_group_warning():
            # Each rank plans for itself: all that ranks could settle together is in the manifest, which all have.
            load(state, storage_reader=reader, no_dist=True)
    except CheckpointException as error:
        mismatch = str(error)
        reader.take_part()
    told = ranks.gather((reader.reasons, mismatch, reader.num_bytes, time.perf_counter() - began))
    reasons, mismatches, sizes, times = zip(*told, strict=True)
    if any(mismatches):
        raise StateMismatch(next(filter(None, mismatches)))
    if any(reasons):
        raise ShardsBroken(list(reasons))
    return Reading(reader.num_bytes, sum(sizes), max(times))


class _Reader(StorageReader):
    """Hands checked pieces to the planner. What is broken is noted: the ranks settle it when all have read."""

    def __init__(self, manifest: Manifest, shards: Shards):
        self._manifest, self._shards = manifest, shards
        self._asked: Iterator[tuple[int, Shard | Reason]] | None = None
        self.reasons: dict[int, Reason] = {}
        self.num_bytes = 0

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
        wanted: dict[int, list[ReadItem]] = {}
        for item in plan.items:
            wanted.setdefault(self._piece(item).rank, []).append(item)
        self._asked = self._shards(sorted(wanted))
        for rank, shard in self._asked:
            if isinstance(shard, Reason):
                self.reasons[rank] = shard
                continue
            try:
                self._take(shard, wanted[rank], planner)
            except (Broken, TierFailure, OSError) as error:
                self.reasons[rank] = Reason.of(error)
            finally:
                shard.close()
        done: Future[None] = Future()
        done.set_result(None)
        return done

    def take_part(self) -> None:
        """Give the other ranks what they wait for, where this one stopped before or while it read."""
        for _, shard in self._asked or self._shards([]):
            if not isinstance(shard, Reason):
                shard.close()

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: object) -> bool:
        return True

    def _piece(self, item: ReadItem) -> Piece:
        return self._manifest.metadata.storage_data[item.storage_index]

    def _take(self, shard: Shard, items: list[ReadItem], planner: LoadPlanner) -> None:
        for item in items:
            piece = self._piece(item)
            self.num_bytes += piece.length
            if item.type is LoadItemType.BYTE_IO:
                planner.load_bytes(item, io.BytesIO(_read(shard, piece).numpy().tobytes()))
                continue
            target = planner.resolve_tensor(item).detach()
            if _is_whole(item, piece, target):
                read_checked(shard, target.view(-1).view(torch.uint8), piece)
            else:
                target.copy_(_part(_read(shard, piece), item, piece))
            planner.commit_tensor(item, target)


def _read(shard: Shard, piece: Piece) -> torch.Tensor:
    data = torch.empty(piece.length, dtype=torch.uint8)
    read_checked(shard, data, piece)
    return data


def _is_whole(item: ReadItem, piece: Piece, target: torch.Tensor) -> bool:
    # What goes elsewhere, or only in part, is checked first and copied then.
    same = tuple(item.lengths) == piece.shape and target.dtype == piece.dtype
    return same and target.is_contiguous() and target.device.type == "cpu" and bool(piece.length) and target.dim() > 0


def _part(source: torch.Tensor, item: ReadItem, piece: Piece) -> torch.Tensor:
    part = source.view(piece.dtype).view(piece.shape) if piece.length else torch.empty(piece.shape, dtype=piece.dtype)
    for dimension, (start, length) in enumerate(zip(item.storage_offsets, item.lengths, strict=True)):
        part = part.narrow(dimension, start, length)
    return part


def from_store(store: Store, manifest: Manifest) -> Shards:
    """Return how a rank gets shards from a store: each rank those it needs."""

    def shards(wanted: list[int]) -> Iterator[tuple[int, Shard | Reason]]:
        for rank in wanted:
            try:
                shard = store.open(manifest.key, rank, manifest.sizes[rank])
            except (Broken, TierFailure) as error:
                yield rank, Reason.of(error)
            else:
                yield rank, shard

    return shards


@dataclass(frozen=True, slots=True)
class Copy:
    """A shard in the memory of a node.

    Args:
        node: Which one.
        is_replica: Whether it is a copy of a neighbour's.
    """

    node: str
    is_replica: bool


class Nodes:
    """Shards of one save in the memory of several nodes, and which rank gives one away.

    Args:
        memory: This rank's view of its node.
        nodes: The node of each rank, shape `(num_ranks,)`.
        copies: Which nodes have a shard, by the rank that wrote it; the best first.
    """

    def __init__(self, memory: NodeMemory, ranks: Ranks, nodes: list[str], copies: Mapping[int, list[Copy]]):
        self._memory, self._ranks, self._nodes, self._copies = memory, ranks, nodes, copies

    def chosen(self, writer: int, node: str) -> Copy:
        """Return the copy that a rank on `node` takes: the one on its own node, else the best there is."""
        near = [copy for copy in self._copies[writer] if copy.node == node]
        return (near or self._copies[writer])[0]

    def of(self, manifest: Manifest) -> Shards:
        """Return how a rank gets the shards: from its node's memory, or over the network from another one's."""

        def shards(wanted: list[int]) -> Iterator[tuple[int, Shard | Reason]]:
            for writer in wanted:
                copy = self.chosen(writer, self._here)
                if copy.node == self._here:
                    yield writer, self._open(manifest, writer, copy)
            if self._is_everywhere():
                return
            for writer, giver, taker in self._transfers(self._ranks.gather(wanted)):
                data = self._transfer(manifest, writer, giver, taker)
                if data is not None:
                    yield writer, BytesShard(data.numpy())

        return shards

    def _is_everywhere(self) -> bool:
        """Tell whether every node has every shard, so that none goes over the network."""
        nodes = set(self._nodes)
        return all(nodes <= {copy.node for copy in copies} for copies in self._copies.values())

    @property
    def _here(self) -> str:
        return self._nodes[self._ranks.rank]

    def _transfers(self, wanted: list[list[int]]) -> Iterator[tuple[int, int, int]]:
        """Return writer, giver and taker of each shard that goes over the network, in one order for all ranks."""
        for taker, writers in enumerate(wanted):
            for writer in writers:
                copy = self.chosen(writer, self._nodes[taker])
                if copy.node != self._nodes[taker]:
                    givers = [rank for rank, node in enumerate(self._nodes) if node == copy.node]
                    yield writer, givers[taker % len(givers)], taker

    def _transfer(self, manifest: Manifest, writer: int, giver: int, taker: int) -> torch.Tensor | None:
        if self._ranks.rank not in (giver, taker):
            return None
        data = torch.zeros(manifest.sizes[writer], dtype=torch.uint8)
        if self._ranks.rank == taker:
            self._ranks.receive(data, giver)
            return data
        shard = self._open(manifest, writer, self.chosen(writer, self._here))
        if not isinstance(shard, Reason):
            # One that is cut short meanwhile is sent all the same: who waits must get something, and will check it.
            with contextlib.suppress(Broken, OSError):
                shard.read(0, data.numpy())
            shard.close()
        self._ranks.send(data, taker)
        return None

    def _open(self, manifest: Manifest, writer: int, copy: Copy) -> Shard | Reason:
        try:
            return self._memory.open(manifest.key, writer, manifest.sizes[writer], is_replica=copy.is_replica)
        except (Broken, OSError) as error:
            return Reason.of(error)


def copies_of(key: Key, holdings: list[tuple[str, list[tuple[int, bool]]]]) -> dict[int, list[Copy]]:
    """Return who has which shard of a save, by the rank that wrote it; originals before replicas.

    Args:
        key: The save.
        holdings: Of each node once: its name, and writer and `is_replica` of each shard of `key` there.
    """
    found: dict[int, set[tuple[bool, str]]] = {}
    for node, shards in holdings:
        for writer, is_replica in shards:
            found.setdefault(writer, set()).add((is_replica, node))
    return {writer: [Copy(node, replica) for replica, node in sorted(each)] for writer, each in found.items()}
