"""One manager of all tiers: training waits for a copy to host memory, the rest happens beside it."""

import pickle
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from launcher.runtime.tiers.buffers import Slot, Slots
from launcher.runtime.tiers.checkpoint_log import Journal, Record
from launcher.runtime.tiers.node_memory import NodeMemory
from launcher.runtime.tiers.owner import Ownership
from launcher.runtime.tiers.rank_group import Ranks
from launcher.runtime.tiers.restore import Form, Restoration, Restored
from launcher.runtime.tiers.shards import Key, Manifest, Piece, seal
from launcher.runtime.tiers.staging import Staged, Stager, StateUnfit, complete, pieces_of
from launcher.runtime.tiers.tier_settings import PATIENCE_S
from launcher.runtime.tiers.tier_types import MemoryTier, StoreTier
from launcher.runtime.tiers.worker_queue import Lane


@dataclass(slots=True)
class _Save:
    """A save under way."""

    key: Key
    staged: Staged
    slot: Slot
    slots: Slots
    progress: Mapping[str, Any]
    blocked_s: float
    memory_error: str = ""
    pieces: dict[Any, Piece] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Part:
    """What a rank tells the others of its part of a save."""

    pieces: Mapping[Any, Piece]
    size: int
    seconds: float
    blocked_s: float
    error: str
    replica_error: str = ""


