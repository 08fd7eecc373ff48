"""What a node occupies on this machine, and gives back: its processes, temporary files and ports. Linux only.

A node has one folder on disk and one in shared memory, and its process holds a lock on both. A node that is killed
together with all its watchers leaves them behind; the next node that starts on this machine, of any job, removes
those that no process holds. A lock is released with its process, and works even where containers share the folders
but not their process ids.
"""

import contextlib
import fcntl
import os
import shutil
import signal
import socket
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path

import psutil

from launcher.common import prctl
from launcher.common.names import ENV_NODE_MEMORY, SHARED_MEMORY

KILL_TIMEOUT_S = 15.0
"""How long a killed process may remain (one in an uninterruptible read cannot end)."""

_KILL_POLL_S = 0.02

LOOPBACK = "127.0.0.1"
_PREFIX = "recipes-node-"
_DRAFT = f".{_PREFIX}"


class ProcessesSurvived(Exception):
    """Killed processes did not end."""

    def __init__(self, pids: tuple[int, ...]):
        super().__init__(f"killed processes still exist after {KILL_TIMEOUT_S:g} s: {pids}")


class AdoptedProcess:
    """A child of this process that an earlier program of the same process started."""

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
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:  # no child is left
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
    """Kill a process and its descendants; return whether it existed.

    Any that escape are orphans, which `kill_strays` kills.
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


def node_folder(pid: int) -> Path:
    """Return the folder for temporary files of the node whose process has this pid.

    The agent leaves its socket and a log there even if it exits normally.

    Source: hyperpod_elastic_agent 1.1.3, ipc/socket.py and logagent/log_agent.py.
    """
    return Path(tempfile.gettempdir(), f"{_PREFIX}{pid}")


def node_memory(pid: int) -> Path:
    """Return the folder in shared memory, for checkpoints, of the node whose process has this pid."""
    return SHARED_MEMORY / f"{_PREFIX}{pid}"


def remove_node_folder(pid: int) -> None:
    """Remove the temporary files and the memory of the node with this pid."""
    for folder in (node_folder(pid), node_memory(pid)):
        shutil.rmtree(folder, ignore_errors=True)


def hold_node_folders(pid: int) -> dict[str, str]:
    """Create the two folders of a node and hold them while this process lives; remove those of dead nodes.

    Returns:
        The variables that name them to the processes of the node.

    Raises:
        OSError: The folder for temporary files cannot be created.
    """
    with contextlib.suppress(OSError):  # without shared memory this folder does not exist
        _hold(node_memory(pid))
    _hold(node_folder(pid))
    return {"TMPDIR": str(node_folder(pid)), ENV_NODE_MEMORY: str(node_memory(pid))}


def _hold(folder: Path) -> None:
    remove_dead(folder.parent)
    while True:
        draft = Path(tempfile.mkdtemp(prefix=f"{_DRAFT}{os.getpid()}-", dir=folder.parent))
        with contextlib.suppress(FileNotFoundError):  # another node took the draft for that of a dead node
            descriptor = os.open(draft, os.O_RDONLY)  # stays open as long as this process lives
            with contextlib.suppress(OSError):  # without locks, no other process removes anything either
                fcntl.flock(descriptor, fcntl.LOCK_EX)
            draft.rename(folder)  # invisible to others until it is locked
            return


def remove_dead_nodes() -> None:
    """Remove the files of every dead node of this machine: a killed worker may have written into them once more."""
    for root in (SHARED_MEMORY, Path(tempfile.gettempdir())):
        remove_dead(root)


def remove_dead(root: Path) -> None:
    """Remove the folders under `root` whose nodes are dead; those that a process holds are kept."""
    for folder in (*root.glob(f"{_PREFIX}*"), *root.glob(f"{_DRAFT}*")):
        with contextlib.suppress(OSError):  # of another user, or removed meanwhile
            lock = os.open(folder, os.O_RDONLY | os.O_NOFOLLOW)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder, ignore_errors=True)
            finally:
                os.close(lock)


def reserve_port(address: str = LOOPBACK) -> socket.socket:
    """Return a bound socket, which never listens, that reserves a free port for this process's children.

    Args:
        address: Of an interface of this machine; its family is that of the socket.

    The kernel does not assign the port to processes that ask for any free one, while a server may listen on it by
    number: both sockets set SO_REUSEADDR and only one listens.

    Source: socket(7), SO_REUSEADDR; ip(7), ip_local_port_range.
    """
    family, *_, place = socket.getaddrinfo(address, 0, type=socket.SOCK_STREAM)[0]
    reservation = socket.socket(family, socket.SOCK_STREAM)
    # Set after bind: otherwise the kernel may assign a port that is reserved already.
    reservation.bind(place)
    reservation.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    return reservation


def port_of(reservation: socket.socket) -> int:
    """Return the port that `reservation` reserves."""
    return int(reservation.getsockname()[1])
