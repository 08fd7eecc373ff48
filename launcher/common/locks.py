"""Locks of files and folders between processes.

The operator of a job on this machine and every node it starts hold the job's lock file, so "not locked" means that no
process of the job is left, however it ended: the kernel releases the lock with the last of them.
"""

import fcntl
import os
import shlex
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from launcher.common.problems import fail

LOCK_FILE = "operator.lock"

LOCK_TIMEOUT_S = 2.0
"""How long the operator tries for the lock, which others hold for an instant in `is_alive`."""

_LOCK_POLL_S = 0.05


@contextmanager
def locked(path: Path, *, flags: int = os.O_RDONLY, waits: bool = True) -> Iterator[bool]:
    """Hold the lock of a file or folder; yield False if another process holds it and this one does not wait.

    Args:
        path: The file or folder.
        flags: How it is opened, as in open(2).
        waits: Whether to wait until no other process holds it.
    """
    descriptor = os.open(path, flags, 0o666)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if waits else fcntl.LOCK_NB))
        except BlockingIOError:
            yield False
            return
        try:
            yield True
        finally:
            fcntl.flock(descriptor, fcntl.LOCK_UN)  # a process that was forked meanwhile may hold the file open
    finally:
        os.close(descriptor)


class JobAlreadyRunning(Exception):
    """Another operator is running this bundle."""


def is_alive(run_dir: Path) -> bool:
    """Return whether any process of the job, operator or node, still exists.

    Raises:
        ProblemsFound: That cannot be read (E414).
    """
    path = run_dir / LOCK_FILE
    try:
        with path.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
    except OSError as error:
        raise fail("E414", str(path), f"cannot be read: {error.strerror}") from error
    return False


def refuse_running(run_dir: Path) -> None:
    """Refuse to start a job of a bundle that runs already.

    Raises:
        ProblemsFound: It runs (E405), or that cannot be read (E414).
    """
    if is_alive(run_dir):
        remedy = f"end it first: recipes cancel {shlex.quote(str(run_dir.parent))}"
        raise fail("E405", "cluster", "this bundle's job is running already", remedy=remedy)


@contextmanager
def lock(run_dir: Path) -> Iterator[IO[bytes]]:
    """Hold the job's lock; yield its file, for nodes to inherit.

    Raises:
        JobAlreadyRunning: Another operator, or a node it left behind, holds it.
    """
    with (run_dir / LOCK_FILE).open("wb") as file:
        deadline = time.monotonic() + LOCK_TIMEOUT_S
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError as error:
                if time.monotonic() > deadline:
                    raise JobAlreadyRunning(f"{run_dir} belongs to a running job") from error
            time.sleep(_LOCK_POLL_S)
        yield file


def inherited_lock(descriptor: int) -> IO[bytes]:
    """Return the job's lock, held by the program that ran before this one in the same process."""
    os.set_inheritable(descriptor, False)
    return os.fdopen(descriptor, "wb")
