"""A Kubernetes API at the client's HTTP boundary: objects by path, in memory. No server, no port."""

import io
import json
from typing import Any

import pytest

from launcher.backends.kubernetes.connection import Connection


class HttpApi:
    """Takes the place of the client's connection pool.

    Args:
        objects: Body by path. Server-side apply adds to them, DELETE removes.
        answers: (method, path) to answers in place of the usual ones, each once: a status, or an exception.
    """

    def __init__(self) -> None:
        self.objects: dict[str, Any] = {}
        self.answers: dict[tuple[str, str], list[int | Exception]] = {}
        self.seen: list[tuple[str, str]] = []

    def fail(self, method: str, path: str, *answers: int | Exception) -> None:
        self.answers[method, path] = list(answers)

    def request(self, method: str, url: str, *, fields: Any = None, body: str = "{}", **_: Any) -> Any:
        path, _, query = url.removeprefix("https://api").partition("?")
        self.seen.append((method, path))
        if queue := self.answers.get((method, path)):
            answer = queue.pop(0)
            if isinstance(answer, Exception):
                raise answer
            return _response(answer, _refusal(answer))
        found = self.objects.get(path)
        if method == "PATCH":
            found = {**json.loads(body)}
            found["metadata"] = {"uid": f"uid-{found['metadata']['name']}", **found["metadata"]}
            if "dryRun" not in query:
                self.objects[path] = found
        elif method == "POST":
            found = {**json.loads(body), "status": {"allowed": True}}
        elif method == "DELETE":
            self.objects.pop(path, None)
        return _response(200, found) if found is not None else _response(404, _refusal(404))


def _refusal(status: int) -> dict[str, Any]:
    return {"kind": "Status", "message": {404: "not found"}.get(status, "refused")}


def _response(status: int, body: Any) -> Any:
    from urllib3 import HTTPResponse

    raw = body if isinstance(body, bytes) else json.dumps({"kind": "Any", **body}).encode()
    return HTTPResponse(io.BytesIO(raw), status=status, preload_content=False, headers={})


def connection(api: HttpApi, *, patience_s: float = 0.0) -> Connection:
    """Return a connection of the official client whose requests reach `api`."""
    client = pytest.importorskip("kubernetes.client", reason="pip install '.[k8s]'")
    settings = client.Configuration()
    settings.host = "https://api"
    made = client.ApiClient(settings)
    made.rest_client.pool_manager = api
    return Connection("here", settings.host, made, patience_s)
