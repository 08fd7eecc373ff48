"""A WebSocket to a pod with numbered byte channels, as exec and portforward use it.

Source: Kubernetes, k8s.io/apimachinery remotecommand constants: v4.channel.k8s.io and v5.channel.k8s.io.
"""

import contextlib
import json
import os
import selectors
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from launcher.backends.kubernetes.api_errors import ApiError, Unreachable
from launcher.backends.kubernetes.connection import CONNECT_TIMEOUT_S, Connection
from launcher.common.texts import bounded

CLOSE, V5 = 255, "v5.channel.k8s.io"
"""Channel that signals the end of another channel, and the first protocol that has it."""

_PIECE = 1 << 13
"""Bytes sent at once: less than a writable socket accepts, so that a send does not block."""

_PING_S, _SILENCE_S = 30.0, 90.0
"""Ping interval that keeps load balancers from closing an idle connection; and the silence after which it is dead."""

_UNHEARD_S = 5.0
"""How long a command may take to end after its input has ended, before a notice is printed."""

_STALL_S = 1.0
"""How long to wait for the rest of a frame before checking the source again."""

_CODES = {"continuation": 0, "text": 1, "binary": 2, "close": 8}
"""Opcodes of WebSocket frames. Source: RFC 6455, 5.2."""


@dataclass(slots=True)
class Channels:
    """An open WebSocket.

    Args:
        socket: The client's own WebSocket, which has no types.
        source: File descriptor whose bytes are sent; None if there is none, or after its end.
        target: Channel they are sent to.
        wake: File descriptor that becomes readable when `woken` should be called; None for none.
        woken: Called when `wake` was readable.
        unheard: Called if sent input has ended, the protocol cannot report that, and the other side stays open.
        linger_s: How long the other side may be silent after the end of `source`, in seconds; None for ever.
    """

    socket: Any
    source: int | None = None
    target: int = 0
    wake: int | None = None
    woken: Callable[[], None] = lambda: None
    unheard: Callable[[], None] = lambda: None
    linger_s: float | None = None
    _backlog: bytearray = field(default_factory=bytearray)
    _has_sent: bool = False
    _unheard_s: float = float("inf")
    _has_ended: bool = False
    _heard_s: float = field(default_factory=time.monotonic)
    _pinged_s: float = field(default_factory=time.monotonic)

    def frames(self) -> Iterator[tuple[int, bytes]]:
        """Yield each frame's channel and bytes, and send the bytes of `source` meanwhile, until the server closes.

        Raises:
            Unreachable: The connection broke.
        """
        with selectors.PollSelector() as selector:  # epoll takes no regular files
            selector.register(self.socket.sock, selectors.EVENT_READ)
            while True:
                opcode, data = self._next(selector)
                if opcode == _CODES["close"]:
                    return
                if opcode in (_CODES["text"], _CODES["binary"]) and data:
                    yield data[0], data[1:]

    def _next(self, selector: selectors.BaseSelector) -> tuple[int, bytes]:
        """Return the opcode and the bytes of the next frame; -1 if none has arrived yet."""
        from websocket import WebSocketException, WebSocketTimeoutException

        try:
            if not self._step(selector):
                return _CODES["close"] if self._is_left_alone() else -1, b""
            opcode, frame = self.socket.recv_data_frame(True)
        except WebSocketTimeoutException:  # the frame is not complete yet
            return -1, b""
        except (WebSocketException, OSError) as error:
            raise Unreachable(" ".join(str(error).split()) or type(error).__name__) from error
        self._heard_s = time.monotonic()
        return opcode, bytes(frame.data)

    def send(self, channel: int, data: bytes) -> None:
        """Send bytes to a channel."""
        self.socket.send(bytes((channel,)) + data, opcode=_CODES["binary"])

    def _end_input(self) -> None:
        """Signal the end of `target` to the other side, if the protocol can."""
        self.source, self._heard_s = None, time.monotonic()
        chosen = {name.lower(): value for name, value in self.socket.getheaders().items()}
        if chosen.get("sec-websocket-protocol") == V5:
            self.socket.send(bytes((CLOSE, self.target)), opcode=_CODES["binary"])
        elif self._has_sent:
            self._unheard_s = time.monotonic() + _UNHEARD_S
        self._has_ended = True

    def _step(self, selector: selectors.BaseSelector) -> bool:
        """Wait for an event, send pending bytes; return whether a frame can be read."""
        pending = (
            getattr(self.socket.sock, "pending", lambda: 0)() > 0
        )  # already decrypted, invisible to the selector
        self._watch(selector)
        idle_s = self.linger_s if self._has_ended and self.linger_s is not None else _PING_S
        idle_s = min(idle_s, max(0.0, self._unheard_s - time.monotonic()))
        ready = {key.fd: events for key, events in selector.select(0 if pending else idle_s)}
        own = ready.pop(self.socket.sock.fileno(), 0)
        if own & selectors.EVENT_WRITE:
            self.send(self.target, bytes(self._backlog))
            self._backlog.clear()
        if self.source is not None and self.source in ready:
            self._read(self.source)
        if self.wake is not None and self.wake in ready:
            os.read(self.wake, _PIECE)
            self.woken()
        self._keep_alive()
        return pending or bool(own & selectors.EVENT_READ)

    def _watch(self, selector: selectors.BaseSelector) -> None:
        """Watch the source only while none of its bytes are pending."""
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if self._backlog else 0)
        selector.modify(self.socket.sock, events)
        wanted = {fd for fd in (None if self._backlog else self.source, self.wake) if fd is not None}
        known = {key.fd for key in selector.get_map().values()} - {self.socket.sock.fileno()}
        for fd in known - wanted:
            selector.unregister(fd)
        for fd in wanted - known:
            selector.register(fd, selectors.EVENT_READ)

    def _read(self, source: int) -> None:
        try:
            data = os.read(source, _PIECE)
        except OSError:  # a terminal that was closed, a connection that was reset
            data = b""
        if data:
            self._backlog += data
            self._has_sent = True
        else:
            self._end_input()

    def _is_left_alone(self) -> bool:
        is_silent = self.linger_s is not None and time.monotonic() - self._heard_s >= self.linger_s
        return self._has_ended and is_silent

    def _keep_alive(self) -> None:
        now_s = time.monotonic()
        if now_s >= self._unheard_s:
            self._unheard_s = float("inf")
            self.unheard()
        if now_s - self._heard_s > _SILENCE_S:
            raise Unreachable(f"no data for {_SILENCE_S:.0f} s")
        if now_s - max(self._heard_s, self._pinged_s) >= _PING_S:
            self._pinged_s = now_s
            self.socket.ping()


