"""Warm starts: one process per node has imported everything a worker needs, and workers are forked from it.

    python -m launcher.runtime.warm NAME        the warm process of a node; NAME is its abstract socket

The agent starts a worker as always. That process, instead of importing torch for seconds, asks the warm process
for a fork that runs in its place: same arguments, environment, folder and output. It hands on the signals it is
sent, ends as the fork ended, and takes the fork with it when it is killed.

Source: unix(7), abstract sockets, SCM_RIGHTS and SO_PEERCRED; the idea is CPython's multiprocessing.forkserver.
"""

import contextlib
import ctypes
import gc
import importlib
import json
import os
import selectors
import signal
import socket
import struct
import sys
from dataclasses import asdict, dataclass

from launcher.contract import ENV_WARM_SOCKET

FORWARDED = (signal.SIGUSR1, signal.SIGTERM, signal.SIGINT)
"""Signals that a worker's process hands on. Source: the agent stops workers with the first two."""

_MODULES = (
    "torch._dynamo",
    "torch.distributed.checkpoint.state_dict",
    "torch.distributed.elastic.multiprocessing.errors",
    "torch.distributed.fsdp",
    "yaml",
    "launcher.runtime.trainer",
)
"""What a worker imports until its first step is done."""

_STANDARD_STREAMS = (0, 1, 2)
_LENGTH = struct.Struct("!I")
_STATUS = struct.Struct("!i")
_CREDENTIALS = struct.Struct("3i")
_PR_SET_PDEATHSIG = 1
_PR_SET_NAME = 15


@dataclass(frozen=True, slots=True)
class Start:
    """What a fork needs to be the worker that asked for it."""

    argv: list[str]
    environment: dict[str, str]
    folder: str


def run_warm() -> None:
    """Run this worker as a fork of its node's warm process, where there is one.

    Returns only where there is none, or it ended before the worker was started; the caller then starts cold.
    """
    name = os.environ.get(ENV_WARM_SOCKET)
    if not name:
        return
    # Whoever is told to stop before the fork exists tells it as soon as it does.
    signal.pthread_sigmask(signal.SIG_BLOCK, FORWARDED)
    try:
        status = _be(name)
    except (OSError, EOFError) as error:
        print(f"no warm start: {error}", file=sys.stderr, flush=True)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, FORWARDED)
        return
    _end_like(status)


def _be(name: str) -> int:
    """Have a fork run in this process's place; return its wait status."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as server:
        server.connect(f"\0{name}")
        _send_start(server)
        if not server.recv(1):
            raise EOFError("the node's warm process has ended")
        for number in FORWARDED:
            signal.signal(number, lambda number, _frame: _hand_on(server, number))
        signal.pthread_sigmask(signal.SIG_UNBLOCK, FORWARDED)
        answer = server.recv(_STATUS.size, socket.MSG_WAITALL)
    return _STATUS.unpack(answer)[0] if len(answer) == _STATUS.size else signal.SIGKILL


def _hand_on(server: socket.socket, number: int) -> None:
    with contextlib.suppress(OSError):  # the fork has ended meanwhile
        server.send(bytes([number]))


def _send_start(server: socket.socket) -> None:
    start = json.dumps(asdict(Start(sys.argv, dict(os.environ), os.getcwd()))).encode()
    socket.send_fds(server, [_LENGTH.pack(len(start))], list(_STANDARD_STREAMS))
    server.sendall(start)


def _end_like(status: int) -> None:
    sys.stdout.flush()
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        if number != signal.SIGKILL:
            signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
    os._exit(os.waitstatus_to_exitcode(status))


def fork_name(rank: int | str) -> str:
    """Return the name, as process listings show it, of the fork that runs as `rank`."""
    return f"rank{rank}"


class Server:
    """Forks workers and tells those who asked how they ended.

    Args:
        name: Of the abstract socket.
    """

    def __init__(self, name: str):
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(f"\0{name}")
        self._listener.listen()
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ)

    def serve(self) -> Start:
        """Serve for ever. Returns only in a fork, which is to run as the worker that is returned."""
        while True:
            for key, _ in self._selector.select():
                if key.fileobj is self._listener:
                    if start := self._accept():
                        return start
                elif key.data is None:
                    continue
                else:
                    key.data(key.fileobj)

    def _accept(self) -> Start | None:
        worker, _ = self._listener.accept()
        if _peer_uid(worker) != os.getuid():
            worker.close()
            return None
        received = _receive_start(worker)
        if received is None:
            worker.close()
            return None
        start, streams = received
        parent = os.getpid()
        child = os.fork()
        if not child:
            self._selector.close()
            self._listener.close()
            worker.close()
            _become(start, streams, parent)
            return start
        for stream in streams:
            os.close(stream)
        self._watch(child, worker)
        return None

    def _watch(self, child: int, worker: socket.socket) -> None:
        pidfd = os.pidfd_open(child)

        def hand_on(connection: socket.socket) -> None:
            numbers = connection.recv(64)
            for number in numbers or [signal.SIGKILL]:
                os.kill(child, number)
            if not numbers:  # whoever the fork stands for is gone
                self._selector.unregister(connection)

        def report(_pidfd: int) -> None:
            _, status = os.waitpid(child, 0)
            self._selector.unregister(pidfd)
            if worker in {key.fileobj for key in self._selector.get_map().values()}:
                self._selector.unregister(worker)
                worker.sendall(_STATUS.pack(status))
            worker.close()
            os.close(pidfd)

        self._selector.register(worker, selectors.EVENT_READ, hand_on)
        self._selector.register(pidfd, selectors.EVENT_READ, report)
        worker.sendall(b"\1")


def _peer_uid(connection: socket.socket) -> int:
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    return _CREDENTIALS.unpack(credentials)[1]


def _receive_start(worker: socket.socket) -> tuple[Start, list[int]] | None:
    """Return what a worker asks for; None when it is gone before it has said all."""
    head, streams, _, _ = socket.recv_fds(worker, _LENGTH.size, len(_STANDARD_STREAMS))
    text = worker.recv(_LENGTH.unpack(head)[0], socket.MSG_WAITALL) if len(head) == _LENGTH.size else b""
    if not text or len(text) != _LENGTH.unpack(head)[0]:
        for stream in streams:
            os.close(stream)
        return None
    return Start(**json.loads(text)), list(streams)


def _become(start: Start, streams: list[int], parent: int) -> None:
    """Make this fork the worker that `start` describes."""
    libc = ctypes.CDLL(None)
    libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)
    os.setsid()
    for stream, number in zip(streams, _STANDARD_STREAMS, strict=True):
        os.dup2(stream, number)
        os.close(stream)
    os.environ.clear()
    os.environ.update(start.environment)
    os.chdir(start.folder)
    sys.argv = start.argv
    # Its environment in /proc is the warm process's: the name tells whose place it takes.
    libc.prctl(_PR_SET_NAME, fork_name(os.environ.get("RANK", "")).encode(), 0, 0, 0)


def _import_everything() -> None:
    for name in _MODULES:
        importlib.import_module(name)
    gc.freeze()  # pages that no collection touches stay shared with the forks


def main() -> None:
    """Be the warm process of a node; a fork of it runs a worker."""
    from launcher.runtime import agent, entrypoint

    server = Server(sys.argv[1])
    agent.install_event_handler()
    _import_everything()
    server.serve()
    import torch  # there already

    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    entrypoint.train()


if __name__ == "__main__":
    main()
