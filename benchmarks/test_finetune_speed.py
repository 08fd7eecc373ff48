"""How fast the open trainer trains on the CPU, against TRL's trainer."""

import json
import os
import statistics
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import ROOT

ROUNDS = 5
ONE_THREAD = {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false", "PYTHONPATH": str(ROOT)}


def figures(who: str, folder: Path, recomputes: str) -> dict[str, float]:
    """Return what a training of its own process measures."""
    folder.mkdir(parents=True)
    command = [sys.executable, str(ROOT / "benchmarks" / "finetune_runs.py"), who, str(folder), recomputes]
    done = subprocess.run(command, env=os.environ | ONE_THREAD, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    return {"wall": found["tokens"] / found["wall_s"], "cpu": found["tokens"] / found["cpu_s"]}


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("recomputes", ["OFF", "ON"], ids=["keeps_activations", "recomputes"])
def test_tokens_per_second_against_trl(tmp_path, report, recomputes):
    """Target: at least TRL's, same model, data, batch and number of threads; the trainings take turns."""
    rounds = []
    for number in range(ROUNDS):
        order = ("ours", "trl") if number % 2 else ("trl", "ours")
        rounds.append({who: figures(who, tmp_path / f"{number}-{who}", recomputes) for who in order})
    for clock, what in (("wall", "second"), ("cpu", "second of the processor")):
        ours, theirs = (statistics.median(each[who][clock] for each in rounds) for who in ("ours", "trl"))
        ratio = statistics.median(each["ours"][clock] / each["trl"][clock] for each in rounds)
        report(
            f"rehearsal of Llama 3.2 1B, adapters, activations recomputed {recomputes}: {ours:.0f} tokens per {what}, "
            f"TRL {theirs:.0f}; median ratio {ratio:.2f} of {ROUNDS}"
        )
