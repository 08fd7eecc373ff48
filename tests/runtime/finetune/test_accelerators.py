"""What the trainer would do on accelerators, as far as a machine without one can show it.

The plans for CUDA are compared with a table, and carried out by ranks on the CPU: the same precision, layout and
collectives.
"""

import threading
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.debug import CommDebugMode

from launcher.runtime.finetune import batches, models, parallel, trainer
from launcher.runtime.finetune.batches import Batcher, layer_masks
from launcher.runtime.finetune.models import adamw
from launcher.runtime.finetune.objectives import PairRows
from launcher.runtime.finetune.parallel import Plan, plan_of
from launcher.runtime.finetune.settings import ParallelSettings, settings_of
from launcher.runtime.process_group import Place

from . import runs
from .cases import compiled, conversations, fsdp, inputs, pairs

BF16 = torch.bfloat16
NODE, NODES = (8, 8), (16, 8)
"""Ranks, and ranks on a node."""
SHARDED = Plan(mesh=(8,), shard_dtype=BF16, pins=True)
REPLICAS = Plan(exchanges=True, autocast=BF16, pins=True)


def place_on(kind, ranks, per_node):
    return Place(0, ranks, 0, per_node, torch.device(kind, 0) if kind == "cuda" else torch.device(kind))


@pytest.mark.parametrize(
    ("sharding", "changes", "ranks", "freezes", "plan"),
    [
        ("FULL_SHARD", {}, NODE, False, SHARDED),
        ("FULL_SHARD", {}, NODE, True, SHARDED),
        ("FULL_SHARD", {"prefetches": True}, NODE, False, replace(SHARDED, prefetches=True)),
        ("FULL_SHARD", {"offloads": True}, NODE, False, replace(SHARDED, offloads=True)),
        ("SHARD_GRAD_OP", {}, NODE, False, replace(SHARDED, reshards=False)),
        ("HYBRID_SHARD", {}, NODE, False, SHARDED),
        ("HYBRID_SHARD", {}, NODES, False, replace(SHARDED, mesh=(2, 8))),
        ("_HYBRID_SHARD_ZERO2", {}, NODES, False, replace(SHARDED, mesh=(2, 8), reshards=False)),
        ("NO_SHARD", {}, NODE, False, REPLICAS),
        ("NO_SHARD", {}, NODES, True, REPLICAS),
        ("NO_SHARD", {}, (1, 1), False, replace(REPLICAS, exchanges=False)),
        ("FULL_SHARD", {}, (1, 1), False, replace(SHARDED, mesh=(1,))),
        ("FULL_SHARD", {}, (1, 1), True, replace(REPLICAS, exchanges=False)),
        ("FULL_SHARD", {"offloads": True}, (1, 1), True, replace(SHARDED, mesh=(1,), offloads=True)),
    ],
)
def test_the_plan_on_gpus(sharding, changes, ranks, freezes, plan):
    settings = ParallelSettings(**{"sharding": sharding, "offloads": False, "recomputes": False, "prefetches": False})
    settings = replace(settings, **changes)
    assert plan_of(settings, place_on("cuda", *ranks), freezes=freezes) == plan
    on_cpu = plan_of(settings, place_on("cpu", *ranks), freezes=freezes)
    assert (on_cpu.autocast, on_cpu.shard_dtype, on_cpu.pins) == (None, None, False)


def test_matrix_products_in_32_bits_stay_exact():
    """The frequencies of rotary embeddings are one: TF32 has 10 bits for positions of up to 131,072."""
    assert torch.get_float32_matmul_precision() == "highest"
    assert not torch.backends.cuda.matmul.allow_tf32


@pytest.mark.slow
@pytest.mark.parametrize("bias", ["none", "all"])
@pytest.mark.parametrize("lora", [True, False])
def test_weights_on_gpus_train_in_32_bits_and_are_frozen_in_16(tmp_path, lora, bias):
    config = compiled("qwen2", lora=lora)
    if lora:
        config["training_config"]["model_config"]["peft_config"] |= {"bias": bias}
    given = inputs(config, tmp_path)
    model, _ = models.built(given.config, settings_of(config, 1), torch.device("cuda"), has_weights=True)
    found = {parameter.requires_grad: set() for parameter in model.parameters()}
    for parameter in model.parameters():
        found[parameter.requires_grad].add(parameter.dtype)
    assert found == ({True: {torch.float32}, False: {BF16}} if lora else {True: {torch.float32}})


