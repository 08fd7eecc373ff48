"""The manager of all tiers: training waits for a copy to host memory; everything else happens in the background.

Within a tier, a save is published only if every rank has written its shard; all ranks take the same decision.
Failures of a tier are logged and leave training alone.
"""

import pickle
import time
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from launcher.runtime.tiers.buffers import Buffer, BufferPool
from launcher.runtime.tiers.checkpoint_log import CheckpointLog, Record
from launcher.runtime.tiers.node_memory import NodeMemory
from launcher.runtime.tiers.owner import MarkPlace, Ownership
from launcher.runtime.tiers.pending_save import PendingSave, SavePart
from launcher.runtime.tiers.rank_group import Ranks
from launcher.runtime.tiers.restore import Form, Restoration, Restored
from launcher.runtime.tiers.shards import Key, Manifest, seal
from launcher.runtime.tiers.staging import Stager, StateUnfit, complete, pieces_of
from launcher.runtime.tiers.tier_settings import PATIENCE_S
from launcher.runtime.tiers.tier_types import MemoryTier, StoreTier
from launcher.runtime.tiers.worker_queue import WorkerQueue


class CheckpointManager:
    """Saves the state of a training to tiers, and loads the newest checkpoint. All ranks create one.

    A failure while saving to a tier is logged and leaves training alone: that tier then lacks the checkpoint. `load`
    never loads an incomplete checkpoint.

    Args:
        memory: The memory tier; None for none.
        stores: The other tiers, the nearest first.
        log: Receives all events.
        node: This rank's node.
        patience_s: Seconds for which an unavailable tier is retried while a checkpoint is loaded.
    """

    def __init__(
        self,
        memory: MemoryTier | None,
        stores: Sequence[StoreTier],
        log: CheckpointLog,
        node: str = "localhost",
        patience_s: float = PATIENCE_S,
    ):
        self._memory, self._stores, self._log, self._node = memory, tuple(stores), log, node
        self._patience_s = patience_s
        self._ranks = Ranks()
        self._queues = {name: WorkerQueue(name) for name in ("memory", "persistent")}
        self._stager = Stager(self._ranks)
        self._plain = BufferPool(None, 3)
        self._last: tuple[int, frozenset[str]] = (-1, frozenset())
        self._published: dict[str, int] = {}
        self._unretired: Key | None = None
        places: dict[str, MarkPlace] = {}
        if memory and self._is_leader:
            places["shared"] = memory.memory
        if self._ranks.rank == 0:
            places |= {tier.store.name: tier.store for tier in self._stores}
        self._ownership = Ownership(places, log, self._ranks)
        self._number: int | None = None
        self._broken: set[tuple[int, Key]] = set()
        if memory:
            self._adopt(memory)

    def is_due(self, step: int) -> bool:
        """Return whether some tier is saved to after this step."""
        return bool(self._due(step))

    def save(
        self, state: dict[str, Any], step: int, progress: Mapping[str, Any], *, everywhere: bool = False
    ) -> None:
        """Save to every tier that is due; return once `state` may change. Collective.

        Args:
            state: As for `torch.distributed.checkpoint.save`.
            step: Optimizer steps done.
            progress: Returned by `load`; copied, too.
            everywhere: Save to all tiers that do not have this step, due or not.

        Raises:
            StateUnfit: torch.distributed.checkpoint cannot save the state, or pickle `progress`.
            NamespaceTaken: Another live job owns the namespace; raised before the first save.
        """
        if everywhere:
            self.wait()
            due = frozenset(name for name in self._names() if self._published.get(name) != step)
        else:
            due = frozenset(self._due(step)) - (self._last[1] if self._last[0] == step else frozenset())
        if not due:
            return
        self._log_ended()
        self._ownership.take()
        began = time.perf_counter()
        progress = _copied(progress)
        key = Key(step, self._stager.plan(state, self._next_number()))
        save = self._staged(key, progress, in_memory="shared" in due)
        save.blocked_s = time.perf_counter() - began
        self._last = (step, due)
        self._queues["memory"].submit(self._finish, save, due)

    def has(self, step: int) -> bool:
        """Return whether the most durable tier has this step, as far as saves are completed."""
        return self._published.get(self._names()[-1]) == step

    def load(self, form: Form) -> Restored | None:
        """Load the newest published checkpoint; None if there is none. Collective.

        Args:
            form: Creates the state to load into, only once there is a checkpoint, since creating an optimizer's state
                changes it. The manifest has the number of ranks that wrote it (`world_size`) and its `metadata`.

        Raises:
            CheckpointUnavailable: There are checkpoints, or a tier did not answer, and nothing was loaded.
            StateMismatch: The checkpoint is of another model or optimizer.
            NamespaceTaken: Another live job owns the namespace.
        """
        self.wait()
        self._ownership.take()
        self._last = (-1, frozenset())
        restoration = self._restoration()
        restored = restoration.run(form)
        self._number = restoration.seen
        stores = [tier.store.name for tier in self._stores]
        self._published = {restored.tier: restored.step} if restored and restored.tier in stores else {}
        return restored

    def newest(self) -> int | None:
        """Return the newest published step; None if there is none. Collective.

        Raises:
            CheckpointUnavailable: None is found, and a tier did not answer.
        """
        return self._restoration().newest()

    def clear(self) -> None:
        """Remove every checkpoint of this namespace. Collective."""
        self.wait()
        self._ownership.take()
        if self._memory and self._is_leader:
            self._memory.memory.clear()
        if self._ranks.rank == 0:
            for tier in self._stores:
                tier.store.remove(tier.store.saves())
        self._log.record(Record(time.time(), "cleared", 0, "", 0, 0.0))
        self._ranks.barrier()

    def wait(self) -> None:
        """Wait until every save is completed."""
        for name in ("memory", "persistent"):  # jobs of the first submit to the second
            for error in self._queues[name].wait():
                self._log.failed(self._last[0], name, f"{type(error).__name__}: {error}")

    def _restoration(self) -> Restoration:
        memory = self._memory.memory if self._memory else None
        stores = [tier.store for tier in self._stores]
        return Restoration(self._ranks, memory, stores, self._node, self._log, self._patience_s, self._broken)

    def _next_number(self) -> int:
        """Return a number for a save, greater than all stored ones; the first rank's counts."""
        if self._number is None:
            self._number = self._restoration().number()
        self._number += 1
        return self._number

    @property
    def _is_leader(self) -> bool:
        return self._memory is not None and self._ranks.rank % self._memory.ranks_per_node == 0

    def _names(self) -> list[str]:
        return [*(["shared"] if self._memory else []), *(tier.store.name for tier in self._stores)]

    def _due(self, step: int) -> list[str]:
        tiers = [("shared", self._memory.frequency)] if self._memory else []
        tiers += [(tier.store.name, tier.frequency) for tier in self._stores]
        return [name for name, frequency in tiers if step % frequency == 0]

    def _adopt(self, tier: MemoryTier) -> None:
        size, first = self._ranks.size, self._ranks.rank - self._ranks.rank % tier.ranks_per_node

        def kept(rank: int) -> list[tuple[int, bool]]:
            return [(rank, False)] + [(source, True) for _, source in tier.neighbours(rank, size)]

        others = [shard for rank in range(first, min(first + tier.ranks_per_node, size)) for shard in kept(rank)]
        tier.memory.adopt(kept(self._ranks.rank), others, is_leader=self._is_leader)
        self._ranks.barrier()

    def _staged(self, key: Key, progress: Mapping[str, Any], *, in_memory: bool) -> PendingSave:
        error, buffer = "", None
        buffers = self._memory.memory.buffers if in_memory and self._memory else self._plain
        try:
            buffer = buffers.take()
            staged = self._stager.copy(buffer)
        except OSError as full:
            # The node's memory tier is full: other tiers are saved to from this process's own memory.
            if buffer:
                buffers.release(buffer)
            buffers, error = self._plain, str(full)
            buffer = buffers.take()
            staged = self._stager.copy(buffer)
        return PendingSave(key, staged, buffer, buffers, progress, 0.0, error)

    def _finish(self, save: PendingSave, due: frozenset[str]) -> None:
        try:
            # Training is blocked until the last rank has copied; checksums must not take its processors before.
            self._queues["memory"].ranks.barrier()
            save.pieces = pieces_of(save.staged, save.buffer, self._ranks.rank)
            if "shared" in due and self._memory:
                self._to_memory(save, self._memory)
            for tier in self._stores:
                if tier.store.name in due:
                    save.buffers.hold(save.buffer)
                    if tier.store.name == "memory":
                        self._to_store(save, tier)
                    else:
                        self._queues["persistent"].submit(self._to_store, save, tier)
        finally:
            save.buffers.release(save.buffer)
        if self._memory:
            memory = self._memory.memory
            size = len(save.buffer.bytes)
            self._queues["memory"].attempt(memory.buffers.prepare, size, memory.retention + 1)

    def _to_memory(self, save: PendingSave, tier: MemoryTier) -> None:
        queue = self._queues["memory"]
        began = time.perf_counter()
        error = save.memory_error or queue.attempt(tier.memory.commit, save.buffer, save.key)
        replica_error = self._replicate(save, tier, queue)
        part = SavePart(
            save.pieces, save.staged.size, time.perf_counter() - began, save.blocked_s, error, replica_error
        )
        parts = queue.ranks.gather(part)
        manifest = self._agreed(save, parts, queue, "memory")
        if not manifest:
            queue.attempt(tier.memory.forget, save.key)
            if self._unretired:
                self._retire_memory(tier.memory, self._unretired)
            return
        error = ""
        if self._is_leader:
            held = queue.attempt(self._ownership.hold, "shared")
            error = held or queue.attempt(tier.memory.publish, save.key, manifest)
        if errors := [f"rank {rank}: {each}" for rank, each in enumerate(queue.ranks.gather(error)) if each]:
            # Older checkpoints are kept until there is a newer one.
            queue.attempt(tier.memory.withdraw, save.key)
            self._log_lost(save, "memory", "; ".join(errors))
            return
        self._published["shared"] = save.key.step
        self._log_save(save, parts, "memory")
        self._retire_memory(tier.memory, save.key)

    def _retire_memory(self, memory: NodeMemory, key: Key) -> None:
        """Release older checkpoints. If that fails, training must not wait for their buffers."""
        error = self._queues["memory"].attempt(memory.retire, key, self._broken_in(-1))
        self._unretired = key if error else None
        for buffers in (memory.buffers, memory.copies):
            buffers.set_fault(f"older checkpoints cannot be removed: {error}" if error else "")
        if error:
            self._log.failed(key.step, "memory", f"older checkpoints were not removed: {error}")

    def _replicate(self, save: PendingSave, tier: MemoryTier, queue: WorkerQueue) -> str:
        """Send this rank's shard to its neighbours and receive theirs; return the first error as a message."""
        errors = ""
        neighbours = tier.neighbours(queue.ranks.rank, queue.ranks.size)
        sizes = queue.ranks.gather(save.staged.size) if neighbours else []
        for target, source in neighbours:
            error, buffer = _reserved(tier.memory.copies, sizes[source], queue)
            # Even without a buffer: the neighbour sends in any case.
            room = buffer.bytes[: sizes[source]] if buffer else torch.empty(sizes[source], dtype=torch.uint8)
            queue.ranks.exchange(save.buffer.bytes[: save.staged.size], target, room, source)
            if buffer and (error := queue.attempt(tier.memory.commit_copy, buffer, save.key, source)):
                tier.memory.copies.release(buffer)
            errors = errors or error
        return errors

    def _to_store(self, save: PendingSave, tier: StoreTier) -> None:
        store, queue = tier.store, self._queues[tier.store.name]
        try:
            began = time.perf_counter()
            data = save.buffer.bytes[: save.staged.size]
            error = queue.attempt(store.write, save.key, queue.ranks.rank, data)
            part = SavePart(save.pieces, save.staged.size, time.perf_counter() - began, save.blocked_s, error)
        finally:
            save.buffers.release(save.buffer)
        parts = queue.ranks.gather(part)
        manifest = self._agreed(save, parts, queue, store.name)
        if not manifest:
            return
        error = left_over = ""
        if queue.ranks.rank == 0:
            # Two live jobs with the same namespace would remove each other's checkpoints.
            held = queue.attempt(self._ownership.hold, store.name)
            error = held or queue.attempt(store.publish, save.key, manifest)
            left_over = "" if error else queue.attempt(self._retire, tier, save.key)
        # The others wait for the removal: their next shards have no manifest yet and would be removed, too.
        error, left_over = queue.ranks.share((error, left_over))
        if error:
            self._log_lost(save, store.name, error)
            return
        self._published[store.name] = save.key.step
        self._log_save(save, parts, store.name)
        if left_over and queue.ranks.rank == 0:
            self._log.failed(save.key.step, store.name, f"older checkpoints were not removed: {left_over}")

    def _agreed(self, save: PendingSave, parts: list[SavePart], queue: WorkerQueue, tier: str) -> bytes:
        """Return the manifest if every rank has written its shard, otherwise b""; the same on all ranks."""
        if errors := [f"rank {rank}: {part.error}" for rank, part in enumerate(parts) if part.error]:
            self._log_lost(save, tier, "; ".join(errors))
            return b""
        if errors := [f"rank {rank}: {part.replica_error}" for rank, part in enumerate(parts) if part.replica_error]:
            self._log_lost(save, "replica", "; ".join(errors))
        return queue.ranks.share(self._sealed(save, parts) if queue.ranks.rank == 0 else b"")

    def _sealed(self, save: PendingSave, parts: list[SavePart]) -> bytes:
        pieces = {index: piece for part in parts for index, piece in part.pieces.items()}
        if save.staged.metadata is None:
            raise AssertionError("only the first rank has the metadata")
        metadata = complete(save.staged.metadata, pieces)
        sizes = tuple(part.size for part in parts)
        return seal(Manifest(save.key, sizes, metadata, save.progress, self._log.namespace))

    def _broken_in(self, place: int) -> set[Key]:
        """Return the saves that are proven broken in a tier: -1 for memory, otherwise the index of the store."""
        return {key for each, key in list(self._broken) if each == place}

    def _retire(self, tier: StoreTier, key: Key) -> None:
        """Remove saves that are older than those kept, broken, or never published.

        A published save of a later step is kept until it is proven broken or its step is repeated.
        """
        saves, broken = tier.store.saves(), self._broken_in(self._stores.index(tier))
        # A greater number belongs to another job's save: the next number must exceed it.
        self._number = max(self._number or 0, *(each.save for each in saves), key.save)
        published = sorted({each for each, is_published in saves.items() if is_published} | {key})
        kept = _kept([each for each in published if each not in broken], key, tier.retention)
        tier.store.remove([each for each in saves if each < key and each not in kept])

    def _log_lost(self, save: PendingSave, tier: str, reason: str) -> None:
        self._log.failed(save.key.step, tier, reason)
        now, key = time.time(), save.key
        self._log.record(Record(now, "failed", key.step, tier, 0, 0.0, save.blocked_s, reason, key.save))

    def _log_save(self, save: PendingSave, parts: list[SavePart], tier: str) -> None:
        own = parts[self._ranks.rank]
        self._log.did("saved", save.key.step, tier, own.size, own.seconds)
        size, seconds = sum(part.size for part in parts), max(part.seconds for part in parts)
        blocked_s = max(part.blocked_s for part in parts)
        now, key = time.time(), save.key
        self._log.record(Record(now, "saved", key.step, tier, size, seconds, blocked_s, save=key.save))

    def _log_ended(self) -> None:
        for name, queue in self._queues.items():
            for error in queue.done():
                self._log.failed(self._last[0], name, f"{type(error).__name__}: {error}")


def _kept(intact: list[Key], key: Key, retention: int) -> set[Key]:
    """Return the saves to keep of the sorted `intact` ones, of which `key` was just published."""
    newest = [each for each in intact if each <= key][-retention:]
    return {*newest, *(each for each in intact if each <= key and each.step > key.step)}


def _reserved(pool: BufferPool, num_bytes: int, queue: WorkerQueue) -> tuple[str, Buffer | None]:
    """Return a buffer of a size from a pool; without one, the error as a message."""
    try:
        buffer = pool.take()
    except OSError as error:
        return str(error), None
    if failure := queue.attempt(buffer.reserve, num_bytes):
        pool.release(buffer)
        return failure, None
    return "", buffer


def _copied(progress: Mapping[str, Any]) -> Mapping[str, Any]:
    try:
        copy: dict[str, Any] = pickle.loads(pickle.dumps(dict(progress)))
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise StateUnfit(f"progress cannot be saved: {error}") from error
    return copy
