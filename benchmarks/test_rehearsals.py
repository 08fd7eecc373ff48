"""Every fine-tuning recipe rehearses to its end through the real agent: few samples, one epoch, two ranks.

python -m pytest benchmarks/test_rehearsals.py        all 86, about half an hour
"""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from launcher.config.collection import recipe_names

pytest.importorskip("hyperpod_elastic_agent")
pytest.importorskip("peft")

ROOT = Path(__file__).parents[1]
SMALL = (
    "recipes.trainer.devices=2",
    "recipes.training_config.training_args.max_epochs=1",
    "recipes.training_config.datasets.train_data.limit=40",
)
RECIPES = [name for name in recipe_names() if name.startswith("fine-tuning/")]


def test_there_are_86_of_them():
    assert len(RECIPES) == 86


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Return a folder for all jobs, so that the MLflow store is made once."""
    return tmp_path_factory.mktemp("rehearsals")


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda name: name.rpartition("/")[2].removeprefix("llmft_"))
def test_a_recipe_rehearses_to_its_end(folder, recipe):
    words = [sys.executable, str(ROOT / "main.py"), f"recipes={recipe}", "rehearse=true", *SMALL]
    done = subprocess.run(words, cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, f"{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    run = folder / re.search(r"^bundle (\S+)", done.stdout, re.M)[1] / "run"
    steps = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    losses = [line["loss"] for line in steps if "loss" in line]
    assert losses and all(0 < loss < 20 for loss in losses)
    assert list(run.glob("model/rehearsal-*")), "the results are there, and named a rehearsal's"
