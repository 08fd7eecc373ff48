"""A fine-tuning recipe rehearses through the command line, with the real agent and a real MLflow store."""

import json

import pytest
from whole_jobs import ARGS, bundle_of, losses_in_the_model, mlflow_run, run, trained_alone

pytestmark = [pytest.mark.whole_job, pytest.mark.usefixtures("store")]

RECIPE = "fine-tuning/llama/llmft_llama3_2_1b_instruct_seq4k_gpu_sft_lora"
SHORT = ("rehearse.steps=0", "recipes.trainer.devices=1", f"{ARGS}.max_epochs=1", f"{ARGS}.train_batch_size=64")


@pytest.mark.sample
def test_a_rehearsal_trains_here_and_says_that_it_is_one(tmp_path):
    status, out, err = run(f"recipes={RECIPE}", "rehearse=true", *SHORT, cwd=tmp_path)
    assert status == 0, (out, err)
    bundle = bundle_of(tmp_path)
    assert "open trainer, a rehearsal" in out and "N173" in out + err and "\nrehearsal: " in out
    steps = [json.loads(line) for line in (bundle / "run/metrics.jsonl").read_text().splitlines()]
    assert [step["step"] for step in steps if "loss" in step] == [1, 2, 3, 4]
    (results,) = (bundle / "run/model").iterdir()
    assert results.name.startswith("rehearsal-") and (results / "adapter_model.safetensors").is_file()
    _, found = mlflow_run(tmp_path, "llama-3-2-1b-instruct")
    assert (found.data.tags["trainer"], found.data.tags["rehearsal"]) == ("open", "true")
    (start,) = (json.loads(line) for line in (bundle / "run/starts.jsonl").read_text().splitlines())
    assert "no warm start" not in out + err and start["world_size"] == 1


def test_a_job_whose_values_are_not_finite_fails_once_with_the_cause_and_no_result(tmp_path):
    own = (f"{ARGS}.learning_rate=1e25", f"{ARGS}.lr_warmup_ratio=0", f"{ARGS}.save_steps=1")
    status, out, err = run(f"recipes={RECIPE}", "rehearse=true", *SHORT, *own, cwd=tmp_path)
    bundle = bundle_of(tmp_path)
    assert status == 3, (out, err)
    assert "exited with code 65 (its loss, gradients or weights are not finite)" in err
    assert "NotFinite: the last 3 steps up to step 4 were skipped: loss nan, norm of the gradients nan." in err
    assert "step 2: skipped, loss nan, norm of the gradients nan (1 in a row, at most 3)" in out
    assert not list(bundle.rglob("*.safetensors"))
    timeline = json.loads((bundle / "run/timeline.json").read_text())
    assert (timeline["restarts"], timeline["skipped_steps"]) == (0, 3)


def test_a_dpo_recipe_of_verl_rehearses_here(tmp_path):
    recipe = "recipes=fine-tuning/qwen-0_7_0/verl-dpo-qwen-3-dot-5-4b-lora"
    short = ("rehearse.steps=4", "recipes.trainer.devices=1", "recipes.training_config.data.train_batch_size=8")
    status, out, err = run(recipe, *short, cwd=tmp_path)
    assert status == 0, (out, err)
    assert "open trainer, a rehearsal" in out and "model_dtype" in out + err
    steps = [json.loads(line) for line in (bundle_of(tmp_path) / "run/metrics.jsonl").read_text().splitlines()]
    losses = [step["loss"] for step in steps if "loss" in step]
    assert losses[0] == pytest.approx(0.6931, abs=1e-4) and len(losses) == 4
    (results,) = (bundle_of(tmp_path) / "run/model").iterdir()
    assert (results / "adapter_model.safetensors").is_file() and (results / "merged").is_dir()


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """Return the losses of the elastic rehearsal below in one process."""
    return trained_alone(tmp_path_factory, "open-trainer", *ELASTIC, "recipes.trainer.num_nodes=1")


ELASTIC = (
    *(f"recipes={RECIPE}", "rehearse=true", "rehearse.steps=0", "recipes.trainer.devices=1"),
    *(f"{ARGS}.max_epochs=1", f"{ARGS}.train_batch_size=8", f"{ARGS}.micro_train_batch_size=4"),
    "recipes.training_config.datasets.train_data.limit=160",
    *("++recipes.elastic_policy.is_elastic=true", "++recipes.elastic_policy.min_nodes=1"),
    *("++recipes.elastic_policy.max_nodes=2", "++recipes.scale_config=auto"),
)


@pytest.mark.parametrize("sharding", ["NO_SHARD", "FULL_SHARD"])
def test_a_rehearsal_keeps_its_model_when_a_worker_is_lost_and_a_node_leaves(tmp_path, alone, sharding):
    """Adapters are trained, or shards of them, beside a base model that is not loaded again."""
    chain = "+cluster.events=[{at:{step:6},worker_crash:{rank:1}},{at:{step:13},capacity:1}]"
    own = (f"{ARGS}.strategy.fsdp_config.sharding_strategy={sharding}", "++recipes.checkpointing.copy_every=1", chain)
    status, out, err = run(*ELASTIC, "recipes.trainer.num_nodes=2", *own, cwd=tmp_path)
    assert status == 0, (out, err)
    starts = [json.loads(line) for line in (bundle_of(tmp_path) / "run/starts.jsonl").read_text().splitlines()]
    kept = [start["kept_by"] for start in starts]
    assert kept[0] is None and len(kept) == 3 and all(kept[1:]), out
    assert losses_in_the_model(bundle_of(tmp_path) / "run") == pytest.approx(alone, rel=1e-4)
