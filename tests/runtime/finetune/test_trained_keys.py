"""Keys of a recipe that the open trainer realizes in its loop: another value changes what the key says."""

import math

import pytest
import torch
from torch.nn.utils import get_total_norm

from launcher.runtime.finetune import models
from launcher.runtime.finetune.models import adamw
from launcher.runtime.finetune.objectives import LossUnknown, Preference, preference_losses
from launcher.runtime.finetune.schedules import DECAY_PART, MIN_RATIO, NAMES, ScheduleUnknown, learning_rate
from launcher.runtime.finetune.settings import LOSSES, PreferenceSettings, settings_of
from launcher.runtime.training_config import Schedule

from . import runs
from .cases import MODELS, compiled, conversations, fsdp, pairs

slow = pytest.mark.slow
SMALL = {"train_batch_size": 4, "micro_train_batch_size": 2}
CPU = torch.device("cpu")


def saved_steps(folder):
    return sorted(int(each.name.removeprefix("step-")) for each in (folder / "checkpoints").glob("step-*"))


def gradient_norms(training):
    """Record the norm of the gradients that each optimizer step sees."""
    found = []
    parameters = models.trained_parameters(training.model)
    training.optimizer.register_step_pre_hook(
        lambda *_: found.append(get_total_norm([each.grad for each in parameters]).item())
    )
    return lambda: found


@slow
@pytest.mark.parametrize("clips", [True, False], ids=["on", "off"])
def test_gradients_are_clipped_to_the_threshold_if_the_recipe_says_so(tmp_path, clips):
    args = {"gradient_clipping": clips, "gradient_clipping_threshold": 0.01, "max_norm": 5.0}
    seen = runs.train(tmp_path, 1, compiled(**SMALL, **args), conversations(8), watch=gradient_norms)
    reported = [line["grad_norm"] for line in runs.metrics(tmp_path)]
    assert min(reported) > 0.02
    assert seen == pytest.approx([0.01] * 4 if clips else reported, rel=1e-3)


@slow
@pytest.mark.parametrize("model", MODELS)
def test_weight_decay_applies_to_the_parameters_that_transformers_names(tmp_path, model):
    from transformers import Trainer

    from . import trl_trainers

    config = compiled(model, lora=False, weight_decay=0.3)
    built = trl_trainers.model_of(config, tmp_path)
    names = {parameter: name for name, parameter in built.named_parameters()}
    groups = adamw(built, settings_of(config, 1).optimizer, CPU).param_groups
    decayed = {names[each] for group in groups if group["weight_decay"] == 0.3 for each in group["params"]}
    theirs = set(Trainer.get_decay_parameter_names(None, built))  # a tied parameter by both of its names
    assert decayed == theirs & set(names.values())
    others = {names[each] for group in groups if group["weight_decay"] == 0.0 for each in group["params"]}
    assert decayed | others == set(names.values()) and others


def test_the_other_name_of_weight_decay_is_used_where_there_is_no_weight_decay():
    assert settings_of(compiled(l2=0.2), 1).optimizer.weight_decay == 0.2
    assert settings_of(compiled(l2=0.2, weight_decay=0.1), 1).optimizer.weight_decay == 0.1


SCHEDULES = [(name, warmup) for name in NAMES for warmup in (0.0, 0.1) if (name, warmup) != ("inverse_sqrt", 0.0)]
"""Without a warmup, transformers' inverse_sqrt falls back to 10,000 steps, whatever the length of the training."""


@slow
@pytest.mark.parametrize(("name", "warmup"), SCHEDULES)
def test_learning_rates_have_the_shape_of_those_of_transformers(name, warmup):
    """Ours are those of the middle of a step, so that the first step trains, too."""
    from transformers import get_scheduler

    steps = 2000
    particular = {
        "cosine_with_min_lr": {"min_lr_rate": MIN_RATIO},
        "cosine_warmup_with_min_lr": {"min_lr_rate": MIN_RATIO},
        "warmup_stable_decay": {
            "num_decay_steps": int(DECAY_PART * (1 - warmup) * steps),
            "min_lr_ratio": MIN_RATIO,
        },
    }
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=3.0)
    theirs = get_scheduler(name, optimizer, int(warmup * steps), steps, particular.get(name))
    ahead = 1 if name == "cosine_warmup_with_min_lr" else 0  # of the others
    for step in range(steps - 1):
        rate = learning_rate(Schedule(3.0, name, warmup), (step + ahead) / steps)
        assert rate == pytest.approx(theirs.get_last_lr()[0], abs=1e-6)
        optimizer.step()
        theirs.step()


