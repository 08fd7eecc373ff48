"""Warm starts: one process per job has imported everything a worker needs, and workers are forked from it.

    python -m launcher.runtime.warm NAME        the warm process of a job; NAME is its abstract socket

The agent starts a worker as always. That process, instead of importing torch for seconds, asks the warm process
for a fork that runs in its place: same arguments, environment, folder and output. It hands on the signals it is
sent, ends as the fork ended, and takes the fork with it when it is killed.

Source: unix(7), abstract sockets, SCM_RIGHTS and SO_PEERCRED; the idea is CPython's multiprocessing.forkserver.
"""

import contextlib
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
from types import FrameType

from launcher.common import prctl
from launcher.common.names import ENV_WARM_SOCKET

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

RECEIVE_TIMEOUT_S = 10.0
"""How long a worker may take to say what it wants."""

ANSWER_TIMEOUT_S = 60.0
"""How long a worker waits for the warm process, which may still import: 3 to 13 s seen, more on a loaded machine."""

PING_TIMEOUT_S = 5.0
"""How long a warm process that has answered before may take to answer again."""

_STANDARD_STREAMS = (0, 1, 2)
_LENGTH = struct.Struct("!I")
_STATUS = struct.Struct("!i")
_CREDENTIALS = struct.Struct("3i")
_STARTED = b"\1"


@dataclass(frozen=True, slots=True)
class Start:
    """What a fork needs to be the worker that asked for it."""

    argv: list[str]
    environment: dict[str, str]
    folder: str


def run_warm() -> None:
    """Run this worker as a fork of its job's warm process, where there is one.

    Returns only where there is none, or it ended before the worker was started; the caller then starts cold.
    """
    name = os.environ.get(ENV_WARM_SOCKET)
    if not name:
        return
    # Whoever is told to stop before the fork exists tells it as soon as it does.
    signal.pthread_sigmask(signal.SIG_BLOCK, FORWARDED)
    try:
        server = _ask(name)
    except OSError as error:
        print(f"no warm start: {error}", file=sys.stderr, flush=True)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, FORWARDED)
        return
    _end_like(_stand_for(server))


def _ask(name: str) -> socket.socket:
    """Have a fork run in this process's place; return the connection to the warm process.

    Raises:
        OSError: There is no fork.
    """
    server = _connect(name, ANSWER_TIMEOUT_S)
    try:
        return _request(server)
    except TimeoutError:
        # It may wake up later and fork a second worker of this rank: it must not.
        os.kill(_peer(server)[0], signal.SIGKILL)
        raise TimeoutError(f"the job's warm process did not answer in {ANSWER_TIMEOUT_S:g} s") from None


def _connect(name: str, timeout_s: float) -> socket.socket:
    """Connect to a warm process.

    Raises:
        OSError: It is not there, or does not answer in time.
    """
    server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    server.settimeout(timeout_s)
    server.connect(f"\0{name}")
    # A name is anybody's: what this process sends is meant for its own user.
    if _peer(server)[1] != os.getuid():
        raise PermissionError("the warm process is another user's")
    return server


def _request(server: socket.socket) -> socket.socket:
    start = json.dumps(asdict(Start(sys.argv, dict(os.environ), os.getcwd()))).encode()
    socket.send_fds(server, [_LENGTH.pack(len(start))], list(_STANDARD_STREAMS))
    server.sendall(start)
    if server.recv(len(_STARTED)) != _STARTED:
        raise ConnectionResetError("the job's warm process has ended")
    server.settimeout(None)
    return server


def answers(name: str, timeout_s: float = PING_TIMEOUT_S) -> bool:
    """Return whether the warm process of this name answers; one that still imports does not."""
    with contextlib.suppress(OSError), _connect(name, timeout_s) as server:
        server.sendall(_LENGTH.pack(0))
        return server.recv(1) == b""
    return False


