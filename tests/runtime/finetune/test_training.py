"""A training on one, two and three ranks: the same losses, whichever technique, model and division of the ranks."""

import json

import pytest
import torch
from runtime_ranks import run_ranks

from launcher.runtime.finetune import trainer
from launcher.runtime.finetune.settings import settings_of

from .cases import MODELS, compiled, conversations, inputs, pairs, preload, prepared

pytestmark = pytest.mark.slow


def losses(folder, ranks, config, samples):
    """Return the loss of each step of a training on so many ranks."""
    preload(config)
    folder.mkdir()

    def work(place):
        torch.use_deterministic_algorithms(True)
        settings = settings_of(config, place.world_size)
        training = trainer.FineTuning(settings, inputs(config, folder), place, folder, prepared(samples))
        assert training.run()

    run_ranks(ranks, work, folder)
    return [json.loads(line)["loss"] for line in (folder / "metrics.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("technique", ["sft", "dpo"])
def test_every_architecture_trains_the_same_on_three_ranks(tmp_path, model, technique):
    samples = (conversations if technique == "sft" else pairs)(17)
    config = compiled(model, technique, train_batch_size=6, micro_train_batch_size=2)
    alone = losses(tmp_path / "alone", 1, config, samples)
    assert len(alone) == 6 and sum(alone[3:]) < sum(alone[:3])
    assert losses(tmp_path / "three", 3, config, samples) == pytest.approx(alone, abs=1e-6)