def test_the_warmup_may_be_given_in_steps():
    """3 of 12 steps are a quarter of the training; more than all of them rise to the end."""
    by_steps = Schedule(1.0, "cosine", 0.9, warmup_steps=3).over(1 / 12)
    assert by_steps == Schedule(1.0, "cosine", 0.25)
    assert Schedule(1.0, "cosine", 0.0, warmup_steps=30).over(1 / 12).warmup_ratio == 1
    assert Schedule(1.0, "cosine", 0.9, warmup_steps=0).over(1 / 12).warmup_ratio == 0
    assert Schedule(1.0, "cosine", 0.9).over(1 / 12).warmup_ratio == 0.9


@pytest.mark.parametrize(("kind", "least"), [("cosine", 0.0), ("cosine_with_min_lr", MIN_RATIO), ("linear", 0.0)])
def test_a_falling_schedule_ends_where_the_recipe_says(kind, least):
    assert learning_rate(Schedule(2.0, kind, 0.0), 1.0) == pytest.approx(2 * least)
    for ratio in (0.0, 0.05, 0.5):
        schedule = Schedule(2.0, kind, 0.1, min_ratio=ratio)
        assert learning_rate(schedule, 1.0) == pytest.approx(2 * ratio)
        assert learning_rate(schedule, 0.1) == pytest.approx(2)


def test_an_unknown_schedule_is_named():
    with pytest.raises(ScheduleUnknown, match="reduce_lr_on_plateau.*supports constant"):
        learning_rate(Schedule(1.0, "reduce_lr_on_plateau", 0.1), 0.5)


@slow
def test_each_step_has_the_learning_rate_of_its_middle(tmp_path):
    runs.train(tmp_path, 1, compiled(**SMALL, lr_scheduler="linear", lr_warmup_ratio=0.25), conversations(10))
    middles = [(min(start + 4, 20) + start) / 40 for start in range(0, 20, 4)]
    expected = [3e-3 * min(each / 0.25, (1 - each) / 0.75) for each in middles]
    assert [line["learning_rate"] for line in runs.metrics(tmp_path)] == pytest.approx(expected)


@slow
@pytest.mark.parametrize(
    ("eval_steps", "expected"),
    [(-1, [3, 5]), (0, [5]), (2, [2, 4]), (1, [1, 2, 3, 4, 5])],
    ids=["each_epoch", "at_the_end", "every_2", "every_1"],
)
def test_evaluation_has_its_rhythm(tmp_path, eval_steps, expected):
    """10 samples, 4 a step: the first epoch ends within step 3, the second with step 5."""
    config = compiled(**SMALL, eval_steps=eval_steps)
    runs.train(tmp_path, 1, config, conversations(10), conversations(5, seed=1))
    found = {line["step"]: line["eval/loss"] for line in runs.lines(tmp_path) if "eval/loss" in line}
    assert list(found) == expected
    assert all(math.isfinite(each) for each in found.values())


@slow
@pytest.mark.parametrize("technique", ["sft", "dpo"])
def test_evaluation_does_not_depend_on_the_number_of_ranks(tmp_path, technique):
    """5 samples on 3 ranks: the last round leaves a rank without one."""
    made = conversations if technique == "sft" else pairs
    for ranks in (1, 3):
        config = compiled("llama", technique, train_batch_size=6, micro_train_batch_size=2, max_epochs=1)
        runs.train(tmp_path / str(ranks), ranks, config, made(6), made(5, seed=1))
    found = [[line for line in runs.lines(tmp_path / each) if "eval/loss" in line] for each in ("1", "3")]
    names = {name for name in found[0][0] if name.startswith("eval/")}
    dpo = {f"eval/rewards/{each}" for each in ("chosen", "rejected", "margin", "accuracy")}
    assert names == {"eval/loss"} | (dpo if technique == "dpo" else set())
    for name in names:
        assert found[1][0][name] == pytest.approx(found[0][0][name], rel=1e-5, abs=1e-6)


