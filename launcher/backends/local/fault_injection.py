"""The faults that a scenario injects into the processes of a job: real signals to real workers, agents and nodes."""

import contextlib
import signal
import time
from collections.abc import Callable
from pathlib import Path

import psutil

from launcher.runtime.warm_client import fork_name

RANK = "RANK"
"""Environment variable that holds a worker's rank. Source: torch.distributed.elastic, "Environment variables"."""


def worker_pid(warm_pid: int | None, node_pid: int, rank: int) -> int | None:
    """Return the pid of the process that works as `rank` on a node; None if there is none.

    Args:
        warm_pid: Of the parent of the job's warm process, whose fork does the work; None if workers start cold.
    """
    for parent in (warm_pid, node_pid):
        if parent and (worker := _first_below(parent, lambda process: process.name() == fork_name(rank))):
            return worker
    return _first_below(node_pid, lambda process: process.environ().get(RANK) == str(rank))


def _first_below(pid: int, is_wanted: Callable[[psutil.Process], bool]) -> int | None:
    """Return the pid of the first wanted process below another; parents come before their children."""
    with contextlib.suppress(psutil.Error):
        for process in psutil.Process(pid).children(recursive=True):
            with contextlib.suppress(psutil.Error):
                if is_wanted(process):
                    return int(process.pid)
    return None


def kill_worker(warm_pid: int | None, node_pid: int, rank: int) -> bool:
    """Kill a worker; return whether it existed."""
    return _send(worker_pid(warm_pid, node_pid, rank), signal.SIGKILL)


def kill_agent(node_pid: int) -> bool:
    """Kill the agent of a node, whose workers then end with the node; return whether it existed."""
    return _send(_first_below(node_pid, lambda process: process.ppid() == node_pid), signal.SIGKILL)


def hang_worker(warm_pid: int | None, node_pid: int, rank: int) -> bool:
    """Suspend a worker; return whether it existed."""
    return _send(worker_pid(warm_pid, node_pid, rank), signal.SIGSTOP)


def damage_checkpoint(folder: Path, num_bytes: int) -> bool:
    """Invert bytes in the middle of the largest data file of the newest checkpoint; return whether there is one.

    Args:
        num_bytes: Number of bytes; limited by the size of the file.
    """
    from launcher.runtime.checkpoint_folder import PROGRESS, candidates  # only a scenario with bit rot needs numpy
    from launcher.runtime.checkpoint_search import Unavailable

    try:
        found = candidates(folder)
    except Unavailable:
        return False
    for checkpoint in found:
        files = sorted(checkpoint.glob("*.distcp"), key=lambda path: path.stat().st_size)
        if files and (checkpoint / PROGRESS).exists():
            _invert(files[-1], num_bytes)
            return True
    return False


def _invert(path: Path, num_bytes: int) -> None:
    size = path.stat().st_size
    with path.open("r+b") as file:
        begin = max(0, (size - num_bytes) // 2)
        file.seek(begin)
        damaged = bytes(byte ^ 0xFF for byte in file.read(num_bytes))
        file.seek(begin)
        file.write(damaged)


class Freezer:
    """Suspends one worker for some time, like a save on a slow disk, so that the agent's own timeout decides."""

    def __init__(self, pid: int, seconds: float):
        self._pid = pid
        self._until = time.monotonic() + seconds
        _send(pid, signal.SIGSTOP)

    def thaw(self) -> bool:
        """Resume the worker once its time is over; return whether it is."""
        if time.monotonic() < self._until:
            return False
        _send(self._pid, signal.SIGCONT)
        return True


def _send(pid: int | None, signum: int) -> bool:
    if pid is None:
        return False
    try:
        psutil.Process(pid).send_signal(signum)
    except psutil.Error:
        return False
    return True
