"""Published recipes rehearse with the open trainer, real agents and a real process group."""

import json
import os
import shlex
import subprocess
import sys

import pytest
from conftest import ROOT
from whole_jobs import (
    ARGS,
    bundle_of,
    curve,
    finish,
    graceful_stops,
    hold_until,
    left_behind,
    records,
    run,
    start,
)

from launcher.common.names import ENV_RUN_DIR, ENV_WARM_SOCKET, WARM_MODULE

pytest.importorskip("hyperpod_elastic_agent", reason="pip install --no-deps hyperpod-elastic-agent==1.1.3")
pytest.importorskip("peft", reason="pip install '.[trainer]'")
pytestmark = pytest.mark.whole_job

DATA = "recipes.training_config.datasets.train_data"
SMALL = ("rehearse=true", "recipes.trainer.devices=1", f"{ARGS}.max_epochs=1", f"{DATA}.limit=20")
RECIPES = {
    "llama sft": "llama/llmft_llama3_2_1b_instruct_seq4k_gpu_sft_lora",
    "llama dpo": "llama/llmft_llama3_1_8b_instruct_seq4k_gpu_dpo_fft",
    "llama4 sft": "llama/llmft_llama4_scout_17b_16e_instruct_seq4k_gpu_sft_lora",
    "llama4 dpo": "llama/llmft_llama4_scout_17b_16e_instruct_seq4k_gpu_dpo",
    "qwen2 sft": "qwen/llmft_qwen2_5_7b_instruct_seq4k_gpu_sft_fft",
    "qwen2 dpo": "deepseek/llmft_deepseek_r1_distilled_qwen_1_dot_5b_seq4k_gpu_dpo",
    "qwen3 sft": "qwen/llmft_qwen3_8b_seq4k_gpu_sft_lora",
    "qwen3 dpo": "qwen/llmft_qwen3_0_dot_6b_seq4k_gpu_dpo_fft",
    "gpt_oss sft": "gpt_oss/llmft_gpt_oss_20b_seq4k_gpu_sft_lora",
    "gpt_oss dpo": "gpt_oss/llmft_gpt_oss_120b_seq4k_gpu_dpo",
    "mistral sft": "mistral/llmft_mistral_7b_v0_1_seq4k_gpu_sft_lora",
    "ministral3 sft": "mistral/llmft_ministral3_8b_base_seq4k_gpu_sft_fft",
    "smollm3 sft": "smollm/llmft_smollm3_3b_seq4k_gpu_sft_lora",
    "smollm3 dpo": "smollm/llmft_smollm3_3b_seq4k_gpu_dpo_fft",
    "phi3 dpo": "phi/llmft_phi3_mini_4k_instruct_seq4k_gpu_dpo",
    "glm sft": "glm/llmft_glm4_9b_chat_seq4k_gpu_sft_lora",
    "ernie4_5 dpo": "ernie/llmft_ernie4_5_0_dot_3b_seq4k_gpu_dpo",
    "jais2 sft": "jais/llmft_jais2_8b_chat_seq4k_gpu_sft_fft",
}
"""A recipe for each architecture and technique; of our own models, one for each architecture."""
AS_JOBS = ("llama sft", "llama4 dpo", "qwen2 sft", "qwen3 dpo", "gpt_oss sft")
"""Each architecture and each technique; the launcher and the agent treat every pair of the two alike."""


def each_of(*names):
    return pytest.mark.parametrize("recipe", [RECIPES[name] for name in names], ids=names)


def check_results(run_dir, recipe):
    (results,) = (path.parent for path in run_dir.glob("model/rehearsal-*/README.md"))
    assert (results / "adapter_model.safetensors").exists() or (results / "model.safetensors").exists()
    first = next(record for record in records(run_dir / "metrics.jsonl") if "loss" in record)
    assert first["loss"] == pytest.approx(0.6931 if "dpo" in recipe else 6.25, abs=0.2)


@each_of(*AS_JOBS)
def test_each_architecture_and_technique_rehearses_to_its_end(recipe, tmp_path, store):
    code, out, err = run(f"recipes=fine-tuning/{recipe}", *SMALL, cwd=tmp_path)
    assert code == 0, out + err
    assert "open trainer, a rehearsal" in out and "finished at step" in out
    check_results(bundle_of(tmp_path) / "run", recipe)
    assert left_behind(tmp_path) == []


