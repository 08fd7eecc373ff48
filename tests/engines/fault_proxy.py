"""A proxy before the API server that makes chosen requests go wrong, as networks and busy servers do."""

import asyncio
import contextlib
import json
import re
import ssl
import threading
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from certificates import Authority


@dataclass(slots=True)
class Fault:
    """What goes wrong with the next `times` requests that match.

    Args:
        method: HTTP method.
        path: Regular expression that the path and query contain.
        status: Answer with this status in the server's place.
        retry_after: Its header Retry-After.
        body: Answer with 200 and this in the server's place.
        is_lost: Carry the request out, then break the connection before the answer.
        is_refused: Break the connection before the request reaches the server.
        cut_after: Break the connection after so many bytes of the answer.
        delay_s: Wait before each piece of the answer.
        hold: Pass the request on once this is set, even if its sender has gone.
        times: How many requests.
        skip: How many matching requests pass first.
    """

    method: str = "."
    path: str = "."
    status: int | None = None
    retry_after: str | None = None
    body: bytes | None = None
    is_lost: bool = False
    is_refused: bool = False
    cut_after: int | None = None
    delay_s: float = 0.0
    hold: threading.Event | None = None
    times: int = 1
    skip: int = 0


@dataclass(slots=True)
class Proxy:
    """The running proxy: where it listens, what it has seen, and what shall go wrong."""

    url: str
    ca_file: Path
    faults: list[Fault] = field(default_factory=list)
    seen: list[str] = field(default_factory=list)
    open_now: int = 0
    most_open: int = 0

    def fail(self, **fault: object) -> None:
        self.faults.append(Fault(**fault))

    def counts(self) -> Counter[str]:
        """Return how often each method and path, without its query, was asked for."""
        return Counter(line.partition("?")[0] for line in self.seen)

    def matching(self, line: str) -> Fault | None:
        method, _, path = line.partition(" ")
        for fault in self.faults:
            if fault.times > 0 and re.search(fault.method, method) and re.search(fault.path, path):
                if fault.skip:
                    fault.skip -= 1
                    return None
                fault.times -= 1
                return fault
        return None


@contextlib.contextmanager
def running(upstream: str, authority: Authority) -> Iterator[Proxy]:
    """Run a proxy before the server at `upstream` until the block ends."""
    certificate, key = authority.issue("proxy")
    own = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    own.load_cert_chain(certificate, key)
    theirs = ssl.create_default_context(cafile=str(authority.ca_file))
    host, _, port = upstream.removeprefix("https://").partition(":")
    proxy = Proxy("", authority.ca_file)
    loop, ready, tasks = asyncio.new_event_loop(), threading.Event(), set()

    async def serve() -> None:
        async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            tasks.add(asyncio.current_task())
            try:
                await _handle(proxy, (host, int(port), theirs), reader, writer)
            except (ConnectionError, asyncio.IncompleteReadError, ssl.SSLError, asyncio.CancelledError):
                pass
            finally:
                writer.transport.abort()
                tasks.discard(asyncio.current_task())

        server = await asyncio.start_server(handle, "127.0.0.1", 0, ssl=own, limit=1 << 22)
        proxy.url = f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        ready.set()

    def run() -> None:
        loop.run_until_complete(serve())
        loop.run_forever()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    ready.wait(10)
    try:
        yield proxy
    finally:
        loop.call_soon_threadsafe(lambda: [task.cancel() for task in tasks])
        loop.call_soon_threadsafe(loop.call_later, 0.1, loop.stop)
        thread.join(5)


async def _handle(proxy: Proxy, upstream: tuple, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Pass one request on and its answer back; a connection carries no second one."""
    head = await reader.readuntil(b"\r\n\r\n")
    first, *headers = head.decode("latin-1").split("\r\n")
    line = first.rpartition(" ")[0]
    fields = {name.lower(): value.strip() for name, _, value in (header.partition(":") for header in headers)}
    body = await reader.readexactly(int(fields.get("content-length") or 0))
    fault = proxy.matching(line) or Fault()
    proxy.seen.append(line)
    while fault.hold and not fault.hold.is_set():
        await asyncio.sleep(0.01)
    if fault.is_refused:
        return
    if fault.status or fault.body is not None:
        await _answer(writer, fault)
        return
    proxy.open_now += 1
    proxy.most_open = max(proxy.most_open, proxy.open_now)
    try:
        await _pass_on(upstream, first, headers, body, fault, (reader, writer))
    finally:
        proxy.open_now -= 1


async def _pass_on(upstream: tuple, first: str, headers: list[str], body: bytes, fault: Fault, client: tuple) -> None:
    host, port, context = upstream
    reader, writer = client
    theirs, to_server = await asyncio.open_connection(host, port, ssl=context, limit=1 << 22)
    upload = None
    try:
        is_upgrade = any(header.lower().startswith("upgrade:") for header in headers)
        kept = [header for header in headers if header and not header.lower().startswith("connection:")]
        kept.append(f"Connection: {'Upgrade' if is_upgrade else 'close'}")
        to_server.write("\r\n".join([first, *kept, "", ""]).encode("latin-1") + body)
        await to_server.drain()
        if is_upgrade:
            upload = asyncio.ensure_future(_upload(reader, to_server))
        sent = 0
        while piece := await theirs.read(1 << 16):
            if fault.is_lost:
                return
            if fault.delay_s:
                await asyncio.sleep(fault.delay_s)
            if fault.cut_after is not None:
                piece = piece[: fault.cut_after - sent]
            writer.write(piece)
            await writer.drain()
            sent += len(piece)
            if fault.cut_after is not None and sent >= fault.cut_after:
                await asyncio.sleep(0.05)  # what was written arrives before the connection breaks
                return
        writer.close()
        await writer.wait_closed()
    finally:
        if upload:
            upload.cancel()
        to_server.transport.abort()


async def _upload(reader: asyncio.StreamReader, to_server: asyncio.StreamWriter) -> None:
    """Pass on what a client sends after its request, as with a WebSocket."""
    with contextlib.suppress(ConnectionError):
        while piece := await reader.read(1 << 16):
            to_server.write(piece)
            await to_server.drain()


async def _answer(writer: asyncio.StreamWriter, fault: Fault) -> None:
    number = fault.status or 200
    status = {
        "kind": "Status",
        "apiVersion": "v1",
        "status": "Failure",
        "message": f"made to fail with {fault.status}",
    }
    text = json.dumps({**status, "code": number}).encode() if fault.body is None else fault.body
    head = [f"HTTP/1.1 {number} Made To Fail", "Content-Type: application/json", "Connection: close"]
    head.append(f"Content-Length: {len(text)}")
    if fault.retry_after is not None:
        head.append(f"Retry-After: {fault.retry_after}")
    writer.write("\r\n".join([*head, "", ""]).encode() + text)
    await writer.drain()
    writer.close()
    await writer.wait_closed()
