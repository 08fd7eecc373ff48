"""The choice of the checkpoint to load: the newest published one, from the nearest tier that has it intact."""

import functools
import itertools
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from launcher.runtime.checkpoint_search import (
    Candidate,
    CheckpointBroken,
    CheckpointUnavailable,
    Damaged,
    Search,
    Source,
    Unavailable,
)
from launcher.runtime.tiers.checkpoint_log import BROKEN, CheckpointLog
from launcher.runtime.tiers.node_memory import Held, NodeMemory
from launcher.runtime.tiers.rank_group import Ranks
from launcher.runtime.tiers.read_plan import Copy, Nodes, StoreShards
from launcher.runtime.tiers.shards import Broken, Key, Manifest, TierFailure, TierRefused, unseal_own
from launcher.runtime.tiers.state_reader import Reading, ShardsBroken, read_state
from launcher.runtime.tiers.stores import Store

Form = Callable[[Manifest], dict[str, Any]]
"""Creates the state to load a checkpoint into, as for `torch.distributed.checkpoint.load`."""


@dataclass(frozen=True, slots=True)
class Restored:
    """A checkpoint that was loaded, written by `world_size` ranks.

    Args:
        tier: `memory`, `replica` or `persistent`.
        progress: As passed to `save`.
        passed_over: Newer or nearer checkpoints that could not be used, and why.
    """

    step: int
    tier: str
    world_size: int
    progress: Mapping[str, Any]
    state: dict[str, Any]
    passed_over: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Holding:
    """The content of a node's memory tier, as one rank sees it."""

    node: str
    manifests: tuple[Key, ...] = ()
    shards: tuple[Held, ...] = ()


@dataclass(slots=True)
class Survey:
    """The content of all tiers, as one rank sees it; only the first rank looks at the stores and the records.

    Args:
        stores: The saves of each store, and whether they are published.
        damage: Damage that belongs to no loadable save, as messages.
        unavailable: Tiers that did not answer, and why.
        is_final: Whether a retry cannot succeed.
        retry_after_s: Seconds to wait, if a tier named any.
        published: The newest save in the records.
    """

    holding: Holding
    stores: list[Mapping[Key, bool]] = field(default_factory=list)
    damage: list[str] = field(default_factory=list)
    unavailable: list[str] = field(default_factory=list)
    is_final: bool = False
    retry_after_s: float = 0.0
    published: Key = Key(0, 0)

    @property
    def newest(self) -> int:
        """The greatest number of a save, published or not."""
        keys = [self.published, *self.holding.manifests, *(shard.key for shard in self.holding.shards)]
        return max(key.save for key in itertools.chain(keys, *self.stores))


