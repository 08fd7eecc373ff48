"""A real Ray cluster of this machine, in a network of its own, and its dashboard for the tests outside.

Ray takes a machine's own address even for nodes of 127.0.0.1; in a network namespace there is no other. A Unix
socket leads into the namespace: a relay passes connections from loopback here to it, and one there to the dashboard.

    python tests/engines/ray_cluster.py FOLDER NODES   runs one until its standard input ends
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

from background import await_true

GPUS = 8
"""Accelerators that each node beside the head reports; it has none."""
_PORT = 8265
_STORE = 80 << 20
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
    """Run a cluster until the block ends; yield the URL of its dashboard."""
    # A path of a Unix socket has at most 107 characters, and Ray's are long.
    with tempfile.TemporaryDirectory(prefix="ray-") as short, (folder / "log").open("w") as log:
        inside = ["unshare", "-n", "sh", "-c", 'ip link set lo up && exec "$@"', "sh"]
        words = [sys.executable, __file__, short, str(num_nodes)]
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"  # drivers start this python
        environment = os.environ | _ENVIRONMENT | {"PATH": path}
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
    """Connect each client of a server to a Unix socket."""
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
    """Run a cluster in this network until standard input ends."""
    from ray.cluster_utils import Cluster

    own = {"node_ip_address": "127.0.0.1", "object_store_memory": _STORE, "temp_dir": str(folder / "ray")}
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
        cluster.shutdown()


def _pass_on(server: socket.socket) -> None:
    while True:
        client, _ = server.accept()
        _join(client, socket.create_connection(("127.0.0.1", _PORT)))


if __name__ == "__main__":
    _serve(Path(sys.argv[1]), int(sys.argv[2]))
