"""The stages of several processes: jobs on this machine through `main.py`, the operator and the real agent."""

import importlib.util
import json
import math
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from benchmarks.gpu import devices
from benchmarks.gpu.results import Measurement, Results, median_of
from launcher.common import names

ROOT = Path(__file__).resolve().parents[2]
RANK = Path(__file__).with_name("rank.py")
NEEDED = ("hydra", "omegaconf", "pydantic", "hyperpod_elastic_agent", "fastapi", "uvicorn")
"""Modules without which no job can be launched."""
ARGS = "recipes.training_config.training_args"
UNTRACKED = "recipes.training_config.mlflow.enabled=false"
END_S = 20.0
"""Seconds that a job gets to end after its time is over."""
REHEARSED = (
    "llama/llmft_llama3_2_1b_instruct_seq4k_gpu_sft_lora",
    "llama/llmft_llama3_2_1b_instruct_seq4k_gpu_dpo",
    "llama/llmft_llama3_2_1b_instruct_seq4k_gpu_sft_fft",
    "gpt_oss/llmft_gpt_oss_20b_seq4k_gpu_sft_lora",
    "llama/llmft_llama4_scout_17b_16e_instruct_seq4k_gpu_sft_lora",
)
"""A recipe of each kind: adapters, pairs, all weights, experts with adapters, experts without."""
SHARED_GPU_NCCL = (2, 30)
"""The first NCCL that lets ranks share a GPU. Source: NVIDIA/nccl, src/init.cc: NCCL_MULTI_RANK_GPU_ENABLE."""
SHARED_GPU = {"NCCL_MULTI_RANK_GPU_ENABLE": "1", "NCCL_NVLS_ENABLE": "0"}


@dataclass(frozen=True, slots=True)
class Job:
    """A job that has ended.

    Args:
        status: Exit status; None if it was stopped because its time was over.
        output: Everything that it printed.
        run_dir: Its run folder; None if it never got one.
        seconds: It took.
    """

    status: int | None
    output: str
    run_dir: Path | None
    seconds: float

    @property
    def steps(self) -> list[dict[str, Any]]:
        """The optimizer steps that it wrote down."""
        return [each for each in self._lines(names.METRICS_FILE) if "cursor" in each]

    @property
    def timeline(self) -> Mapping[str, Any]:
        """Its timeline; empty if it has none."""
        file = self.run_dir / f"{names.TIMELINE}.json" if self.run_dir else None
        return json.loads(file.read_text()) if file and file.exists() else {}

    def _lines(self, name: str) -> list[dict[str, Any]]:
        file = self.run_dir / name if self.run_dir else None
        return [json.loads(line) for line in file.read_text().splitlines()] if file and file.exists() else []


def launched(overrides: Sequence[str], folder: Path, seconds: float, more: Mapping[str, str] | None = None) -> Job:
    """Run a job in `folder` to its end, or until its time is over.

    Args:
        overrides: Of `main.py`.
        folder: To launch in; created.
        seconds: That the job may take.
        more: Environment variables.
    """
    folder.mkdir(parents=True, exist_ok=True)
    paths = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    environment = os.environ | {"PYTHONPATH": paths, "PYTHONUNBUFFERED": "1"} | (more or {})
    command = [sys.executable, str(ROOT / "main.py"), *overrides]
    log = folder / "output.txt"

    def work() -> int | None:
        with log.open("w") as output:
            process = subprocess.Popen(command, cwd=folder, env=environment, stdout=output, stderr=subprocess.STDOUT)
            try:
                return process.wait(seconds)
            except subprocess.TimeoutExpired:
                _end(process)
                return None

    status: list[int | None] = []
    taken = devices.seconds_of(lambda: status.append(work()), torch.device("cpu"))
    found = [each for each in folder.glob(f"results/*/{names.RUN_DIR}") if each.is_dir()]
    return Job(status[0], log.read_text(errors="replace"), found[0] if found else None, taken)


