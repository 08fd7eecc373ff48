"""The manager of all tiers: training waits for a copy to host memory; everything else happens in the background.

Within a tier, a save is published only if every rank has written its shard; all ranks take the same decision.
"""

import pickle
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any, ParamSpec

import torch

from launcher.runtime.tiers.buffers import Buffer, BufferPool
from launcher.runtime.tiers.checkpoint_log import CheckpointLog
from launcher.runtime.tiers.node_memory import NodeMemory
from launcher.runtime.tiers.owner import MarkPlace, Ownership
from launcher.runtime.tiers.rank_group import Ranks
from launcher.runtime.tiers.restore import Form, Restoration, Restored
from launcher.runtime.tiers.shards import Key, Manifest, Piece, retained, seal
from launcher.runtime.tiers.staging import Staged, Stager, StateUnfit, pieces_of
from launcher.runtime.tiers.stores import Store
from launcher.runtime.tiers.tier_settings import PATIENCE_S

_Params = ParamSpec("_Params")


@dataclass(frozen=True, slots=True)
class StoreTier:
    """A store, how often it is saved to, in optimizer steps, and how many checkpoints it keeps."""

    store: Store
    frequency: int
    retention: int


@dataclass(frozen=True, slots=True)
class MemoryTier:
    """The memory of the nodes, of which the first rank of each writes the manifests there.

    Args:
        frequency: Optimizer steps between two saves.
        replicas: Number of neighbour nodes that each keep a copy.
    """

    memory: NodeMemory
    frequency: int
    ranks_per_node: int
    replicas: int

    def neighbours(self, rank: int, world_size: int) -> list[tuple[int, int]]:
        """Return, for each replica, the rank that keeps this rank's shard and the one whose shard this rank keeps."""
        steps = [self.ranks_per_node * (1 + copy) for copy in range(self.replicas)]
        return [((rank + step) % world_size, (rank - step) % world_size) for step in steps if step < world_size]


@dataclass(slots=True)
class PendingSave:
    """A save in progress."""

    key: Key
    staged: Staged
    buffer: Buffer
    buffers: BufferPool
    progress: Mapping[str, Any]
    memory_error: str = ""
    blocked_s: float = 0.0
    pieces: dict[Any, Piece] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SavePart:
    """A rank's part of a save, as it reports it to the other ranks."""

    pieces: Mapping[Any, Piece]
    size: int
    seconds: float
    blocked_s: float
    error: str
    replica_error: str = ""


class WorkerQueue:
    """Runs jobs one after another, each together with the same queue of all other ranks."""

    def __init__(self, name: str):
        self.ranks = Ranks()
        self._jobs = ThreadPoolExecutor(1, thread_name_prefix=name)
        self._attempts = ThreadPoolExecutor(1, thread_name_prefix=f"{name}-attempt")
        self._pending: list[Future[None]] = []
        self._lock = threading.Lock()

    def submit(self, job: Callable[_Params, None], *args: _Params.args, **kwargs: _Params.kwargs) -> None:
        """Run `job` after the jobs submitted before it."""
        with self._lock:
            self._pending.append(self._jobs.submit(job, *args, **kwargs))

    def attempt(self, work: Callable[_Params, object], *args: _Params.args, **kwargs: _Params.kwargs) -> str:
        """Run `work` and return its error as a message; "" if it succeeded.

        Nothing that a tier raises leaves this method, not even a BaseException: the other ranks wait for this one.
        """
        error = self._attempts.submit(work, *args, **kwargs).exception()
        return f"{type(error).__name__}: {error}" if error else ""

    def errors(self, *, wait: bool) -> list[BaseException]:
        """Return the errors of jobs that failed since the last call, once all jobs have ended if `wait`."""
        with self._lock:
            ended = [job for job in self._pending if wait or job.done()]
            self._pending = [job for job in self._pending if job not in ended]
        return [error for job in ended if (error := job.exception())]


