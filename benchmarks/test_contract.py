"""A training job on this machine: how long before its program runs, and what killing it at any moment leaves."""

import os
import random
import shutil
import signal
import statistics
import subprocess
import sys
import tarfile
import time
from pathlib import Path

import background
import contract_jobs
import pytest

ROUNDS = 15
KILLS = 60
TELLS = "import time; open({path!r}, 'w').write(repr(time.time()))"
MODEL = """
import os, pathlib
pathlib.Path("/opt/ml/model/w").write_bytes(os.urandom(8_000_000))
"""


def own_start_s(script: Path, told: Path) -> float:
    """Return how long the program itself takes to its first statement, in seconds."""
    began = time.time()
    subprocess.run([sys.executable, str(script)], check=True)
    return float(told.read_text()) - began


def job_start_s(backend, bundle, told: Path) -> float:
    """Return how long a job takes from its request to the program's first statement, in seconds."""
    told.unlink(missing_ok=True)
    began = time.time()
    handle = backend.submit(bundle)
    *_, status = backend.wait(handle, timeout_s=60)
    assert status.state.value == "succeeded", status
    return float(told.read_text()) - began


@pytest.mark.parametrize("hosts", [1, 8])
def test_start(hosts, tmp_path, report):
    told = tmp_path / "told"
    bundle = contract_jobs.write_bundle(tmp_path, TELLS.format(path=str(told)), nodes=hosts)
    backend = contract_jobs.ContractBackend()
    pairs = [(own_start_s(tmp_path / "program.py", told), job_start_s(backend, bundle, told)) for _ in range(ROUNDS)]
    floor, ours = (statistics.median(each) for each in zip(*pairs, strict=True))
    worst = max(job - own for own, job in pairs)
    report(
        f"{hosts} host{'s' if hosts > 1 else ''}: request to program {ours:.3f} s, the program's own start"
        f" {floor:.3f} s: {ours - floor:.3f} s beyond it, {worst:.3f} s at worst of {ROUNDS}"
    )


def test_kills(tmp_path, report):
    bundle = contract_jobs.write_bundle(tmp_path, MODEL)
    backend, draw, found = contract_jobs.ContractBackend(), random.Random(1), {"whole": 0, "absent": 0, "torn": 0}
    output = tmp_path / "out" / bundle.job_name / "output"
    for _ in range(KILLS):
        shutil.rmtree(output, ignore_errors=True)
        handle = backend.submit(bundle)
        time.sleep(draw.uniform(0, 0.8))
        pid = contract_jobs.operator_of(bundle.directory)
        if pid:
            os.kill(pid, signal.SIGKILL)
        background.await_true(lambda: not contract_jobs.processes_of(tmp_path))
        found[_left(output)] += 1
        assert backend.status(handle).state.is_final
    report(f"killed {KILLS} times at random: {found}, processes left 0")


def _left(output: Path) -> str:
    """Return the state of an output."""
    names = os.listdir(output) if output.exists() else []
    if not names:
        return "absent"
    try:
        with tarfile.open(output / "model.tar.gz") as tar:
            is_whole = [len(tar.extractfile(member).read()) for member in tar] == [8_000_000]
    except (tarfile.TarError, EOFError, OSError):
        is_whole = False
    return "whole" if is_whole and names == ["model.tar.gz"] else "torn"
