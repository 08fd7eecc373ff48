"""Calls that would block for ever if they opened a pipe."""

import contextlib
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")


def ending(call: Callable[[], T], pipe: Path, timeout_s: float = 20.0) -> T:
    """Return what a call returns; fail if it waits for a writer of the pipe."""
    found: list[T] = []
    thread = threading.Thread(target=lambda: found.append(call()), daemon=True)
    thread.start()
    thread.join(timeout_s)
    is_blocked = thread.is_alive()
    if is_blocked:
        with contextlib.suppress(OSError):  # its reader gets an end, and the thread ends
            os.close(os.open(pipe, os.O_RDWR | os.O_NONBLOCK))
            thread.join(timeout_s)
    assert not is_blocked, f"waits for a writer of {pipe}"
    assert found
    return found[0]
