"""The state that an operator saves before it is restarted, and loads afterwards."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from launcher.backends.local.fleet import NodeAddress
from launcher.operator.control_loop import Memory
from launcher.runtime.durable import write_text

MEMORY_FILE = "operator.json"


@dataclass(frozen=True, slots=True)
class Handover:
    """The knowledge of an operator on this machine that the next one cannot observe again.

    Args:
        memory: Of every operator.
        nodes: The addresses of its nodes.
        warm_pid: Of the parent of its warm process; None without one.
        rehearsal: State of the simulated cluster; None without a scenario.
        slow_save_s: How long the next checkpoint of a graceful stop is delayed.
    """

    memory: Memory
    nodes: tuple[NodeAddress, ...]
    warm_pid: int | None
    rehearsal: Mapping[str, Any] | None
    slow_save_s: float


_ADAPTER = TypeAdapter(Handover)


def write(run_dir: Path, memory: Handover) -> None:
    """Save `memory`."""
    write_text(run_dir / MEMORY_FILE, _ADAPTER.dump_json(memory).decode())


def read(run_dir: Path) -> Handover:
    """Return the state saved last."""
    return _ADAPTER.validate_json((run_dir / MEMORY_FILE).read_bytes())
