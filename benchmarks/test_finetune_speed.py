"""How fast the open trainer trains on the CPU, against TRL's trainer, and what it costs to start it."""

import json
import os
import shutil
import statistics
import subprocess
import sys
import uuid
from pathlib import Path

import pytest
from conftest import ROOT
from finetune_runs import RECIPE

from launcher.common import names
from launcher.runtime.warm_client import answers

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
            f"rehearsal of Llama 3.2 1B, adapters, recomputation {recomputes}: {ours:.0f} tokens per {what}, "
            f"TRL {theirs:.0f}; median ratio {ratio:.2f} of {ROUNDS}"
        )


@pytest.fixture
def job(tmp_path):
    """Return the environment and the arguments of a rehearsal that has been started once, so that its data exists."""
    configs, run_dir = tmp_path / "configs", tmp_path / "run"
    configs.mkdir()
    run_dir.mkdir()
    shutil.copy(RECIPE, configs / "config-n1.yaml")
    environment = os.environ | ONE_THREAD | {"RECIPES_RUN_DIR": str(run_dir)}
    environment["PYTHONPATH"] += f"{os.pathsep}{ROOT / 'benchmarks'}"
    arguments = ["--config-path", str(configs), "--rehearse"]
    first_step_s("finetune_first_step", environment, arguments)
    return environment, arguments


def first_step_s(module: str, environment: dict[str, str], arguments: list[str]) -> float:
    """Return the seconds of the processor that a process has used by the end of its first optimizer step."""
    command = [sys.executable, "-m", module, *arguments]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    return float(done.stdout.splitlines()[-1].removeprefix("first step after "))


def test_cold_start(report, job):
    """Target: at most 5 s of the processor from the start of the process to the first step; prepared data exists."""
    taken = [first_step_s("finetune_first_step", *job) for _ in range(ROUNDS)]
    report(f"cold start to the first step: {statistics.median(taken):.2f} s of the processor, median of {ROUNDS}")


def test_warm_start(report, job):
    """Target: at most 0.6 s of the processor of the fork to the first step."""
    environment, arguments = job
    name = f"bench-{uuid.uuid4().hex}"
    model = "transformers.models.llama.modeling_llama"
    modules = (
        "transformers.modeling_utils",
        model,
        "peft",
        "launcher.runtime.finetune.trainer",
        "finetune_first_step",
    )
    warm = subprocess.Popen([sys.executable, "-m", "launcher.runtime.warm", name, *modules], env=environment)
    try:
        environment = environment | {names.ENV_WARM_SOCKET: name}
        while not answers(name):
            assert warm.poll() is None
        taken = [first_step_s("launcher.runtime.entrypoint", environment, arguments) for _ in range(ROUNDS)]
    finally:
        warm.kill()
        warm.wait()
    report(f"warm start to the first step: {statistics.median(taken):.2f} s of the processor, median of {ROUNDS}")
