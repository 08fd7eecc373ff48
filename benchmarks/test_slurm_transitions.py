"""How long an elastic job on Slurm does not train when its size changes, beside the same job on this machine.

Workers that receive a stop finish their step, and the first step is counted as training, too: a pause lies
between these steps. What a user waits for is longer: from the order to stop to the end of the first step.
"""

import itertools
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

import pytest
import slurm_cluster
from background import await_true
from conftest import ROOT
from tiny_jobs import launch, records

from launcher.operator.job_request import REQUEST_FILE, size_request
from launcher.runtime.durable import write_text

ROUNDS = 3
ARGS = "recipes.training_config.training_args"
JOB = (
    *("recipes=training/tiny/tiny_lm_cpu", "recipes.trainer.devices=1", "++recipes.scale_config=auto"),
    *("recipes.training_config.mlflow.enabled=false", "recipes.training_config.model_config.hidden_size=32"),
    *(f"{ARGS}.max_epochs=20", f"{ARGS}.min_step_seconds=0.2"),
)
PARTS = ("wait_s", "stop_s", "regroup_s", "restart_s")


def started(run_dir: Path) -> int:
    """Return how many starts of the workers have done a step."""
    return sum(event["kind"] == "running" for event in records(run_dir / "events.jsonl"))


def on_slurm(folder: Path, conf: Path, most: int) -> Path:
    """Return the run folder of a job that shrinks to half of its nodes and grows again."""
    words = ("cluster=slurm", "instance_type=m5.2xlarge", f"recipes.trainer.num_nodes={most}")
    run_dir = launch(folder, *JOB, *words, SLURM_CONF=str(conf), OMP_NUM_THREADS="1")
    for number, size in enumerate((most // 2, most), 1):
        await_true(lambda number=number: started(run_dir) >= number)
        time.sleep(3)
        write_text(run_dir / REQUEST_FILE, size_request(size))
    await_true((run_dir / "timeline.json").exists)
    return run_dir


def on_this_machine(folder: Path, most: int) -> Path:
    """Return the run folder of the same job with cluster=local."""
    events = f"+cluster.events=[{{at:{{step:20}},capacity:{most // 2}}},{{at:{{step:60}},capacity:{most}}}]"
    return launch(folder, *JOB, events, f"recipes.trainer.num_nodes={most}", OMP_NUM_THREADS="1")


def plain(before: int, after: int) -> dict[str, float]:
    """Return what the same restart takes without agents and operator, everything imported."""
    command = [sys.executable, str(ROOT / "benchmarks/plain_restart.py"), str(before), str(after)]
    env = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=env, stdout=subprocess.PIPE, text=True, timeout=300, check=True)
    return json.loads(done.stdout)


def pauses(run_dir: Path) -> list[float]:
    """Return the seconds between the last step of each start of the workers and the first step of the next."""
    lines = records(run_dir / "metrics.jsonl")
    pairs = [pair for pair in itertools.pairwise(lines) if pair[0]["attempt"] != pair[1]["attempt"]]
    return [after["time"] - after["samples"] / after["samples_per_s"] - before["time"] for before, after in pairs]


def transitions(run_dir: Path) -> list[dict]:
    """Return the transitions of a job after its start."""
    return json.loads((run_dir / "timeline.json").read_text())["transitions"][1:]


def order_to_step_s(transition: dict) -> float:
    """Return the seconds from the order to stop to the end of the first step; it trains for some of them."""
    return sum(transition[part] or 0.0 for part in PARTS[1:])


def parts(transition: dict) -> str:
    """Return the parts of a transition, and those of its restart, as text."""
    shown = {part.removesuffix("_s"): transition[part] for part in PARTS}
    inner = ", ".join(f"{name.removesuffix('_s')} {value or 0:.2f}" for name, value in transition["parts"].items())
    return ", ".join(f"{name} {value or 0:.2f}" for name, value in shown.items()) + f" ({inner})"


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("most", [4, 2], ids=["in-place", "in-place-2-nodes"])
def test_shrinking_and_growing(tmp_path, report, most):
    """Targets: a pause of 1 s for a growth in place, and from order to step 1.3 times cluster=local."""
    sizes = {f"{most} -> {most // 2}": (most, most // 2), f"{most // 2} -> {most}": (most // 2, most)}
    ratios: dict[str, list[float]] = {name: [] for name in sizes}
    seen: dict[str, list[float]] = {name: [] for name in sizes}
    folder = tmp_path / "slurm"
    folder.mkdir()
    with slurm_cluster.running(folder, most, has_accounting=True) as cluster:
        for number in range(ROUNDS):
            here = on_this_machine(tmp_path / f"local-{number}", most)
            there = on_slurm(tmp_path / f"slurm-{number}", cluster.conf, most)
            rows = zip(transitions(here), pauses(here), transitions(there), pauses(there), strict=False)
            for (name, change), (local, local_pause, slurm, pause) in zip(sizes.items(), rows, strict=False):
                floor = plain(*change)
                ratios[name].append(order_to_step_s(slurm) / order_to_step_s(local))
                seen[name].append(pause)
                report(f"{name}, load {os.getloadavg()[0]:.1f}: without a step {pause:.2f} s on Slurm,")
                report(
                    f"   {local_pause:.2f} with cluster=local, {floor['pause_s']:.2f} plain torch; from order to step"
                )
                report(
                    f"   {order_to_step_s(slurm):.2f}, {order_to_step_s(local):.2f}, {floor['order_to_step_s']:.2f}"
                )
                report(f"   Slurm: {parts(slurm)}")
                report(f"   local: {parts(local)}")
    for name, values in ratios.items():
        report(f"{name}: median of {ROUNDS}: {statistics.median(seen[name]):.2f} s without a step,")
        report(f"   {statistics.median(values):.2f} times cluster=local from order to step")


@pytest.mark.timeout(1800)
def test_growing_by_a_requeue(tmp_path, report):
    """No target: the seconds without a step, by their parts, where Slurm cannot add nodes to a running job."""
    names = ("stop", "back on the nodes", "agents", "first step")
    took: dict[str, list[float]] = {name: [] for name in names}
    folder = tmp_path / "slurm"
    folder.mkdir()
    with slurm_cluster.running(folder, 4) as cluster:
        for number in range(ROUNDS):
            run_dir = on_slurm(tmp_path / f"slurm-{number}", cluster.conf, 4)
            events = records(run_dir / "events.jsonl")
            (start,) = (place for place, event in enumerate(events) if event.get("reason") == "suspend")
            kinds = {event["kind"]: event["time"] for event in events[: start - 1 : -1]}  # the first of each kind
            marks = [kinds[kind] for kind in ("stopping", "stopped", "spawned", "starting", "running")]
            for name, (before, after) in zip(names, itertools.pairwise(marks), strict=True):
                took[name].append(after - before)
    shown = ", ".join(f"{name} {statistics.median(values):.2f} s" for name, values in took.items())
    report(f"2 -> 4 by a requeue, medians of {ROUNDS}, load {os.getloadavg()[0]:.1f}: {shown}")
