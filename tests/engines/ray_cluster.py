"""Runs a Ray cluster of several nodes in a network namespace of this machine, with its dashboard on loopback outside.

In the host's network, Ray replaces 127.0.0.1 by the host's own address, and its nodes do not find each other. A
namespace has loopback only. A relay on each side of a Unix socket connects clients outside to the dashboard inside.

    python tests/engines/ray_cluster.py FOLDER NODES   runs a cluster until its standard input closes
"""

import contextlib
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import psutil
from background import await_true

GPUS = 8
"""GPUs that each worker node reports; none of them exists. The head reports 0."""
_PORT = 8265
_STORE = 80 << 20
"""Bytes of a node's object store. Source: Ray, services.py, which refuses less than 75 MiB."""
_END_S = 10
"""Time for a cluster's processes to end before they are killed."""
_SOCKET = "dashboard"
_UP = "up"
_ENVIRONMENT = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_raylet_start_wait_time_s": "300",
}


def absent() -> str | None:
    """Return why no cluster can be started here; None if one can."""
    if sys.platform != "linux" or shutil.which("unshare") is None or shutil.which("ip") is None:
        return "needs Linux with unshare and ip"
    tried = subprocess.run(["unshare", "-n", "ip", "link", "set", "lo", "up"], capture_output=True, text=True)
    return f"this machine allows no network namespace: {tried.stderr.strip()}" if tried.returncode else None


@contextlib.contextmanager
def running(folder: Path, num_nodes: int = 2) -> Iterator[str]:
    """Run a cluster while the block runs; yield the URL of its dashboard."""
    # The path of a Unix socket has at most 107 characters; Ray adds 60 and more to that of its folder.
    with tempfile.TemporaryDirectory(prefix="ray-", dir="/tmp") as short, (folder / "log").open("w") as log:
        inside = ["unshare", "-n", "sh", "-c", 'ip link set lo up && exec "$@"', "sh"]
        words = [sys.executable, __file__, short, str(num_nodes)]
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"  # a job's `python` is this one
        # Without RAY_TMPDIR, Ray also writes to /tmp/ray, which other clusters of this machine may remove.
        environment = os.environ | _ENVIRONMENT | {"PATH": path, "RAY_TMPDIR": short, "TMPDIR": short}
        process = subprocess.Popen([*inside, *words], stdin=subprocess.PIPE, stdout=log, stderr=log, env=environment)
        try:
            await_true(lambda: Path(short, _UP).exists() or process.poll() is not None)
            assert process.poll() is None, (folder / "log").read_text()
            with socket.create_server(("127.0.0.1", 0)) as server:
                threading.Thread(target=_relay, args=(server, Path(short, _SOCKET)), daemon=True).start()
                yield f"http://127.0.0.1:{server.getsockname()[1]}"
                server.shutdown(socket.SHUT_RDWR)
        finally:
            process.stdin.close()
            process.wait(120)


def _relay(server: socket.socket, path: Path) -> None:
    """Connect each client of a server to a Unix socket, until the server is closed."""
    with contextlib.suppress(OSError):
        while True:
            client, _ = server.accept()
            target = socket.socket(socket.AF_UNIX)
            target.connect(str(path))
            _join(client, target)


def _join(one: socket.socket, other: socket.socket) -> None:
    for source, sink in ((one, other), (other, one)):
        threading.Thread(target=_copy, args=(source, sink), daemon=True).start()


def _copy(source: socket.socket, sink: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(1 << 16):
            sink.sendall(data)
    with contextlib.suppress(OSError):
        sink.shutdown(socket.SHUT_WR)


def _serve(folder: Path, num_nodes: int) -> None:
    """Run a cluster in this network namespace until standard input closes."""
    from ray.cluster_utils import Cluster

    own = {"node_ip_address": "127.0.0.1", "object_store_memory": _STORE}
    head = own | {"num_cpus": 8, "include_dashboard": True, "dashboard_host": "127.0.0.1", "dashboard_port": _PORT}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    try:
        for _ in range(num_nodes):
            cluster.add_node(num_cpus=4, num_gpus=GPUS, object_store_memory=_STORE)
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(str(folder / _SOCKET))
            server.listen()
            threading.Thread(target=_pass_on, args=(server,), daemon=True).start()
            (folder / _UP).touch()
            sys.stdin.read()
    finally:
        started = psutil.Process().children(recursive=True)
        cluster.shutdown()
        for process in psutil.wait_procs(started, timeout=_END_S)[1]:  # agents that wait for their node
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()


def _pass_on(server: socket.socket) -> None:
    while True:
        client, _ = server.accept()
        _join(client, socket.create_connection(("127.0.0.1", _PORT)))


if __name__ == "__main__":
    _serve(Path(sys.argv[1]), int(sys.argv[2]))