@pytest.fixture(scope="module")
def warm():
    """Return the environment of workers that are forked from one process, which has imported what they need."""
    name = f"fine-tuning-{os.getpid()}"
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    modules = ("transformers.modeling_utils", "peft", "launcher.runtime.finetune.trainer")
    process = subprocess.Popen([sys.executable, "-m", WARM_MODULE, name, *modules], env=environment)
    yield environment | {ENV_WARM_SOCKET: name}
    process.kill()
    process.wait()


def train(folder, warm, *overrides):
    """Compile a rehearsal, and train its bundle in one worker, without an agent; return the folder of its run."""
    code, out, err = run(*overrides, "dry_run=true", cwd=folder)
    assert code == 0 and "open trainer, a rehearsal" in out, out + err
    bundle = bundle_of(folder)
    script = (bundle / "run.sh").read_text().replace('"$bundle"', str(bundle))
    (command,) = (line for line in script.splitlines() if "launcher.runtime.entrypoint" in line)
    worker = subprocess.run(
        [sys.executable, "-u", *shlex.split(command)],
        env=warm | {ENV_RUN_DIR: str(bundle / "run")},
        capture_output=True,
        text=True,
        timeout=540,
    )
    assert worker.returncode == 0 and "finished at step" in worker.stdout, worker.stdout + worker.stderr
    return bundle / "run"


@each_of(*(name for name in RECIPES if name not in AS_JOBS))
def test_every_other_pair_of_the_two_trains_its_bundle_to_the_end(recipe, tmp_path, warm):
    check_results(train(tmp_path, warm, f"recipes=fine-tuning/{recipe}", *SMALL), recipe)


ELASTIC = (
    "recipes=fine-tuning/llama/llmft_llama3_2_1b_instruct_seq4k_gpu_sft_lora",
    "rehearse=true",
    "recipes.trainer.devices=1",
    "recipes.training_config.model_config.peft_config.lora_dropout=0",  # it differs by rank
    f"{ARGS}.max_epochs=2",
    f"{ARGS}.train_batch_size=8",
    f"{ARGS}.micro_train_batch_size=2",
    f"{ARGS}.learning_rate=0.001",
    f"{ARGS}.save_steps=6",
    f"{DATA}.limit=80",
)
SIZES = (
    "recipes.scale_config=auto",
    "++recipes.elastic_policy.is_elastic=true",
    "recipes.elastic_policy.max_nodes=3",
    "recipes.elastic_policy.scaling_timeout=1",
)
EVENTS = (
    "{at:{seconds:0},capacity:1},{at:{step:3},capacity:2},{at:{step:7},capacity:3},{at:{step:11},capacity:1},"
    "{at:{step:15},node_loss:{node:0,replacement_after:1}}"
)


@pytest.fixture(scope="module")
def alone(tmp_path_factory, warm):
    """Return the losses of the same training in one process that nothing happens to."""
    run_dir = train(tmp_path_factory.mktemp("alone"), warm, *ELASTIC)
    return {record["step"]: record["loss"] for record in steps(run_dir)}


def steps(run_dir):
    return [each for each in records(run_dir / "metrics.jsonl") if "loss" in each]


@pytest.mark.usefixtures("store")
def test_a_job_that_is_resized_and_loses_a_node_trains_as_one_process_does(tmp_path, alone):
    job = start(*ELASTIC, *SIZES, f"+cluster.events=[{EVENTS}]", cwd=tmp_path)
    try:
        for number, step in enumerate((3, 7)):  # until the further nodes are there
            hold_until(tmp_path, step, lambda number=number: graceful_stops(tmp_path) > number)
        code, out, err = finish(job)
    finally:
        job.kill()
    assert code == 0, out + err
    done = steps(bundle_of(tmp_path) / "run")
    assert {record["step"]: record["loss"] for record in done} == pytest.approx(alone, abs=1e-6)
    assert sorted({record["step"] for record in done}) == list(range(1, len(alone) + 1))
    assert {record["world_size"] for record in done} == {1, 2, 3}
    assert sorted(step for step, _ in curve(tmp_path, experiment="llama-3-2-1b-instruct")) == sorted(alone)
    timeline = json.loads((bundle_of(tmp_path) / "run" / "timeline.json").read_text())
    sizes = [(each["from_nodes"], each["to_nodes"]) for each in timeline["transitions"]]
    assert sizes == [(0, 1), (1, 2), (2, 3), (3, 1), (1, 1)]
    assert left_behind(tmp_path) == []