def _end(process: "subprocess.Popen[bytes]") -> None:
    """End a job: its nodes end with the operator, which is this process."""
    process.terminate()
    try:
        process.wait(END_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def lacks_modules(results: Results) -> bool:
    """Return whether jobs cannot be launched here, and note why."""
    missing = [each for each in NEEDED if importlib.util.find_spec(each) is None]
    if missing:
        results.problem(f"not installed: {', '.join(missing)}; docs/gpu-kit.md has the wheels to carry")
    return bool(missing)


def _explain(results: Results, what: str, job: Job) -> None:
    ended = "its time was over" if job.status is None else f"exit status {job.status}"
    logs = sorted(job.run_dir.glob("logs/**/*.log")) if job.run_dir else []
    tails = [f"{each.name}: {each.read_text(errors='replace')[-800:]}" for each in logs if each.stat().st_size]
    results.problem("\n".join([f"{what}: {ended}", job.output[-1500:], *tails[:3]]))


def rehearse(results: Results) -> None:
    """Rehearse recipes on one rank; the peak memory that a job reports shows that it ran on the GPU."""
    if lacks_modules(results):
        return
    wanted = REHEARSED[:1] if results.tiny else REHEARSED
    samples = 16 if results.tiny else 128
    short = [f"{ARGS}.max_epochs=1", f"{ARGS}.max_samples={samples}", f"{ARGS}.train_batch_size=8"]
    short.append(f"{ARGS}.log_gpu_memory=true")
    alone = ["recipes.trainer.devices=1", "recipes.trainer.num_nodes=1"]
    with tempfile.TemporaryDirectory() as folder:
        for number, recipe in enumerate(wanted):
            if not results.budget.fits(20 if not results.tiny else 0):
                results.problem(f"{recipe}: no time was left")
                continue
            words = [f"recipes=fine-tuning/{recipe}", "rehearse=true", UNTRACKED, *alone, *short]
            _rehearsed(results, recipe, launched(words, Path(folder) / str(number), results.budget.left))


def _rehearsed(results: Results, recipe: str, job: Job) -> None:
    further = [step.get("further", {}) for step in job.steps]
    peaks = [each["memory_gb"] for each in further if "memory_gb" in each]
    losses = [step["loss"] for step in job.steps]
    is_fine = job.status == 0 and losses and all(map(math.isfinite, losses))
    if not is_fine:
        _explain(results, recipe, job)
    if is_fine and torch.cuda.is_available() and not peaks:
        results.problem(f"{recipe}: ran without the GPU")
    where = "on the GPU" if peaks else "on the CPU"
    results.add(
        Measurement(
            f"rehearsal of {recipe.partition('/')[2]}",
            job.seconds if is_fine else None,
            "s",
            shape={"steps": len(losses), "peak_memory_gb": max(peaks) if peaks else None},
            note=where if is_fine else "failed",
        )
    )


def elastic(results: Results) -> None:
    """Measure the parts of a restart: a lost node is replaced, a worker crashes, and the job stops with a checkpoint.

    With one rank, since NCCL wants a GPU for each.
    """
    if lacks_modules(results):
        return
    happenings = "{at:{step:3},node_loss:{node:0,replacement_after:1}},{at:{step:6},worker_crash:{rank:0}},"
    words = [
        *(f"recipes=fine-tuning/{REHEARSED[0]}", "rehearse=true", UNTRACKED),
        *("recipes.trainer.devices=1", "recipes.trainer.num_nodes=1", f"{ARGS}.train_batch_size=4"),
        *(f"{ARGS}.max_epochs=200", f"{ARGS}.save_steps=2", "recipes.elastic_policy.faulty_timeout=2"),
        *("++recipes.elastic_policy.is_elastic=true", "++recipes.scale_config=auto"),
        "recipes.elastic_policy.resize=restart",
        f"+cluster.events=[{happenings}{{at:{{step:9}},capacity:0}}]",
    ]
    floor = import_s()
    with tempfile.TemporaryDirectory() as folder:
        job = launched(words, Path(folder), results.budget.left)
        transitions = job.timeline.get("transitions", [])
        if [each["reason"] for each in transitions][-1:] != ["suspend"]:
            _explain(results, "the job did not come to its last event", job)
        for each in transitions:
            results.add(*_parts(each, floor))


def _parts(transition: Mapping[str, Any], floor: float) -> list[Measurement]:
    """Return the measurements of one transition."""
    name = f"{transition['reason']}: {transition['cause']}"
    found = [
        Measurement(f"{name}: {part[:-2]}", transition[part], "s", floor=limit, floor_name=meaning, ratio=ratio)
        for part, limit, meaning in (
            ("stop_s", None, ""),
            ("restart_s", floor, "import torch, a context"),
            ("total_s", None, ""),
        )
        if transition.get(part) is not None
        for ratio in [transition[part] / limit if limit else None]
    ]
    parts = transition.get("parts") or {}
    return found + [
        Measurement(f"{name}: {part[:-2]}", value, "s") for part, value in parts.items() if value is not None
    ]


def import_s() -> float:
    """Return the seconds that a new process takes to import torch and to make its context on the GPU."""
    work = "import torch\nif torch.cuda.is_available(): torch.zeros(1, device='cuda')"
    command = [sys.executable, "-c", work]
    return devices.seconds_of(lambda: subprocess.run(command, check=True), torch.device("cpu"))


def nccl(results: Results) -> None:
    """Train and reduce with two ranks under one real agent, as the machine allows.

    NCCL refuses two ranks on one GPU before 2.30. There, one rank uses it alone, and two ranks share the GPU with
    tensors that gloo exchanges.
    """
    if lacks_modules(results):
        return
    gpus = torch.cuda.device_count()
    version = torch.cuda.nccl.version()[:2] if gpus else None
    if gpus == 1 and version and version < SHARED_GPU_NCCL:
        results.facts["two ranks on one GPU"] = f"NCCL {version} refuses them; {SHARED_GPU_NCCL} and later allow them"
    for label, ranks, backend, more in settings_of(gpus, version):
        with tempfile.TemporaryDirectory() as folder:
            _ranks(results, label, ranks, backend, more, Path(folder))


def settings_of(gpus: int, version: tuple[int, ...] | None) -> list[tuple[str, int, str, dict[str, str]]]:
    """Return what to run: label, number of ranks, backend and environment.

    Args:
        gpus: Of the machine.
        version: Of NCCL; None without it.
    """
    if gpus == 0:
        return [("two ranks on the CPU, gloo", 2, "gloo", {})]
    if gpus > 1:
        return [("two ranks on two GPUs, nccl", 2, "nccl", {})]
    found = [
        ("one rank, nccl", 1, "nccl", {}),
        ("two ranks on one GPU, gloo", 2, "gloo", {}),
    ]
    if version and version >= SHARED_GPU_NCCL:
        found.append(("two ranks on one GPU, nccl", 2, "nccl", SHARED_GPU))
    return found


def _ranks(results: Results, label: str, ranks: int, backend: str, more: Mapping[str, str], folder: Path) -> None:
    out = folder / "ranks.json"
    command = [str(RANK), backend, str(out), *(["--tiny"] if results.tiny else [])]
    words = [
        UNTRACKED,
        *(f"recipes.trainer.devices={ranks}", "recipes.trainer.num_nodes=1"),
        f"cluster.command=[{','.join(repr(word) for word in command)}]",
    ]
    job = launched(words, folder / "job", results.budget.left, more)
    if not out.exists():
        _explain(results, label, job)
        results.add(Measurement(f"{label}: training", None, "tokens/s", note="failed"))
        return
    found = json.loads(out.read_text())
    for problem in found["problems"]:
        results.problem(f"{label}: {problem}")
    shape = {"ranks": ranks, "world_size": found["world_size"], "sharding": found["sharding"]}
    results.add(
        median_of(f"{label}: training", "tokens/s", found["tokens_per_s"], shape=shape),
        Measurement(f"{label}: last loss", found["loss"], "nats", shape=shape),
        Measurement(f"{label}: all-reduce of {found['bytes']} bytes", found["reduce_gb_per_s"], "GB/s", shape=shape),
        Measurement(f"{label}: all-reduce of 8 bytes", found["reduce_us"], "µs", shape=shape),
    )
