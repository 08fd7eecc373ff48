"""What a restore moves: real ranks save and load a sharded state, and every byte is counted where it moves."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from runtime_ranks import run_ranks

from launcher.common import names
from launcher.runtime.content import Content
from launcher.runtime.process_group import Place
from launcher.runtime.tiers.checkpoint_log import CheckpointLog
from launcher.runtime.tiers.checkpoint_manager import CheckpointManager, MemoryTier, StoreTier
from launcher.runtime.tiers.node_memory import NodeMemory
from launcher.runtime.tiers.rank_group import Ranks
from launcher.runtime.tiers.stores import Store


@dataclass(frozen=True)
class Traffic:
    """What one restore moved.

    Args:
        size: Bytes of the checkpoint's shards.
        sent: Bytes that ranks sent to each other, counted where they are sent.
        record: What the run's records say of the load.
    """

    size: int
    sent: int
    record: dict[str, Any]


def state_of(place: Place, width: int, depth: int, strategy: str) -> dict[str, Any]:
    """Return a state with an optimizer's, and with values that every rank has alike or for itself."""
    from launcher.runtime.trainer import distribute

    torch.manual_seed(width)
    layers = [torch.nn.Sequential(torch.nn.Linear(width, width), torch.nn.LayerNorm(width)) for _ in range(depth)]
    model = torch.nn.Sequential(*layers)
    model.blocks = list(layers) if strategy == "fsdp2" else []
    model = distribute(model, strategy)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    for parameter in model.parameters():
        parameter.grad = parameter.detach().clone()  # none that ranks reduce: the same at any number of them
    optimizer.step()
    common = {f"running{layer}": torch.arange(float(width)) + layer for layer in range(depth)}
    return {
        **Content(model, optimizer).state(),
        "common": common,
        "scheduler": b"x" * 500,
        "random": {f"{place.rank}": b"r"},
    }


def blank(state: Any) -> Any:
    """Return the state's form with other values."""
    if isinstance(state, dict):
        return {name: blank(value) for name, value in state.items()}
    return torch.zeros_like(state) if isinstance(state, torch.Tensor) else state


def same(state: Any, other: Any) -> bool:
    if isinstance(state, dict):
        return state.keys() == other.keys() and all(same(value, other[name]) for name, value in state.items())
    if hasattr(state, "to_local"):
        return torch.equal(state.to_local(), other.to_local())
    return torch.equal(state, other) if isinstance(state, torch.Tensor) else state == other


def manager(root: Path, place: Place, store: Callable[[], Store] | None) -> CheckpointManager:
    """Return the manager of a rank that is a node by itself, with one replica; or with a store in its place."""
    log = CheckpointLog("ns", place.rank, root)
    if store:
        return CheckpointManager(None, [StoreTier(store(), 1, 2)], log)
    replicas = min(1, place.world_size - 1)
    memory = NodeMemory(root / f"node{place.rank}" / "ns", place.rank, 2, num_sources=replicas)
    tier = MemoryTier(memory, 1, ranks_per_node=1, replicas=replicas)
    return CheckpointManager(tier, [], log, str(memory.folder))


def measure(
    root: Path,
    writers: int,
    readers: int,
    store: Callable[[], Store] | None = None,
    *,
    width: int = 256,
    depth: int = 4,
    strategy: str = "fsdp2",
) -> Traffic:
    """Save with some ranks and load with others; return what the load moved."""

    def save(place: Place) -> None:
        checkpoints = manager(root, place, store)
        checkpoints.save(state_of(place, width, depth, strategy), 1, {"cursor": 1})
        checkpoints.wait()

    def load(place: Place) -> int:
        sent, exchange = [0], Ranks.exchange

        def counted(self, data, target, room, source):
            sent[0] += len(data)
            exchange(self, data, target, room, source)

        expected = state_of(place, width, depth, strategy)
        target = blank(expected) | ({} if readers == writers else {"random": {}})
        checkpoints = manager(root, place, store)
        Ranks.exchange = counted
        restored = checkpoints.load(lambda _: target)
        assert same(restored.state, expected | ({} if readers == writers else {"random": {}}))
        assert restored.progress == {"cursor": 1} and not restored.passed_over
        return sent[0]

    root.mkdir(exist_ok=True)
    run_ranks(writers, save, root)
    sent = sum(run_ranks(readers, load, root))
    records = [json.loads(line) for line in (root / names.CHECKPOINTS_FILE).read_text().splitlines()]
    (saved,) = [record for record in records if record["event"] == "saved"]
    (loaded,) = [record for record in records if record["event"] == "loaded"]
    return Traffic(saved["num_bytes"], sent, loaded)
