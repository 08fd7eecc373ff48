"""What `recipes check --all` costs: over the shipped catalogue, and as a catalogue grows."""

import json
import statistics
import subprocess
import sys
import time
from pathlib import Path

import pytest
from conftest import ROOT

SIZES = (100, 1000, 5000)
CHECKED = 60
"""Recipes checked of each synthetic catalogue, spread over all of it."""
RECIPE = """\
defaults:
  - /recipes/fine-tuning/llama/llmft_llama3_1_8b_instruct_seq4k_gpu_sft_lora@_here_
  - _self_
display_name: Synthetic {n}
instance_types: [ml.p5.48xlarge, ml.g6.48xlarge, ml.g6.12xlarge]
run:
  name: synthetic-{n}
training_config:
  model_config:
    model_save_name: synthetic/{n}
"""
SWEEP = """
import json, re, sys, time
from pathlib import Path
began = time.perf_counter()
from launcher.config.catalogue import entries
from launcher.model.context import LaunchContext
from launcher.api.checking import check_all
folder, most = sys.argv[1], int(sys.argv[2])
found = entries(Path(folder)) if folder else entries()
chosen = found[:: max(1, len(found) // most)][:most]
listed = time.perf_counter()
ends, sizes, problems, last = [], 0, 0, None
for checked in check_all(chosen, LaunchContext.read()):
    if checked.recipe != last:
        ends.append(time.perf_counter())
        last = checked.recipe
    sizes, problems = sizes + checked.num_sizes, problems + len(checked.problems)
ends.append(time.perf_counter())
print(json.dumps({
    "recipes": len(chosen), "sizes": sizes, "problems": problems, "listing_s": listed - began,
    "per_recipe_s": [b - a for a, b in zip(ends[:-1], ends[1:])], "total_s": ends[-1] - began,
    "peak_mib": int(re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())[1]) / 1024,
}))
"""
FLOOR = """
import sys, hydra
from pathlib import Path
from omegaconf import OmegaConf
names = sys.argv[2:]
with hydra.initialize_config_dir(config_dir=sys.argv[1], version_base="1.3"):
    for name in names:
        OmegaConf.to_container(hydra.compose("config", [f"recipes={name}", "cluster=k8s"]))
"""


def swept(folder: str, most: int, cwd: Path) -> dict:
    run = [sys.executable, "-c", SWEEP, folder, str(most)]
    return json.loads(subprocess.run(run, cwd=cwd, check=True, capture_output=True, text=True).stdout)


def test_the_shipped_catalogue(tmp_path, report):
    """Target: at most 15 s on 2 cores in one process. The floor composes each recipe once by bare Hydra."""
    from launcher.config.collection import recipe_names as names

    swept("", 3, tmp_path)  # fills the bytecode caches
    found = swept("", 10_000, tmp_path)
    began = time.perf_counter()
    command = [sys.executable, "-c", FLOOR, str(ROOT / "recipes_collection"), *names()]
    subprocess.run(command, cwd=tmp_path, check=True)
    floor_s = time.perf_counter() - began
    report(
        f"check --all: {found['recipes']} recipes, {found['sizes']} sizes, {found['problems']} problems in"
        f" {found['total_s']:.1f} s, peak {found['peak_mib']:.0f} MiB; bare Hydra composes each in {floor_s:.1f} s"
    )


@pytest.mark.parametrize("size", SIZES)
def test_a_growing_catalogue(tmp_path, report, size):
    """Target: the cost of a recipe stays the same from 100 to 5,000. The first one checked pays for the imports."""
    folder = tmp_path / "recipes" / "synthetic"
    folder.mkdir(parents=True)
    for n in range(size):
        (folder / f"synthetic_{n:05}.yaml").write_text(RECIPE.format(n=n))
    found = swept(str(tmp_path), CHECKED, tmp_path)
    median_s = statistics.median(found["per_recipe_s"][1:])
    report(
        f"a catalogue of {size}: {1e3 * median_s:.0f} ms a recipe (median of {found['recipes']}),"
        f" listing {1e3 * found['listing_s'] / size:.2f} ms a recipe, peak {found['peak_mib']:.0f} MiB"
    )
