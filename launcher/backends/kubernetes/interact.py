"""Interactive access to a job's pods: run a command or a shell, and forward local ports."""

import contextlib
import json
import os
import signal
import socket
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from types import FrameType
from typing import Any

from launcher.backends.kubernetes import pod_channels, pod_report
from launcher.backends.kubernetes.api_errors import RequestFailed, Unreachable, problem
from launcher.backends.kubernetes.connection import Connection
from launcher.backends.kubernetes.job_watch import read_objects
from launcher.backends.kubernetes.pod_channels import Channels
from launcher.backends.kubernetes.target import Target
from launcher.common import console
from launcher.common.problems import Notice, Problem, ProblemsFound, fail
from launcher.common.redaction import masked
from launcher.model.following import refuse_unknown_ranks

STDIN, STDOUT, STDERR, STATUS, RESIZE = range(5)
"""Channels of exec. Source: Kubernetes, pkg/kubelet/cri/streaming/remotecommand/websocket.go."""

SHELL = ("sh", "-c", "if command -v bash >/dev/null 2>&1; then exec bash; else exec sh; fi")
LOOPBACK = "127.0.0.1"
_BROKEN = 2
"""Exit code if the command's own is unknown: that of every Problem."""
_UNHEARD = Notice("N151", "this cluster cannot signal the end of input to the command, which may wait for it forever")
_LINGER_S = 30.0
"""How long a pod may be silent after a local program has closed its side: port forwarding cannot signal that, and the
pod may still be answering."""


@dataclass(frozen=True, slots=True)
class PodOfRank:
    """Finds the pod that runs a rank now."""

    connection: Connection
    target: Target
    rank: int

    def now(self) -> Mapping[str, Any]:
        """Return the running pod of the rank.

        Raises:
            ProblemsFound: No such rank exists, or none of its pods is running.
        """
        places = self.target.places
        refuse_unknown_ranks((self.rank,), places.num_ranks)
        place = self.rank // places.nproc_per_node
        pods = read_objects(self.connection, self.target)[1]
        found = [pod for pod in pods if places.place(pod["metadata"]["name"]) == place]
        found.sort(key=lambda pod: pod["metadata"]["creationTimestamp"])
        if running := [pod for pod in found if pod_report.phase(pod) == "Running"]:
            return running[-1]
        message = "no pod runs this rank now"
        if found:
            words = filter(None, (pod_report.phase(found[-1]), pod_report.reason(found[-1])))
            message = f"its pod {found[-1]['metadata']['name']} is not running: {', '.join(words)}"
        raise fail("E381", "rank", message, value=self.rank, remedy="recipes pods lists the running ones")


def run(wanted: PodOfRank, command: Sequence[str]) -> int:
    """Run a command in the pod of a rank, with this process's standard streams; return its exit code.

    Raises:
        ProblemsFound: No pod runs the rank, or the command cannot be run.
    """
    pod = wanted.now()
    has_terminal = sys.stdin.isatty() and sys.stdout.isatty()
    query = {
        "container": pod_report.container_of(pod),
        "command": list(command or SHELL),
        "stdin": True,
        "stdout": True,
        "stderr": not has_terminal,  # a terminal has one stream for both
        "tty": has_terminal,
    }
    name = pod["metadata"]["name"]
    opening = pod_channels.opened(wanted.connection, "exec", wanted.target.namespace, name, **query)
    with _problems("exec", name), opening as open_:
        open_.source, open_.unheard = sys.stdin.fileno(), partial(console.show_notice, _UNHEARD, stderr=True)
        with _raw_terminal(open_) if has_terminal else contextlib.nullcontext():
            status = _exchange(open_)
    return _exit_code(status, name)


def _exchange(open_: Channels) -> Mapping[str, Any]:
    """Forward bytes until the command has ended; return its exit status as the cluster reports it, {} if it broke."""
    status = b""
    outputs = {STDOUT: sys.stdout.fileno(), STDERR: sys.stderr.fileno()}
    with contextlib.suppress(Unreachable, ValueError):
        for channel, data in open_.frames():
            if channel == STATUS:
                status += data
            while channel in outputs and data:
                data = data[os.write(outputs[channel], data) :]
        result: Mapping[str, Any] = json.loads(status)
        return result
    return {}


def _exit_code(status: Mapping[str, Any], pod: str) -> int:
    """Return a command's exit code; that of a Problem if the connection broke before the command ended."""
    if not status:
        broken = Problem("E382", pod, "the connection broke before the command ended")
        console.show_problems((broken,), "the command may still be running")
        return _BROKEN
    if status.get("status") == "Success":
        return 0
    for cause in (status.get("details") or {}).get("causes") or ():
        if cause.get("reason") == "ExitCode":
            return int(cause["message"])
    raise fail("E382", pod, masked(status.get("message") or "the command was not run"))


