"""Twenty optimizer steps against a plain loop over transformers' own forward pass."""

import math

import pytest
import torch

from . import runs
from .cases import LORA, compiled, conversations, inputs

pytestmark = pytest.mark.slow
STEPS, BATCH, PEAK, WARMUP = 20, 4, 2e-3, 0.1


def loop(config, folder, samples, order, *, lora):
    """Return the losses of training by transformers, PEFT and torch alone, and the trained parameters."""
    from peft import LoraConfig, get_peft_model
    from transformers import AutoConfig, AutoModelForCausalLM

    described = dict(inputs(config, folder).config)
    torch.manual_seed(config["training_config"]["training_args"]["seed"])
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**described), attn_implementation="eager")
    if lora:
        torch.manual_seed(config["training_config"]["training_args"]["seed"])
        wanted = {
            key: LORA[key] for key in ("task_type", "r", "lora_alpha", "lora_dropout", "bias", "target_modules")
        }
        model = get_peft_model(model, LoraConfig(**wanted))
    trained = {name: each for name, each in model.named_parameters() if each.requires_grad}
    decayed = [each for name, each in trained.items() if "norm" not in name and not name.endswith("bias")]
    others = [each for name, each in trained.items() if "norm" in name or name.endswith("bias")]
    groups = [{"params": decayed, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW([each for each in groups if each["params"]], betas=(0.9, 0.95))
    model.train()
    losses = []
    for step in range(STEPS):
        parts, tokens = [], 0
        for index in order[step * BATCH : (step + 1) * BATCH]:
            ids, flags = (torch.from_numpy(each.astype("int64")) for each in samples.sample(index))
            logits = model(input_ids=ids[None], attention_mask=torch.ones_like(ids[None])).logits[0, :-1]
            labels = ids[1:].masked_fill(flags[1:] == 0, -100)
            parts.append(torch.nn.functional.cross_entropy(logits, labels, reduction="sum", ignore_index=-100))
            tokens += int(flags[1:].sum())
        loss = torch.stack(parts).sum() / tokens
        loss.backward()
        torch.nn.utils.clip_grad_norm_(list(trained.values()), 1.0)
        progress = (step + 0.5) / STEPS
        rest = (progress - WARMUP) / (1 - WARMUP)
        rate = PEAK * (progress / WARMUP if progress < WARMUP else (1 + math.cos(math.pi * rest)) / 2)
        for group in optimizer.param_groups:
            group["lr"] = rate
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses, {f"model.{name}": each.detach() for name, each in trained.items()}


@pytest.mark.parametrize(("model", "lora"), [("llama", True), ("qwen2", False)], ids=["lora", "full_with_biases"])
def test_twenty_steps_are_those_of_a_plain_loop(tmp_path, model, lora):
    samples = conversations(STEPS * BATCH // 2, longest=24)
    args = {"train_batch_size": BATCH, "micro_train_batch_size": 2, "learning_rate": PEAK, "weight_decay": 0.1}
    config = compiled(model, lora=lora, **args)

    def watch(training):
        order = training.job.sampler.stream.indices(range(STEPS * BATCH)).tolist()
        return lambda: (runs.trained(training), order)

    found, order = runs.train(tmp_path / "ours", 1, config, samples, watch=watch)
    losses, parameters = loop(config, tmp_path, samples, order, lora=lora)
    assert runs.losses(tmp_path / "ours") == pytest.approx(losses, abs=1e-4)
    assert sum(losses[10:]) < sum(losses[:10])
    assert found.keys() == parameters.keys()
    for name, value in found.items():
        torch.testing.assert_close(value, parameters[name], rtol=0, atol=1e-4)
