"""What a scenario does to the processes of a job: real signals to real workers, agents and nodes."""

import contextlib
import signal
import time
from collections.abc import Callable
from pathlib import Path

import psutil

from launcher.runtime.warm_client import fork_name

PROGRESS = "progress.json"
"""File of a complete checkpoint. Source: launcher.runtime.progress, whose neighbours import torch."""

LATEST = "latest"
"""File that names the checkpoint published last. Source: launcher.runtime.checkpoint_folder."""

RANK = "RANK"
"""Environment variable that holds a worker's rank. Source: torch.distributed.elastic, "Environment variables"."""


def agent_pid(node_pid: int) -> int | None:
    """Return the pid of the agent below a node's process; None when it is gone."""
    with contextlib.suppress(psutil.Error):
        for child in psutil.Process(node_pid).children():
            return child.pid
    return None


def worker_pid(warm_pid: int | None, node_pid: int, rank: int) -> int | None:
    """Return the pid of the process that does the work of `rank` on a node; None when it is not there.

    Args:
        warm_pid: What holds the job's warm process, whose fork does the work; None where workers start cold.
        node_pid: The node's process.
        rank: The worker's.
    """
    if warm_pid and (fork := _first_below(warm_pid, lambda process: process.name() == fork_name(rank))):
        return fork
    return _first_below(node_pid, lambda process: process.environ().get(RANK) == str(rank))


def _first_below(pid: int, is_wanted: Callable[[psutil.Process], bool]) -> int | None:
    """Return the pid of the first wanted process below another; parents come before their children."""
    with contextlib.suppress(psutil.Error):
        for process in psutil.Process(pid).children(recursive=True):
            with contextlib.suppress(psutil.Error):
                if is_wanted(process):
                    return process.pid
    return None


def kill_worker(warm_pid: int | None, node_pid: int, rank: int) -> bool:
    """Kill a worker; return whether it was there."""
    return _send(worker_pid(warm_pid, node_pid, rank), signal.SIGKILL)


def kill_agent(node_pid: int) -> bool:
    """Kill the agent of a node, whose workers then end with the node; return whether it was there."""
    return _send(agent_pid(node_pid), signal.SIGKILL)


def hang_worker(warm_pid: int | None, node_pid: int, rank: int) -> bool:
    """Stop a worker without ending it; return whether it was there."""
    return _send(worker_pid(warm_pid, node_pid, rank), signal.SIGSTOP)


def damage_checkpoint(folder: Path, num_bytes: int) -> bool:
    """Invert bytes in the middle of the largest data file of the newest checkpoint; return whether there is one.

    Args:
        folder: Of the checkpoints.
        num_bytes: How many, at most all of the file.
    """
    for checkpoint in (*_published_last(folder), *sorted(folder.glob("step-*"), reverse=True)):
        files = sorted(checkpoint.glob("*.distcp"), key=lambda path: path.stat().st_size)
        if files and (checkpoint / PROGRESS).exists():
            _invert(files[-1], num_bytes)
            return True
    return False


def _published_last(folder: Path) -> tuple[Path, ...]:
    """Return the checkpoint that the pointer names: after a fallback there may be later steps beside it."""
    try:
        return (folder / (folder / LATEST).read_text(encoding="utf-8").split()[0],)
    except (OSError, ValueError, IndexError):
        return ()


def _invert(path: Path, num_bytes: int) -> None:
    size = path.stat().st_size
    with path.open("r+b") as file:
        begin = max(0, (size - num_bytes) // 2)
        file.seek(begin)
        damaged = bytes(byte ^ 0xFF for byte in file.read(num_bytes))
        file.seek(begin)
        file.write(damaged)


class Freezer:
    """Holds one worker for some time, as a checkpoint that a slow disk holds up.

    Args:
        pid: The worker.
        seconds: How long.
    """

    def __init__(self, pid: int, seconds: float):
        self._pid = pid
        self._until = time.monotonic() + seconds
        _send(pid, signal.SIGSTOP)

    def thaw(self) -> bool:
        """Let the worker go on when its time has come; return whether it has."""
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
