"""What an operator writes down before it is restarted, and reads when it is back."""

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
    """Everything an operator knows that it cannot see.

    Args:
        launched: When the job was launched, seconds since the epoch.
        course: Where the job is.
        snapshot: What others were told.
        nodes: Where its nodes are found.
        warm_pid: The process that holds its warm process; None without one.
        reported_attempt: Newest attempt whose first step was told of.
        requested: Size that somebody asked for; None for any.
        rehearsal: What has happened to the simulated cluster; None without a scenario.
        slow_save_s: How long the next checkpoint of a graceful stop is held up.
        interrupts: How many signals asked for the end of the job, and the last of them.
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
    """Write `memory` down."""
    write_text(run_dir / MEMORY_FILE, _ADAPTER.dump_json(memory).decode())


def read(run_dir: Path) -> Handover:
    """Return what was written down last."""
    return _ADAPTER.validate_json((run_dir / MEMORY_FILE).read_bytes())
