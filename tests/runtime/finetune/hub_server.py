"""A small stand-in for the Hugging Face Hub: repositories with commits and branches, over HTTP on this machine.

Source: huggingface_hub documentation, HfApi.model_info, hf_hub_download, and the requests that they make.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote

import background

Files = Mapping[str, bytes]


class Hub:
    """Repositories: names to branches, and commits to files."""

    def __init__(self) -> None:
        self.branches: dict[tuple[str, str], str] = {}
        self.commits: dict[tuple[str, str], Files] = {}
        self.fetched: list[str] = []
        self.is_down = False
        self.url = ""

    def push(self, name: str, files: Files, branch: str = "main") -> str:
        """Put files on a branch; return their commit."""
        content = hashlib.sha1(json.dumps({key: value.hex() for key, value in files.items()}).encode())
        commit = content.hexdigest()
        self.branches[name, branch], self.commits[name, commit] = commit, files
        return commit

    def commit_at(self, name: str, revision: str) -> str | None:
        return revision if (name, revision) in self.commits else self.branches.get((name, revision))


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    hub: Hub

    def log_message(self, *args):
        pass

    def _answer(self, status: int, body: bytes = b"", **headers: str) -> None:
        self.send_response(status)
        for key, value in (headers | {"Content-Length": str(len(body))}).items():
            self.send_header(key.replace("_", "-"), value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    def _missing(self, code: str) -> None:
        self._answer(404, b"{}", X_Error_Code=code, X_Error_Message=code)

    def do_GET(self):
        parts = unquote(self.path.partition("?")[0]).strip("/").split("/")
        if self.hub.is_down:
            self._answer(503)
        elif parts[:2] == ["api", "models"]:
            kind, revision = parts[4] if len(parts) > 4 else "revision", "/".join(parts[5:]) or "main"
            self._described("/".join(parts[2:4]), kind, revision)
        else:
            self._file("/".join(parts[:2]), parts[3], "/".join(parts[4:]))

    do_HEAD = do_GET

    def _described(self, name: str, kind: str, revision: str) -> None:
        if not any(known == name for known, _ in self.hub.branches):
            self._missing("RepoNotFound")
            return
        commit = self.hub.commit_at(name, revision)
        if commit is None:
            self._missing("RevisionNotFound")
            return
        files = self.hub.commits[name, commit]
        found: object = {"id": name, "sha": commit, "siblings": [{"rfilename": file} for file in files], "tags": []}
        if kind == "tree":
            found = [
                {"type": "file", "path": file, "size": len(content), "oid": hashlib.sha1(content).hexdigest()}
                for file, content in files.items()
            ]
        self._answer(200, json.dumps(found).encode(), Content_Type="application/json")

    def _file(self, name: str, revision: str, file: str) -> None:
        commit = self.hub.commit_at(name, revision)
        content = self.hub.commits.get((name, commit or ""), {}).get(file)
        if content is None:
            self._missing("EntryNotFound")
            return
        if self.command == "GET":
            self.hub.fetched.append(file)
        etag = f'"{hashlib.sha1(content).hexdigest()}"'
        self._answer(200, content, ETag=etag, X_Repo_Commit=str(commit), Accept_Ranges="bytes")


@contextmanager
def serving(hub: Hub) -> Iterator[Hub]:
    """Serve a hub at its `url` for a while."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"hub": hub}))
    hub.url = f"http://127.0.0.1:{server.server_port}"
    with background.serving(server):
        yield hub