class CheckpointManager:
    """Saves the state of a training to tiers, and loads the newest checkpoint. All ranks create one.

    A failure while saving to a tier is logged and leaves training alone: that tier then lacks the checkpoint. `load`
    never loads an incomplete checkpoint.

    Args:
        memory: The memory tier; None for none.
        stores: The other tiers, the nearest first.
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
        # The most durable tier is the last one.
        self._frequencies = {"shared": memory.frequency} if memory else {}
        self._frequencies |= {tier.store.name: tier.frequency for tier in self._stores}
        self._last: tuple[int, frozenset[str]] = (-1, frozenset())
        self._published: dict[str, int] = {}
        self._unretired: Key | None = None
        self._number: int | None = None
        self._broken: set[tuple[int, Key]] = set()
        self._is_leader = memory is not None and self._ranks.rank % memory.ranks_per_node == 0
        places: dict[str, MarkPlace] = {"shared": memory.memory} if memory and self._is_leader else {}
        if self._ranks.rank == 0:
            places |= {tier.store.name: tier.store for tier in self._stores}
        self._ownership = Ownership(places, log, self._ranks)
        if memory:
            self._adopt(memory)

    def is_due(self, step: int) -> bool:
        """Return whether some tier is saved to after this step."""
        return any(step % frequency == 0 for frequency in self._frequencies.values())

    def save(
        self, state: dict[str, Any], step: int, progress: Mapping[str, Any], *, everywhere: bool = False
    ) -> None:
        """Save to every tier that is due; return once `state` may change. Collective.

        Args:
            state: As for `torch.distributed.checkpoint.save`.
            progress: Returned by `load`; copied, too.
            everywhere: Save to all tiers that do not have this step, due or not.

        Raises:
            StateUnfit: torch.distributed.checkpoint cannot save the state, or pickle `progress`.
            NamespaceTaken: Another live job owns the namespace; raised before the first save.
        """
        if everywhere:
            self.wait()  # only then is it known which tiers have this step
            due = frozenset(name for name in self._frequencies if self._published.get(name) != step)
        else:
            saved = self._last[1] if self._last[0] == step else ()
            due = frozenset(name for name, each in self._frequencies.items() if step % each == 0).difference(saved)
        if not due:
            return
        self._log_errors(wait=False)
        self._ownership.take()
        began = time.perf_counter()
        try:
            progress = pickle.loads(pickle.dumps(dict(progress)))
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            raise StateUnfit(f"progress cannot be saved: {error}") from error
        if self._number is None:
            self._number = self._restoration().number()
        self._number += 1
        # All ranks use the first one's number, which is greater than all that are stored.
        key = Key(step, self._stager.plan(state, self._number))
        save = self._staged(key, progress, in_memory="shared" in due)
        save.blocked_s = time.perf_counter() - began
        self._last = (step, due)
        self._queues["memory"].submit(self._finish, save, due)

    def has(self, step: int) -> bool:
        """Return whether the most durable tier has this step, as far as saves are completed."""
        return self._published.get(list(self._frequencies)[-1]) == step

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
        """Return the newest published step; None if there is none. Collective; CheckpointUnavailable as in `load`."""
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
        self._log.record("cleared", 0, "")
        self._ranks.barrier()

    def wait(self) -> None:
        """Wait until every save is completed."""
        self._log_errors(wait=True)

    def _log_errors(self, *, wait: bool) -> None:
        for name in ("memory", "persistent"):  # jobs of the first submit to the second
            for error in self._queues[name].errors(wait=wait):
                self._log.failed(self._last[0], name, f"{type(error).__name__}: {error}")

    def _restoration(self) -> Restoration:
        memory = self._memory.memory if self._memory else None
        stores = [tier.store for tier in self._stores]
        return Restoration(self._ranks, memory, stores, self._node, self._log, self._patience_s, self._broken)

    def _adopt(self, tier: MemoryTier) -> None:
        size, first = self._ranks.size, self._ranks.rank - self._ranks.rank % tier.ranks_per_node

        def kept(rank: int) -> list[tuple[int, bool]]:
            return [(rank, False)] + [(source, True) for _, source in tier.neighbours(rank, size)]

        others = [shard for rank in range(first, min(first + tier.ranks_per_node, size)) for shard in kept(rank)]
        tier.memory.adopt(kept(self._ranks.rank), others, is_leader=self._is_leader)
        self._ranks.barrier()

    def _staged(self, key: Key, progress: Mapping[str, Any], *, in_memory: bool) -> PendingSave:
        error = ""
        if in_memory and self._memory:
            buffers, buffer = self._memory.memory.buffers, None
            try:
                buffer = buffers.take()
                return PendingSave(key, self._stager.copy(buffer), buffer, buffers, progress)
            except OSError as full:
                # The node's memory tier is full: other tiers are saved to from this process's own memory.
                if buffer:
                    buffers.release(buffer)
                error = str(full)
        buffer = self._plain.take()
        return PendingSave(key, self._stager.copy(buffer), buffer, self._plain, progress, error)

    def _finish(self, save: PendingSave, due: frozenset[str]) -> None:
        try:
            # Training is blocked until the last rank has copied; checksums must not take its processors before.
            self._queues["memory"].ranks.barrier()
            save.pieces = pieces_of(save.staged, save.buffer)
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
        queue, memory, began = self._queues["memory"], tier.memory, time.perf_counter()
        error = save.memory_error or queue.attempt(memory.commit, save.buffer, save.key)
        replica_error = self._replicate(save, tier, queue)
        parts = queue.ranks.gather(_part(save, began, error, replica_error))
        manifest = self._agreed(save, parts, queue, "memory")
        if not manifest:
            queue.attempt(memory.forget, save.key)
            if self._unretired:
                self._retire_memory(memory, self._unretired)
            return
        error = ""
        if self._is_leader:
            held = queue.attempt(self._ownership.hold, "shared")
            error = held or queue.attempt(memory.publish, save.key, manifest)
        if errors := [f"rank {rank}: {each}" for rank, each in enumerate(queue.ranks.gather(error)) if each]:
            # Older checkpoints are kept until there is a newer one.
            queue.attempt(memory.withdraw, save.key)
            self._log_lost(save, "memory", "; ".join(errors))
            return
        self._published["shared"] = save.key.step
        self._log_save(save, parts, "memory")
        self._retire_memory(memory, save.key)

    def _retire_memory(self, memory: NodeMemory, key: Key) -> None:
        """Release older checkpoints. If that fails, training must not wait for their buffers."""
        pools = (memory.buffers, memory.copies)
        for pool in pools:  # a save that begins now waits for the outcome: an earlier fault says nothing about it
            pool.set_fault("")
        error = self._queues["memory"].attempt(memory.retire, key, self._broken_in(-1))
        self._unretired = key if error else None
        if error:
            for pool in pools:
                pool.set_fault(f"older checkpoints cannot be removed: {error}")
            self._log.failed(key.step, "memory", f"older checkpoints were not removed: {error}")

    def _replicate(self, save: PendingSave, tier: MemoryTier, queue: WorkerQueue) -> str:
        """Send this rank's shard to its neighbours and receive theirs; return the first error as a message."""
        errors, copies, neighbours = "", tier.memory.copies, tier.neighbours(queue.ranks.rank, queue.ranks.size)
        sizes = queue.ranks.gather(save.staged.size) if neighbours else []
        for target, source in neighbours:
            buffer, size = None, sizes[source]
            try:
                buffer = copies.take()
                error = queue.attempt(buffer.reserve, size)
            except OSError as none_free:
                error = str(none_free)
            # Even without a buffer: the neighbour sends in any case.
            room = buffer.bytes[:size] if buffer and not error else torch.empty(size, dtype=torch.uint8)
            queue.ranks.exchange(save.buffer.bytes[: save.staged.size], target, room, source)
            if buffer:
                error = error or queue.attempt(tier.memory.commit_copy, buffer, save.key, source)
                if error:
                    copies.release(buffer)
            errors = errors or error
        return errors

    def _to_store(self, save: PendingSave, tier: StoreTier) -> None:
        store, queue = tier.store, self._queues[tier.store.name]
        try:
            began = time.perf_counter()
            data = save.buffer.bytes[: save.staged.size]
            part = _part(save, began, queue.attempt(store.write, save.key, queue.ranks.rank, data))
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
        manifest = b""
        if queue.ranks.rank == 0:
            if save.staged.metadata is None:
                raise AssertionError("the first rank has the metadata")
            pieces = {index: piece for part in parts for index, piece in part.pieces.items()}
            metadata, sizes = replace(save.staged.metadata, storage_data=pieces), tuple(part.size for part in parts)
            manifest = seal(Manifest(save.key, sizes, metadata, save.progress, self._log.namespace))
        return queue.ranks.share(manifest)

    def _broken_in(self, place: int) -> set[Key]:
        """Return the saves that are proven broken in a tier: -1 for memory, otherwise the index of the store."""
        return {key for each, key in list(self._broken) if each == place}

    def _retire(self, tier: StoreTier, key: Key) -> None:
        """Remove saves that are older than those kept, broken, or never published."""
        saves, broken = tier.store.saves(), self._broken_in(self._stores.index(tier))
        # A greater number belongs to another job's save: the next number must exceed it.
        self._number = max(self._number or 0, *(each.save for each in saves), key.save)
        newest, later = retained({each for each in saves if saves[each]} - broken, key, tier.retention)
        tier.store.remove([each for each in saves if each < key and each not in newest | later])

    def _log_lost(self, save: PendingSave, tier: str, reason: str) -> None:
        key = save.key
        self._log.failed(key.step, tier, reason)
        self._log.record("failed", key.step, tier, blocked_s=save.blocked_s, detail=reason, save=key.save)

    def _log_save(self, save: PendingSave, parts: list[SavePart], tier: str) -> None:
        key, own = save.key, parts[self._ranks.rank]
        self._log.did("saved", key.step, tier, own.size, own.seconds)
        size, seconds = sum(part.size for part in parts), max(part.seconds for part in parts)
        blocked_s = max(part.blocked_s for part in parts)
        self._log.record("saved", key.step, tier, size, seconds, blocked_s, save=key.save)


def _part(save: PendingSave, began: float, error: str, replica_error: str = "") -> SavePart:
    """Return this rank's report of a save that is written now."""
    seconds = time.perf_counter() - began
    return SavePart(save.pieces, save.staged.size, seconds, save.blocked_s, error, replica_error)
