"""Starts a rehearsal's process, passes on its events, and ends everything that it started, however that ends."""

import contextlib
import json
import os
import queue
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, NamedTuple

import psutil

from launcher.common.paths import python_path
from launcher.common.problems import fail
from launcher.model.following import Deadline, until
from launcher.operator.processes import kill_tree
from launcher.operator.worker_logs import tail
from launcher.rehearsal.plan import Rehearsal

START_S = 600.0
"""Time limit for the cluster to start. Under load 35 a head took 45 s, and a node 5 s."""
CHECK_S = 420.0
"""Time limit for a check, beyond those that it has itself."""
_END_S = 20.0
"""How long the processes may take to end; under 1 s seen."""
_SETTINGS = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_raylet_start_wait_time_s": "300",  # Ray's own 30 s may be too few
    "RAY_prestart_worker_first_driver": "0",  # these two: no process for each simulated CPU
    "RAY_enable_worker_prestart": "0",
    "RAY_AUTH_MODE": "token",
}
_PROXIES = ("http_proxy", "https_proxy", "grpc_proxy", "all_proxy")
"""Variables that lead gRPC, and so Ray, to a proxy. Source: gRPC, environment variables."""
_FOLDER = "RAY_TMPDIR"
_VISIBLE = "cuda_visible_devices"
"""Variable that lists this machine's own accelerators, of which Ray lets no node have more."""


class Event(NamedTuple):
    """An event of the process: one of those of `launcher.rehearsal.cluster`, or `timeout`."""

    kind: str
    fields: dict[str, Any]


@contextlib.contextmanager
def started(rehearsal: Rehearsal, timeout_s: float) -> Iterator[Iterator[Event]]:
    """Start the cluster and its driver; yield their events. The end of the block ends every process.

    Args:
        timeout_s: Time limit of the job's own program.
    """
    # A path of a Unix socket has at most 107 characters, and Ray's are long.
    folder = Path(tempfile.mkdtemp(prefix="recipes-rehearsal-", dir="/tmp"))
    process = None
    try:
        request = _request(rehearsal, folder)
        with (folder / "log").open("wb") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "launcher.rehearsal.cluster", str(os.getpid()), str(folder)],
                env=_environment(folder),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,  # Ctrl-C reaches this command alone, which then ends the rest
            )
        assert process.stdin and process.stdout
        process.stdin.write(json.dumps(request).encode())
        process.stdin.close()
        yield _events(process.stdout, rehearsal, timeout_s, folder / "log")
    finally:
        if process:
            _end(process, folder)
        shutil.rmtree(folder, ignore_errors=True)


def _environment(folder: Path) -> dict[str, str]:
    """Return the variables of the cluster: none that names another one, or a proxy."""
    inherited = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("RAY_") and name.lower() not in (*_PROXIES, _VISIBLE)
    }
    # Drivers start this python.
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
    own = {_FOLDER: str(folder), "RAY_AUTH_TOKEN": secrets.token_hex(32), "PATH": path}
    return inherited | _SETTINGS | own | python_path()


def _request(rehearsal: Rehearsal, folder: Path) -> dict[str, Any]:
    """Return the nodes to start and the driver to run: that of the check, or the job's own."""
    nodes = [dict(node) for node in rehearsal.job.nodes]
    if rehearsal.check:
        check = {**rehearsal.check._asdict(), "pools": [pool._asdict() for pool in rehearsal.check.pools]}
        words = [sys.executable, "-m", "launcher.rehearsal.check"]
        driver = {"words": words, "cwd": str(folder), "env": {}, "input": json.dumps(check), "shows_errors": False}
        return {"nodes": nodes, "driver": driver}
    own = rehearsal.job.driver
    assert own
    code = folder / "job"
    own.gather(code)
    words = ["bash", "-c", own.command]
    driver = {"words": words, "cwd": str(code), "env": dict(own.env), "input": "", "shows_errors": True}
    return {"nodes": nodes, "driver": driver}


def _events(stream: IO[bytes], rehearsal: Rehearsal, timeout_s: float, log: Path) -> Iterator[Event]:
    """Yield events up to the last one.

    Raises:
        ProblemsFound: The cluster did not start, or the check broke down (E429).
    """
    lines: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    threading.Thread(target=_read, args=(stream, lines), daemon=True).start()
    limit_s = START_S
    deadline = Deadline(limit_s)
    is_program = False
    while True:
        try:
            line = lines.get(timeout=max(deadline.left_s, 0.01))
        except queue.Empty:
            if not is_program:
                raise _broken(f"no answer after {limit_s:g} s", log) from None
            yield Event("timeout", {"limit_s": limit_s})
            return
        fields = json.loads(line) if line else {"kind": "failed", "message": "its process has ended"}
        event = Event(fields.pop("kind"), fields)
        if event.kind == "failed":
            raise _broken(event.fields["message"], log)
        if event.kind == "ended" and event.fields["code"] and rehearsal.check:
            raise _broken(f"the check ended with exit code {event.fields['code']}", log)
        yield event
        if event.kind == "ended":
            return
        if event.kind == "nodes" and event.fields["done"] == len(rehearsal.job.nodes):
            is_program = rehearsal.check is None
            limit_s = timeout_s if is_program else CHECK_S
            deadline = Deadline(limit_s)


def _read(stream: IO[bytes], lines: "queue.SimpleQueue[bytes]") -> None:
    for line in stream:
        lines.put(line)
    lines.put(b"")


def _broken(reason: str, log: Path) -> Exception:
    last = tail(log)
    message = f"the Ray cluster of the rehearsal failed: {reason}" + (f"; its log ends:\n{last}" if last else "")
    return fail("E429", "recipes rehearse", message)


def _end(process: subprocess.Popen[bytes], folder: Path) -> None:
    """End the process, which ends everything below it; kill all of it if that takes too long, or was not done."""
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(_END_S)
    except subprocess.TimeoutExpired:
        kill_tree(process.pid)
        process.wait()
    if process.stdout:
        process.stdout.close()
    if process.returncode < 0:  # killed itself, so that its cluster lives on
        until(lambda: not _kill_members(folder), _END_S, 0.0)


def _kill_members(folder: Path) -> list[psutil.Process]:
    """Kill the processes of the cluster with this folder and wait for their ends; return them."""
    found = []
    # psutil.process_iter yields objects of earlier calls: they kill no process that has their number since then.
    for pid in psutil.pids():
        with contextlib.suppress(psutil.Error):
            each = psutil.Process(pid)
            if each.environ().get(_FOLDER) == str(folder):
                each.kill()
                found.append(each)
    psutil.wait_procs(found, timeout=_END_S)
    return found
