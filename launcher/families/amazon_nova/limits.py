"""Bounds of keys that depend on the technique, the generation or the size of the model.

Source: the parameters of the published recipes. A bound that all recipes share is in the key's own declaration.
"""

from collections.abc import Iterator
from typing import NamedTuple

from launcher.families.amazon_nova.techniques import Technique

_BATCH = "training_config.global_batch_size"
_ALPHA = (32, 64, 96, 128, 160, 192)
_RFT = (Technique.RFT, Technique.RFT_JOB)
_RFT_TRAINER = "training_config.trainer"


class Limit(NamedTuple):
    """The values that a key may have in some recipes: those listed, or a range."""

    key: str
    """Dotted path in the recipe."""
    techniques: tuple[Technique, ...]
    values: tuple[int, ...] = ()
    least: float = float("-inf")
    most: float = float("inf")
    generation: int | None = None
    """Of the models that it holds for; None for any."""
    is_lora: bool | None = None
    """Whether it holds for adapters or for all weights; None for both."""
    sizes: tuple[str, ...] = ()
    """Sizes of the models that it holds for, by `run.model_name_or_path`; none for any."""

    @property
    def allowed(self) -> str:
        """The values for people."""
        return ", ".join(map(str, self.values)) or f"{self.least:g} to {self.most:g}"

    def holds(self, value: float) -> bool:
        """Return whether a value is allowed."""
        return value in self.values if self.values else self.least <= value <= self.most


LIMITS = (
    Limit(_BATCH, (Technique.SFT,), (16, 32, 64), generation=1),
    Limit(_BATCH, (Technique.SFT,), (32, 64, 128, 256), generation=2),
    Limit(_BATCH, (Technique.DPO,), (16, 32, 64), is_lora=True),
    Limit(_BATCH, (Technique.DPO,), (16, 32, 64, 128), is_lora=False),
    Limit(_BATCH, (Technique.CPT,), (32, 64, 128, 256)),
    Limit(_BATCH, (Technique.RFT,), least=16, most=256),
    Limit(_BATCH, (Technique.RFT_JOB,), least=16, most=128, is_lora=True),
    Limit(_BATCH, (Technique.RFT_JOB,), least=16, most=256, is_lora=False),
    Limit("ppo_actor_train.model.global_batch_size", (Technique.PPO,), (256,), sizes=("nova-micro",)),
    Limit("ppo_actor_train.model.global_batch_size", (Technique.PPO,), (160,), sizes=("nova-lite", "nova-pro")),
    Limit("run.actor_train_replicas", (Technique.PPO,), (2,), sizes=("nova-micro", "nova-lite")),
    Limit("run.actor_train_replicas", (Technique.PPO,), (6,), sizes=("nova-pro",)),
    Limit("training_config.max_steps", (Technique.SFT,), least=4, most=100_000, generation=2),
    Limit("training_config.trainer.max_steps", (Technique.CPT,), least=10, most=100_000, generation=2),
    Limit(f"{_RFT_TRAINER}.max_steps", _RFT, least=5, most=100_000),
    Limit("training_config.max_length", _RFT, least=4096, most=32_768),
    Limit(f"{_RFT_TRAINER}.optim_config.lr", (Technique.RFT,), least=1e-8, most=1e-3),
    Limit(f"{_RFT_TRAINER}.optim_config.lr", (Technique.RFT_JOB,), least=1e-7, most=1e-3),
    Limit("training_config.model.peft.lora_tuning.alpha", (Technique.SFT, Technique.DPO), _ALPHA),
    Limit("training_config.peft.lora_tuning.alpha", (Technique.SFT,), _ALPHA),
    Limit(f"{_RFT_TRAINER}.peft.lora_tuning.alpha", _RFT, (16, 32, 64)),
    Limit(
        "training_config.model.peft.lora_tuning.loraplus_lr_ratio",
        (Technique.SFT, Technique.DPO),
        least=1,
        most=70,
    ),
    Limit("training_config.peft.lora_tuning.lora_plus_lr_ratio", (Technique.SFT,), least=1, most=70),
    Limit(f"{_RFT_TRAINER}.peft.lora_tuning.loraplus_lr_ratio", (Technique.RFT,), least=1, most=70),
    Limit("training_config.maxResponseLength", (Technique.DISTILLATION,), least=5000, most=5120),
    Limit("inference.max_new_tokens", (Technique.EVALUATION,), least=0, most=32_768, generation=2),
)


def limits(technique: Technique, generation: int, size: str, *, is_lora: bool) -> Iterator[Limit]:
    """Yield the limits that hold for a recipe.

    Args:
        technique: The recipe's.
        generation: Of its model.
        size: Its `run.model_name_or_path` before the slash.
        is_lora: Whether adapters are trained.
    """
    for limit in LIMITS:
        if (
            technique in limit.techniques
            and limit.generation in (None, generation)
            and limit.is_lora in (None, is_lora)
            and (not limit.sizes or size in limit.sizes)
        ):
            yield limit
