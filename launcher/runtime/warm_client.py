"""A worker's side of a warm start: it requests a fork, forwards signals to it, and exits with its status.

It imports little: all workers of a node do so at the same time, while none trains.
"""

import contextlib
import json
import os
import signal
import socket
import struct
import sys
from types import FrameType
from typing import NamedTuple

from launcher.common.names import ENV_WARM_SOCKET

FORWARDED = (signal.SIGUSR1, signal.SIGTERM, signal.SIGINT)
"""Signals that a worker's process forwards. Source: the agent stops workers with the first two."""

ANSWER_TIMEOUT_S = 60.0
"""How long a worker waits for the warm process, which may still be importing: 3 to 13 s measured, more on a
loaded machine."""

PING_TIMEOUT_S = 5.0
"""How long a warm process that has answered before may take to answer again."""

STANDARD_STREAMS = (0, 1, 2)

LENGTH = struct.Struct("!I")

STATUS = struct.Struct("!i")

_CREDENTIALS = struct.Struct("3i")

STARTED = b"\1"


class WorkerStart(NamedTuple):
    """The arguments, environment and folder that a fork takes over from the worker that requested it."""

    argv: list[str]
    environment: dict[str, str]
    folder: str


def run_warm() -> None:
    """Run this worker as a fork of its job's warm process, if there is one.

    Returns only if there is none, or it ended before the worker was started; the caller then starts cold.
    """
    name = os.environ.get(ENV_WARM_SOCKET)
    if not name:
        return
    # A signal that arrives before the fork exists is forwarded as soon as it does.
    signal.pthread_sigmask(signal.SIG_BLOCK, FORWARDED)
    try:
        server = _start_fork(name)
    except OSError as error:
        print(f"no warm start: {error}", file=sys.stderr, flush=True)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, FORWARDED)
        return
    _exit_like(_forward_signals(server))


def _start_fork(name: str) -> socket.socket:
    """Start a fork that runs in place of this process; return the connection to the warm process."""
    server = _connect(name, ANSWER_TIMEOUT_S)
    start = json.dumps(WorkerStart(sys.argv, dict(os.environ), os.getcwd())._asdict()).encode()
    try:
        socket.send_fds(server, [LENGTH.pack(len(start))], list(STANDARD_STREAMS))
        server.sendall(start)
        if server.recv(len(STARTED)) != STARTED:
            raise ConnectionResetError("the job's warm process has ended")
    except TimeoutError:
        # If it woke up later, it would fork a second worker of this rank.
        os.kill(peer(server)[0], signal.SIGKILL)
        raise TimeoutError(f"the job's warm process did not answer in {ANSWER_TIMEOUT_S:g} s") from None
    server.settimeout(None)
    return server


def _connect(name: str, timeout_s: float) -> socket.socket:
    server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    server.settimeout(timeout_s)
    server.connect(f"\0{name}")
    # Any user may take the name, but the environment sent here is for this user only.
    if peer(server)[1] != os.getuid():
        raise PermissionError("the warm process belongs to another user")
    return server


def answers(name: str, timeout_s: float = PING_TIMEOUT_S) -> bool:
    """Return whether the warm process of this name answers; one that is still importing does not."""
    with contextlib.suppress(OSError), _connect(name, timeout_s) as server:
        server.sendall(LENGTH.pack(0))
        return server.recv(1) == b""
    return False


def _forward_signals(server: socket.socket) -> int:
    """Forward signals until the fork has ended; return its wait status, that of SIGKILL if unknown."""

    def forward(number: int, _frame: FrameType | None) -> None:
        with contextlib.suppress(OSError):  # the fork has ended in the meantime
            server.send(bytes([number]))

    for number in FORWARDED:
        signal.signal(number, forward)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, FORWARDED)
    with contextlib.suppress(OSError):
        answer = server.recv(STATUS.size, socket.MSG_WAITALL)
        if len(answer) == STATUS.size:
            status: int = STATUS.unpack(answer)[0]
            return status
    return signal.SIGKILL


def _exit_like(status: int) -> None:
    sys.stdout.flush()
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        if number != signal.SIGKILL:
            signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
    os._exit(os.waitstatus_to_exitcode(status))


def fork_name(rank: int | str) -> str:
    """Return the name in process listings of the fork that runs as `rank`."""
    return f"rank{rank}"


def peer(connection: socket.socket) -> tuple[int, int, int]:
    """Return the pid, user and group of the other end; for a server, those of the listening process."""
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    return _CREDENTIALS.unpack(credentials)