@slow
@pytest.mark.parametrize(
    ("save_steps", "expected"),
    [(0, [3, 5]), (-1, [5]), (2, [2, 4, 5])],
    ids=["each_epoch", "at_the_end", "every_2"],
)
def test_checkpoints_have_their_rhythm(tmp_path, save_steps, expected):
    runs.train(tmp_path, 1, compiled(**SMALL, save_steps=save_steps, max_ckpt_num=0), conversations(10))
    assert saved_steps(tmp_path) == expected


@slow
def test_only_so_many_checkpoints_are_kept(tmp_path):
    runs.train(tmp_path, 1, compiled(**SMALL, save_steps=1, max_ckpt_num=2), conversations(10))
    assert saved_steps(tmp_path) == [4, 5]


@slow
@pytest.mark.parametrize("logs", [True, False], ids=["on", "off"])
def test_the_time_of_the_parts_of_a_step_is_reported_if_wanted(tmp_path, logs):
    runs.train(tmp_path, 1, compiled(**SMALL, log_run_time=logs), conversations(4))
    for line in runs.metrics(tmp_path):
        found = {name for name in line if name.startswith("time/")}
        assert found == ({"time/forward_s", "time/backward_s", "time/optimizer_s"} if logs else set())
        assert all(line[name] > 0 for name in found)


@slow
@pytest.mark.parametrize("prefetches", [True, False], ids=["on", "off"])
def test_the_next_block_is_gathered_early_if_wanted(tmp_path, prefetches):
    from torch.distributed.fsdp import FSDPModule

    wanted = []

    def watch(training):
        return lambda: wanted

    before = FSDPModule.set_modules_to_forward_prefetch
    FSDPModule.set_modules_to_forward_prefetch = lambda self, modules: (
        wanted.append(len(modules)),
        before(self, modules),
    )
    try:
        config = compiled(**SMALL, **fsdp(forward_prefetch=prefetches))
        assert len(runs.train(tmp_path, 2, config, conversations(4), watch=watch)) == int(prefetches)
    finally:
        FSDPModule.set_modules_to_forward_prefetch = before


@slow
@pytest.mark.parametrize(
    ("sharding", "stays"), [("FULL_SHARD", False), ("SHARD_GRAD_OP", True)], ids=["full", "grad_op"]
)
def test_blocks_stay_gathered_between_forward_and_backward_if_wanted(tmp_path, sharding, stays):
    def watch(training):
        found = []
        block = models.blocks(training.model)[0]
        outcome = training.objective.outcome

        def observed(*args):
            result = outcome(*args)
            found.append(all(not hasattr(each, "full_tensor") for each in block.parameters()))
            return result

        training.objective.outcome = observed
        return lambda: found

    found = runs.train(
        tmp_path, 2, compiled(**SMALL, **fsdp(sharding_strategy=sharding)), conversations(4), watch=watch
    )
    assert set(found) == {stays}


@slow
@pytest.mark.parametrize(
    ("args", "passes"),
    [
        ({"gradient_checkpointing": False}, 1),
        ({"gradient_checkpointing": True}, 2),
        ({"gradient_checkpointing": True, "gradient_checkpointing_use_reentrant": True}, 2),
        ({"gradient_checkpointing": True} | fsdp(activation_checkpointing=True), 2),
    ],
    ids=["off", "on", "reentrant", "both_keys"],
)
def test_activations_are_recomputed_if_wanted(tmp_path, args, passes):
    def watch(training):
        calls = []
        inner = models.blocks(training.model)[0].self_attn
        inner.register_forward_hook(lambda *_: calls.append(torch.is_grad_enabled()))
        return lambda: calls

    found = runs.train(tmp_path, 1, compiled(**SMALL, max_epochs=1, **args), conversations(4), watch=watch)
    assert len(found) == 2 * passes  # two micro batches


