"""How long a job does not train when it grows from 2 to 3 nodes of 2 processes, against what cannot be avoided."""

import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

import pytest
from conftest import ROOT

ROUNDS = 3
WORKERS = 6
ARGS = "recipes.training_config.training_args"

EXIT_WHEN_TOLD = """
import os, signal, time
signal.signal(signal.SIGUSR1, lambda *_: os._exit(0))
time.sleep(600)
"""

JOIN = """
import os, time
import torch
from launcher.runtime import process_group
for rank in range(int(os.environ["WORLD_SIZE"])):
    if os.fork() == 0:
        os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank))
        began = time.time()
        place = process_group.join()
        torch.distributed.barrier()
        os.write(1, f"{time.time() - began} ".encode())
        os._exit(0)
while True:
    try:
        os.wait()
    except ChildProcessError:
        break
"""


def launch(folder: Path, *overrides: str) -> tuple[list[dict], Path]:
    """Run a job to its end; return what its operator wrote down, and the run folder."""
    folder.mkdir()
    command = [sys.executable, str(ROOT / "main.py"), "recipes.training_config.mlflow.enabled=false", *overrides]
    subprocess.run(command, cwd=folder, stdout=subprocess.DEVNULL, timeout=300)
    (run_dir,) = folder.glob("results/*/run")
    return [json.loads(line) for line in (run_dir / "events.jsonl").read_text().splitlines()], run_dir


def when(events: list[dict], kind: str) -> float:
    return [event["time"] for event in events if event["kind"] == kind][-1]


def graceful_stop_floor(folder: Path) -> float:
    """Return how long the agents take to stop workers that end at once, in seconds."""
    script = folder / "worker.py"
    script.write_text(EXIT_WHEN_TOLD)
    events, _ = launch(
        folder / "stop",
        f"cluster.command=['{script}']",
        "recipes.trainer.num_nodes=2",
        "+cluster.events=[{at:{seconds:12},capacity:0}]",
    )
    return when(events, "stopped") - when(events, "stopping")


def import_floor() -> float:
    """Return how long it takes to import torch in as many processes as there are workers, in seconds."""
    began = time.perf_counter()
    processes = [subprocess.Popen([sys.executable, "-c", "import torch"]) for _ in range(WORKERS)]
    for process in processes:
        process.wait()
    return time.perf_counter() - began


def group_floor() -> float:
    """Return how long the workers take to form a process group, imports left aside, in seconds."""
    environment = {
        "PYTHONPATH": str(ROOT),
        "WORLD_SIZE": str(WORKERS),
        "LOCAL_WORLD_SIZE": str(WORKERS),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "29731",
        "OMP_NUM_THREADS": "1",
    }
    done = subprocess.run(
        [sys.executable, "-c", JOIN], env=os.environ | environment, capture_output=True, text=True, timeout=120
    )
    return max(float(line) for line in done.stdout.split())


@pytest.mark.timeout(900)
def test_growing_from_two_nodes_to_three(tmp_path, report):
    """Target: at most 1.3 times the sum of a graceful stop, importing torch in each worker, and the group's start."""
    ratios = []
    for number in range(ROUNDS):
        folder = tmp_path / str(number)
        folder.mkdir()
        stop, imports, group = graceful_stop_floor(folder), import_floor(), group_floor()
        floor = stop + imports + group
        _, run_dir = launch(
            folder / "job",
            "recipes.trainer.num_nodes=2",
            f"{ARGS}.max_epochs=24",
            "+cluster.events=[{at:{step:20},capacity:3}]",
        )
        found = json.loads((run_dir / "timeline.json").read_text())["transitions"][1]
        ratios.append(found["total_s"] / floor)
        parts = ", ".join(f"{name} {value:.2f}" for name, value in found["parts"].items())
        report(
            f"event to first step {found['total_s']:.2f} s, {ratios[-1]:.2f} of the floor of {floor:.2f} s "
            f"(stop {stop:.2f}, import {imports:.2f}, group {group:.2f})"
        )
        report(
            f"   pre-warming {found['wait_s']:.2f}, while training continues; then stop {found['stop_s']:.2f}, "
            f"restart {found['restart_s']:.2f} ({parts})"
        )
    report(f"median ratio {statistics.median(ratios):.2f} of {ROUNDS}")
