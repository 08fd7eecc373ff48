"""From shards to a state: a reader for torch.distributed.checkpoint that checks every byte before it is used."""

import time
from dataclasses import dataclass
from typing import Any

from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.metadata import Metadata
from torch.distributed.checkpoint.planner import LoadPlan, LoadPlanner
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.storage import StorageReader
from torch.futures import Future

from launcher.runtime.checkpoint_search import StateMismatch
from launcher.runtime.process_group import without_group_warning
from launcher.runtime.tiers.exchange import Exchange, ReadTarget
from launcher.runtime.tiers.rank_group import Ranks
from launcher.runtime.tiers.shard_sources import Reason, Shards
from launcher.runtime.tiers.shards import Manifest


class ShardsBroken(RuntimeError):
    """Some of a checkpoint's shards cannot be used.

    Args:
        reasons: The shards that each rank could not use, by the rank that wrote them, shape `(num_ranks,)`.
    """

    def __init__(self, reasons: list[dict[int, Reason]]):
        super().__init__("; ".join(sorted({reason.text for each in reasons for reason in each.values()})))
        self.reasons = reasons

    @property
    def is_damage(self) -> bool:
        """Whether a shard is proven broken; if not, it may be readable later."""
        return any(reason.is_damage for each in self.reasons for reason in each.values())


@dataclass(frozen=True, slots=True)
class Reading:
    """The cost of reading a checkpoint.

    Args:
        num_bytes: Bytes that this rank read from the tier.
        total_bytes: Bytes that all ranks read from the tier.
        sent_bytes: Bytes sent between all ranks.
        slowest_s: Seconds of the slowest rank.
    """

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
        with without_group_warning():
            # Each rank plans alone: the manifest, which all ranks have, holds everything that they could agree on.
            load(state, storage_reader=reader, no_dist=True)
    except CheckpointException as error:
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
