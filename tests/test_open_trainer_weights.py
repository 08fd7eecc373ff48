"""Real weights through the command line and the real agent, to results that plain PEFT loads."""

import json
import shutil

import pytest
import torch
import yaml
from whole_jobs import bundle_of, mlflow_run, run

from launcher.runtime.finetune import models
from launcher.runtime.finetune.architectures import rehearsal_config
from launcher.runtime.finetune.rehearsal_data import VOCABULARY, write_rehearsal_data

pytestmark = [pytest.mark.whole_job, pytest.mark.usefixtures("store")]

MODEL, DATA, ARGS = (f"recipes.training_config.{name}" for name in ("model_config", "datasets", "training_args"))


@pytest.fixture(scope="module")
def given(tmp_path_factory):
    """Return folders with a small tied model and its tokenizer, and with conversations."""
    folder = tmp_path_factory.mktemp("given")
    made = write_rehearsal_data(folder / "data", "sft", 1)
    config = rehearsal_config("meta-llama/Llama-3.2-1B-Instruct", "", VOCABULARY)
    models.random_model(config, "sdpa", dtype=torch.float32, seed=3).save_pretrained(folder / "base")
    shutil.copytree(made.tokenizer_folder, folder / "base", dirs_exist_ok=True)
    return folder / "base", made.train_file


def words(base, samples):
    """Return the command line of a short training of a model on the user's samples."""
    return (
        "recipes=fine-tuning/llama/llmft_llama3_2_1b_instruct_seq4k_gpu_sft_lora",
        f"{MODEL}.model_name_or_path={base}",
        f"{MODEL}.model_save_name=tuned",
        f"{DATA}.train_data.file_path={samples}",
        f"{DATA}.train_data.limit=36",
        f"{ARGS}.max_epochs=1",
        "recipes.trainer.devices=2",
        "recipes.training_config.mlflow.experiment_name=weights",
        "+recipes.training_config.mlflow.log_adapter=true",
    )


def test_a_user_s_model_trains_on_a_user_s_data(given, tmp_path):
    import peft
    from transformers import AutoModelForCausalLM

    base, samples = given
    status, out, err = run(*words(base, samples), cwd=tmp_path)
    assert status == 0, out + err
    bundle = bundle_of(tmp_path)
    results = bundle / "run" / "model" / "tuned"
    ids = torch.arange(3, 40)[None]
    with torch.no_grad():
        adapted = peft.PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(base), results)(ids).logits
        merged = AutoModelForCausalLM.from_pretrained(results / "merged")(ids).logits
        torch.testing.assert_close(adapted, merged, atol=1e-5, rtol=1e-4)
        assert not torch.equal(adapted, AutoModelForCausalLM.from_pretrained(base)(ids).logits)
    facts = json.loads((results / "result.json").read_text())
    manifest = json.loads((bundle / "bundle.json").read_text())
    assert facts["bundle_digest"] == manifest["digest"] and facts["recipe"] == manifest["recipe"]
    assert facts["is_rehearsal"] is False and facts["base_model"] == "base" and "loss" in facts["metrics"]
    assert yaml.safe_load((results / "README.md").read_text().split("---\n")[1])["base_model"] == "base"
    client, tracked = mlflow_run(tmp_path, "weights")
    assert {each.path for each in client.list_artifacts(tracked.info.run_id, "adapters")} >= {
        "adapters/adapter_model.safetensors",
        "adapters/adapter_config.json",
    }
    assert int(tracked.data.tags["training.trained_parameters"]) > 0


def test_a_folder_without_weights_ends_the_job_and_is_named(given, tmp_path):
    base, samples = given
    broken = shutil.copytree(base, tmp_path / "broken")
    (broken / "model.safetensors").unlink()
    status, out, err = run(*words(broken, samples), cwd=tmp_path)
    assert status == 3, out + err
    logs = "".join(path.read_text() for path in bundle_of(tmp_path).glob("run/logs/**/*") if path.is_file())
    assert f"{broken}: no weights" in out + err + logs
    assert not (bundle_of(tmp_path) / "run" / "model").exists()
