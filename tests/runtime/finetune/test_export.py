"""Results that plain transformers and PEFT load: the trained logits, and a folder that is complete or missing."""

import json
import os
import resource
from dataclasses import replace

import mlflow
import peft
import pytest
import runtime_ranks
import torch
from runtime_ranks import run_ranks
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from launcher.runtime.finetune import export, trainer
from launcher.runtime.finetune.export import ExportFailed, ResultsInUse
from launcher.runtime.finetune.settings import settings_of
from launcher.runtime.finetune.token_scores import TokenScorer
from launcher.runtime.finetune.weight_files import INDEX
from launcher.runtime.metric_shipping import ship
from launcher.runtime.process_group import Place

from .cases import MODELS, VOCABULARY, compiled, conversations, inputs, preload, prepared, saved_model, with_weights

pytestmark = pytest.mark.slow

IDS = torch.arange(3, 40)[None] * 7 % VOCABULARY
EXPERTS = {"target_parameters": ["mlp.experts.gate_up_proj", "mlp.experts.down_proj"]}


def trained(folder, ranks, config, *, base=None, before=lambda training: None):
    """Train a few steps; return the trained model's logits as one process has them in training, and the inputs."""

    def work(place):
        settings = settings_of(config, place.world_size)
        given = inputs(config, folder)
        given = with_weights(given, base) if base else given
        training = trainer.FineTuning(settings, given, place, folder, prepared(conversations(12)))
        before(training)
        assert training.run()
        return logits_of(training.root, training.model)

    preload(config)
    folder.mkdir(exist_ok=True)
    return run_ranks(ranks, work, folder)[0]


def logits_of(root, model):
    """Return the logits of a model in training."""
    from .test_loading import logits_of

    with torch.no_grad():
        return logits_of(root, model)


def loaded_logits(folder, **options):
    """Return the logits of a folder's model, by transformers alone."""
    found = AutoModelForCausalLM.from_pretrained(folder, **options).eval()
    with torch.no_grad():
        return found(IDS).logits[0]


def lora_config(name, **changes):
    """Return a recipe with adapters that writes the merged model as well."""
    config = compiled(name, max_epochs=1, train_batch_size=4, learning_rate=0.02, **changes)
    if name == "gpt_oss":
        config["training_config"]["model_config"]["peft_config"] |= EXPERTS
    return config


def results(folder):
    """Return the only folder of results."""
    return folder / "model"


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("sharding", ["FULL_SHARD", "NO_SHARD"])
def test_adapters_and_merged_weights_give_the_trained_logits(tmp_path, name, sharding):
    base = tmp_path / "base"
    saved_model(base, name)
    logits = trained(tmp_path / "run", 2, with_fsdp(lora_config(name), sharding_strategy=sharding), base=base)
    assert (logits - loaded_logits(base)).abs().max() > 1e-3
    adapted = peft.PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(base), results(tmp_path / "run"))
    assert torch.equal(logits_of(TokenScorer(adapted), adapted), logits)
    torch.testing.assert_close(loaded_logits(results(tmp_path / "run") / "merged"), logits, atol=5e-6, rtol=1e-4)


@pytest.mark.parametrize("name", MODELS)
def test_a_full_checkpoint_gives_the_trained_logits(tmp_path, name):
    base = tmp_path / "base"
    saved_model(base, name)
    config = compiled(name, lora=False, max_epochs=1, train_batch_size=4)
    logits = trained(tmp_path / "run", 2, config, base=base)
    assert (logits - loaded_logits(base)).abs().max() > 1e-3
    again = AutoModelForCausalLM.from_pretrained(results(tmp_path / "run"))
    assert torch.equal(logits_of(TokenScorer(again), again), logits)


FILE_BYTES = 100_000


def small_shards(training):
    """Make several files of a model's weights."""
    export.MAX_SHARD_BYTES = FILE_BYTES


