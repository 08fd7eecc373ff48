"""Checkpoints of a fine-tuning: trained parameters only, and beginnings and ends that the recipe decides."""

import json
import pickle

import pytest
from runtime_ranks import run_ranks

from launcher.common import names
from launcher.runtime.checkpoint import latest_progress
from launcher.runtime.finetune import trainer
from launcher.runtime.finetune.settings import settings_of

from .cases import compiled, conversations, inputs, preload, prepared

pytestmark = pytest.mark.slow


def run(folder, config, *, ranks=1, launch="one", count=16):
    """Run a training; return the steps that it did."""
    preload(config)
    folder.mkdir(exist_ok=True)
    before = steps(folder)

    def work(place):
        settings = settings_of(config, place.world_size)
        samples = prepared(conversations(count))
        assert trainer.FineTuning(settings, inputs(config, folder), place, folder, samples).run()

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(names.ENV_LAUNCH_ID, launch)
        run_ranks(ranks, work, folder)
    return steps(folder)[len(before) :]


def steps(folder):
    """Return the steps in a folder's metrics."""
    file = folder / "metrics.jsonl"
    lines = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
    return [line["step"] for line in lines if "loss" in line]


def recipe(**changes):
    """Return a recipe of four steps an epoch."""
    return compiled(**{"max_epochs": 1, "train_batch_size": 4, "save_steps": 2} | changes)


def saved_names(folder):
    """Return the names of everything in the newest checkpoint of a run."""
    path, _ = latest_progress(folder / "checkpoints")
    return set(pickle.loads((path / ".metadata").read_bytes()).state_dict_metadata)


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("sharding", ["FULL_SHARD", "NO_SHARD"])
def test_a_checkpoint_of_a_tied_model_holds_adapters_and_no_embedding(tmp_path, ranks, sharding):
    config = recipe(model="llama_tied")
    config["training_config"]["training_args"] = config["training_config"]["training_args"] | {
        "strategy": {"fsdp_config": {"sharding_strategy": sharding} | FSDP}
    }
    run(tmp_path, config, ranks=ranks)
    found = {name for name in saved_names(tmp_path) if name.startswith(("model.", "optimizer.state."))}
    assert found and all("lora_" in name for name in found)


FSDP = {"cpu_offload": False, "forward_prefetch": False, "state_dict_type": "SHARDED_STATE_DICT"}


def test_a_tied_model_whose_weights_train_is_saved_once(tmp_path):
    run(tmp_path, recipe(model="llama_tied", lora=False), ranks=2)
    found = saved_names(tmp_path)
    assert sum(name.startswith("model.") and name.endswith("embed_tokens.weight") for name in found) == 1
    assert not any(name.startswith("model.") and "lm_head" in name for name in found)


def test_a_training_continues_another_folder_s_checkpoints(tmp_path):
    assert run(tmp_path / "first", recipe()) == [1, 2, 3, 4]
    config = recipe(max_epochs=2, resume_checkpoint_path=str(tmp_path / "first" / "checkpoints"))
    assert run(tmp_path / "second", config) == [5, 6, 7, 8]
    assert run(tmp_path / "second", config) == []


def test_a_training_continues_the_checkpoint_that_is_named(tmp_path):
    run(tmp_path / "first", recipe())
    path = tmp_path / "first" / "checkpoints" / "step-00000002"
    assert run(tmp_path / "second", recipe(resume_checkpoint_path=str(path)), ranks=2) == [3, 4]


def test_a_training_goes_back_to_a_checkpoint_of_its_own(tmp_path):
    run(tmp_path, recipe())
    path = tmp_path / "checkpoints" / "step-00000002"
    assert run(tmp_path, recipe(resume_checkpoint_path=str(path), load_checkpoint=False), launch="two") == [3, 4]


def test_a_restart_continues_its_own_work_and_not_the_first_checkpoint_again(tmp_path):
    run(tmp_path / "first", recipe(seed=1))
    run(tmp_path / "second", recipe(seed=2))
    path = str(tmp_path / "first" / "checkpoints")
    config = recipe(seed=1, max_epochs=2, resume_checkpoint_path=path)
    assert run(tmp_path / "second", config, launch="two") == [5, 6, 7, 8]
    assert run(tmp_path / "second", config, launch="two") == []


@pytest.mark.parametrize(("name", "words"), [("missing", "no such folder"), ("empty", "holds no checkpoint")])
def test_a_path_without_a_checkpoint_is_refused(tmp_path, capfd, name, words):
    (tmp_path / "empty").mkdir()
    with pytest.raises(AssertionError):
        run(tmp_path / "run", recipe(resume_checkpoint_path=str(tmp_path / name)))
    message = capfd.readouterr().err
    assert "NoCheckpointThere: resume_checkpoint_path=" in message and words in message


def test_without_checkpoints_of_the_training_state_none_is_left(tmp_path):
    run(tmp_path, recipe(disable_ds_ckpt=True))
    assert not list((tmp_path / "checkpoints").glob("step-*")) and not latest_progress(tmp_path / "checkpoints")
    assert (tmp_path / "model" / "adapter_model.safetensors").is_file()


def test_oldest_checkpoints_go_while_they_take_more_than_the_recipe_allows(tmp_path):
    run(tmp_path / "free", recipe(save_steps=1))
    sizes = [sum(file.stat().st_size for file in path.iterdir()) for path in checkpoints(tmp_path / "free")]
    assert len(sizes) == 3
    run(tmp_path / "bound", recipe(save_steps=1, max_ckpt_mem=2.5 * sizes[0] / 1e9))
    assert [path.name for path in checkpoints(tmp_path / "bound")] == ["step-00000003", "step-00000004"]
    run(tmp_path / "tight", recipe(save_steps=1, max_ckpt_mem=0))
    assert [path.name for path in checkpoints(tmp_path / "tight")] == ["step-00000004"]


def checkpoints(folder):
    """Return the checkpoints of a run."""
    return sorted((folder / "checkpoints").glob("step-*"))