def test_the_optimizer_on_gpus_is_fused():
    settings = settings_of(compiled(), 1).optimizer
    found = {kind: adamw(torch.nn.Linear(2, 2), settings, torch.device(kind)) for kind in ("cuda", "cpu")}
    assert found["cuda"].defaults["fused"] and not found["cpu"].defaults["fused"]


def as_on_gpus(monkeypatch):
    """Carry out the plans for CUDA on the CPU, where memory cannot be pinned."""

    def planned(settings, place, *, freezes):
        kind = replace(place, device=torch.device("cuda", place.local_rank))
        return replace(plan_of(settings, kind, freezes=freezes), pins=False)

    monkeypatch.setattr(parallel, "plan_of", planned)
    for module in (models, trainer):
        monkeypatch.setattr(module, "compute_dtype", lambda device: BF16)


CASES = {
    "full": (2, "llama", "sft", False, {}),
    "full_tied_recomputed": (2, "llama_tied", "sft", False, {"gradient_checkpointing": True}),
    "full_replicated": (2, "llama", "sft", False, fsdp(sharding_strategy="NO_SHARD")),
    "full_replicated_recomputed": (
        2,
        "qwen3",
        "sft",
        False,
        fsdp(sharding_strategy="NO_SHARD") | {"gradient_checkpointing": True},
    ),
    "full_keeps_gathered": (2, "llama", "sft", False, fsdp(sharding_strategy="SHARD_GRAD_OP")),
    "full_on_one": (1, "llama", "sft", False, {}),
    "full_hybrid": (4, "llama", "sft", False, fsdp(sharding_strategy="HYBRID_SHARD")),
    "full_preferences": (2, "llama", "dpo", False, {}),
    "lora": (2, "qwen2", "sft", True, {}),
    "lora_on_one": (1, "llama", "sft", True, {}),
    "lora_replicated": (2, "llama", "sft", True, fsdp(sharding_strategy="NO_SHARD")),
    "lora_of_experts": (2, "gpt_oss", "sft", True, {"packing_samples": True}),
    "lora_of_experts_on_one": (1, "gpt_oss", "sft", True, {"packing_samples": True}),
    "lora_of_biases": (2, "qwen2", "sft", True, {}),
    "lora_preferences": (2, "llama4_text", "dpo", True, {}),
    "lora_preferences_keep_gathered": (2, "llama", "dpo", True, fsdp(sharding_strategy="SHARD_GRAD_OP")),
    "lora_preferences_replicated": (2, "llama", "dpo", True, fsdp(sharding_strategy="NO_SHARD")),
}


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_the_plans_for_gpus_compute_in_16_bits_and_train_in_32(tmp_path, monkeypatch, case):
    ranks, model, technique, lora, changes = CASES[case]
    samples = (conversations if technique == "sft" else pairs)(12)
    config = compiled(
        model, technique, lora=lora, train_batch_size=4, micro_train_batch_size=1, max_epochs=1, **changes
    )
    peft = config["training_config"]["model_config"]["peft_config"]
    if "experts" in case:
        peft |= {"target_parameters": ["mlp.experts.gate_up_proj", "mlp.experts.down_proj"]}
    if "biases" in case:
        peft |= {"bias": "all"}
    runs.train(tmp_path / "exact", 1, config, samples)
    as_on_gpus(monkeypatch)

    def watch(training):
        seen = set()
        for module in training.model.modules():
            if type(module) is torch.nn.Linear:
                module.register_forward_hook(lambda _, given, output: seen.add(output.dtype))
        gradients = set()
        step = training.optimizer.step

        def stepped():
            gradients.update(each.grad.dtype for each in models.trained_parameters(training.model))
            step()

        training.optimizer.step = stepped
        return lambda: (seen, gradients, {each.dtype for each in models.trained_parameters(training.model)})

    seen, gradients, trained = runs.train(tmp_path / "gpu", ranks, config, samples, per_node=2, watch=watch)
    assert seen == {BF16} and gradients == {torch.float32} and trained == {torch.float32}
    exact, found = runs.losses(tmp_path / "exact"), runs.losses(tmp_path / "gpu")
    assert found == pytest.approx(exact, rel=5e-3) and found != pytest.approx(exact, rel=1e-7)


