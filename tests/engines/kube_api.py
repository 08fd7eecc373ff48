"""A real kube-apiserver with its etcd, on loopback ports, for as long as a test run needs it."""

import contextlib
import json
import shutil
import signal
import ssl
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from certificates import Authority
from engine_cache import cached
from ports import free_ports

INSTALL = "tests/engines/build_kube_apiserver.sh"
ADMIN_TOKEN, USER_TOKEN = "admin-token", "user-token"
CANARY = "canary-4f1d9c2b7e"
"""A token, and the value of every secret: it must be in no output."""
START_TIMEOUT_S = 60.0
_PR_SET_PDEATHSIG = 1


@dataclass(frozen=True, slots=True)
class Engine:
    """Where the API server listens, and what is needed to talk to it."""

    url: str
    folder: Path
    authority: Authority
    tokens: Path

    @property
    def ca_file(self) -> Path:
        return self.authority.ca_file


def binary() -> Path | None:
    """Return the API server's binary; None where it, or etcd, is not there."""
    path = cached("build_kube_apiserver.sh", "kube-apiserver")
    return path if path.is_file() and shutil.which("etcd") else None


@contextlib.contextmanager
def running(folder: Path, users: dict[str, str]) -> Iterator[Engine]:
    """Run etcd and kube-apiserver until the block ends.

    Args:
        folder: Where they keep their files.
        users: Token to user name, beside ADMIN_TOKEN's, who may do everything.
    """
    etcd_port, peer_port, port = free_ports(3)
    authority = Authority.made(folder)
    certificate, key = authority.issue("apiserver")
    tokens = folder / "tokens.csv"
    rows = [f"{ADMIN_TOKEN},admin,admin,system:masters"] + [f"{token},{user},{user}" for token, user in users.items()]
    tokens.write_text("\n".join(rows) + "\n")
    engine = Engine(f"https://127.0.0.1:{port}", folder, authority, tokens)
    with (
        _process(folder, _etcd_command(folder, etcd_port, peer_port)),
        _process(folder, _server_command(engine, port, etcd_port, certificate, key)) as server,
    ):
        _await_ready(engine, server)
        yield engine


def _etcd_command(folder: Path, port: int, peer_port: int) -> list[str]:
    client, peer = f"http://127.0.0.1:{port}", f"http://127.0.0.1:{peer_port}"
    return [
        "etcd",
        *("--data-dir", str(folder / "etcd"), "--log-level", "error"),
        *("--listen-client-urls", client, "--advertise-client-urls", client),
        *("--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer, "--initial-cluster", f"default={peer}"),
    ]


def _server_command(engine: Engine, port: int, etcd_port: int, certificate: Path, key: Path) -> list[str]:
    return [
        str(binary()),
        f"--etcd-servers=http://127.0.0.1:{etcd_port}",
        *("--bind-address=127.0.0.1", "--advertise-address=10.1.1.1", f"--secure-port={port}", "--insecure-port=0"),
        *(f"--tls-cert-file={certificate}", f"--tls-private-key-file={key}"),
        *(f"--cert-dir={engine.folder}", f"--token-auth-file={engine.tokens}", "--authorization-mode=RBAC"),
        "--service-account-issuer=https://kubernetes.default.svc",
        *(f"--service-account-key-file={key}", f"--service-account-signing-key-file={key}"),
        *("--service-cluster-ip-range=10.0.0.0/24", "--allow-privileged=true"),
        "--disable-admission-plugins=ServiceAccount",  # no controller makes the accounts it waits for
        "--kubelet-preferred-address-types=InternalIP",
        "--v=0",
    ]


@contextlib.contextmanager
def _process(folder: Path, command: list[str]) -> Iterator[subprocess.Popen[bytes]]:
    """Run a command until the block ends, or this process does."""
    log = folder / f"{Path(command[0]).name}.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, preexec_fn=_die_with_parent
        )
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(200)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _die_with_parent() -> None:
    import ctypes

    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _await_ready(engine: Engine, server: subprocess.Popen[bytes]) -> None:
    context = ssl.create_default_context(cafile=str(engine.ca_file))
    request = urllib.request.Request(f"{engine.url}/readyz", headers={"Authorization": f"Bearer {ADMIN_TOKEN}"})
    deadline = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < deadline and server.poll() is None:
        with (
            contextlib.suppress(urllib.error.URLError, ConnectionError, TimeoutError),
            urllib.request.urlopen(request, context=context, timeout=2) as answer,
        ):
            if answer.status == 200:
                return
        time.sleep(0.1)
    logs = "\n".join(path.read_text(errors="replace")[-2000:] for path in engine.folder.glob("*.log"))
    raise RuntimeError(f"kube-apiserver is not ready: exit status {server.poll()}\n{logs}")


def kubeconfig(path: Path, url: str, ca_file: Path, token: str, context: str = "test", **cluster: object) -> Path:
    """Write a kubeconfig of one context; `cluster` adds to what it says of the cluster."""
    text = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": context,
        "clusters": [{"name": "c", "cluster": {"server": url, "certificate-authority": str(ca_file), **cluster}}],
        "users": [{"name": "u", "user": {"token": token}}],
        "contexts": [{"name": context, "context": {"cluster": "c", "user": "u"}}],
    }
    path.write_text(json.dumps(text))
    return path
