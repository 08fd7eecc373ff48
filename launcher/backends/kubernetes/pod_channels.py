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

from launcher.backends.kubernetes import api_objects
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

_TEXT, _BINARY, _CLOSED = 1, 2, 8
"""Opcodes of WebSocket frames. Source: RFC 6455, 5.2."""


@dataclass(slots=True)
class Channels:
    """An open WebSocket.

    Args:
        socket: The client's own WebSocket, which has no types.
        source: File descriptor whose bytes are sent; None if there is none, or after its end.
        target: Channel they are sent to.
        wake: File descriptor that becomes readable when `woken` should be called; None for none.
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
        from websocket import WebSocketException, WebSocketTimeoutException

        with selectors.PollSelector() as selector:  # epoll takes no regular files
            selector.register(self.socket.sock, selectors.EVENT_READ)
            while not self._is_left_alone():
                try:
                    if not self._step(selector):
                        continue
                    opcode, frame = self.socket.recv_data_frame(True)
                except WebSocketTimeoutException:  # the frame is not complete yet
                    continue
                except (WebSocketException, OSError) as error:
                    raise Unreachable(" ".join(str(error).split()) or type(error).__name__) from error
                self._heard_s = time.monotonic()
                if opcode == _CLOSED:
                    return
                if opcode in (_TEXT, _BINARY) and (data := bytes(frame.data)):
                    yield data[0], data[1:]

    def send(self, channel: int, data: bytes) -> None:
        """Send bytes to a channel."""
        self.socket.send(bytes((channel,)) + data, opcode=_BINARY)

    def _step(self, selector: selectors.BaseSelector) -> bool:
        """Wait for an event, send pending bytes; return whether a frame can be read."""
        # Bytes that are decrypted already are invisible to the selector.
        pending = getattr(self.socket.sock, "pending", lambda: 0)() > 0
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
        """Read from the source; signal its end to the other side, if the protocol can."""
        try:
            data = os.read(source, _PIECE)
        except OSError:  # a terminal that was closed, a connection that was reset
            data = b""
        if data:
            self._backlog += data
            self._has_sent = True
            return
        self.source, self._heard_s, self._has_ended = None, time.monotonic(), True
        chosen = {name.lower(): value for name, value in self.socket.getheaders().items()}
        if chosen.get("sec-websocket-protocol") == V5:
            self.send(CLOSE, bytes((self.target,)))
        elif self._has_sent:
            self._unheard_s = time.monotonic() + _UNHEARD_S

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
    """Open a subresource of a pod; the block uses it.

    Args:
        what: exec or portforward.
        namespace: The pod's namespace.
        pod: The pod's name.
        query: The subresource's own parameters.

    Raises:
        ApiError: The API refuses.
        Unreachable: No answer came.
    """
    import websocket
    from kubernetes.stream import ws_client

    # Not through `stream`: it hides a refusal, and even Ctrl-C, behind an exception that has only text.
    headers: dict[str, str] = {}
    connection.api.update_params_for_auth(headers, [], ["BearerToken"])
    where = f"{connection.host}{api_objects.path('Pod', namespace, pod)}/{what}"
    url = ws_client.get_websocket_url(where, [*query.items()])
    before = websocket.getdefaulttimeout()
    websocket.setdefaulttimeout(CONNECT_TIMEOUT_S * 2)  # the client does not bound the time to connect
    try:
        socket = ws_client.create_websocket(connection.api.configuration, url, headers)
    except websocket.WebSocketBadStatusException as error:
        raise ApiError(error.status_code, _message(error.resp_body or b"", str(error))) from error
    except (websocket.WebSocketException, OSError) as error:
        cause: BaseException = error
        while cause.__context__ is not None:
            cause = cause.__context__
        raise Unreachable(f"{connection.host}: {' '.join(str(cause).split())}") from error
    finally:
        websocket.setdefaulttimeout(before)
    socket.settimeout(_STALL_S)
    try:
        yield Channels(socket)
    finally:
        with contextlib.suppress(Exception):  # the connection may be broken already
            socket.close(timeout=1)


def _message(body: bytes | str, otherwise: str) -> str:
    """Return the message of a refusal: that of a Status object, or the plain text."""
    text = body.decode(errors="replace") if isinstance(body, bytes) else body
    try:
        return bounded(str(json.loads(text)["message"]))
    except (ValueError, KeyError, TypeError):
        return bounded(" ".join(text.split())) or otherwise.partition("-+-+-")[0].strip()
