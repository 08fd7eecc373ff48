"""verl's own trainer runs SFT recipes of the catalogue on 1 and 2 nodes of this machine: `python -m benchmarks.verl`.

Only what a processor lacks is overridden, and the size. Exits with 1 if a job fails, a loss does not fall, or the
losses of 1 and 2 nodes differ. verl 0.7.0 of the package index has no DPO.
"""

import math
import re
import subprocess
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.verl import environment
from benchmarks.verl.inputs import NUM_SAMPLES
from launcher.common.texts import counted

RECIPES = tuple(f"fine-tuning/qwen-0_7_0/verl-sft-qwen-3-8b-{kind}" for kind in ("lora", "fft"))
TOLERANCE = 1e-5
"""Largest relative difference of a step's loss between 1 and 2 nodes, which add in another order."""
FALL = 0.01
"""Least part of the first loss by which the last must be lower."""
NODES = (1, 2)
BATCH_SIZE = 8
NUM_STEPS = NUM_SAMPLES // BATCH_SIZE
_CONFIG = "recipes.training_config"
_MIXED, _PRECISIONS = "engine.mixed_precision", ("param_dtype", "reduce_dtype", "buffer_dtype")
_PROCESSOR = (
    "recipes.trainer.devices=1",
    f"{_CONFIG}.trainer.device=cpu",
    f"{_CONFIG}.engine.use_torch_compile=false",
    f"{_CONFIG}.engine.model_dtype=fp32",
    *(f"++{_CONFIG}.{_MIXED}.{key}=fp32" for key in _PRECISIONS),
    f"recipes.extra_keys=[{','.join(f'training_config.{_MIXED}.{key}' for key in _PRECISIONS)}]",
    f"{_CONFIG}.model.use_remove_padding=false",
    f"{_CONFIG}.model.use_liger=false",
    f"++{_CONFIG}.model.override_config.attn_implementation=eager",
)
"""What replaces the kernels of a GPU."""
_SIZE = (
    f"{_CONFIG}.engine.full_determinism=true",
    f"{_CONFIG}.data.train_batch_size={BATCH_SIZE}",
    f"{_CONFIG}.data.use_dynamic_bsz=false",
    f"{_CONFIG}.data.micro_batch_size_per_gpu=4",
    f"{_CONFIG}.optim.lr=0.001",
    f"{_CONFIG}.trainer.logger=[console,mlflow]",
)
_FORK = (f"~{_CONFIG}.checkpoint.save_only_adapter_if_lora", f"{_CONFIG}.trainer.resume_mode=auto")
"""What only the verl of the published image accepts: a key, and resume_path without a path."""


@dataclass(frozen=True, slots=True)
class Run:
    """A job that ended.

    Args:
        name: The recipe's name and the number of nodes.
        nodes: Nodes, of one process each.
        seconds: From the command to its end.
        losses: By step.
        saved: Files of weights in its checkpoints.
    """

    name: str
    nodes: int
    seconds: float
    losses: tuple[float, ...]
    saved: int


def overrides(folder: Path, recipe: str, nodes: int) -> tuple[str, ...]:
    """Return the overrides of a recipe; model, samples and checkpoints are below `folder`."""
    return (
        "cluster=local",
        "cluster.trainer=published",
        f"recipes.trainer.num_nodes={nodes}",
        *(*_PROCESSOR, *_SIZE, *_FORK),
        f"{_CONFIG}.model.path={folder / 'model'}",
        f"{_CONFIG}.data.train_files={folder / 'train.parquet'}",
        f"{_CONFIG}.trainer.default_local_dir={_checkpoints(folder, recipe, nodes)}",
    )


def _checkpoints(folder: Path, recipe: str, nodes: int) -> Path:
    return folder / f"{recipe.rpartition('/')[2]}-{nodes}"


def train(python: Path, folder: Path, recipe: str, nodes: int) -> Run:
    """Run a recipe to its end with the launcher, and read its losses from MLflow."""
    from mlflow import MlflowClient  # a test reads this module without it

    name = f"{recipe.rpartition('/')[2]} on {counted(nodes, 'node')}"
    began = time.perf_counter()
    done = subprocess.run(
        [python, "-m", "launcher", "run", f"recipes={recipe}", *overrides(folder, recipe, nodes)],
        cwd=folder,
        env=environment.variables(),
        capture_output=True,
        text=True,
    )
    seconds = time.perf_counter() - began
    if done.returncode:
        raise SystemExit(f"{name}: exit code {done.returncode}\n{done.stdout}{done.stderr}")
    saved = _checkpoints(folder, recipe, nodes).glob(f"global_step_*/model_world_size_{nodes}_rank_*.pt")
    run = re.search(r"^mlflow run (\S+)", done.stdout, re.M)[1]
    history = MlflowClient(f"sqlite:///{folder}/results/mlflow.db").get_metric_history(run, "train/loss")
    losses = [each.value for each in sorted(history, key=lambda each: each.step)]
    return Run(name, nodes, seconds, tuple(losses), len(list(saved)))


def faults(runs: Sequence[Run]) -> list[str]:
    """Return what is wrong with the runs of one recipe."""
    first = runs[0]
    for run in runs:
        if len(run.losses) != NUM_STEPS:
            return [f"{run.name}: losses of {counted(len(run.losses), 'step')}, not {NUM_STEPS}"]
    found = [f"{run.name}: the loss does not fall" for run in runs if run.losses[-1] > run.losses[0] * (1 - FALL)]
    found += [f"{run.name}: not a checkpoint of each rank" for run in runs if run.saved != run.nodes]
    differing = [run for run in runs if difference(first, run) > TOLERANCE]
    return found + [f"{run.name}: the losses differ from those of {first.name}" for run in differing]


def difference(one: Run, other: Run) -> float:
    """Return the largest relative difference between the losses of a step that both have."""
    return max((abs(a - b) / a for a, b in zip(one.losses, other.losses, strict=False)), default=math.inf)


def main() -> None:
    """Set up the environment, train, print the figures, and exit with 1 if they are wrong."""
    python, seconds = environment.interpreter()
    print(f"verl's environment: {seconds:.0f} s", flush=True)
    wrong = []
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        inputs = [python, "-m", "benchmarks.verl.inputs", folder]
        subprocess.run(inputs, env=environment.variables(), check=True)
        for recipe in RECIPES:
            runs = []
            for nodes in NODES:
                run = train(python, folder, recipe, nodes)
                print(f"{run.name}: {run.seconds:.0f} s, losses", *(f"{loss:.5f}" for loss in run.losses), flush=True)
                runs.append(run)
            wrong += faults(runs)
            print(f"largest relative difference: {difference(*runs):.1e}", flush=True)
    if wrong:
        raise SystemExit("\n".join(wrong))


if __name__ == "__main__":
    main()
