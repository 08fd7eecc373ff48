"""Which checkpoint is loaded, and from where: the newest published one, from the nearest tier that has it whole."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from launcher.runtime.tiers.journal import Journal, Record
from launcher.runtime.tiers.memory import NodeMemory
from launcher.runtime.tiers.ranks import Ranks
from launcher.runtime.tiers.reading import Nodes, Reading, Shards, ShardsBroken, copies_of, from_store, read_state
from launcher.runtime.tiers.shards import Broken, Key, Manifest, check_seal, unseal
from launcher.runtime.tiers.stores import Store, TierFailure

Form = Callable[[Manifest], dict[str, Any]]
"""Makes the state that a checkpoint is loaded into, as for `torch.distributed.checkpoint.load`."""


class CheckpointUnavailable(RuntimeError):
    """There are checkpoints, or there may be, and none could be loaded.

    Args:
        tried: Each tier that was tried, and what came of it.
    """

    def __init__(self, tried: Sequence[str]):
        super().__init__("no checkpoint could be loaded; tried " + "; ".join(tried))
        self.tried = tuple(tried)


@dataclass(frozen=True, slots=True)
class Restored:
    """A checkpoint that was loaded.

    Args:
        step: Optimizer steps done.
        tier: `memory`, `replica` or `persistent`.
        world_size: Ranks that wrote it.
        progress: What was saved with it.
        state: What it holds.
        passed_over: What is newer or nearer and could not be used, and why.
    """

    step: int
    tier: str
    world_size: int
    progress: Mapping[str, Any]
    state: dict[str, Any]
    passed_over: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Holding:
    """What one rank sees in its node's memory. `fault` says why it sees nothing."""

    node: str
    manifests: tuple[Key, ...]
    shards: tuple[tuple[Key, int, bool], ...]
    fault: str = ""