@contextlib.contextmanager
def _raw_terminal(open_: Channels) -> Iterator[None]:
    """Send every key to the pod, Ctrl-C included, and the terminal's size after each change."""
    import termios
    import tty

    terminal = sys.stdin.fileno()
    before = termios.tcgetattr(terminal)
    reader, writer = os.pipe()
    os.set_blocking(writer, False)

    def resized(_signum: int, _frame: FrameType | None) -> None:
        with contextlib.suppress(BlockingIOError):  # a wake-up is already pending
            os.write(writer, b"1")

    def size() -> bytes:
        columns, rows = os.get_terminal_size(terminal)  # shutil reads COLUMNS and LINES first, which stay
        return json.dumps({"Width": columns, "Height": rows}).encode()

    def ended(signum: int, _frame: FrameType | None) -> None:
        raise SystemExit(128 + signum)  # unwinds, which restores the terminal

    handlers = {signal.SIGWINCH: resized, signal.SIGTERM: ended, signal.SIGHUP: ended}
    old = {signum: signal.signal(signum, handler) for signum, handler in handlers.items()}
    open_.wake, open_.woken = reader, lambda: open_.send(RESIZE, size())
    try:
        tty.setraw(terminal, termios.TCSADRAIN)  # TCSADRAIN keeps typed-ahead input
        open_.woken()
        yield
    finally:
        termios.tcsetattr(terminal, termios.TCSADRAIN, before)
        for signum, handler in old.items():
            signal.signal(signum, handler)
        os.close(reader)
        os.close(writer)


@contextlib.contextmanager
def _problems(what: str, pod: str) -> Iterator[None]:
    """Raise a refusal as a Problem, which names the missing permission if there is one."""
    try:
        yield
    except RequestFailed as error:
        if error.status == 403:
            # A WebSocket is a GET; servers from 1.35 on require create too. Source: Kubernetes, Authorization.
            remedy = f"ask for a Role that allows get and create on pods/{what}"
            raise fail("E344", pod, error.message, remedy=remedy) from error
        if error.status in (400, 404, 500):  # the message is the node's own
            raise fail("E382", pod, masked(error.message)) from error
        raise ProblemsFound((problem(error, pod),)) from error


def forward(wanted: PodOfRank, ports: Sequence[tuple[int, int]]) -> None:
    """Forward ports of this machine's loopback address to the pod of a rank; never return.

    Every connection goes to the pod that runs the rank at that time.

    Raises:
        ProblemsFound: A local port is not available, or no pod runs the rank.
    """
    pod = wanted.now()["metadata"]["name"]
    with contextlib.ExitStack() as stack:
        servers = [stack.enter_context(_listening(local)) for local, _ in ports]
        for server, (_, remote) in zip(servers, ports, strict=True):
            console.say(f"{LOOPBACK}:{server.getsockname()[1]} -> {pod}:{remote}   (Ctrl-C to stop)")
            threading.Thread(target=_serve, args=(server, wanted, remote), daemon=True).start()
        threading.Event().wait()


def _listening(port: int) -> socket.socket:
    try:
        return socket.create_server((LOOPBACK, port))
    except OSError as error:
        message = f"cannot listen on {LOOPBACK}:{port}: {os.strerror(error.errno or 0)}"
        raise fail("E383", "LOCAL", message, value=port, remedy="another port, or 0 for any free one") from error


def _serve(server: socket.socket, wanted: PodOfRank, remote: int) -> None:
    with contextlib.suppress(OSError):  # closed: the command ends
        while True:
            local, _ = server.accept()
            threading.Thread(target=_connect, args=(local, wanted, remote), daemon=True).start()


def _connect(local: socket.socket, wanted: PodOfRank, remote: int) -> None:
    """Forward one connection; an error is printed, and ends this connection only."""
    try:
        with local:
            name, namespace = wanted.now()["metadata"]["name"], wanted.target.namespace
            opening = pod_channels.opened(wanted.connection, "portforward", namespace, name, ports=remote)
            with _problems("portforward", name), opening as open_:
                _forward(open_, local, f"{name}:{remote}")
    except RequestFailed as error:
        console.show_problems((problem(error, "rank"),), "this connection was closed")
    except ProblemsFound as error:
        console.show_problems(error.problems, "this connection was closed")


def _forward(open_: Channels, local: socket.socket, where: str) -> None:
    """Forward bytes in both directions. The first frame of each channel is the port's number.

    Source: Kubernetes, pkg/kubelet/cri/streaming/portforward/websocket.go: channel 0 is data, 1 an error.
    """
    open_.source, open_.linger_s = local.fileno(), _LINGER_S
    begun: set[int] = set()
    with contextlib.suppress(OSError):  # the local program has closed its connection
        for channel, data in open_.frames():
            if channel not in begun:
                begun.add(channel)
            elif channel == 1 and data:
                raise fail("E382", where, masked(" ".join(data.decode(errors="replace").split())))
            elif channel == 0:
                local.sendall(data)
