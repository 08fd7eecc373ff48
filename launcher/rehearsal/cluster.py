"""The process that holds a local Ray cluster and runs a driver on it; everything below it ends with it.

    python -m launcher.rehearsal.cluster PARENT FOLDER   reads the request from standard input

FOLDER has Ray's files and log. Events are printed as JSON, one on a line: `isolated` and `nodes` while the cluster
starts, `line` for each line of the driver, and `ended` with its exit code, or `failed` with a reason.
"""

import ctypes
import fcntl
import json
import os
import shutil
import socket
import struct
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from launcher.common import prctl
from launcher.model.ray_job import CPU, GPU
from launcher.operator.processes import LOOPBACK, end_with_parent, kill_descendants
from launcher.operator.stop_signals import end_on_signals, ignore_end_signals

_STORE = 80 << 20
"""Bytes of a node's object store; Ray's least is 75 MiB."""
_UNKNOWN_CPUS = 1024
"""CPUs of a node whose number is unknown: enough for any job."""
_NEW_USER, _NEW_NETWORK = 0x10000000, 0x40000000
_SET_FLAGS, _IS_UP = 0x8914, 1

Emit = Callable[..., None]


def main(argv: list[str]) -> int:
    """Hold a cluster while its driver runs; return the exit status."""
    parent, folder = int(argv[0]), Path(argv[1])
    end_on_signals()
    request = json.load(sys.stdin)
    with os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8") as events:
        os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # what Ray prints is no event

        def emit(kind: str, **fields: object) -> None:
            print(json.dumps({"kind": kind, **fields}), file=events, flush=True)

        try:
            prctl.adopt_orphans()
            end_with_parent(parent)
            is_isolated = isolate()
            emit("isolated", value=is_isolated)
            address = _start(request["nodes"], folder, is_isolated, emit)
            emit("ended", code=_drive(request["driver"], address, emit))
        except Exception as error:
            emit("failed", message=f"{type(error).__name__}: {error}")
            return 1
        finally:
            ignore_end_signals()
            kill_descendants()
            if os.getppid() != parent:
                shutil.rmtree(folder, ignore_errors=True)
    return 0


def isolate() -> bool:
    """Move this process into a network of its own, the loopback interface; return whether the machine allows it.

    Ray takes the machine's own address even for nodes of 127.0.0.1; in such a network it has no other.

    A fork tries it first: a process that enters a network and may not use it cannot return. Call it before threads
    start, of which the kernel allows none.

    Source: unshare(2), CLONE_NEWNET and CLONE_NEWUSER; user_namespaces(7); netdevice(7), SIOCSIFFLAGS.
    """
    if (pid := os.fork()) == 0:
        code = 1
        try:
            _enter()
            code = 0
        finally:
            os._exit(code)
    _, status = os.waitpid(pid, 0)
    if status:
        return False
    _enter()
    return True


def _enter() -> None:
    """Enter the network, and start its loopback interface. Root needs no user namespace for that, others do."""
    libc = ctypes.CDLL(None, use_errno=True)
    user, group = os.getuid(), os.getgid()
    if libc.unshare(_NEW_NETWORK):
        if libc.unshare(_NEW_USER | _NEW_NETWORK):
            raise OSError(ctypes.get_errno(), "unshare refused")
        for name, text in (("setgroups", "deny"), ("uid_map", f"{user} {user} 1"), ("gid_map", f"{group} {group} 1")):
            Path("/proc/self", name).write_text(text, encoding="ascii")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        fcntl.ioctl(any_socket, _SET_FLAGS, struct.pack("16sH14x", b"lo", _IS_UP))


def _start(nodes: list[dict[str, int]], folder: Path, is_isolated: bool, emit: Emit) -> str:
    """Start one Ray node for each entry, the head first; return the address of the cluster."""
    (folder / "ray").mkdir()
    from ray.cluster_utils import Cluster

    cluster = Cluster(shutdown_at_exit=False)
    of_all: dict[str, Any] = {"object_store_memory": _STORE, **({"node_ip_address": LOOPBACK} if is_isolated else {})}
    of_head: dict[str, Any] = {"temp_dir": str(folder / "ray"), "include_dashboard": False}
    for number, node in enumerate(nodes, 1):
        own = of_head if number == 1 else {}
        cluster.add_node(num_cpus=node.get(CPU, _UNKNOWN_CPUS), num_gpus=node.get(GPU, 0), **of_all, **own)
        emit("nodes", done=number)
    return str(cluster.address)


def _drive(driver: Mapping[str, Any], address: str, emit: Emit) -> int:
    """Run the driver to its end; return its exit code. A signal leaves it to the caller, who kills it."""
    process = subprocess.Popen(
        driver["words"],
        cwd=driver["cwd"],
        env={**os.environ, **driver["env"], "RAY_ADDRESS": address},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT if driver["shows_errors"] else None,
        encoding="utf-8",
        errors="replace",
    )
    assert process.stdin and process.stdout
    process.stdin.write(driver["input"])
    process.stdin.close()
    for line in process.stdout:
        emit("line", text=line.rstrip("\n"))
    code = process.wait()
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    code = main(sys.argv[1:])
    os._exit(code)  # Ray's own exit handlers would wait for the processes that were ended