def test_weights_in_several_files_load(tmp_path):
    config = compiled(lora=False, max_epochs=1, train_batch_size=4)
    logits = trained(tmp_path, 2, config, before=small_shards)
    index = json.loads((results(tmp_path) / INDEX).read_text())
    files = {path.name: path for path in results(tmp_path).glob("model-*.safetensors")}
    assert len(files) > 1 and set(index["weight_map"].values()) == files.keys()
    held = {name: {key: each.nbytes for key, each in load_file(path).items()} for name, path in files.items()}
    assert index["weight_map"] == {key: name for name, sizes in held.items() for key in sizes}
    totals = [sum(sizes.values()) for sizes in held.values()]
    assert index["metadata"] == {"total_size": sum(totals)}
    assert all(total <= FILE_BYTES or len(sizes) == 1 for total, sizes in zip(totals, held.values(), strict=True))
    assert min(totals) <= FILE_BYTES < max(totals), "no file has several weights, or none has a large one"
    torch.testing.assert_close(loaded_logits(results(tmp_path)), logits, atol=1e-6, rtol=1e-5)


def test_a_model_published_in_bf16_is_saved_in_bf16(tmp_path):
    base = tmp_path / "base"
    saved_model(base, dtype=torch.bfloat16)
    trained(tmp_path / "run", 1, lora_config("llama"), base=base)
    merged = load_file(results(tmp_path / "run") / "merged" / "model.safetensors")
    adapter = load_file(results(tmp_path / "run") / "adapter_model.safetensors")
    assert {value.dtype for value in merged.values()} == {torch.bfloat16}
    assert {value.dtype for value in adapter.values()} == {torch.float32}
    assert json.loads((results(tmp_path / "run") / "merged" / "config.json").read_text())["dtype"] == "bfloat16"


def test_everybody_who_may_read_the_folder_may_read_its_files(tmp_path):
    trained(tmp_path, 1, lora_config("llama"))
    files = [path for path in results(tmp_path).rglob("*") if path.is_file()]
    assert {path.stat().st_mode & 0o777 for path in files} == {results(tmp_path).stat().st_mode & 0o666}


def test_the_same_training_writes_the_same_adapters(tmp_path):
    for name in ("one", "two"):
        trained(tmp_path / name, 1, lora_config("llama"))
    for file in ("adapter_config.json", "adapter_model.safetensors"):
        assert (results(tmp_path / "one") / file).read_bytes() == (results(tmp_path / "two") / file).read_bytes()


def test_a_tied_model_is_saved_without_its_head(tmp_path):
    trained(tmp_path, 2, compiled("llama_tied", lora=False, max_epochs=1, train_batch_size=4))
    saved = load_file(results(tmp_path) / "model.safetensors")
    assert "model.embed_tokens.weight" in saved and "lm_head.weight" not in saved


def saving(**changes):
    """Return a settings object of a training with adapters, or of all weights, that saves as described."""
    lora = changes.pop("lora")
    changes |= {"merge_weights": changes.pop("merges", None)}
    full = changes.pop("gathers", False)
    config = with_fsdp(
        compiled(lora=lora, **changes), state_dict_type="FULL_STATE_DICT" if full else "SHARDED_STATE_DICT"
    )
    return settings_of(config, 1)


def with_fsdp(config, **changes):
    """Return a recipe with other values of FSDP."""
    args = config["training_config"]["training_args"]
    changed = args | {"strategy": {"fsdp_config": args["strategy"]["fsdp_config"] | changes}}
    return config | {"training_config": config["training_config"] | {"training_args": changed}}


