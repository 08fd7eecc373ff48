"""Stands in for the kubelets: it serves container logs, which a test writes, and exec and port forwarding.

No kubelet runs here; its answers follow Kubernetes' own (pkg/kubelet/kuberuntime/logs): sinceTime in whole seconds,
timestamps with nanoseconds before each line, and a followed log that ends with its container.
"""

import http.server
import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from urllib.parse import parse_qs, urlsplit

import kubelet_streams
from background import serving
from certificates import Authority


@dataclass(slots=True)
class ContainerLog:
    """What one run of a container has written so far: times in nanoseconds, and lines."""

    lines: list[tuple[int, str]] = field(default_factory=list)
    has_ended: bool = False


@dataclass(slots=True)
class Kubelet:
    """Logs by pod; the last one of each list is the container that runs now."""

    port: int = 0
    logs: dict[str, list[ContainerLog]] = field(default_factory=dict)
    changed: threading.Condition = field(default_factory=threading.Condition)
    requests: list[str] = field(default_factory=list)
    protocol: str = kubelet_streams.V4
    """What it speaks in exec: a node of 1.20 the first, an API server of 1.30 on the second."""

    def start(self, pod: str) -> None:
        """Begin a container's run."""
        with self.changed:
            self.logs.setdefault(pod, []).append(ContainerLog())

    def write(self, pod: str, *lines: str, at_ns: int | None = None) -> None:
        with self.changed:
            self.logs[pod][-1].lines += [(time.time_ns() if at_ns is None else at_ns, line) for line in lines]
            self.changed.notify_all()

    def end(self, pod: str) -> None:
        with self.changed:
            self.logs[pod][-1].has_ended = True
            self.changed.notify_all()


def stamp(time_ns: int) -> str:
    seconds, rest = divmod(time_ns, 10**9)
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%S}.{rest:09d}Z"


@contextmanager
def running(authority: Authority) -> Iterator[Kubelet]:
    """Run the stand-in until the block ends."""
    kubelet = Kubelet()
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _handler(kubelet))
    server.daemon_threads = True
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*authority.issue("kubelet"))
    server.socket = context.wrap_socket(server.socket, server_side=True)
    kubelet.port = server.server_address[1]
    with serving(server):
        yield kubelet


def _handler(kubelet: Kubelet) -> type[http.server.BaseHTTPRequestHandler]:
    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            address = urlsplit(self.path)
            kubelet.requests.append(self.path)
            _, what, _, pod, *_ = address.path.split("/")
            runs = kubelet.logs.get(pod, [])
            if what in ("exec", "portForward"):
                if runs and not runs[-1].has_ended:
                    kubelet_streams.serve(self, what, parse_qs(address.query), kubelet.protocol)
                else:
                    self.send_error(404, "container not found")
                return
            query = {name: values[0] for name, values in parse_qs(address.query).items()}
            index = -2 if query.get("previous") == "true" else -1
            if len(runs) < -index:
                self.send_error(400, "no such container")
                return
            self.send_response(200)
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            try:
                for line in _lines(kubelet, runs[index], query):
                    text = line.encode() + b"\n"
                    self.wfile.write(f"{len(text):x}\r\n".encode() + text + b"\r\n")
                self.wfile.write(b"0\r\n\r\n")
            except (BrokenPipeError, ConnectionResetError, ssl.SSLError):
                self.close_connection = True

        def log_message(self, *_args: object) -> None:
            pass

    return Handler


def _lines(kubelet: Kubelet, log: ContainerLog, query: dict[str, str]) -> Iterator[str]:
    since_ns = 0
    if text := query.get("sinceTime"):
        since_ns = int(datetime.fromisoformat(text).timestamp()) * 10**9
    follow, stamped = query.get("follow") == "true", query.get("timestamps") == "true"
    position = 0
    while True:
        with kubelet.changed:
            if position == len(log.lines):
                if log.has_ended or not follow:
                    return
                kubelet.changed.wait(0.5)
            new, position = log.lines[position:], len(log.lines)
        for time_ns, line in new:
            if time_ns >= since_ns:
                yield f"{stamp(time_ns)} {line}" if stamped else line
