"""The gradients that a rank of the open trainer holds between the passes of a step."""

import pytest
from gradient_memory import complete_bytes, gradient_bytes

from . import runs
from .cases import compiled, conversations, fsdp

pytestmark = pytest.mark.slow
CASES = {
    "full": (2, 2, False, {}),
    "lora": (2, 2, True, {}),
    "full_offloaded": (2, 2, False, fsdp(cpu_offload=True)),
    "full_keeps_gathered": (2, 2, False, fsdp(sharding_strategy="SHARD_GRAD_OP")),
    "full_hybrid": (4, 2, False, fsdp(sharding_strategy="HYBRID_SHARD")),
    "lora_hybrid": (4, 2, True, fsdp(sharding_strategy="HYBRID_SHARD")),
    "full_replicated": (2, 1, False, fsdp(sharding_strategy="NO_SHARD")),
    "lora_replicated": (2, 1, True, fsdp(sharding_strategy="NO_SHARD")),
}
"""Ranks, ranks among which gradients are divided, whether adapters are trained, and further arguments."""


@pytest.mark.parametrize("case", CASES)
def test_a_rank_holds_its_part_of_the_gradients_and_losses_are_those_of_one_process(tmp_path, case):
    ranks, shards, lora, changes = CASES[case]
    args = {"train_batch_size": 12, "micro_train_batch_size": 1, "max_epochs": 1} | changes
    config, samples = compiled("llama", lora=lora, **args), conversations(24)
    runs.train(tmp_path / "alone", 1, config, samples)

    def watch(training):
        found, outcome = [], training.objective.outcome

        def measured(root, *rows):
            found.append((training.job.step, gradient_bytes(root)))
            return outcome(root, *rows)

        training.objective.outcome = measured
        return lambda: (found, complete_bytes(training.root))

    found, complete = runs.train(tmp_path / "ranks", ranks, config, samples, per_node=2, watch=watch)
    held = [each for step, each in found if step == 0][1:]  # before the second pass, and each one after it
    assert len(held) == 12 // ranks - 1
    assert not any(each.unsharded for each in held)
    assert all(complete / shards <= each.total <= complete * (1 / shards + 0.05) for each in held)
    assert any(each.partial for each in held) is ("hybrid" in case)
    assert runs.losses(tmp_path / "ranks") == pytest.approx(runs.losses(tmp_path / "alone"), rel=1e-6)
