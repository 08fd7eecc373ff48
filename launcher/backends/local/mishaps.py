"""What a scenario does to the processes of a job: real signals to real workers, agents and nodes."""

import contextlib
import signal
import time

import psutil

from launcher.runtime.warm import fork_name

RANK = "RANK"
"""Environment variable that holds a worker's rank. Source: torch.distributed.elastic, "Environment variables"."""


def agent_pid(node_pid: int) -> int | None:
    """Return the pid of the agent below a node's process; None when it is gone."""
    with contextlib.suppress(psutil.Error):
        for child in psutil.Process(node_pid).children():
            return child.pid
    return None


def worker_pid(node_pid: int, rank: int) -> int | None:
    """Return the pid of the process that does the work of `rank` on a node; None when it is not there."""
    with contextlib.suppress(psutil.Error):
        # A fork of the node's warm process is named after its rank, and comes before its own children.
        below = psutil.Process(node_pid).children(recursive=True)
        for is_worker in (_is_named, _is_told):
            for process in below:
                with contextlib.suppress(psutil.Error):
                    if is_worker(process, rank):
                        return process.pid
    return None


def _is_named(process: psutil.Process, rank: int) -> bool:
    return process.name() == fork_name(rank)


def _is_told(process: psutil.Process, rank: int) -> bool:
    return process.environ().get(RANK) == str(rank)


def kill_worker(node_pid: int, rank: int) -> bool:
    """Kill a worker; return whether it was there."""
    return _send(worker_pid(node_pid, rank), signal.SIGKILL)


def kill_agent(node_pid: int) -> bool:
    """Kill the agent of a node, whose workers then end with the node; return whether it was there."""
    return _send(agent_pid(node_pid), signal.SIGKILL)


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