class CheckpointManager:
    """Saves the state of a training to tiers, and loads the newest checkpoint there is. All ranks make one.

    What fails while a tier is saved to is told in the log and leaves training alone: the checkpoint is then not in
    that tier. `load` never takes a checkpoint that is not whole.

    Args:
        memory: The memory tier; None without one.
        stores: The others, the nearest first.
        journal: Is told of everything.
        node: This rank's node.
        patience_s: Seconds for which a tier that is unavailable is asked again while a checkpoint is loaded.
    """

    def __init__(
        self,
        memory: MemoryTier | None,
        stores: Sequence[StoreTier],
        journal: Journal,
        node: str = "localhost",
        patience_s: float = PATIENCE_S,
    ):
        self._memory, self._stores, self._journal, self._node = memory, tuple(stores), journal, node
        self._patience_s = patience_s
        self._ranks = Ranks()
        self._lanes = {name: Lane(name) for name in ("memory", "persistent")}
        self._stager = Stager(self._ranks)
        self._plain = Slots(None, 3)
        self._last: tuple[int, frozenset[str]] = (-1, frozenset())
        self._published: dict[str, int] = {}
        self._unretired: Key | None = None
        places = {"shared": self._memory.memory} if self._memory and self._is_leader else {}
        places |= {tier.store.name: tier.store for tier in self._stores} if self._ranks.rank == 0 else {}
        self._ownership = Ownership(places, journal, self._ranks)
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
        """Save to every tier that is due; return when `state` may change again. Collective.

        Args:
            state: As for `torch.distributed.checkpoint.save`.
            step: Optimizer steps done.
            progress: Comes back with `load`; copied too.
            everywhere: Save to all tiers that do not have this step, due or not.

        Raises:
            StateUnfit: torch.distributed.checkpoint cannot save the state, or pickle `progress`.
            NamespaceTaken: Another live job owns the namespace, which is found before the first save.
        """
        if everywhere:
            self.wait()
            due = frozenset(name for name in self._names() if self._published.get(name) != step)
        else:
            due = frozenset(self._due(step)) - (self._last[1] if self._last[0] == step else frozenset())
        if not due:
            return
        self._tell_ended()
        self._ownership.take()
        began = time.perf_counter()
        progress = _copied(progress)
        key = Key(step, self._stager.plan(state, self._next_number()))
        save = self._staged(key, progress, in_memory="shared" in due)
        save.blocked_s = time.perf_counter() - began
        self._last = (step, due)
        self._lanes["memory"].submit(self._finish, save, due)

    def has(self, step: int) -> bool:
        """Return whether the tier that outlives the others has this step, as far as saves are done."""
        return self._published.get(self._names()[-1]) == step

    def load(self, form: Form) -> Restored | None:
        """Load the newest published checkpoint; None where there is none. Collective.

        Args:
            form: Makes the state that is loaded into, once there is a checkpoint: to make an optimizer's changes it.
                Its manifest has the number of ranks that wrote it (`world_size`) and what it holds (`metadata`).

        Raises:
            CheckpointUnavailable: There are some, or a tier could not be asked, and nothing was loaded.
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
        """Return the newest published step; None where there is none. Collective.

        Raises:
            CheckpointUnavailable: None is found, and a tier could not be asked.
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
        self._journal.record(Record(time.time(), "cleared", 0, "", 0, 0.0))
        self._ranks.barrier()

    def wait(self) -> None:
        """Wait until every save is done."""
        for name in ("memory", "persistent"):  # the first gives work to the second
            for error in self._lanes[name].wait():
                self._journal.failed(self._last[0], name, f"{type(error).__name__}: {error}")

    def _restoration(self) -> Restoration:
        memory = self._memory.memory if self._memory else None
        stores = [tier.store for tier in self._stores]
        return Restoration(self._ranks, memory, stores, self._node, self._journal, self._patience_s, self._broken)

    def _next_number(self) -> int:
        """Return a number for a save that is greater than all that are stored; the first rank's counts."""
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

    def _staged(self, key: Key, progress: Mapping[str, Any], *, in_memory: bool) -> _Save:
        error, slot, slots = "", None, self._memory.memory.slots if in_memory else self._plain
        try:
            slot = slots.take()
            staged = self._stager.copy(slot)
        except OSError as full:
            # No room in the node's memory tier: what goes to other tiers goes from this process's own memory.
            if slot:
                slots.release(slot)
            slots, error = self._plain, str(full)
            slot = slots.take()
            staged = self._stager.copy(slot)
        return _Save(key, staged, slot, slots, progress, 0.0, error)

    def _finish(self, save: _Save, due: frozenset[str]) -> None:
        try:
            # Training stands still until the last rank has copied: no checksum takes its processor before.
            self._lanes["memory"].ranks.barrier()
            save.pieces = pieces_of(save.staged, save.slot, self._ranks.rank)
            if "shared" in due:
                self._to_memory(save)
            for tier in self._stores:
                if tier.store.name in due:
                    save.slots.hold(save.slot)
                    if tier.store.name == "memory":
                        self._to_store(save, tier)
                    else:
                        self._lanes["persistent"].submit(self._to_store, save, tier)
        finally:
            save.slots.release(save.slot)
        if self._memory:
            memory = self._memory.memory
            size = len(save.slot.bytes)
            self._lanes["memory"].attempt(memory.slots.prepare, size, memory.retention + 1)

    def _to_memory(self, save: _Save) -> None:
        tier, lane = self._memory, self._lanes["memory"]
        began = time.perf_counter()
        error = save.memory_error or lane.attempt(tier.memory.commit, save.slot, save.key)
        replica_error = self._replicate(save, lane)
        part = _Part(save.pieces, save.staged.size, time.perf_counter() - began, save.blocked_s, error, replica_error)
        parts = lane.ranks.gather(part)
        manifest = self._agreed(save, parts, lane, "memory")
        if not manifest:
            lane.attempt(tier.memory.forget, save.key)
            if self._unretired:
                self._retire_memory(self._unretired)
            return
        error = ""
        if self._is_leader:
            held = lane.attempt(self._ownership.hold, "shared")
            error = held or lane.attempt(tier.memory.publish, save.key, manifest)
        if errors := [f"rank {rank}: {each}" for rank, each in enumerate(lane.ranks.gather(error)) if each]:
            # Older checkpoints stay until there is a newer one.
            lane.attempt(_withdraw, tier.memory, save.key)
            self._lost(save, "memory", "; ".join(errors))
            return
        self._published["shared"] = save.key.step
        self._told(save, parts, "memory")
        self._retire_memory(save.key)

    def _retire_memory(self, key: Key) -> None:
        """Let go of older checkpoints. Where that fails training must not wait for their slots."""
        memory = self._memory.memory
        error = self._lanes["memory"].attempt(memory.retire, key, self._broken_in(-1))
        self._unretired = key if error else None
        for slots in (memory.slots, memory.copies):
            slots.tell(f"older checkpoints cannot be removed: {error}" if error else "")
        if error:
            self._journal.failed(key.step, "memory", f"older checkpoints were not removed: {error}")

    def _replicate(self, save: _Save, lane: Lane) -> str:
        """Give this rank's shard to its neighbours and take theirs; return what went wrong."""
        tier, errors = self._memory, ""
        neighbours = tier.neighbours(lane.ranks.rank, lane.ranks.size)
        sizes = lane.ranks.gather(save.staged.size) if neighbours else []
        for target, source in neighbours:
            slot, error = None, ""
            try:
                slot = tier.memory.copies.take()
            except OSError as none:
                error = str(none)
            error = error or lane.attempt(slot.reserve, sizes[source])
            # The neighbour sends in any case.
            room = torch.empty(sizes[source], dtype=torch.uint8) if error else slot.bytes[: sizes[source]]
            lane.ranks.exchange(save.slot.bytes[: save.staged.size], target, room, source)
            error = error or lane.attempt(tier.memory.commit_copy, slot, save.key, source)
            if error and slot:
                tier.memory.copies.release(slot)
            errors = errors or error
        return errors

    def _to_store(self, save: _Save, tier: StoreTier) -> None:
        store, lane = tier.store, self._lanes[tier.store.name]
        try:
            began = time.perf_counter()
            data = save.slot.bytes[: save.staged.size]
            error = lane.attempt(store.write, save.key, lane.ranks.rank, data)
            part = _Part(save.pieces, save.staged.size, time.perf_counter() - began, save.blocked_s, error)
        finally:
            save.slots.release(save.slot)
        parts = lane.ranks.gather(part)
        manifest = self._agreed(save, parts, lane, store.name)
        if not manifest:
            return
        error = left = ""
        if lane.ranks.rank == 0:
            # Two live jobs with one namespace would remove each other's checkpoints.
            held = lane.attempt(self._ownership.hold, store.name)
            error = held or lane.attempt(store.publish, save.key, manifest)
            left = "" if error else lane.attempt(self._retire, tier, save.key)
        # The others wait for the removal: what they write next has no manifest yet, and would go with it.
        error, left = lane.ranks.share((error, left))
        if error:
            self._lost(save, store.name, error)
            return
        self._published[store.name] = save.key.step
        self._told(save, parts, store.name)
        if left and lane.ranks.rank == 0:
            self._journal.failed(save.key.step, store.name, f"older checkpoints were not removed: {left}")

    def _agreed(self, save: _Save, parts: list[_Part], lane: Lane, tier: str) -> bytes:
        """Return the manifest when every rank has written its shard, else nothing; the same on all ranks."""
        if errors := [f"rank {rank}: {part.error}" for rank, part in enumerate(parts) if part.error]:
            self._lost(save, tier, "; ".join(errors))
            return b""
        if errors := [f"rank {rank}: {part.replica_error}" for rank, part in enumerate(parts) if part.replica_error]:
            self._lost(save, "replica", "; ".join(errors))
        return lane.ranks.share(self._sealed(save, parts) if lane.ranks.rank == 0 else b"")

    def _sealed(self, save: _Save, parts: list[_Part]) -> bytes:
        pieces = {index: piece for part in parts for index, piece in part.pieces.items()}
        metadata = complete(save.staged.metadata, pieces)
        sizes = tuple(part.size for part in parts)
        return seal(Manifest(save.key, sizes, metadata, save.progress, self._journal.namespace))

    def _broken_in(self, place: int) -> set[Key]:
        """Return the saves that are proven broken in memory, -1, or one of the stores."""
        return {key for each, key in list(self._broken) if each == place}

    def _retire(self, tier: StoreTier, key: Key) -> None:
        """Remove what is older than the checkpoints that are kept, what is broken, and what was never published.

        A published save of a later step stays until it is proven broken or its step is done again.
        """
        saves, broken = tier.store.saves(), self._broken_in(self._stores.index(tier))
        # A save with a greater number is not of this job's: the next number is greater still.
        self._number = max(self._number or 0, *(each.save for each in saves), key.save)
        published = sorted({each for each, is_published in saves.items() if is_published} | {key})
        intact = [each for each in published if each not in broken and each <= key]
        kept = {*intact[-tier.retention :], *(each for each in intact if each.step > key.step)}
        tier.store.remove([each for each in saves if each < key and each not in kept])

    def _lost(self, save: _Save, tier: str, reason: str) -> None:
        self._journal.failed(save.key.step, tier, reason)
        now, key = time.time(), save.key
        self._journal.record(Record(now, "failed", key.step, tier, 0, 0.0, save.blocked_s, reason, key.save))

    def _told(self, save: _Save, parts: list[_Part], tier: str) -> None:
        own = parts[self._ranks.rank]
        self._journal.did("saved", save.key.step, tier, own.size, own.seconds)
        size, seconds = sum(part.size for part in parts), max(part.seconds for part in parts)
        blocked_s = max(part.blocked_s for part in parts)
        now, key = time.time(), save.key
        self._journal.record(Record(now, "saved", key.step, tier, size, seconds, blocked_s, save=key.save))

    def _tell_ended(self) -> None:
        for name, lane in self._lanes.items():
            for error in lane.done():
                self._journal.failed(self._last[0], name, f"{type(error).__name__}: {error}")


def _copied(progress: Mapping[str, Any]) -> Mapping[str, Any]:
    try:
        return pickle.loads(pickle.dumps(dict(progress)))
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise StateUnfit(f"progress cannot be saved: {error}") from error


def _withdraw(memory: NodeMemory, key: Key) -> None:
    """Take a save back that has its manifest on some nodes only."""
    if path := memory.manifests().get(key):
        path.unlink(missing_ok=True)
    memory.forget(key)
