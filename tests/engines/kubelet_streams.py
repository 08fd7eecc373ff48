"""The node's side of exec and port forwarding: real commands and real connections of this machine, over WebSocket.

An API server of 1.20 hands a client's WebSocket through to the node, so that the node speaks the protocol itself.
Source: RFC 6455; Kubernetes, pkg/kubelet/cri/streaming: channels 0 to 4 of exec, 0 and 1 of portforward.
"""

import base64
import contextlib
import fcntl
import hashlib
import http.server
import json
import os
import pty
import queue
import select
import shutil
import socket
import ssl
import struct
import subprocess
import termios
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

V4, V5 = "v4.channel.k8s.io", "v5.channel.k8s.io"
_GUID = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
BINARY, CLOSE, PING, PONG = 2, 8, 9, 10
_STATUS, _RESIZE, _CLOSED = 3, 4, 255
_PIECE = 1 << 14


@dataclass(slots=True)
class Peer:
    """A WebSocket that a client has opened."""

    connection: ssl.SSLSocket
    protocol: str

    @classmethod
    def accepted(cls, handler: http.server.BaseHTTPRequestHandler, protocol: str) -> "Peer":
        """Answer a client's upgrade."""
        key = handler.headers["Sec-WebSocket-Key"].encode()
        accept = base64.b64encode(hashlib.sha1(key + _GUID).digest()).decode()
        handler.send_response(101)
        for name, value in (
            ("Upgrade", "websocket"),
            ("Connection", "Upgrade"),
            ("Sec-WebSocket-Accept", accept),
            ("Sec-WebSocket-Protocol", protocol),
        ):
            handler.send_header(name, value)
        handler.end_headers()
        handler.close_connection = True
        return cls(handler.connection, protocol)

    def send(self, channel: int, data: bytes, opcode: int = BINARY) -> None:
        payload = bytes((channel,)) + data if opcode == BINARY else data
        size = len(payload)
        head = bytes((size,)) if size < 126 else b"\x7e" + struct.pack("!H", size)
        self.connection.sendall(bytes((0x80 | opcode,)) + head + payload)

    def receive(self) -> tuple[int, bytes] | None:
        """Return the next frame's channel and bytes, none of them for a ping; None where the client has closed."""
        first, second = self._exactly(2)
        size = second & 0x7F
        if size >= 126:
            size = int.from_bytes(self._exactly(2 if size == 126 else 8))
        mask, data = self._exactly(4), self._exactly(size)
        data = bytes(byte ^ mask[index % 4] for index, byte in enumerate(data))
        opcode = first & 0x0F
        if opcode == CLOSE:
            return None
        if opcode == PING:
            self.send(0, data, PONG)
        return (0, b"") if opcode in (PING, PONG) or not data else (data[0], data[1:])

    def wait(self, others: Sequence[int], timeout_s: float = 30.0) -> list[int]:
        """Return which descriptors can be read, the connection's own as well."""
        if self.connection.pending():
            return [self.connection.fileno()]
        return select.select([self.connection, *others], [], [], timeout_s)[0]

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self.send(0, struct.pack("!H", 1000), CLOSE)

    def _exactly(self, count: int) -> bytes:
        data = b""
        while len(data) < count:
            piece = self.connection.recv(count - len(data))
            if not piece:
                raise ConnectionResetError
            data += piece
        return data


def run_command(peer: Peer, query: dict[str, list[str]]) -> None:
    """Run a command of this machine for exec; tell how it ended on the status channel."""
    command, has_terminal = query["command"], "tty" in query
    if shutil.which(command[0]) is None:
        message = f'exec failed: "{command[0]}": executable file not found in $PATH'
        peer.send(_STATUS, json.dumps({"status": "Failure", "reason": "InternalError", "message": message}).encode())
        peer.close()
        return
    code = _in_terminal(peer, command) if has_terminal else _in_pipes(peer, command)
    status: dict[str, Any] = {"status": "Success"}
    if code:
        cause = {"reason": "ExitCode", "message": str(code)}
        status = {"status": "Failure", "reason": "NonZeroExitCode", "details": {"causes": [cause]}}
    peer.send(_STATUS, json.dumps(status).encode())
    peer.close()


def _in_pipes(peer: Peer, command: list[str]) -> int:
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    channels = {process.stdout.fileno(): 1, process.stderr.fileno(): 2}
    inputs: queue.Queue[tuple[int, bytes]] = queue.Queue()
    threading.Thread(target=_feed, args=(process, inputs), daemon=True).start()
    try:
        while channels:
            for ready in peer.wait(list(channels)):
                if ready in channels:
                    if data := os.read(ready, _PIECE):
                        peer.send(channels[ready], data)
                    else:
                        del channels[ready]
                elif (frame := peer.receive()) is None:
                    raise ConnectionResetError
                else:
                    inputs.put(frame)
        return process.wait()
    finally:
        process.kill()


def _feed(process: subprocess.Popen[bytes], inputs: "queue.Queue[tuple[int, bytes]]") -> None:
    """Write what comes to a command's input, which may be slow to read it."""
    with contextlib.suppress(BrokenPipeError, ValueError):
        while True:
            channel, data = inputs.get()
            if channel == _CLOSED:
                process.stdin.close()
                return
            process.stdin.write(data)
            process.stdin.flush()


def _in_terminal(peer: Peer, command: list[str]) -> int:
    master, slave = pty.openpty()
    with subprocess.Popen(
        ["setsid", "--ctty", "--wait", *command], stdin=slave, stdout=slave, stderr=slave
    ) as process:
        os.close(slave)
        try:
            while True:
                for ready in peer.wait([master]):
                    if ready == master:
                        peer.send(1, os.read(master, _PIECE))
                    elif (frame := peer.receive()) is None:
                        raise ConnectionResetError
                    elif frame[0] == _RESIZE:
                        size = json.loads(frame[1])
                        rows = struct.pack("HHHH", size["Height"], size["Width"], 0, 0)
                        fcntl.ioctl(master, termios.TIOCSWINSZ, rows)
                    else:
                        os.write(master, frame[1])
        except ConnectionResetError:
            process.kill()
            raise
        except OSError:  # EIO: the last program has closed the terminal
            return process.wait()
        finally:
            os.close(master)


def forward(peer: Peer, port: int) -> None:
    """Carry a connection to a port of this machine, which stands for the pod's."""
    for channel in (0, 1):
        peer.send(channel, struct.pack("<H", port))
    try:
        target = socket.create_connection(("127.0.0.1", port))
    except OSError as error:
        peer.send(1, f"failed to connect to localhost:{port} inside the namespace: {error.strerror}".encode())
        peer.close()
        return
    with target:
        while True:
            for ready in peer.wait([target.fileno()]):
                if ready == target.fileno():
                    if not (data := target.recv(_PIECE)):
                        peer.close()
                        return
                    peer.send(0, data)
                elif (frame := peer.receive()) is None:
                    return
                else:
                    target.sendall(frame[1])


def serve(handler: http.server.BaseHTTPRequestHandler, what: str, query: dict[str, list[str]], protocol: str) -> None:
    """Serve one request for exec or portForward; a client that goes away ends it."""
    peer = Peer.accepted(handler, protocol)
    with contextlib.suppress(ConnectionError, ssl.SSLError):
        if what == "exec":
            run_command(peer, query)
        else:
            forward(peer, int(query["port"][0]))
