"""verl's recipes really train small models of their architectures, by the configuration that they become."""

import math

import pytest
from conftest import CACHE, frozen_context

from launcher import pipeline
from launcher.families.verl.translation import trained

from . import runs
from .cases import compiled, conversations, pairs

pytestmark = pytest.mark.slow

TRAINING = "recipes.training_config"
SMALL = (
    *("rehearse.ranks=2", f"{TRAINING}.data.train_batch_size=4", f"{TRAINING}.trainer.total_epochs=2"),
    f"{TRAINING}.trainer.save_freq=-1",
)
CASES = {
    "sft of adapters": ("verl-sft-qwen-3-4b-lora", conversations),
    "sft of all weights": ("verl-sft-qwen-3-0-dot-6b-fft", conversations),
    "dpo of adapters": ("verl-dpo-qwen-3-dot-5-4b-lora", pairs),
    "dpo of all weights": ("verl-dpo-qwen-3-dot-5-4b-fft", pairs),
}


def configuration(folder, name, *words):
    """Return what the open trainer reads of a recipe."""
    given = (f"recipes=fine-tuning/qwen-0_7_0/{name}", "rehearse=true", *SMALL, *words)
    return trained(pipeline.prepare(given, frozen_context(folder), CACHE).scales[0].config)


@pytest.mark.parametrize("case", CASES)
def test_a_recipe_trains(tmp_path, case):
    name, samples = CASES[case]
    config = configuration(tmp_path, name, f"{TRAINING}.optim.lr=1e-3")
    trained_parameters = runs.train(tmp_path / "run", 2, config, samples(6))
    found = runs.losses(tmp_path / "run")
    assert len(found) == 3 and all(map(math.isfinite, found))
    assert all(("lora_" in each) == ("adapters" in case) for each in trained_parameters)
    if "dpo" in case:
        assert found[0] == pytest.approx(math.log(2), abs=1e-6) and found[-1] < found[0]


def test_a_recipe_of_verls_and_one_of_llmft_have_the_same_losses(tmp_path):
    """On two ranks and on one: the same numbers in other keys."""
    verl = configuration(
        tmp_path,
        "verl-sft-qwen-3-4b-lora",
        *(f"{TRAINING}.model.lora_rank=8", f"{TRAINING}.model.lora_alpha=16", f"{TRAINING}.optim.lr=1e-3"),
        *(f"{TRAINING}.optim.lr_warmup_steps=1", f"{TRAINING}.optim.min_lr_ratio=0.1"),
        *(f"{TRAINING}.optim.weight_decay=0.01", f"{TRAINING}.optim.betas=[0.9,0.95]"),
    )
    lora = {"r": 8, "lora_alpha": 16, "lora_dropout": 0.0, "bias": "none", "target_modules": "all-linear"}
    path = {"model_name_or_path": "Qwen/Qwen3-4B", "peft_config": lora}
    llmft = compiled(
        "qwen3",
        model_changes=path,
        train_batch_size=4,
        micro_train_batch_size=1,
        learning_rate=1e-3,
        lr_scheduler="cosine_with_min_lr",
        lr_warmup_ratio=0.0,
        lr_warmup_steps=1,
        weight_decay=0.01,
        adam_betas=[0.9, 0.95],
        seed=42,
        gradient_clipping=True,
        gradient_clipping_threshold=1.0,
    )
    runs.train(tmp_path / "verl", 2, verl, conversations(10))
    runs.train(tmp_path / "llmft", 1, llmft, conversations(10))
    found, expected = ([line["loss"] for line in runs.metrics(tmp_path / each)] for each in ("verl", "llmft"))
    assert len(found) == 5 and found == pytest.approx(expected, rel=1e-5)
    rates = [[line["learning_rate"] for line in runs.metrics(tmp_path / each)] for each in ("verl", "llmft")]
    assert rates[0] == pytest.approx(rates[1])