@dataclass(slots=True)
class Restoration:
    """One search for a checkpoint. Every method is collective.

    Args:
        memory: The memory tier of this rank's node; None for none.
        stores: The other tiers, the nearest first.
        patience_s: Seconds for which an unavailable tier is retried.
        broken: Receives every save that is proven broken, with its tier: -1 is memory, others index the stores.

    Attributes:
        seen: The greatest number of a save in any tier.
    """

    ranks: Ranks
    memory: NodeMemory | None
    stores: Sequence[Store]
    node: str
    log: CheckpointLog
    patience_s: float
    broken: set[tuple[int, Key]]
    seen: int = 0
    _holdings: list[Holding] = field(default_factory=list)
    _excluded: set[tuple[str, Held]] = field(default_factory=set)
    _unread: set[tuple[str, Held]] = field(default_factory=set)
    _search: Search = field(init=False)

    def __post_init__(self) -> None:
        self._search = Search(self.ranks, self.patience_s, functools.partial(self.log.warn_once, 0))

    def number(self) -> int:
        """Return the greatest number of a save in the tiers that answer, without waiting for others."""
        return max(survey.newest for survey in self.ranks.gather(self._survey()))

    def newest(self) -> int | None:
        """Return the newest published step; None if there is none. CheckpointUnavailable if a tier did not answer."""
        candidates, _ = self._candidates()
        return candidates[0][0].step if candidates else None

    def run(self, form: Form) -> Restored | None:
        """Load the newest published checkpoint, an older one only if it is proven damaged; None if there is none.

        Raises:
            CheckpointUnavailable: There are checkpoints and none is intact, or a tier did not answer, or the newest
                that may be intact could not be read.
        """
        found, published = self._candidates()
        last = max((key for key, _ in found), default=Key(0, 0))
        if published > last:
            self._search.pass_over(f"step {published.step} was published, but no tier has it any more")
        candidates = [
            Candidate(f"step {key.step}", [self._source(form, key, place) for place in places])
            for key, places in found
        ]
        try:
            restored = self._search.newest(candidates)
        except CheckpointBroken as error:
            self.log.record(BROKEN, 0, "", detail=str(error))  # the timeline needs to know what is lost
            raise CheckpointUnavailable(error.tried) from error
        if restored is None and self._search.passed_over:
            raise CheckpointUnavailable(self._search.passed_over)
        return restored

    def _candidates(self) -> tuple[list[tuple[Key, list[int]]], Key]:
        """Return every published save, the newest first, with its tiers, and the save that was published last."""
        surveys = self._search.patiently(self._surveyed)
        self._holdings = [survey.holding for survey in surveys]
        self.seen = max(survey.newest for survey in surveys)
        for damage in dict.fromkeys(text for survey in surveys for text in survey.damage):
            self._search.pass_over(damage)
        found = {key: [-1] for holding in self._holdings for key in holding.manifests}
        for place, saves in enumerate(surveys[0].stores):
            for key, is_published in saves.items():
                if is_published:
                    found.setdefault(key, []).append(place)
        return sorted(found.items(), reverse=True), surveys[0].published

    def _surveyed(self) -> list[Survey]:
        surveys = self.ranks.gather(self._survey())
        if reasons := list(dict.fromkeys(reason for survey in surveys for reason in survey.unavailable)):
            if any(survey.is_final for survey in surveys):
                raise CheckpointUnavailable([*self._search.passed_over, *reasons])
            self._warn("; ".join(reasons))
            time.sleep(min(self.patience_s, max(survey.retry_after_s for survey in surveys)))
            raise Unavailable("; ".join(reasons))
        return surveys

    def _survey(self) -> Survey:
        found = Survey(Holding(self.node))
        for store in self.stores if self.ranks.rank == 0 else ():
            try:
                found.stores.append(store.saves())
                found.damage += [f"{store.name}: {fault}" for fault in store.faults]
            except (Broken, TierFailure) as error:
                found.stores.append({})
                found.unavailable.append(f"{store.name}: {error}")
                found.is_final = found.is_final or isinstance(error, TierRefused)
                found.retry_after_s = max(found.retry_after_s, getattr(error, "retry_after_s", 0.0))
        try:
            if self.memory:
                shards = tuple(self.memory.shards().values())
                found.holding = Holding(self.node, tuple(self.memory.manifests()), shards)
        except OSError as error:
            found.unavailable.append(f"memory: {error}")
        if self.ranks.rank == 0:
            found.published = self.log.published()
        return found

    def _source(self, form: Form, key: Key, place: int) -> Source[Restored]:
        def load() -> Restored:
            try:
                return self._load(form, key, place)
            except Damaged:
                self.broken.add((place, key))
                raise
            except Unavailable as error:
                self._warn(f"step {key.step} from {self._name(place)}: {error}")
                raise

        return Source(self._name(place), load)

    def _warn(self, reason: str) -> None:
        self.log.warn_once(0, f"unavailable, retrying for up to {self.patience_s:g} s: {reason}")

    @property
    def _node_memory(self) -> NodeMemory:
        if self.memory is None:
            raise AssertionError("without a memory tier no save is in memory")
        return self.memory

    def _name(self, place: int) -> str:
        return self.stores[place].name if place >= 0 else "memory"

    def _load(self, form: Form, key: Key, place: int) -> Restored:
        began = time.perf_counter()
        manifest = self._manifest(key, place)
        state, known = form(manifest), self._holdings
        while True:
            tier, shards = self._shards(manifest, place, known)
            try:
                reading = read_state(state, manifest, shards, self.ranks)
                break
            except ShardsBroken as error:
                if isinstance(shards, StoreShards):
                    raise (Broken if error.is_damage else TierFailure)(str(error)) from error
                self._search.pass_over(f"step {key.step} from {tier}: {error}")
                self._exclude(key, shards, error)
        self._log_load(key, tier, reading, time.perf_counter() - began)
        passed_over = tuple(self._search.passed_over)
        return Restored(key.step, tier, manifest.world_size, manifest.progress, state, passed_over)

    def _manifest(self, key: Key, place: int) -> Manifest:
        """Return a save's manifest from a tier; for memory, from the first node that has it intact.

        Raises:
            Damaged: Every copy is broken.
            Unavailable: One that may be intact could not be read.
        """
        sources = [0]
        if place < 0:
            nodes: dict[str, int] = {}  # the first rank of each node that has it
            for rank, each in enumerate(self._holdings):
                if key in each.manifests:
                    nodes.setdefault(each.node, rank)
            sources = list(nodes.values())
        reasons: list[Damaged | Unavailable] = []
        for source in sources:
            answer = self._manifest_bytes(key, place) if self.ranks.rank == source else b""
            data = self.ranks.share(answer, source)
            if isinstance(data, bytes):
                return unseal_own(data, key, self.log.namespace)
            reasons.append(data)
        raise next((each for each in reasons if isinstance(each, Unavailable)), reasons[-1])

    def _manifest_bytes(self, key: Key, place: int) -> bytes | Broken | TierFailure:
        """Return the intact manifest of a save, or the error."""
        try:
            source = self.stores[place] if place >= 0 else self._node_memory
            data = source.manifest(key)
            unseal_own(data, key, self.log.namespace)
        except Damaged as error:
            return Broken(str(error))
        except (Unavailable, OSError) as error:
            return TierFailure(str(error))
        return data

    def _shards(self, manifest: Manifest, place: int, known: list[Holding]) -> tuple[str, StoreShards | Nodes]:
        """Return the name of the tier and the shards of a save; of memory, those copies that were not tried in vain.

        Args:
            known: The content of the nodes before any copy was tried.

        Raises:
            Damaged: No copy is left of a shard, and those that were tried are broken.
            Unavailable: No copy is left, and one could not be read.
        """
        if place >= 0:
            return self._name(place), StoreShards(self.stores[place], manifest)
        copies = self._copies(manifest.key)
        if missing := [rank for rank in range(manifest.world_size) if rank not in copies]:
            # A later attempt reads unread copies again, but not broken ones.
            unread, self._unread = {shard.rank for _, shard in self._unread}, set()
            self._holdings = [_without(each, self._excluded) for each in known]
            is_damage = any(rank not in unread for rank in missing)
            reason = f"no node has the shards of ranks {', '.join(map(str, missing))}"
            raise (Broken if is_damage else TierFailure)(reason)
        is_copy = any(each[0].is_replica for each in copies.values())
        names = [holding.node for holding in self._holdings]
        return "replica" if is_copy else "memory", Nodes(self._node_memory, self.node, names, copies, manifest)

    def _copies(self, key: Key) -> dict[int, list[Copy]]:
        """Return the copies of each shard of a save, by the rank that wrote it; originals before replicas."""
        found: dict[int, set[tuple[bool, str]]] = {}
        for holding in self._holdings:
            for shard in holding.shards:
                if shard.key == key:
                    found.setdefault(shard.rank, set()).add((shard.is_replica, holding.node))
        return {writer: [Copy(node, replica) for replica, node in sorted(each)] for writer, each in found.items()}

    def _exclude(self, key: Key, tried: Nodes, error: ShardsBroken) -> None:
        """Exclude copies of shards that could not be used: broken ones for good, unread ones for this attempt."""
        for taker, reasons in enumerate(error.reasons):
            for writer, reason in reasons.items():
                copy = tried.chosen(writer, self._holdings[taker].node)
                shard = Held(key, writer, copy.is_replica)
                (self._excluded if reason.is_damage else self._unread).add((copy.node, shard))
        self._holdings = [_without(each, self._excluded | self._unread) for each in self._holdings]

    def _log_load(self, key: Key, tier: str, reading: Reading, seconds: float) -> None:
        passed_over = "; ".join(self._search.passed_over)
        self.log.did("loaded", key.step, tier, reading.num_bytes, seconds)
        slowest_s, size, sent = reading.slowest_s, reading.total_bytes, reading.sent_bytes
        self.log.record(
            "loaded", key.step, tier, size, slowest_s, slowest_s, detail=passed_over, save=key.save, sent_bytes=sent
        )
        if passed_over:
            self.log.warn_once(key.step, f"resumes from step {key.step}; passed over: {passed_over}")


def _without(holding: Holding, shards: Collection[tuple[str, Held]]) -> Holding:
    return replace(holding, shards=tuple(each for each in holding.shards if (holding.node, each) not in shards))
