"""A simulated node's temporary files: one folder on disk and one in shared memory, removed with the node.

The process of a node holds a lock on both. A node that is killed together with all its watchers leaves them behind;
the next node that starts on this machine, of any job, removes those that no process holds. A lock is released with
its process, and works even where containers share the folders but not their process ids.
"""

import contextlib
import fcntl
import os
import shutil
import tempfile
from pathlib import Path

from launcher.common.names import SHARED_MEMORY

_PREFIX = "recipes-node-"
_DRAFT = f".{_PREFIX}"


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


def hold_node_folders(pid: int) -> None:
    """Create the two folders of a node and hold them while this process lives; remove those of dead nodes.

    Raises:
        OSError: The folder for temporary files cannot be created.
    """
    with contextlib.suppress(OSError):  # without shared memory this folder does not exist
        _hold(node_memory(pid))
    _hold(node_folder(pid))


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