@slow
@pytest.mark.parametrize("lora", [True, False], ids=["lora", "full"])
def test_the_first_loss_of_preferences_is_that_of_a_coin(tmp_path, lora):
    """Dropout in front of new adapters has no effect: they add nothing yet."""
    dropout = {} if not lora else {"peft_config": compiled()["training_config"]["model_config"]["peft_config"]}
    for each in dropout.values():
        each["lora_dropout"] = 0.3
    config = compiled("llama", "dpo", lora=lora, model_changes=dropout, **SMALL)
    runs.train(tmp_path, 2, config, pairs(8))
    first, *others = runs.metrics(tmp_path)
    assert first["loss"] == pytest.approx(math.log(2), abs=1e-6)
    assert first["rewards/chosen"] == pytest.approx(0, abs=1e-6) and first["rewards/accuracy"] < 0.6
    assert all(line["loss"] != pytest.approx(math.log(2), abs=1e-5) for line in others)


@slow
def test_without_a_reference_the_loss_is_of_the_policy_alone(tmp_path):
    losses = []
    for free in (True, False):
        config = compiled("llama", "dpo", reference_free=free, loss_type="sigmoid", beta=0.1, **SMALL)
        runs.train(tmp_path / str(free), 1, config, pairs(8), stop=1)
        losses.append(runs.losses(tmp_path / str(free))[0])
    assert losses[1] == pytest.approx(math.log(2), abs=1e-6) != losses[0]


@slow
def test_the_likelihood_of_chosen_answers_is_added(tmp_path):
    """At the first step the pairs give ln 2, so the rest is the coefficient times the loss of a chosen token."""
    losses = []
    for coef in (0.0, 0.5, 1.0):
        config = compiled("llama", "dpo", nll_loss_coef=coef, **SMALL)
        runs.train(tmp_path / str(coef), 1, config, pairs(8), stop=1)
        losses.append(runs.losses(tmp_path / str(coef))[0])
    nll = losses[2] - losses[0]
    assert nll == pytest.approx(math.log(512), abs=0.5)  # random weights
    assert losses[1] == pytest.approx(losses[0] + nll / 2, abs=1e-5)


GAINS = torch.tensor([[0.7, -0.4], [-1.5, 0.5], [0.0, 0.0]])
TOKENS = torch.tensor([[4, 2], [3, 5], [1, 1]])


@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.4])
def test_label_smoothing_mixes_in_the_loss_of_the_pair_turned_round(smoothing):
    """Mitchell (2023): the expected loss when that part of the labels is wrong."""
    plain = PreferenceSettings("sigmoid", 0.5, 0.0, 0.0, False)
    found = preference_losses(GAINS, TOKENS, PreferenceSettings("sigmoid", 0.5, smoothing, 0.0, False))
    straight, turned = (preference_losses(each, TOKENS, plain) for each in (GAINS, GAINS.flip(1)))
    torch.testing.assert_close(found, (1 - smoothing) * straight + smoothing * turned)


def test_an_unknown_loss_is_named_before_training():
    for name in LOSSES:
        Preference(None, PreferenceSettings(name, 0.1, 0.0, 0.0, False), None)
    with pytest.raises(LossUnknown, match="loss_type='kto'; the open trainer supports sigmoid, ipo, hinge"):
        Preference(None, PreferenceSettings("kto", 0.1, 0.0, 0.0, False), None)


@slow
@pytest.mark.parametrize("dtype", [None, "fp32"])
def test_gradients_are_accumulated_in_32_bits(tmp_path, dtype):
    def watch(training):
        found = set()
        training.optimizer.register_step_pre_hook(
            lambda optimizer, *_: found.update(
                each.grad.dtype for group in optimizer.param_groups for each in group["params"]
            )
        )
        return lambda: found

    config = compiled(**SMALL, grad_accum_dtype=dtype)
    assert runs.train(tmp_path, 1, config, conversations(4), watch=watch) == {torch.float32}
