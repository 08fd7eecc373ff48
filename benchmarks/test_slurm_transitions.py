"""How long an elastic job on Slurm does not train when its size changes, beside the same job on this machine."""

import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

import pytest
import slurm_cluster
from conftest import ROOT

from launcher.operator.job_request import request_size

ROUNDS = 3
JOB = (
    *("recipes=training/tiny/tiny_lm_cpu", "recipes.trainer.devices=1", "++recipes.scale_config=auto"),
    *("recipes.training_config.mlflow.enabled=false", "recipes.training_config.model_config.hidden_size=32"),
    *("recipes.training_config.training_args.max_epochs=12", "recipes.trainer.num_nodes=4"),
    "recipes.training_config.training_args.min_step_seconds=0.2",
)
PARTS = ("wait_s", "stop_s", "regroup_s", "restart_s")


def launch(folder: Path, *words: str, env: dict[str, str]) -> Path:
    """Launch a job; return its run folder."""
    folder.mkdir(parents=True)
    command = [sys.executable, str(ROOT / "main.py"), *JOB, *words]
    own = {**os.environ, **env, "OMP_NUM_THREADS": "1"}
    subprocess.run(command, cwd=folder, env=own, stdout=subprocess.DEVNULL, timeout=300, check=True)
    (run_dir,) = folder.glob("results/*")
    return run_dir / "run"


def started(run_dir: Path) -> int:
    """Return how many starts of the workers have done a step."""
    events = run_dir / "events.jsonl"
    return sum('"running"' in line for line in events.read_text().splitlines()) if events.exists() else 0


def await_true(condition) -> None:
    deadline = time.monotonic() + 200
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def on_slurm(folder: Path, conf: Path) -> list[dict]:
    """Return the transitions of a job that shrinks to 2 nodes and grows to 4."""
    run_dir = launch(folder, "cluster=slurm", "instance_type=m5.2xlarge", env={"SLURM_CONF": str(conf)})
    for number, size in enumerate((2, 4), 1):
        await_true(lambda number=number: started(run_dir) >= number)
        time.sleep(3)
        request_size(run_dir, size)
    await_true((run_dir / "timeline.json").exists)
    return json.loads((run_dir / "timeline.json").read_text())["transitions"]


def on_this_machine(folder: Path) -> list[dict]:
    """Return the same transitions with cluster=local."""
    run_dir = launch(folder, "+cluster.events=[{at:{step:20},capacity:2},{at:{step:60},capacity:4}]", env={})
    return json.loads((run_dir / "timeline.json").read_text())["transitions"]


def pause_s(transition: dict) -> float:
    """Return the seconds without training: from the order to stop to the first step."""
    return sum(transition[part] or 0.0 for part in PARTS[1:])


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("has_accounting", [True, False], ids=["in-place", "by-requeue"])
def test_shrinking_and_growing(tmp_path, report, has_accounting):
    """Target: in place, at most 1.3 times the same transition with cluster=local."""
    ratios: dict[str, list[float]] = {"4 -> 2": [], "2 -> 4": []}
    folder = tmp_path / "slurm"
    folder.mkdir()
    with slurm_cluster.running(folder, 4, has_accounting=has_accounting) as cluster:
        for number in range(ROUNDS):
            here = on_this_machine(tmp_path / f"local-{number}")
            there = on_slurm(tmp_path / f"slurm-{number}", cluster.conf)
            for name, local, slurm in zip(ratios, here[1:3], there[1:], strict=False):
                ratios[name].append(pause_s(slurm) / pause_s(local))
                report(f"{name}: {pause_s(slurm):.2f} s without training, {pause_s(local):.2f} s with cluster=local")
            for each in there[1:]:
                parts = ", ".join(f"{part.removesuffix('_s')} {each[part] or 0:.2f}" for part in PARTS)
                report(f"   {each['from_nodes']} -> {each['to_nodes']}: {parts}")
    for name, values in ratios.items():
        report(f"{name}: median ratio {statistics.median(values):.2f} of {ROUNDS}")
