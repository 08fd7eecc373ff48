"""The bounds of Nova's keys, by technique, generation, size and whether adapters are trained."""

import pytest

from launcher.families.amazon_nova.limits import LIMITS, Limit, limits
from launcher.families.amazon_nova.techniques import Technique

BATCH = "training_config.global_batch_size"
MODEL_LORA, LORA = "training_config.model.peft.lora_tuning", "training_config.peft.lora_tuning"
TRAINER = "training_config.trainer"
SCALES = "32, 64, 96, 128, 160, 192"
ADAPTERS = {f"{MODEL_LORA}.alpha": SCALES, f"{MODEL_LORA}.loraplus_lr_ratio": "1 to 70"}
ADAPTERS_2 = {f"{LORA}.alpha": SCALES, f"{LORA}.lora_plus_lr_ratio": "1 to 70"}
REWARDED = {
    f"{TRAINER}.max_steps": "5 to 100000",
    "training_config.max_length": "4096 to 32768",
    f"{TRAINER}.peft.lora_tuning.alpha": "16, 32, 64",
}
OF_JOB = REWARDED | {f"{TRAINER}.optim_config.lr": "1e-07 to 0.001"}
ACTOR = "ppo_actor_train.model.global_batch_size", "run.actor_train_replicas"


@pytest.mark.parametrize(
    ("technique", "generation", "size", "is_lora", "allowed"),
    [
        (Technique.SFT, 1, "nova-lite", True, {BATCH: "16, 32, 64"} | ADAPTERS | ADAPTERS_2),
        (
            Technique.SFT,
            2,
            "nova-lite",
            False,
            {BATCH: "32, 64, 128, 256", "training_config.max_steps": "4 to 100000"} | ADAPTERS | ADAPTERS_2,
        ),
        (Technique.DPO, 1, "nova-pro", True, {BATCH: "16, 32, 64"} | ADAPTERS),
        (Technique.DPO, 1, "nova-pro", False, {BATCH: "16, 32, 64, 128"} | ADAPTERS),
        (Technique.CPT, 1, "nova-micro", False, {BATCH: "32, 64, 128, 256"}),
        (
            Technique.CPT,
            2,
            "nova-lite",
            False,
            {BATCH: "32, 64, 128, 256", f"{TRAINER}.max_steps": "10 to 100000"},
        ),
        (
            Technique.RFT,
            2,
            "nova-lite",
            True,
            {
                BATCH: "16 to 256",
                f"{TRAINER}.optim_config.lr": "1e-08 to 0.001",
                f"{TRAINER}.peft.lora_tuning.loraplus_lr_ratio": "1 to 70",
            }
            | REWARDED,
        ),
        (Technique.RFT_JOB, 2, "nova-lite", True, {BATCH: "16 to 128"} | OF_JOB),
        (Technique.RFT_JOB, 2, "nova-lite", False, {BATCH: "16 to 256"} | OF_JOB),
        (Technique.PPO, 1, "nova-micro", False, dict(zip(ACTOR, ("256", "2"), strict=True))),
        (Technique.PPO, 1, "nova-lite", False, dict(zip(ACTOR, ("160", "2"), strict=True))),
        (Technique.PPO, 1, "nova-pro", False, dict(zip(ACTOR, ("160", "6"), strict=True))),
        (Technique.DISTILLATION, 1, "nova-pro", False, {"training_config.maxResponseLength": "5000 to 5120"}),
        (Technique.EVALUATION, 1, "nova-pro", False, {}),
        (Technique.EVALUATION, 2, "nova-lite", False, {"inference.max_new_tokens": "0 to 32768"}),
    ],
)
def test_the_limits_of_a_recipe(technique, generation, size, is_lora, allowed):
    found = list(limits(technique, generation, size, is_lora=is_lora))
    assert {limit.key: limit.allowed for limit in found} == allowed and len(found) == len(allowed)


@pytest.mark.parametrize("limit", LIMITS)
def test_a_limit_holds_for_its_bounds_and_for_nothing_beyond(limit):
    inside = limit.values or (limit.least, limit.most, (limit.least + limit.most) / 2)
    assert all(map(limit.holds, inside))
    step = min(inside) / 10 or 1
    assert not any(map(limit.holds, (min(inside) - step, max(inside) + step)))


def test_between_listed_values_nothing_is_allowed():
    assert not Limit(BATCH, (Technique.SFT,), (16, 32)).holds(24)
