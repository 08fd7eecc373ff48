"""How long training is blocked by a change of size, with workers that start anew and with workers that stay."""

import json
import os
import statistics
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import ROOT

ARGS = "recipes.training_config.training_args"
MODEL = "recipes.training_config.model_config"
ROUNDS = int(os.environ.get("RECIPES_ROUNDS", "3"))
CHANGES = ("2 -> 3", "3 -> 2", "node lost", "1 -> 3")
TINY = (f"{ARGS}.min_step_seconds=0.1", f"{ARGS}.max_epochs=60")
# 110 million parameters: 12 layers of 864, and a table for each of 256 tokens.
LARGE = (
    *(f"{MODEL}.hidden_size=864", f"{MODEL}.num_layers=12", f"{MODEL}.num_heads=12", f"{ARGS}.max_epochs=1"),
    *("recipes.training_config.datasets.train_data.limit=180", f"{ARGS}.max_len=16", f"{ARGS}.train_batch_size=6"),
)


def blocked_s(folder: Path, mode: str, steps: tuple[int, ...], *words: str) -> dict[str, float]:
    """Return the seconds from the end of the last step before each change to the start of the work after it."""
    folder.mkdir()
    two, lost, three = steps
    chain = (
        f"{{at:{{step:1}},capacity:3}},{{at:{{step:{two}}},capacity:2}},"
        f"{{at:{{step:{lost}}},node_loss:{{node:1}}}},{{at:{{step:{three}}},capacity:4}}"
    )
    command = [sys.executable, str(ROOT / "main.py"), "recipes.training_config.mlflow.enabled=false"]
    command += [f"recipes.elastic_policy.resize={mode}", "recipes.trainer.num_nodes=2", "recipes.trainer.devices=1"]
    command += ["++recipes.scale_config=auto", "recipes.elastic_policy.max_nodes=3", f"{ARGS}.save_steps=10"]
    command += ["recipes.elastic_policy.faulty_timeout=0", f"+cluster.events=[{chain}]", *words]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    subprocess.run(command, cwd=folder, env=environment, stdout=subprocess.DEVNULL, timeout=600, check=True)
    (run_dir,) = folder.glob("results/*/run")
    starts = _lines(run_dir / "starts.jsonl")
    ends = {line["attempt"]: line["time"] for line in _lines(run_dir / "metrics.jsonl")}
    return {
        change: after["restored"] - ends[after["attempt"] - 1]
        for change, after in zip(CHANGES, starts[1:], strict=False)
    }


def _lines(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.timeout(3600)
@pytest.mark.parametrize(
    ("name", "words", "steps"),
    [
        ("tiny", TINY, (70, 90, 110)),
        ("DDP of 110 million", LARGE, (8, 14, 20)),
        ("FSDP2 of 110 million", (*LARGE, f"{ARGS}.strategy=fsdp2"), (8, 14, 20)),
    ],
    ids=["tiny", "ddp", "fsdp2"],
)
def test_training_that_is_blocked(tmp_path, report, name, words, steps):
    """Targets: tiny 0.3 s; DDP of 110 million 1.5 s for 2 -> 3 and 0.7 s for 3 -> 2."""
    found: dict[str, list[dict[str, float]]] = {"restart": [], "in_place": []}
    for number in range(ROUNDS):
        for mode, each in found.items():
            each.append(blocked_s(tmp_path / f"{mode}-{number}", mode, steps, *words))
    for change in CHANGES:
        anew, stays = ([each[change] for each in found[mode] if change in each] for mode in found)
        if anew and stays:
            before, now = statistics.median(anew), statistics.median(stays)
            report(f"{name}, {change}: {now:.2f} s in place, {before:.2f} s anew ({now / before:.2f} of it)")
