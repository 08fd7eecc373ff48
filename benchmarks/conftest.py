"""Benchmarks print figures; they assert nothing. Run them with `make bench`."""

import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
LLAMA = "recipes=fine-tuning/llama/llmft_llama3_1_8b_instruct_seq4k_gpu_sft_lora"
ELASTIC = (LLAMA, "++recipes.elastic_policy.is_elastic=true", "cluster=k8s")


def timed(command: list[str], cwd: Path) -> tuple[float, float]:
    """Run a command; return its wall time in seconds and its peak memory in MiB."""
    began = time.perf_counter()
    process = subprocess.Popen([sys.executable, *command], cwd=cwd, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    seconds = time.perf_counter() - began
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0, command
    return seconds, usage.ru_maxrss / 1024


@pytest.fixture
def report(capsys):
    """Return a function that prints a line of figures."""

    def line(text: str) -> None:
        with capsys.disabled():
            print(f"\n{text}", end="")

    return line


def paired(ours: list[str], floor: list[str], cwd: Path, rounds: int = 21) -> dict[str, float]:
    """Time two commands in turn; return medians, the median ratio and the peak memory of ours."""
    runs = [(timed(floor, cwd), timed(ours, cwd)) for _ in range(rounds)]
    return {
        "floor_s": statistics.median(f[0] for f, _ in runs),
        "ours_s": statistics.median(o[0] for _, o in runs),
        "ratio": statistics.median(o[0] / f[0] for f, o in runs),
        "peak_mib": max(o[1] for _, o in runs),
    }
