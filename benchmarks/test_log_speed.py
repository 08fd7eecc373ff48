"""How fast a job's log is followed: from the bytes of a container's log to the masked text on standard output."""

import contextlib
import sys
import threading
import time
from types import SimpleNamespace

import pytest

from launcher.backends.kubernetes.pod_logs import Filter, Reader, _selected
from launcher.backends.kubernetes.target import Places
from launcher.cli import terminal
from launcher.common import redaction
from launcher.model.job_spec import LogSelection

LEAST_MB_S = 20.0
"""Megabytes of a log for each second of one core."""
NUM_LINES, PIECE = 400_000, 1 << 16
LINES = {
    "steps": "step {0}/9999999  loss 2.{1:04d}  lr 1.0e-04  grad_norm 0.52  tokens/s 12{2:03d}",
    "logging": "[2026-11-23 16:19:22,{2:03d}] [INFO] [rank0] step {0}: loss=2.{1:04d}, lr=1.0e-04, tokens={0}",
    "json": '{{"step": {0}, "loss": 2.{1:04d}, "learning_rate": 0.0001, "tokens_per_second": 12{2:03d}.5}}',
}


class Connection:
    """A node's answers: a pod that has ended, and its log."""

    stop = threading.Event()

    def __init__(self, log):
        self.log = log

    def find(self, _path):
        ended = {"terminated": {"exitCode": 0}}
        statuses = [{"name": "c", "restartCount": 0, "state": ended}]
        spec = {"containers": [{"name": "c"}]}
        return {
            "metadata": {"uid": "u", "name": "j-base-0"},
            "spec": spec,
            "status": {"phase": "Succeeded", "containerStatuses": statuses},
        }

    @contextlib.contextmanager
    def stream(self, _path, *, query, **_options):
        log = b"" if query["sinceTime"] else self.log
        yield SimpleNamespace(stream=lambda _size: (log[i : i + PIECE] for i in range(0, len(log), PIECE)))


def time_of(number):
    return f"2026-11-23T16:{number // 60000 % 60:02d}:{number // 1000 % 60:02d}.{number:09d}Z"


@pytest.mark.parametrize("form", LINES.values(), ids=LINES)
def test_a_log_is_followed_at_20_mb_a_second_of_one_core(form, monkeypatch, tmp_path):
    monkeypatch.setenv("HF_TOKEN", "hf_" + "a1B2" * 10)
    lines = (form.format(i, i % 10000, i % 1000) for i in range(NUM_LINES))
    log = "".join(f"{time_of(i)} {line}\n" for i, line in enumerate(lines)).encode()
    spec = {"nprocPerNode": "1", "replicaSpecs": [{"name": "base", "replicas": 1}]}
    job = {"metadata": {"name": "j"}, "spec": spec}
    wanted = Filter(LogSelection((0,)), Places.of(job))
    reader = Reader(Connection(log), "team", "j-base-0", "u", is_followed=False)
    with (tmp_path / "out").open("w") as out, contextlib.redirect_stdout(out):
        redaction.install()
        began = time.process_time()
        terminal.follow(line for block in _selected(reader, wanted, lambda: False) for line in block)
        took_s = time.process_time() - began
        sys.stdout.flush()
    speed = len(log) / took_s / 1e6
    print(f"{speed:.1f} MB/s of one core, {took_s / NUM_LINES * 1e6:.1f} us a line")
    assert (tmp_path / "out").stat().st_size > 0
    assert speed >= LEAST_MB_S
