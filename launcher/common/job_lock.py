"""The lock of a job on this machine, held as long as any of its processes exists.

The operator and every node it starts hold the lock file, so "not locked" means that no process of the job is left,
however it ended: the kernel releases the lock with the last of them.
"""

import fcntl
import os
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
