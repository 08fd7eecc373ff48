"""Fine-tuning across scale events and a killed rank: every sample once, the losses of one uninterrupted process."""

from collections import Counter

import numpy as np
import pytest
import torch

from launcher.runtime.finetune.batches import Batcher
from launcher.runtime.finetune.objectives import PairRows
from launcher.runtime.finetune.token_scores import TokenScorer

from . import runs, trl_trainers
from .cases import compiled, conversations, fsdp, pairs

pytestmark = pytest.mark.slow
SAMPLES, EPOCHS, BATCH = 17, 2, 5
STEPS = -(-SAMPLES * EPOCHS // BATCH)
SPLITS = {1: None, 2: (1, 2, 3), 3: (1, 1, 2)}
"""Ranks with the small batch, that batch, and the large one."""


def uneven(ranks):
    if not SPLITS[ranks]:
        return {}
    keys = ("num_dp_groups_with_small_batch_size", "small_local_batch_size", "large_local_batch_size")
    return {"uneven_batch": dict(zip(keys, SPLITS[ranks], strict=True)) | {"use_uneven_batch": True}}


def args(ranks, **changes):
    """Return the training arguments of a number of ranks; the micro batch is another on each."""
    return {"train_batch_size": BATCH, "micro_train_batch_size": {1: 5, 2: 2, 3: 1}[ranks]} | uneven(ranks) | changes


CASES = {
    "lora": ("llama", "sft", True, {}),
    "lora_tied": ("llama_tied", "sft", True, {}),
    "lora_ddp": ("llama", "sft", True, fsdp(sharding_strategy="NO_SHARD")),
    "lora_offloaded": ("llama", "sft", True, fsdp(cpu_offload=True)),
    "lora_recomputed": ("llama", "sft", True, {"gradient_checkpointing": True}),
    "lora_recomputed_ddp": ("llama", "sft", True, fsdp(sharding_strategy="NO_SHARD", activation_checkpointing=True)),
    "lora_packed": ("qwen3", "sft", True, {"packing_samples": True}),
    "full": ("llama_tied", "sft", False, {}),
    "preferences": ("qwen2", "dpo", True, {}),
    "preferences_full": ("llama", "dpo", False, {}),
}


@pytest.mark.parametrize("case", CASES)
def test_scale_events_change_neither_losses_nor_parameters(tmp_path, case):
    model, technique, lora, changes = CASES[case]
    samples = (conversations if technique == "sft" else pairs)(SAMPLES)

    def config(ranks):
        return compiled(model, technique, lora=lora, **args(ranks, **changes))

    alone = runs.train(tmp_path / "alone", 1, config(1), samples)
    folder = tmp_path / "elastic"
    for ranks, stop in ((1, 2), (2, 4), (3, 5)):
        runs.train(folder, ranks, config(ranks), samples, stop=stop)
    final = runs.train(folder, 1, config(1), samples)

    assert Counter(runs.taken(folder)) == dict.fromkeys(range(SAMPLES), EPOCHS)
    assert len(runs.losses(folder)) == STEPS
    assert runs.losses(folder) == pytest.approx(runs.losses(tmp_path / "alone"), rel=1e-6)
    assert [line["world_size"] for line in runs.metrics(folder)] == [1, 1, 2, 2, 3, 1, 1]
    assert_close(final, alone)


def assert_close(found, expected):
    assert found.keys() == expected.keys() and found
    for name, value in found.items():
        torch.testing.assert_close(
            value, expected[name], rtol=0, atol=1e-5, msg=lambda text, at=name: f"{at}: {text}"
        )


def test_two_by_two_ranks_shard_within_their_nodes(tmp_path):
    samples = conversations(SAMPLES)
    batch = {"train_batch_size": 8, "micro_train_batch_size": 2}
    alone = runs.train(tmp_path / "alone", 1, compiled(**batch), samples)

    def watch(training):
        shapes = {tuple(each.device_mesh.shape) for each in training.root.parameters()}
        return lambda: (shapes, runs.trained(training))

    shapes, found = runs.train(tmp_path / "four", 4, compiled(**batch), samples, per_node=2, watch=watch)
    assert shapes == {(2, 2)}
    assert runs.losses(tmp_path / "four") == pytest.approx(runs.losses(tmp_path / "alone"), rel=1e-6)
    assert_close(found, alone)


def test_the_reference_of_the_base_weights_outlives_a_restart(tmp_path):
    samples, config = pairs(SAMPLES), compiled("llama", "dpo", lora=False, **args(1))
    runs.train(tmp_path, 1, config, samples, stop=3)
    (file,) = tmp_path.glob("reference-train-*.npy")
    before = file.stat()

    def watch(training):
        held, order = np.load(file), training.job.sampler.stream.indices(range(SAMPLES))
        base, rows = trl_trainers.model_of(config, tmp_path), PairRows(samples, order, Batcher(torch.device("cpu")))
        with torch.no_grad():
            log_probs, _ = TokenScorer(base)(rows.batch)
        np.testing.assert_allclose(held[order], rows.sums(log_probs), rtol=1e-6)
        assert (file.stat().st_ino, file.stat().st_mtime_ns) == (before.st_ino, before.st_mtime_ns)

    runs.train(tmp_path, 1, config, samples, watch=watch)


@pytest.mark.parametrize("sharding", ["HYBRID_SHARD", "NO_SHARD"])
def test_steps_after_the_last_checkpoint_are_repeated_after_a_rank_is_killed(tmp_path, sharding):
    samples = conversations(SAMPLES)

    def config(ranks):
        return compiled(**args(ranks, save_steps=2, **fsdp(sharding_strategy=sharding)))

    alone = runs.train(tmp_path / "alone", 1, config(1), samples)
    folder = tmp_path / "killed"
    runs.killed(folder, 3, config(3), samples, step=4)
    final = runs.train(folder, 2, config(2), samples)
    assert runs.losses(folder) == pytest.approx(runs.losses(tmp_path / "alone"), rel=1e-6)
    assert [line["world_size"] for line in runs.metrics(folder)] == [3, 3] + [2] * (STEPS - 2)
    assert_close(final, alone)
