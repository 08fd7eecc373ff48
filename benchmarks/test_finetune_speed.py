"""How fast the open trainer trains on the CPU against TRL's, and what it costs to start it."""

import yaml
from conftest import ROOT

ROUNDS, STEPS, WARMUP_STEPS, BATCH, MICRO = 5, 30, 3, 8, 1
RECIPE = yaml.safe_load((ROOT / "tests" / "runtime" / "finetune" / "config.yaml").read_text())
"""Supervised fine-tuning of Llama 3.2 1B with adapters, as compiled."""

TRAIN = """
import sys, time
from pathlib import Path
import benchmarks.finetune_runs as runs
print(runs.{run}(Path(sys.argv[1]), recomputes={recomputes}), flush=True)
"""


def changed(recomputes: bool) -> dict:
    """Return the recipe, for as many steps as are measured."""
