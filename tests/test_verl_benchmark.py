"""What `make bench-verl` starts still compiles, and its verdict: verl itself is not installed here."""

import dataclasses

import pytest
import yaml

import launcher
from benchmarks.verl import __main__ as bench

FALLING = tuple(6.0 - 0.05 * step for step in range(bench.NUM_STEPS))
ONE = bench.Run("r on 1 node", 1, 1.0, FALLING, 1)
TWO = dataclasses.replace(ONE, name="r on 2 nodes", nodes=2, saved=2)


def test_runs_that_fall_and_agree_are_right():
    assert bench.faults([ONE, TWO]) == []


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        pytest.param(
            {"losses": FALLING[:-1]},
            f"losses of {bench.NUM_STEPS - 1} steps, not {bench.NUM_STEPS}",
            id="a-step-is-missing",
        ),
        pytest.param({"losses": ()}, "losses of 0 steps", id="no-losses"),
        pytest.param({"losses": (6.0,) * bench.NUM_STEPS}, "the loss does not fall", id="flat"),
        pytest.param({"saved": 1}, "not a checkpoint of each rank", id="two-jobs-of-one-rank"),
        pytest.param(
            {"losses": tuple(loss * 1.0001 for loss in FALLING)},
            "the losses differ from those of r on 1 node",
            id="apart",
        ),
    ],
)
def test_a_fault_is_named(changes, fault):
    found, *_ = bench.faults([ONE, dataclasses.replace(TWO, **changes)])
    assert found.startswith(f"r on 2 nodes: {fault}")


@pytest.mark.parametrize("nodes", bench.NODES)
@pytest.mark.parametrize("recipe", bench.RECIPES)
def test_its_jobs_compile_to_the_recipes_own_program(recipe, nodes, tmp_path, monkeypatch):
    (tmp_path / "verl" / "trainer").mkdir(parents=True)  # the launcher only looks whether the program exists
    (tmp_path / "verl" / "trainer" / "sft_trainer.py").touch()
    (tmp_path / "model").mkdir()
    (tmp_path / "train.parquet").touch()
    monkeypatch.syspath_prepend(tmp_path)
    plan = launcher.compile(recipe, bench.overrides(tmp_path, recipe, nodes))
    assert "-m verl.trainer.sft_trainer --config-name verl_config" in plan.files["run.sh"]
    config = yaml.safe_load(plan.files["configs/verl_config.yaml"])
    assert (config["trainer"]["nnodes"], config["trainer"]["device"]) == (nodes, "cpu")
    assert "save_only_adapter_if_lora" not in config["checkpoint"]
    assert bool(config["model"].get("lora_rank")) == recipe.endswith("lora")