@pytest.mark.parametrize(
    ("changes", "contents"),
    [
        ({"lora": True, "merges": False}, ("adapters",)),
        ({"lora": True, "merges": True}, ("adapters", "merged")),
        ({"lora": True, "merges": None, "gathers": True}, ("adapters", "merged")),
        ({"lora": False, "save_hf_ckpt": True}, ("model",)),
        ({"lora": False, "save_hf_ckpt": False, "gathers": True}, ("model",)),
        ({"lora": False, "save_hf_ckpt": False, "disable_ds_ckpt": True}, ("model",)),
        ({"lora": False, "save_hf_ckpt": False}, ()),
    ],
    ids=str,
)
def test_the_recipe_decides_what_is_written(changes, contents):
    assert export.contents(saving(**changes)) == contents


@pytest.mark.parametrize("lora", [True, False], ids=["lora", "full"])
def test_results_of_a_mesh_of_two_nodes_are_those_of_one_rank(tmp_path, lora, monkeypatch):
    place_of = Place

    def two_nodes(rank, world_size, *others):
        return place_of(rank, world_size, rank % 2, min(2, world_size), others[-1])

    monkeypatch.setattr(runtime_ranks, "Place", two_nodes)
    config = compiled(lora=lora, max_epochs=1, train_batch_size=4)
    for ranks in (1, 4):
        trained(tmp_path / str(ranks), ranks, config)
    file = "adapter_model.safetensors" if lora else "model.safetensors"
    one, four = (load_file(results(tmp_path / ranks) / file) for ranks in ("1", "4"))
    assert one.keys() == four.keys()
    for name in one:
        torch.testing.assert_close(one[name], four[name], atol=1e-3, rtol=1e-3)


def test_tokenizer_and_generation_settings_go_with_the_model(tmp_path):
    base = tmp_path / "base"
    saved_model(base)
    (base / "generation_config.json").write_text('{"temperature": 0.5}')
    (base / "tokenizer.json").write_text("{}")
    template = tmp_path / "template.jinja"
    template.write_text("mine")

    def before(training):
        data = replace(training.inputs.data, template_file=str(template))
        training.inputs = replace(training.inputs, tokenizer=base, data=data)

    trained(tmp_path / "run", 1, lora_config("llama"), base=base, before=before)
    merged = results(tmp_path / "run") / "merged"
    assert json.loads((merged / "generation_config.json").read_text()) == {"temperature": 0.5}
    for folder in (merged, results(tmp_path / "run")):
        assert (folder / "tokenizer.json").read_text() == "{}"
        assert (folder / "chat_template.jinja").read_text() == "mine"


def test_results_are_written_again_after_a_crash(tmp_path, monkeypatch):
    config = lora_config("llama")

    def crash(training):
        def fail(folder, facts):
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(export, "_describe", fail)

    with pytest.raises(AssertionError):
        trained(tmp_path, 2, config, before=crash)
    assert not any((tmp_path / "model").parent.glob("*model*"))
    steps = len((tmp_path / "metrics.jsonl").read_text().splitlines())
    trained(tmp_path, 2, config)
    assert (results(tmp_path) / "adapter_model.safetensors").is_file()
    assert len((tmp_path / "metrics.jsonl").read_text().splitlines()) == steps


def test_a_full_disk_is_named_and_leaves_nothing_half_written(tmp_path, capfd):
    def limit(training):
        original = export.write

        def write(*args):
            resource.setrlimit(resource.RLIMIT_FSIZE, (60_000, resource.RLIM_INFINITY))
            original(*args)

        export.write = write

    with pytest.raises(AssertionError):
        trained(tmp_path, 2, lora_config("llama"), before=limit)
    message = capfd.readouterr().err
    assert "ExportFailed" in message and str(results(tmp_path)) in message and "could not be written" in message
    assert not results(tmp_path).exists() and not any(tmp_path.glob(".model*"))


def test_earlier_results_stay_until_the_new_ones_are_complete(tmp_path):
    final = tmp_path / "model"
    write_results(final, "first")
    with pytest.raises(ExportFailed), export.replaced(final) as folder:
        folder.first_rank(lambda: (folder.partial / "a").write_text("second"))
        folder.first_rank(fail)
    assert (final / "a").read_text() == "first" and os.listdir(tmp_path) == ["model"]
    write_results(final, "third")
    assert (final / "a").read_text() == "third" and os.listdir(tmp_path) == ["model"]


