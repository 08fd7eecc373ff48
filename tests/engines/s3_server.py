"""A fixture: moto's S3 server in a thread; a test module names this one in `pytest_plugins`."""

import contextlib
import http.client
import logging
import secrets
import socket
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace
from typing import Any

import pytest
from background import serving

KEYS = {"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "word", "AWS_EC2_METADATA_DISABLED": "true"}
REGION = "us-east-1"


@dataclass(frozen=True)
class Bucket:
    """A bucket of its own: its server's URL, a client, and its name."""

    endpoint: str
    client: Any
    name: str

    @property
    def uri(self) -> str:
        return f"s3://{self.name}"

    def put(self, key: str, data: bytes) -> str:
        """Make an object; return its URI."""
        self.client.put_object(Bucket=self.name, Key=key, Body=data)
        return f"{self.uri}/{key}"

    def get(self, key: str) -> bytes:
        return self.client.get_object(Bucket=self.name, Key=key)["Body"].read()

    def keys(self, prefix: str = "") -> list[str]:
        pages = self.client.get_paginator("list_objects_v2").paginate(Bucket=self.name, Prefix=prefix)
        return [each["Key"] for page in pages for each in page.get("Contents", ())]


@contextlib.contextmanager
def running() -> Iterator[str]:
    """Run an S3 server until the block ends; yield its URL."""
    from moto.moto_server.threaded_moto_server import ThreadedMotoServer

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    logging.getLogger("werkzeug").setLevel(logging.WARNING)  # a line a request would bury what a failing test says
    host, port = server.get_host_and_port()
    try:
        yield f"http://{host}:{port}"
    finally:
        server.stop()


@pytest.fixture(scope="session")
def s3_endpoint() -> Iterator[str]:
    """Return the URL of an S3 server."""
    pytest.importorskip("moto.moto_server.threaded_moto_server", reason="needs moto: pip install '.[sagemaker,test]'")
    with running() as endpoint:
        yield endpoint


@pytest.fixture
def ended_claims(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """End the claims to namespaces with the test: they would renew and release marks on a server that is gone."""
    releases: list[Any] = []
    if owner := sys.modules.get("launcher.runtime.tiers.owner"):
        monkeypatch.setattr(owner, "atexit", SimpleNamespace(register=releases.append))
    yield
    for release in releases:
        release.__self__._ended.set()


@pytest.fixture
def bucket(s3_endpoint: str, monkeypatch: pytest.MonkeyPatch, ended_claims: None) -> Bucket:
    """Return a new bucket, for whose server the environment has credentials."""
    boto3 = pytest.importorskip("boto3", reason="needs boto3: pip install '.[sagemaker]'")
    for name, value in KEYS.items():
        monkeypatch.setenv(name, value)
    client = boto3.client("s3", endpoint_url=s3_endpoint, region_name=REGION)
    name = f"bucket-{secrets.token_hex(4)}"
    client.create_bucket(Bucket=name)
    return Bucket(s3_endpoint, client, name)


@dataclass
class Tap:
    """An HTTP proxy before an S3 server: records what goes through, and answers itself where a test asks for it.

    Args:
        server: Address of the S3 server, host and port.
        fault: Is given method and path of a request; returns None, or what is answered in the server's place: status,
            S3 error code and headers. "drop" closes the connection.
        requests: Method and path of each request.
        read: Bytes of objects in answers, by the last part of the object's name.
    """

    server: str
    fault: Callable[[str, str], tuple[int, str, dict[str, str]] | str | None] = lambda method, path: None
    requests: list[tuple[str, str]] = field(default_factory=list)
    read: Counter[str] = field(default_factory=Counter)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def answer(self, handler: BaseHTTPRequestHandler) -> None:
        """Answer a request; drop its connection if the client or the server is gone."""
        try:
            self._answer(handler)
        except (OSError, http.client.HTTPException):
            handler.close_connection = True

    def _answer(self, handler: BaseHTTPRequestHandler) -> None:
        method, body = handler.command, _body_of(handler)
        with self._lock:
            self.requests.append((method, handler.path))
            fault = self.fault(method, handler.path)
        if fault == "drop":
            handler.close_connection = True
            handler.connection.shutdown(socket.SHUT_WR)
        elif fault:
            status, code, headers = fault
            text = f"<Error><Code>{code}</Code><Message>for a test</Message></Error>".encode()
            _send(handler, status, headers | {"Content-Type": "application/xml"}, text)
        else:
            self._forward(handler, body)

    def _forward(self, handler: BaseHTTPRequestHandler, body: bytes) -> None:
        connection = http.client.HTTPConnection(self.server, timeout=60)
        headers = {name: value for name, value in handler.headers.items() if name.lower() not in HOP_HEADERS}
        connection.request(handler.command, handler.path, body, headers | {"Content-Length": str(len(body))})
        answer = connection.getresponse()
        data = answer.read()
        is_object = handler.command == "GET" and "list-type" not in handler.path and answer.status in (200, 206)
        with self._lock:
            self.read[handler.path.rpartition("/")[2].partition("?")[0]] += len(data) if is_object else 0
        kept = {name: value for name, value in answer.getheaders() if name.lower() not in HOP_HEADERS}
        if handler.command == "HEAD":
            kept["Content-Length"] = answer.getheader("Content-Length", "0")
        _send(handler, answer.status, kept, data)
        connection.close()


HOP_HEADERS = ("connection", "content-length", "transfer-encoding", "expect", "keep-alive", "date", "server")


def _body_of(handler: BaseHTTPRequestHandler) -> bytes:
    if handler.headers.get("Transfer-Encoding", "").lower() != "chunked":
        return handler.rfile.read(int(handler.headers.get("Content-Length", 0)))
    parts = []
    while size := int(_line_of(handler).split(b";")[0], 16):
        parts.append(handler.rfile.read(size))
        _line_of(handler)
    _line_of(handler)
    return b"".join(parts)


def _line_of(handler: BaseHTTPRequestHandler) -> bytes:
    if line := handler.rfile.readline():
        return line
    raise ConnectionResetError("the client is gone")


def _send(handler: BaseHTTPRequestHandler, status: int, headers: dict[str, str], data: bytes) -> None:
    handler.send_response(status)
    for name, value in ({"Content-Length": str(len(data))} | headers).items():
        handler.send_header(name, value)
    handler.end_headers()
    handler.wfile.write(data)


class _Server(ThreadingHTTPServer):
    """An HTTP server of which no thread outlives `server_close`, although clients keep their connections."""

    daemon_threads = False

    def __init__(self, *options: Any):
        super().__init__(*options)
        self._open: set[Any] = set()

    def process_request(self, request: Any, client_address: Any) -> None:
        self._open.add(request)
        super().process_request(request, client_address)

    def close_request(self, request: Any) -> None:
        self._open.discard(request)
        super().close_request(request)

    def server_close(self) -> None:
        for request in list(self._open):
            with contextlib.suppress(OSError):
                request.shutdown(socket.SHUT_RDWR)
        super().server_close()


@contextlib.contextmanager
def tapped(endpoint: str) -> Iterator[tuple[str, Tap]]:
    """Run a proxy before the S3 server at `endpoint`; yield its URL and what it counts."""
    tap = Tap(endpoint.removeprefix("http://"))

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = lambda self: tap.answer(self)

        def log_message(self, *words: object) -> None:
            pass

    server = _Server(("127.0.0.1", 0), Handler)
    with serving(server):
        yield f"http://127.0.0.1:{server.server_port}", tap


@pytest.fixture
def tap(bucket: Bucket) -> Iterator[tuple[str, Tap]]:
    """Return the URL of a proxy before the bucket's server, and what it counts."""
    with tapped(bucket.endpoint) as running:
        yield running