@contextlib.contextmanager
def opened(connection: Connection, what: str, namespace: str, pod: str, **query: object) -> Iterator[Channels]:
    """Open a subresource of a pod with the official client; the block uses it.

    Args:
        what: exec or portforward.
        namespace: The pod's namespace.
        pod: The pod's name.
        query: The subresource's own parameters.
    """
    from kubernetes import client
    from kubernetes.stream import stream

    # A separate client: `stream` modifies its client while it connects.
    core = client.CoreV1Api(client.ApiClient(connection.api.configuration))
    method = getattr(core, f"connect_get_namespaced_pod_{what}")
    with _timeout():
        try:
            socket = stream(method, pod, namespace, _preload_content=False, binary=True, **query).sock
        except (
            client.ApiException,
            AttributeError,
        ) as error:  # AttributeError: the client reads the missing body of a refusal
            raise _refused(connection, error) from error
    socket.settimeout(_STALL_S)
    try:
        yield Channels(socket)
    finally:
        with contextlib.suppress(Exception):  # the connection may be broken already
            socket.close(timeout=1)


@contextlib.contextmanager
def _timeout() -> Iterator[None]:
    """Bound the time to connect, which the official client does not."""
    import websocket

    before = websocket.getdefaulttimeout()
    websocket.setdefaulttimeout(CONNECT_TIMEOUT_S * 2)
    try:
        yield
    finally:
        websocket.setdefaulttimeout(before)


def _refused(connection: Connection, error: Exception) -> BaseException:
    """Return the cause of the client's exception, which itself has only text."""
    cause: BaseException = error
    while cause.__context__ is not None:
        cause = cause.__context__
        if isinstance(cause, (KeyboardInterrupt, SystemExit)):
            return cause
        if status := getattr(cause, "status_code", None):
            return ApiError(status, _message(getattr(cause, "resp_body", None) or b"", str(cause)))
    return Unreachable(f"{connection.host}: {' '.join(str(cause).split())}")


def _message(body: bytes | str, otherwise: str) -> str:
    """Return the message of a refusal: that of a Status object, or the plain text."""
    text = body.decode(errors="replace") if isinstance(body, bytes) else body
    try:
        return bounded(str(json.loads(text)["message"]))
    except (ValueError, KeyError, TypeError):
        return bounded(" ".join(text.split())) or otherwise.partition("-+-+-")[0].strip()