def write_results(final, text):
    """Write a folder of results."""
    with export.replaced(final) as folder:
        folder.first_rank(lambda: (folder.partial / "a").write_text(text))
        folder.first_rank(lambda: (folder.partial / export.MARK).write_text("{}"))


def fail():
    """Fail as a full disk does."""
    raise OSError(28, "No space left on device")


def test_leftovers_of_a_killed_export_are_removed(tmp_path):
    for word in ("partial", "removed"):
        (tmp_path / f".model.{word}" / "sub").mkdir(parents=True)
    write_results(tmp_path / "model", "new")
    assert os.listdir(tmp_path) == ["model"]


def test_a_folder_of_something_else_is_never_replaced(tmp_path):
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "thesis.txt").write_text("mine")
    with pytest.raises(ResultsInUse, match="model_save_name"):
        write_results(tmp_path / "model", "new")
    assert os.listdir(tmp_path / "model") == ["thesis.txt"] and os.listdir(tmp_path) == ["model"]


def test_a_job_whose_results_have_no_place_does_not_start(tmp_path, capfd):
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "thesis.txt").write_text("mine")
    with pytest.raises(AssertionError):
        trained(tmp_path, 1, lora_config("llama"))
    assert "ResultsInUse" in capfd.readouterr().err and not (tmp_path / "metrics.jsonl").exists()


def tracked(folder, **changes):
    """Return a recipe with an MLflow run in a store of its own, and that run."""
    store = f"sqlite:///{folder / 'mlflow.db'}"
    client = mlflow.MlflowClient(tracking_uri=store)
    artifacts = (folder / "artifacts").as_uri()
    run = client.create_run(client.create_experiment("tuning", artifact_location=artifacts)).info.run_id
    config = lora_config("llama")
    settings = {"tracking_uri": store, "run_id": run} | changes
    return config | {"training_config": config["training_config"] | {"mlflow": settings}}, client, run


@pytest.mark.parametrize("asked", [True, None], ids=["asked", "not asked"])
def test_adapters_are_artifacts_when_asked(tmp_path, asked):
    config, client, run = tracked(tmp_path, log_adapter=asked)
    trained(tmp_path / "run", 2, config)
    found = {artifact.path for artifact in client.list_artifacts(run, "adapters")}
    names = ("adapter_model.safetensors", "adapter_config.json", "README.md")
    assert found == ({f"adapters/{name}" for name in names} if asked else set())


def test_the_run_has_tags_of_model_and_data_and_the_metrics_of_the_trainer(tmp_path):
    config, client, run = tracked(tmp_path)
    trained(tmp_path / "run", 1, config)
    ship(tmp_path / "run", f"sqlite:///{tmp_path / 'mlflow.db'}", run)
    data = client.get_run(run).data
    tags = {name.removeprefix("training."): value for name, value in data.tags.items() if "training." in name}
    assert tags["rehearsal"] == "true" and tags["lora"] == "r=4 alpha=8" and tags["data_digest"] == "digest"
    assert 0 < int(tags["trained_parameters"]) < int(tags["parameters"])
    assert int(tags["tokens"]) > int(tags["trained_tokens"]) > 0
    assert {"loss", "learning_rate", "tokens_per_s", "grad_norm"} <= data.metrics.keys()


def test_an_unreachable_store_of_artifacts_fails_no_training(tmp_path, capfd):
    config, _, _ = tracked(tmp_path, log_adapter=True, run_id="0" * 32)
    trained(tmp_path / "run", 1, config)
    assert (results(tmp_path / "run") / "adapter_model.safetensors").is_file()
    assert "the adapters are not among the MLflow run's artifacts" in capfd.readouterr().err
