"""Process trees that end completely: no process of a job outlives it. Linux only."""

import contextlib
import os
import signal
import time
from collections.abc import Iterable
from pathlib import Path

import psutil

from launcher.common import prctl
from launcher.operator.node_folders import remove_node_folder

KILL_TIMEOUT_S = 15.0
"""How long a killed process may remain (one in an uninterruptible read cannot end)."""

_KILL_POLL_S = 0.02


class ProcessesSurvived(Exception):
    """Killed processes did not end.

    Args:
        pids: Of the remaining processes.
    """

    def __init__(self, pids: tuple[int, ...]):
        super().__init__(f"killed processes still exist after {KILL_TIMEOUT_S:g} s: {pids}")
        self.pids = pids


class AdoptedProcess:
    """A child of this process that an earlier program of the same process started.

    Args:
        pid: Of the process.
    """

    def __init__(self, pid: int):
        self.pid = pid
        self._returncode: int | None = None

    def poll(self) -> int | None:
        """Return the exit status, 0 if it is unknown; None while it runs."""
        if self._returncode is None:
            try:
                pid, status = os.waitpid(self.pid, os.WNOHANG)
            except ChildProcessError:
                self._returncode = 0
            else:
                self._returncode = os.waitstatus_to_exitcode(status) if pid else None
        return self._returncode

    def send_signal(self, signum: int) -> None:
        """Send a signal, unless the process has ended."""
        if self.poll() is None:
            os.kill(self.pid, signum)


def end_with_parent(parent_pid: int) -> None:
    """Request SIGTERM when `parent_pid`, this process's parent, ends; at once if it has ended already.

    The signal is sent when the parent's *thread* that started this process ends: start it from a lasting thread.

    Source: prctl(2), PR_SET_PDEATHSIG.
    """
    prctl.signal_at_parents_end(signal.SIGTERM)
    if os.getppid() != parent_pid:
        signal.raise_signal(signal.SIGTERM)


def kill_descendants() -> None:
    """Kill all descendants of this process and return once they are gone. Requires `adopt_orphans` before.

    A process that adopts orphans and has no child left has no descendant left, however quickly they fork.

    Raises:
        ProcessesSurvived: Some did not end within KILL_TIMEOUT_S.
    """
    me = psutil.Process()
    deadline = time.monotonic() + KILL_TIMEOUT_S
    while True:
        left = me.children(recursive=True)
        _kill(left)
        if not _reap_children():
            return
        if time.monotonic() > deadline:
            raise ProcessesSurvived(tuple(process.pid for process in left))
        time.sleep(_KILL_POLL_S)


def kill_strays(known_pids: Iterable[int]) -> None:
    """Kill the processes that this one has adopted: every child except `known_pids`, with its tree."""
    for pid in _children().difference(known_pids):
        kill_tree(pid)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(pid, 0)


def _children() -> set[int]:
    """Return the pids of this process's children.

    Source: proc(5), /proc/pid/task/tid/children; kernels without CONFIG_PROC_CHILDREN do not have it.
    """
    try:
        # Called several times a second: it must not read every process of the machine.
        lists = [(thread / "children").read_text() for thread in Path("/proc/self/task").iterdir()]
    except FileNotFoundError:  # or a thread has just ended
        return {child.pid for child in psutil.Process().children()}
    return {int(pid) for pids in lists for pid in pids.split()}


def kill_tree(pid: int) -> bool:
    """Kill a process and its descendants; any that escape are orphans, which `kill_strays` kills.

    Returns:
        Whether the process existed.
    """
    try:
        process = psutil.Process(pid)
        _kill([process, *process.children(recursive=True)])
    except psutil.NoSuchProcess:
        return False
    return True


def _kill(processes: list[psutil.Process]) -> None:
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
        remove_node_folder(process.pid)


def _reap_children() -> bool:
    """Reap the children that have ended; return whether any child is left."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        return False
    return True