@dataclass(slots=True)
class Restoration:
    """One search for a checkpoint. Every method is collective.

    Args:
        memory: The memory tier of this rank's node; None without one.
        stores: The other tiers, the nearest first.
        node: Name of this rank's node.
    """

    ranks: Ranks
    memory: NodeMemory | None
    stores: Sequence[Store]
    node: str
    journal: Journal
    tried: list[str] = field(default_factory=list)
    _holdings: list[Holding] = field(default_factory=list)

    def newest(self) -> int | None:
        """Return the newest published step; None where there is none.

        Raises:
            CheckpointUnavailable: None is found, and a tier could not be asked.
        """
        candidates, _ = self._candidates()
        if self.tried and not candidates:
            raise CheckpointUnavailable(self.tried)
        return max((key.step for key, _ in candidates), default=None)

    def run(self, form: Form) -> Restored | None:
        """Load the newest published checkpoint; None where there is none.

        Raises:
            CheckpointUnavailable: There are some, or a tier could not be asked, and nothing was loaded.
            StateMismatch: The checkpoint is of another model or optimizer.
        """
        candidates, published = self._candidates()
        if published > max((key.step for key, _ in candidates), default=0):
            self._note(f"step {published} was published, and no tier has it any more")
        for key, tiers in candidates:
            for tier in tiers:
                if restored := self._try(form, key, tier):
                    return restored
        if self.tried:
            raise CheckpointUnavailable(self.tried)
        return None

    def _candidates(self) -> tuple[list[tuple[Key, list[int]]], int]:
        """Return every published save, the newest first, with its tiers, and the step that was published last.

        Of the tiers, -1 is memory, others count the stores.
        """
        is_first = self.ranks.rank == 0
        answers = [_asked(store) for store in self.stores] if is_first else []
        told = self.ranks.gather((self._holding(), answers, self.journal.published() if is_first else 0))
        self._holdings = [holding for holding, _, _ in told]
        for fault in dict.fromkeys(holding.fault for holding in self._holdings if holding.fault):
            self._note(f"memory: {fault}")
        found: dict[Key, list[int]] = {}
        for holding in self._holdings:
            for key in holding.manifests:
                found[key] = [-1]
        for place, (saves, reason) in enumerate(told[0][1]):
            if reason:
                self._note(f"{self.stores[place].name}: {reason}")
            for key, is_published in saves.items():
                if is_published:
                    found.setdefault(key, []).append(place)
        return sorted(found.items(), reverse=True), told[0][2]

    def _holding(self) -> Holding:
        if self.memory is None:
            return Holding(self.node, (), ())
        try:
            shards = tuple((held.key, held.rank, held.is_replica) for held in self.memory.shards().values())
            return Holding(self.node, tuple(self.memory.manifests()), shards)
        except OSError as error:
            return Holding(self.node, (), (), str(error))

    def _try(self, form: Form, key: Key, place: int) -> Restored | None:
        name = self.stores[place].name if place >= 0 else "memory"
        began = time.perf_counter()
        manifest, reason = self._manifest(key, place)
        if manifest is None:
            self._note(f"step {key.step} from {name}: {reason}")
            return None
        state = form(manifest)
        for tier, shards, copies in self._sources(manifest, place):
            try:
                reading = read_state(state, manifest, shards, self.ranks)
            except ShardsBroken as error:
                self._note(f"step {key.step} from {tier}: {error}")
                self._exclude(key, copies, error)
                continue
            self._tell(key, tier, reading, time.perf_counter() - began)
            return Restored(key.step, tier, manifest.world_size, manifest.progress, state, tuple(self.tried))
        return None

    def _manifest(self, key: Key, place: int) -> tuple[Manifest | None, str]:
        """Return a save's manifest as it lies in a tier, or why there is none."""
        sources = [0]
        if place < 0:
            nodes = {
                each.node: rank for rank, each in reversed(list(enumerate(self._holdings))) if key in each.manifests
            }
            sources = sorted(nodes.values())
        data, reason = b"", ""
        for source in sources:
            if self.ranks.rank == source:
                data, reason = self._manifest_bytes(key, place)
            data, reason = self.ranks.share((data, reason), source)
            if not reason:
                return unseal(data), ""
        return None, reason

    def _manifest_bytes(self, key: Key, place: int) -> tuple[bytes, str]:
        try:
            data = self.stores[place].manifest(key) if place >= 0 else self.memory.manifest(key)
            check_seal(data)
        except (Broken, TierFailure, OSError) as error:
            return b"", str(error)
        return data, ""

    def _sources(self, manifest: Manifest, place: int) -> Iterator[tuple[str, Shards, Nodes | None]]:
        """Return the name of the tier and how shards come from it; from memory until no copy is left to try."""
        if place >= 0:
            store = self.stores[place]
            yield store.name, from_store(store, manifest), None
            return
        while True:
            copies = copies_of(manifest.key, self._by_node(manifest.key))
            missing = [rank for rank in range(manifest.world_size) if rank not in copies]
            if missing:
                ranks = ", ".join(map(str, missing))
                self._note(f"step {manifest.key.step} from memory: no node has the shards of ranks {ranks}")
                return
            is_copy = any(each[0].is_replica for each in copies.values())
            nodes = Nodes(self.memory, self.ranks, [holding.node for holding in self._holdings], copies)
            yield "replica" if is_copy else "memory", nodes.of(manifest), nodes

    def _by_node(self, key: Key) -> list[tuple[str, list[tuple[int, bool]]]]:
        nodes = {holding.node: holding for holding in self._holdings}
        return [
            (node, [(rank, replica) for each, rank, replica in holding.shards if each == key])
            for node, holding in nodes.items()
        ]

    def _exclude(self, key: Key, tried: Nodes | None, error: ShardsBroken) -> None:
        """Count the copies that were just tried of broken shards as gone."""
        if tried is None:
            return
        bad = set()
        for taker, reasons in enumerate(error.reasons):
            for writer in reasons:
                copy = tried.chosen(writer, self._holdings[taker].node)
                bad.add((copy.node, key, writer, copy.is_replica))
        self._holdings = [
            replace(each, shards=tuple(shard for shard in each.shards if (each.node, *shard) not in bad))
            for each in self._holdings
        ]

    def _note(self, text: str) -> None:
        self.tried.append(text)
        if self.ranks.rank == 0:
            self.journal.warn(0, text)

    def _tell(self, key: Key, tier: str, reading: Reading, seconds: float) -> None:
        self.journal.did("loaded", key.step, tier, reading.num_bytes, seconds)
        slowest_s, detail = reading.slowest_s, "; ".join(self.tried)
        record = Record(time.time(), "loaded", key.step, tier, reading.total_bytes, slowest_s, slowest_s, detail)
        self.journal.record(record)
        if self.tried and self.ranks.rank == 0:
            self.journal.warn(key.step, f"goes on from step {key.step}; passed over: " + "; ".join(self.tried))


def _asked(store: Store) -> tuple[dict[Key, bool], str]:
    try:
        return store.saves(), ""
    except (Broken, TierFailure) as error:
        return {}, str(error)
