"""A stand-in for HyperPod's in-memory checkpoint service, as its vendor's client speaks to it.

Source: amzn-sagemaker-checkpointing 1.1.3, storage/clients/inmemory/inmemory_client.py: paths, parameters, header.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

from background import serving


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        kind, *rest = self._words()
        if self.server.refused and self.server.refused in self.path:
            self._answer(500, b"{}")
        elif kind == "namespaces":
            found = self.server.namespaces.get(rest[0])
            self._answer(200 if found else 404, json.dumps(found or {}).encode())
        elif rest[1] == "latest":
            # Complete is what has a blob of every rank of the namespace.
            num_ranks = self.server.namespaces[rest[0]]["num_ranks"]
            steps = self.server.steps(rest[0])
            whole = sorted((step for step, ranks in steps.items() if len(ranks) == num_ranks), reverse=True)
            self._answer(200, json.dumps(whole[: int(self._query()["limit"])]).encode())
        else:
            data, meta = self.server.blobs.get(tuple(rest), (None, ""))
            self._answer(404 if data is None else 200, data or b"", meta)

    def do_POST(self) -> None:
        kind, *rest = self._words()
        data = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if kind == "namespaces":
            self.server.namespaces[rest[0]] = {name: int(value) for name, value in self._query().items()}
        else:
            self.server.blobs[tuple(rest)] = (data, self.headers["Shard-Meta"])
            self.server.retire(rest[0])
        self._answer(200, b"{}")

    def do_DELETE(self) -> None:
        _, *rest = self._words()
        self._answer(200 if self.server.blobs.pop(tuple(rest), None) else 404, b"{}")

    def _words(self) -> list[str]:
        return urlsplit(self.path).path.removeprefix("/v1/cp/").split("/")

    def _query(self) -> dict[str, str]:
        return {name: values[0] for name, values in parse_qs(urlsplit(self.path).query).items()}

    def _answer(self, status: int, body: bytes, meta: str = "") -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        if meta:
            self.send_header("Shard-Meta", meta)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *words: object) -> None:
        pass


class Service(ThreadingHTTPServer):
    """Blobs by (namespace, rank, step), and the namespaces."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.blobs: dict[tuple[str, ...], tuple[bytes, str]] = {}
        self.namespaces: dict[str, dict[str, int]] = {}
        self.refused = ""  # part of the paths that it does not answer

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def steps(self, namespace: str) -> dict[int, set[str]]:
        found: dict[int, set[str]] = {}
        for name, rank, step in list(self.blobs):
            if name == namespace:
                found.setdefault(int(step), set()).add(rank)
        return found

    def retire(self, namespace: str) -> None:
        kept = sorted(self.steps(namespace))[-self.namespaces[namespace]["steps_retained"] :]
        for key in [key for key in self.blobs if key[0] == namespace and int(key[2]) not in kept]:
            del self.blobs[key]


@contextmanager
def memory_service() -> Iterator[Service]:
    """Run a service in threads of this process."""
    service = Service()
    with serving(service):
        yield service