def _stand_for(server: socket.socket) -> int:
    """Hand on signals until the fork has ended; return its wait status, that of SIGKILL where nobody knows it."""

    def hand_on(number: int, _frame: FrameType | None) -> None:
        with contextlib.suppress(OSError):  # the fork has ended meanwhile
            server.send(bytes([number]))

    for number in FORWARDED:
        signal.signal(number, hand_on)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, FORWARDED)
    with contextlib.suppress(OSError):
        answer = server.recv(_STATUS.size, socket.MSG_WAITALL)
        if len(answer) == _STATUS.size:
            return _STATUS.unpack(answer)[0]
    return signal.SIGKILL


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
        self._forks: set[_Fork] = set()

    def serve(self) -> Start:
        """Serve for ever. Returns only in a fork, which is to run as the worker that is returned."""
        while True:
            for key, _ in self._selector.select():
                if key.fileobj is self._listener:
                    if start := self._accept():
                        return start
                elif key.data in self._forks:  # else it ended earlier in this round
                    self._look_after(key.data)

    def _accept(self) -> Start | None:
        worker, _ = self._listener.accept()
        worker.settimeout(RECEIVE_TIMEOUT_S)
        received = _receive_start(worker) if _peer(worker)[1] == os.getuid() else None
        if received is None:
            worker.close()
            return None
        start, streams = received
        parent = os.getpid()
        pid = os.fork()
        if not pid:
            self._close(worker)
            _become(start, streams, parent)
            return start
        for stream in streams:
            os.close(stream)
        fork = _Fork(pid, os.pidfd_open(pid), worker)
        self._forks.add(fork)
        self._selector.register(fork.worker, selectors.EVENT_READ, fork)
        self._selector.register(fork.pidfd, selectors.EVENT_READ, fork)
        fork.answer(_STARTED)
        return None

    def _look_after(self, fork: "_Fork") -> None:
        if fork.is_wanted and not fork.hand_on():
            self._selector.unregister(fork.worker)
        status = fork.status()
        if status is None:
            return
        self._forks.remove(fork)
        self._selector.unregister(fork.pidfd)
        if fork.is_wanted:
            self._selector.unregister(fork.worker)
            fork.answer(_STATUS.pack(status))
        fork.close()

    def _close(self, worker: socket.socket) -> None:
        """Let go, in a fork, of what belongs to the warm process and to other forks."""
        self._selector.close()
        self._listener.close()
        worker.close()
        for other in self._forks:
            other.close()


class _Fork:
    """A fork and the worker it runs for.

    Args:
        pid: The fork's.
        pidfd: Can be read when it has ended.
        worker: Connection to the process it stands for.
    """

    def __init__(self, pid: int, pidfd: int, worker: socket.socket):
        self._pid, self.pidfd, self.worker = pid, pidfd, worker
        self.is_wanted = True
        worker.setblocking(False)

    def hand_on(self) -> bool:
        """Send the fork the signals that came for it; kill it and return False when its worker is gone."""
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
            # Its own children too: the agent kills a worker with its whole process group.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._pid, signal.SIGKILL)
        return self.is_wanted

    def status(self) -> int | None:
        """Return the fork's wait status, None while it runs."""
        pid, status = os.waitpid(self._pid, os.WNOHANG)
        return status if pid else None

    def answer(self, text: bytes) -> None:
        """Tell the worker, if it is still there."""
        with contextlib.suppress(OSError):
            self.worker.sendall(text)

    def close(self) -> None:
        """Close the connection and the descriptor."""
        self.worker.close()
        os.close(self.pidfd)


def _peer(connection: socket.socket) -> tuple[int, int, int]:
    """Return the pid, user and group at the other end; of a server, those of the process that listens."""
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    return _CREDENTIALS.unpack(credentials)


def _receive_start(worker: socket.socket) -> tuple[Start, list[int]] | None:
    """Return what a worker asks for; None when it is gone or too slow to say all."""
    streams: list[int] = []
    try:
        head, streams, _, _ = socket.recv_fds(worker, _LENGTH.size, len(_STANDARD_STREAMS))
        length = _LENGTH.unpack(head)[0] if len(head) == _LENGTH.size else 0
        text = b""
        while len(text) < length and (part := worker.recv(length - len(text))):
            text += part
    except OSError:
        length, text = 1, b""
    if not length or len(text) < length or len(streams) < len(_STANDARD_STREAMS):
        for stream in streams:
            os.close(stream)
        return None
    return Start(**json.loads(text)), list(streams)


def _become(start: Start, streams: list[int], parent: int) -> None:
    """Make this fork the worker that `start` describes."""
    prctl.signal_at_parents_end(signal.SIGKILL)
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
    prctl.set_name(fork_name(os.environ.get("RANK", "")))


def _import_everything() -> None:
    for name in _MODULES:
        importlib.import_module(name)
    gc.freeze()  # pages that no collection touches stay shared with the forks


def main() -> None:
    """Be the warm process of a job; a fork of it runs a worker."""
    from launcher.runtime import agent, entrypoint

    server = Server(sys.argv[1])
    agent.install_event_handler()
    _import_everything()
    server.serve()
    import torch  # there already

    # What a cold start would read of the environment: torch has read the warm process's.
    threads = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0]
    torch.set_num_threads(int(threads) if threads else len(os.sched_getaffinity(0)))
    entrypoint.train()


if __name__ == "__main__":
    main()
