"""The model card: what was trained, on what and how it ended, without a path or a secret of this machine."""

import json
from dataclasses import asdict, replace

import pytest
import yaml

from launcher.runtime.finetune import model_card
from launcher.runtime.finetune.data.losses import Loss
from launcher.runtime.finetune.settings import settings_of

from .cases import compiled, conversations, inputs, prepared, with_weights

STEP = {"step": 1, "time": 2.0, "loss": 2.5, "learning_rate": 1e-4, "world_size": 1, "samples_per_s": 8.0}
SECRET = "hf_aVerySecretToken"


@pytest.fixture
def facts(tmp_path, monkeypatch):
    """Return the facts about a training whose model is in a private folder."""
    monkeypatch.setenv("HF_TOKEN", SECRET)
    base = tmp_path / "home" / "me" / "models" / "llama"
    base.mkdir(parents=True)
    (base / "config.json").write_text(json.dumps(inputs(compiled(), tmp_path).config | {"model_type": "llama"}))
    config = compiled()
    config["run"] = config["run"] | {"hf_access_token": SECRET}
    given = with_weights(inputs(config, tmp_path), base)
    settings = settings_of(config, 1)
    settings = replace(settings, model=replace(settings.model, path=str(base)))
    run_dir = tmp_path / "bundle" / "run"
    run_dir.mkdir(parents=True)
    (run_dir.parent / "bundle.json").write_text(json.dumps({"recipe": "llmft_x", "digest": "b" * 64}))
    lines = [STEP | {"loss": 3.0, "learning_rate": None}, STEP | {"step": 2, "further": {"grad_norm": 1}}]
    lines.append({"step": 2, "time": 3.0, "further": {"eval/loss": 2.75}})
    (run_dir / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    losses = (
        Loss("no turn of the assistant", True, 3, 0, 40, str(tmp_path / "home" / "me" / "a|b\x1b[2J.jsonl:2")),
        Loss("weight 0", False, 2, 5, 0, str(tmp_path / "home" / "me" / "chats.jsonl:7")),
    )
    data = replace(prepared(conversations(12)), digest="d" * 64)
    data = replace(data, counts=replace(data.counts, read=15, dropped={losses[0].reason: 3}, losses=losses))
    return model_card.facts_of(settings, given, run_dir, data=data, steps=2)


def test_card_names_what_was_not_trained_with_an_example_of_each(facts):
    text = model_card.card(facts)
    assert "| samples trained on | 12 |\n| samples read | 15 |" in text
    assert "| not trained | samples | turns | tokens | example |" in text
    assert "| dropped: no turn of the assistant | 3 | 0 | 40 | a\\|b\\x1b[2J.jsonl:2 |" in text
    assert "| weight 0 | 2 | 5 | 0 | chats.jsonl:7 |" in text
    assert asdict(facts)["data_counts"]["losses"][1]["turns"] == 5


def test_card_names_recipe_base_data_bundle_metrics_and_versions(facts):
    text = model_card.card(replace(facts, contents=("adapters", "merged")))
    for word in (
        "llama-3-2-1b-instruct",
        "base model | llama",
        "d" * 64,
        "b" * 64,
        "| eval/loss | 2.75 |",
        "torch 2.",
    ):
        assert word in text
    assert "| loss | 2.5 |" in text and "PeftModel.from_pretrained" in text and "`merged`" in text
    assert asdict(facts)["metrics"]["loss"] == 2.5


def test_card_has_no_secret_and_no_path(facts, tmp_path):
    text = model_card.card(facts) + json.dumps(asdict(facts))
    assert SECRET not in text and str(tmp_path) not in text and "/home" not in text


def test_card_begins_with_metadata_that_the_hub_reads(facts):
    block = model_card.card(facts).split("---\n")[1]
    assert yaml.safe_load(block) == {"library_name": "peft", "base_model": "llama", "tags": ["sft", "lora"]}


def test_card_of_a_rehearsal_states_it(facts):
    text = model_card.card(replace(facts, is_rehearsal=True))
    assert "**A rehearsal**" in text and "base_model:" not in text and "rehearsal" in text.split("---\n")[1]


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("meta-llama/Llama-3.2-1B", "meta-llama/Llama-3.2-1B"),
        ("/home/me/llama", "llama"),
        ("./models/llama", "llama"),
        ("~/llama/", "llama"),
        ("a/b/c", "c"),
        ("", ""),
    ],
)
def test_only_names_of_the_hub_are_named_in_full(path, name):
    assert model_card.public_name(path) == name


def test_there_may_be_no_metrics_and_no_bundle(facts, tmp_path):
    assert model_card.last_metrics(tmp_path / "metrics.jsonl") == {}
    text = model_card.card(replace(facts, metrics={}, bundle_digest="", recipe=""))
    assert "| metric |" not in text and "digest of the bundle" not in text and "| recipe" not in text


@pytest.mark.parametrize(
    "line",
    [b'{"step": 2, "lo', b"\xff\x00", b"[]", b"7", b'{"further": [1]}', b'{"step": 2, "further": {"a": {}}}', b""],
    ids=["cut", "bytes", "list", "number", "metrics", "metric", "empty"],
)
def test_a_malformed_line_of_the_metrics_does_not_end_the_export(tmp_path, line):
    file = tmp_path / "metrics.jsonl"
    file.write_bytes(json.dumps(STEP).encode() + b"\n" + line + b"\n" + line)
    assert model_card.last_metrics(file) == {"loss": 2.5, "learning_rate": 1e-4}
