"""The creation time of this process and the progress of its start. Standard library only."""

import os
import time
from dataclasses import dataclass
from pathlib import Path

from launcher.common import names

_IMPORTED_HERE = time.time()
_times: dict[str, float] = {}
_began: float | None = None
_ready_s: float | None = None
os.register_at_fork(after_in_child=_times.clear)  # a forked worker has its own start


@dataclass(frozen=True, slots=True)
class StartRecord:
    """One start of the workers, as rank 0 saw it; times in seconds since the epoch, None for marks not reached.

    Args:
        attempt: Starts of this job before this one.
        spawned: The process was created.
        imported: All imports were done.
        joined: The process group was up.
        first_step: The first step ended.
        step, cursor: Optimizer steps done, and samples consumed, before; 0 for none.
        kept_by: Ranks that had the state in memory; None for a start from a checkpoint, or from nothing.
        moved_bytes: Bytes that ranks received of it.
        ready_s: Seconds from the creation of a process that stays until it waited for its first start.
    """

    attempt: int
    world_size: int
    nodes: int
    spawned: float
    imported: float | None
    joined: float | None
    restored: float | None
    first_step: float | None
    step: int
    cursor: int
    kept_by: int | None = None
    moved_bytes: int = 0
    ready_s: float | None = None


def attempt() -> int:
    """Return the number of earlier starts of this job's workers."""
    earlier = int(os.environ.get(names.ENV_EARLIER_STARTS, "0"))
    return earlier + int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))


def ready() -> None:
    """Record that this process waits for its first start."""
    global _ready_s
    _ready_s = time.time() - spawned()


def ready_s() -> float | None:
    """Return the seconds until this process waited for its first start; None if it does not stay."""
    return _ready_s


def begin() -> None:
    """Begin the start of another attempt in this process, which has imported everything."""
    global _began
    _began = time.time()
    _times.clear()
    _times["imported"] = _began


def reached(name: str) -> None:
    """Record that the start has reached `name`, `imported` or `joined`; the first call counts."""
    _times.setdefault(name, time.time())


def time_of(name: str) -> float:
    """Return when the start reached `name`."""
    return _times[name]


def spawned() -> float:
    """Return when this process was created, to a hundredth of a second, or began this attempt.

    Without /proc, when this module was imported.

    Source: proc(5), /proc/pid/stat, field 22: start of the process in clock ticks after boot.
    """
    if _began is not None:
        return _began
    stat = Path("/proc/self/stat")
    if not stat.exists():
        return _IMPORTED_HERE
    # The second field, the program's name, is in parentheses and may contain spaces.
    ticks = int(stat.read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()[19])
    age_s = time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
    return time.time() - age_s
