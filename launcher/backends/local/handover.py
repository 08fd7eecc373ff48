"""The state that an operator saves before it is restarted, and loads afterwards."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from launcher.backends.local.fleet import NodeAddress
from launcher.backends.local.operator_types import MachineState
from launcher.backends.local.snapshot import Snapshot
from launcher.runtime.durable import write_text

MEMORY_FILE = "operator.json"


@dataclass(frozen=True, slots=True)
class Handover:
    """The knowledge of an operator that it cannot observe again.

    Args:
        launched: Launch of the job, in seconds since the epoch.
        machine: The state of the job.
        snapshot: The published state.
        nodes: The addresses of its nodes.
        warm_pid: Of the parent of its warm process; None without one.
        reported_attempt: Newest attempt whose first step is logged.
        requested: Size that a user requested; None for any.
        rehearsal: State of the simulated cluster; None without a scenario.
        slow_save_s: How long the next checkpoint of a graceful stop is delayed.
        interrupts: Number of signals that requested the end of the job, and the last of them.
    """

    launched: float
    machine: MachineState
    snapshot: Snapshot
    nodes: tuple[NodeAddress, ...]
    warm_pid: int | None
    reported_attempt: int
    requested: int | None
    rehearsal: Mapping[str, Any] | None
    slow_save_s: float
    interrupts: tuple[int, int]


_ADAPTER = TypeAdapter(Handover)


def write(run_dir: Path, memory: Handover) -> None:
    """Save `memory`."""
    write_text(run_dir / MEMORY_FILE, _ADAPTER.dump_json(memory).decode())


def read(run_dir: Path) -> Handover:
    """Return the state saved last."""
    return _ADAPTER.validate_json((run_dir / MEMORY_FILE).read_bytes())
