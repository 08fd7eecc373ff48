"""Losses and gradients against TRL's trainers, on the same models and batches."""

from pathlib import Path

import pytest
import torch

from . import runs, trl_trainers
from .cases import compiled, conversations, fsdp, pairs

pytestmark = pytest.mark.slow
BATCH = 6
ARGS = {"train_batch_size": BATCH, "gradient_clipping": False, "label_smoothing": 0.0}


def disturb(model):
    """Move the trained parameters, so that adapters have an effect and the reference is another model."""
    random = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter += 0.05 * torch.randn(parameter.shape, generator=random)


def first_gradients(training):
    """Record the gradients of the first optimizer step, and the samples of its micro batches."""
    found = {}
    training.objective.prepare(lambda: False)  # the reference is the model as it was
    training.objective.prepare = lambda _: True
    disturb(training.model)

    def record(optimizer, *_):
        names = {parameter: name.removeprefix("module.") for name, parameter in training.root.named_parameters()}
        for group in optimizer.param_groups:
            found.update({names[each]: each.grad.clone() for each in group["params"]})

    training.optimizer.register_step_pre_hook(record)
    order = training.job.sampler.stream.indices(range(BATCH)).tolist()
    return lambda: (found, order)


def ours(folder: Path, config, samples):
    """Return the loss and the gradients of the first optimizer step, and the samples in it."""
    found, order = runs.train(folder, 1, config, samples, stop=1, watch=first_gradients)
    return runs.losses(folder)[0], found, order


def gradients(model):
    return {f"model.{name}": each.grad for name, each in model.named_parameters() if each.requires_grad}


def assert_equal(found, expected):
    assert found.keys() == expected.keys()
    for name, value in found.items():
        torch.testing.assert_close(
            value, expected[name], rtol=0, atol=1e-5, msg=lambda text, at=name: f"{at}: {text}"
        )


SFT_CASES = [("llama", True, 0.0), ("llama_tied", False, 0.0), ("qwen2", True, 0.0), ("gpt_oss", True, 0.05)]


@pytest.mark.parametrize(("model", "lora", "aux"), SFT_CASES, ids=["lora", "full_tied", "qwen2", "gpt_oss_aux"])
def test_supervised_loss_and_gradients_are_those_of_trl(tmp_path, model, lora, aux):
    samples = conversations(9)
    config = compiled(
        model, lora=lora, aux_loss_coef=aux, micro_train_batch_size=2, **ARGS, **fsdp(sharding_strategy="NO_SHARD")
    )
    loss, found, order = ours(tmp_path / "ours", config, samples)

    rows = []
    for index in order:
        ids, trained = (each.astype(int).tolist() for each in samples.sample(index))
        labels = [each if flag else -100 for each, flag in zip(ids, trained, strict=True)]
        rows.append({"input_ids": ids, "labels": labels})
    theirs = trl_trainers.sft_trainer(config, tmp_path, rows, router_aux_loss_coef=aux or None)
    disturb(theirs.model.train())
    theirs.current_gradient_accumulation_steps = BATCH // 2
    tokens = sum(label != -100 for row in rows for label in row["labels"][1:])
    total = 0.0
    for start in range(0, BATCH, 2):
        batch = theirs.data_collator(rows[start : start + 2])
        part = theirs.compute_loss(theirs.model, batch, num_items_in_batch=torch.tensor(tokens))
        part.backward()
        total += part.item()
    weighted_aux = aux * sum(theirs._metrics["train"]["aux_loss"]) / 3 if aux else 0.0
    assert loss == pytest.approx(total - weighted_aux, abs=1e-5)
    assert_equal(found, gradients(theirs.model))


DPO_CASES = {
    "sigmoid": ("llama", True, 2, {"loss_type": "sigmoid"}, {"loss_type": "sigmoid"}),
    "ipo": ("llama", True, 2, {"loss_type": "ipo"}, {"loss_type": "ipo"}),
    "hinge": ("llama", True, 2, {"loss_type": "hinge"}, {"loss_type": "hinge"}),
    "full": ("qwen3", False, 2, {"loss_type": "sigmoid"}, {"loss_type": "sigmoid"}),
    "gpt_oss_aux": (
        "gpt_oss",
        True,
        2,
        {"loss_type": "sigmoid", "aux_loss_coef": 0.05},
        {"router_aux_loss_coef": 0.05},
    ),
    # TRL's sigmoid ignores smoothing; its loss of sorted margins is the smoothed sigmoid for a single pair.
    "smoothed": (
        "llama",
        True,
        1,
        {"loss_type": "sigmoid", "label_smoothing": 0.1},
        {"loss_type": "aot", "label_smoothing": 0.1},
    ),
}
"""Model, whether with adapters, micro batch, and the loss by our names and by TRL's."""


@pytest.mark.parametrize("case", DPO_CASES)
def test_preference_losses_and_gradients_are_those_of_trl(tmp_path, case):
    model, lora, micro, settings, their_settings = DPO_CASES[case]
    samples = pairs(9)
    config = compiled(
        model,
        "dpo",
        lora=lora,
        **ARGS | settings,
        beta=0.5,
        micro_train_batch_size=micro,
        **fsdp(sharding_strategy="NO_SHARD"),
    )
    loss, found, order = ours(tmp_path / "ours", config, samples)

    theirs = trl_trainers.dpo_trainer(config, tmp_path, beta=0.5, **their_settings)
    disturb(theirs.model.train())
    total = 0.0
    for start in range(0, BATCH, micro):
        parts = [samples.sample(index) for index in order[start : start + micro]]
        keys = ("prompt_ids", "chosen_ids", "rejected_ids")
        rows = [dict(zip(keys, (each.astype(int).tolist() for each in part), strict=True)) for part in parts]
        part = theirs.compute_loss(theirs.model, theirs.data_collator(rows)) * micro / BATCH
        part.backward()
        total += part.item()
    weighted_aux = settings.get("aux_loss_coef", 0) * sum(theirs._metrics["train"]["aux_loss"]) * micro / BATCH
    assert loss == pytest.approx(total - weighted_aux, abs=1e-5)
    assert_equal(found, gradients(theirs.model))
