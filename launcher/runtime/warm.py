"""Warm starts: one process per job has imported everything a worker needs, and workers are forked from it.

    python -m launcher.runtime.warm NAME MODULE…    the warm process of a job: NAME is its abstract socket; each
                                                    MODULE is one that the program of its recipe imports

The agent starts a worker as usual. Instead of importing torch for seconds, that process (`warm_client`) requests a
fork that runs in its place, with the same arguments, environment, folder and output. It forwards signals to the fork
and exits with the fork's status; if it is killed, the fork is killed too.

On one machine the start of a worker is import time: 6 workers import torch for 10 s on 2 cores. There is one warm
process per job, not per simulated node: importing torch again for each new node doubled the time of a scale-up.

Only `launcher.runtime.entrypoint` starts warm: a script of the user's own may import anything and starts cold.

Source: unix(7), abstract sockets, SCM_RIGHTS and SO_PEERCRED; the idea is CPython's multiprocessing.forkserver.
"""

import contextlib
import importlib
import json
import os
import selectors
import signal
import socket
import sys

from launcher.common import prctl
from launcher.runtime import agent, entrypoint
from launcher.runtime.imports import without_collections
from launcher.runtime.warm_client import LENGTH, STANDARD_STREAMS, STARTED, STATUS, WorkerStart, fork_name, peer

_MODULES = (
    "launcher.runtime.checked_io",
    "torch._dynamo",
    "torch.distributed.checkpoint.state_dict",
    "torch.distributed.elastic.multiprocessing.errors",
    "torch.distributed.fsdp",
    "yaml",
)
"""Modules that every worker imports before the end of its first step or with its checkpoint, whatever it trains."""

RECEIVE_TIMEOUT_S = 10.0
"""How long a worker may take to send its request."""


class Server:
    """Forks workers and reports their exit status to the processes that requested them."""

    def __init__(self, name: str):
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(f"\0{name}")
        self._listener.listen()
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._forks: set[_Fork] = set()

    def serve(self) -> WorkerStart:
        """Serve forever. Returns only in a fork, which must then run as the returned worker."""
        while True:
            for key, _ in self._selector.select():
                if key.fileobj is self._listener:
                    if start := self._accept():
                        return start
                elif key.data in self._forks:  # otherwise it ended earlier in this round
                    self._poll_fork(key.data)

    def _accept(self) -> WorkerStart | None:
        worker, _ = self._listener.accept()
        worker.settimeout(RECEIVE_TIMEOUT_S)
        received = _receive_start(worker) if peer(worker)[1] == os.getuid() else None
        if received is None:
            worker.close()
            return None
        start, streams = received
        parent = os.getpid()
        pid = os.fork()
        if not pid:
            self._close()  # what belongs to the warm process and to other forks
            _become_worker(start, streams, parent)
            # By the fork: if this process did and hung or ended here, the worker would start a second time.
            with contextlib.suppress(OSError):  # the worker has ended: this process ends the fork
                worker.sendall(STARTED)
            worker.close()
            return start
        for stream in streams:
            os.close(stream)
        fork = _Fork(pid, os.pidfd_open(pid), worker)
        self._forks.add(fork)
        self._selector.register(fork.worker, selectors.EVENT_READ, fork)
        self._selector.register(fork.pidfd, selectors.EVENT_READ, fork)
        return None

    def _poll_fork(self, fork: "_Fork") -> None:
        if fork.is_wanted and not fork.forward():
            self._selector.unregister(fork.worker)
        status = fork.status()
        if status is None:
            return
        self._forks.remove(fork)
        self._selector.unregister(fork.pidfd)
        if fork.is_wanted:
            self._selector.unregister(fork.worker)
            fork.report(status)
        fork.close()

    def _close(self) -> None:
        self._selector.close()
        self._listener.close()
        for other in self._forks:
            other.close()


class _Fork:
    """A fork, whose `pidfd` is readable once it has ended, and the connection to the worker that requested it."""

    def __init__(self, pid: int, pidfd: int, worker: socket.socket):
        self._pid, self.pidfd, self.worker = pid, pidfd, worker
        self.is_wanted = True
        worker.setblocking(False)

    def forward(self) -> bool:
        """Send the fork its signals; kill it and return False if its worker no longer exists."""
        try:
            numbers = self.worker.recv(64)
        except BlockingIOError:
            return True
        except OSError:
            numbers = b""
        for number in numbers:
            os.kill(self._pid, number)
        self.is_wanted = bool(numbers)
        if not numbers:
            os.kill(self._pid, signal.SIGKILL)
            # Its own children too: the agent kills a worker with its process group.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._pid, signal.SIGKILL)
        return self.is_wanted

    def status(self) -> int | None:
        """Return the fork's wait status; None while it runs."""
        pid, status = os.waitpid(self._pid, os.WNOHANG)
        return status if pid else None

    def report(self, status: int) -> None:
        """Send the fork's wait status to the worker, if it still exists."""
        with contextlib.suppress(OSError):
            self.worker.sendall(STATUS.pack(status))

    def close(self) -> None:
        """Close the connection and the descriptor."""
        self.worker.close()
        os.close(self.pidfd)


def _receive_start(worker: socket.socket) -> tuple[WorkerStart, list[int]] | None:
    """Return a worker's request; None if the worker is gone or too slow to complete it, or only asks for a sign."""
    streams: list[int] = []
    try:
        head, streams, _, _ = socket.recv_fds(worker, LENGTH.size, len(STANDARD_STREAMS))
        length = LENGTH.unpack(head)[0] if len(head) == LENGTH.size else 0
        text = b""
        while len(text) < length and (part := worker.recv(length - len(text))):
            text += part
    except OSError:
        length, text = 1, b""
    if not length or len(text) < length or len(streams) < len(STANDARD_STREAMS):
        for stream in streams:
            os.close(stream)
        return None
    return WorkerStart(**json.loads(text)), list(streams)


def _become_worker(start: WorkerStart, streams: list[int], parent: int) -> None:
    """Make this fork the worker that `start` describes."""
    prctl.signal_at_parents_end(signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)
    os.setsid()
    for stream, number in zip(streams, STANDARD_STREAMS, strict=True):
        os.dup2(stream, number)
        os.close(stream)
    os.environ.clear()
    os.environ.update(start.environment)
    os.chdir(start.folder)
    sys.argv = start.argv
    agent.forget_connection()
    # /proc shows the warm process's environment, so only the name identifies the worker it runs for.
    prctl.set_name(fork_name(os.environ.get("RANK", "")))


def main() -> None:
    """Run the warm process of a job; its forks run the workers."""
    server = Server(sys.argv[1])
    with without_collections():
        agent.install_event_handler()
        for name in (*_MODULES, *sys.argv[2:]):
            importlib.import_module(name)
    server.serve()
    entrypoint.train()


if __name__ == "__main__":
    main()
