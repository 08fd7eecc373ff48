"""Waiting for something, and doing something meanwhile."""

import contextlib
import os
import resource
import signal
import socketserver
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TypeVar

import psutil

T = TypeVar("T")


def await_true(condition: Callable[[], T], what: str = "it", timeout_s: float = 500.0) -> T:
    """Wait until `condition()` holds, and return what it returned.

    Looking, with the processes that it starts, takes a tenth of a processor; more only if a look costs over 0.1 s.
    """
    deadline = time.monotonic() + timeout_s
    while True:
        began_s = _spent_s()
        if found := condition():
            return found
        assert time.monotonic() < deadline, f"waited {timeout_s} s for {what}"
        time.sleep(min(max(0.02, 9 * (_spent_s() - began_s)), 1.0))  # a look may also reap what ran for minutes


def _spent_s() -> float:
    """Return the processor time of this thread and of all children that were waited for."""
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.thread_time() + children.ru_utime + children.ru_stime


def processes() -> Iterator[psutil.Process]:
    """Yield the running processes, whose objects take signals.

    psutil.process_iter yields objects of earlier calls, also where their numbers have been given to other processes:
    those refuse every signal.
    """
    for pid in psutil.pids():
        with contextlib.suppress(psutil.NoSuchProcess):
            yield psutil.Process(pid)


def command_lines(*parts: str) -> list[str]:
    """Return the command lines of running processes that contain one of these texts."""
    lines = []
    for process in processes():
        with contextlib.suppress(psutil.Error):
            lines.append(" ".join(process.cmdline()))
    return [line for line in lines if any(part in line for part in parts)]


def suspend(*pids: int) -> None:
    """Stop processes, and return once each is stopped or has ended.

    One that has not run since would take a signal of a lower number, such as SIGTERM, before SIGSTOP.
    """
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGSTOP)
    await_true(lambda: not any(_is_running(pid) for pid in pids))


def _is_running(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state not in "TtZX"


@contextlib.contextmanager
def serving(server: socketserver.BaseServer) -> Iterator[None]:
    """Serve in a thread until the block ends."""
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class Collected(threading.Thread):
    """Takes what an iterator yields, in the background; `result` raises what the iterator raised."""

    def __init__(self, items: Iterable):
        super().__init__(daemon=True)
        self.items, self.got, self.error = items, [], None
        self.start()

    def run(self) -> None:
        try:
            for item in self.items:
                self.got.append(item)
        except BaseException as error:  # told in the thread that asks
            self.error = error

    def await_that(self, condition: Callable[[], object]) -> None:
        """Wait until `condition()` holds; raise what the iterator raised meanwhile."""
        await_true(lambda: condition() or not self.is_alive())
        if not condition() and self.error:
            raise self.error
        assert condition(), f"it has ended with {self.got[-5:]}"

    def result(self, timeout_s: float = 500.0) -> list:
        self.join(timeout_s)
        assert not self.is_alive(), f"still goes on; so far {self.got[-5:]}"
        if self.error:
            raise self.error
        return self.got