@pytest.mark.slow
def test_a_pass_gathers_embedding_and_head_once(tmp_path):
    config = compiled(lora=False, train_batch_size=2, micro_train_batch_size=1, max_epochs=1)

    def watch(training):
        counts = []
        outcome, backward = training.objective.outcome, torch.autograd.backward
        modes = []

        def forward(*given):
            modes.append(CommDebugMode())
            modes[-1].__enter__()
            return outcome(*given)

        def counted(loss):
            backward(loss)
            modes[-1].__exit__(None, None, None)
            counts.append({str(each): count for each, count in modes[-1].get_comm_counts().items()})

        training.objective.outcome, torch.autograd.backward = forward, counted
        return lambda: counts

    counts = runs.train(tmp_path, 2, config, conversations(4), watch=watch)
    blocks = 2
    for count in counts:
        assert count["c10d._allgather_base_"] == 2 * blocks + 1  # forward and backward; the root once
        assert count["c10d._reduce_scatter_base_"] == blocks + 1


@pytest.mark.slow
@pytest.mark.parametrize("sharding", ["FULL_SHARD", "SHARD_GRAD_OP"])
@pytest.mark.parametrize("technique", ["sft", "dpo"])
def test_nothing_stays_gathered_after_an_evaluation(tmp_path, monkeypatch, sharding, technique):
    """Otherwise the results, which are written after it, were copies in 16 bits rather than the trained weights."""
    samples = conversations if technique == "sft" else pairs
    config = compiled(
        "llama", technique, lora=False, train_batch_size=4, max_epochs=1, **fsdp(sharding_strategy=sharding)
    )
    as_on_gpus(monkeypatch)

    def watch(training):
        evaluate, found = training._evaluate, []

        def evaluated():
            metrics = evaluate()
            found.append({type(each) for each in training.root.parameters()})
            return metrics

        training.job._hooks = replace(training.job._hooks, evaluate=evaluated)
        return lambda: (found, all(isinstance(each, DTensor) for each in training.root.parameters()))

    found, are_sharded = runs.train(tmp_path, 2, config, samples(8), samples(3, seed=4), watch=watch)
    assert found and are_sharded
    assert all(issubclass(kind, DTensor) for kinds in found for kind in kinds)


def test_rows_are_made_ahead_in_another_thread_and_in_order():
    made, drawn = [], iter(range(6))

    def make(item):
        made.append((item, threading.current_thread().name))
        return 10 * item

    rows = batches.ahead(drawn, make, torch.device("cpu"))
    assert made == []
    assert next(rows) == 0
    assert next(drawn) == batches.DEPTH + 1  # so many were drawn, and no more
    assert list(rows) == [10, 20, 40, 50]
    assert {name.partition("_")[0] for _, name in made} == {"batches"}


def test_an_error_in_making_rows_ends_training_where_they_are_used():
    def make(item):
        if item == 1:
            raise OSError("a disk fails")
        return item

    rows = batches.ahead(range(3), make, torch.device("cpu"))
    assert next(rows) == 0
    with pytest.raises(OSError, match="a disk fails"):
        next(rows)


def test_rows_for_a_gpu_are_laid_out_in_pinned_memory_and_copied_without_waiting(monkeypatch):
    """The process has no GPU: what would be pinned and copied is recorded."""
    pinned, copied = [], []
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda self: pinned.append(self) or self)
    monkeypatch.setattr(
        torch.Tensor, "to", lambda self, device, **options: copied.append((self, device, options)) or self
    )
    batcher = Batcher(torch.device("cuda", 3))
    rows = PairRows(pairs(3), [0, 2], batcher)
    assert len(pinned) == 5 and not copied
    assert rows.batch.ids is not None and rows.num_tokens.shape == (2, 2)
    assert {device for _, device, _ in copied} == {torch.device("cuda", 3)}
    assert all(options == {"non_blocking": True} for _, _, options in copied)
    assert {id(tensor) for tensor, _, _ in copied} >= {id(tensor) for tensor in pinned}


@pytest.mark.slow
def test_masks_of_packed_rows_have_the_precision_of_the_model_on_gpus(tmp_path):
    config = compiled("gpt_oss")
    model, _ = models.built(
        inputs(config, tmp_path).config, settings_of(config, 1), torch.device("cpu"), has_weights=False
    )
    row = batches.packed([(np.arange(3), np.ones(3, np.uint8)), (np.arange(2), np.ones(2, np.uint8))])
    assert {mask.dtype for mask in layer_masks(model, BF16)(row).mask.values()} == {BF16}
    assert {mask.dtype for mask in layer_masks(model)(row).mask.values()} == {torch.float32}
