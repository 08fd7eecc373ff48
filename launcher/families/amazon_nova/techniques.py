"""What a Nova recipe does: its technique, and the generation of its model.

Source: the published recipes and their launcher, which chooses a program by the same sections.
"""

from collections.abc import Mapping
from enum import Enum
from typing import Any

from launcher.model.config_tree import get

PPO_TRAIN, PPO_GENERATION = "ppo_actor_train", "ppo_actor_generation"
PPO_SECTIONS = ("ppo_reward", "ppo_critic", "ppo_anchor", PPO_GENERATION, PPO_TRAIN)
"""The programs of proximal policy optimization."""
_SECOND = "amazon.nova-2-"


class Technique(Enum):
    """What a recipe does, with its name for people."""

    SFT = "supervised fine-tuning"
    DPO = "direct preference optimization"
    CPT = "continued pre-training"
    PPO = "proximal policy optimization"
    RFT = "reinforcement fine-tuning on HyperPod"
    RFT_JOB = "reinforcement fine-tuning as a training job"
    DISTILLATION = "distillation"
    EVALUATION = "evaluation"


def technique_of(recipe: Mapping[str, Any]) -> Technique:
    """Return the technique of a recipe, as it was composed or typed."""
    if recipe.get("evaluation") is not None:
        return Technique.EVALUATION
    if any(recipe.get(section) is not None for section in PPO_SECTIONS):
        return Technique.PPO
    if get(recipe, "training_config.distillation_data") is not None:
        return Technique.DISTILLATION
    if get(recipe, "training_config.rollout") is not None:
        return Technique.RFT if get(recipe, "run.generation_replicas") is not None else Technique.RFT_JOB
    if get(recipe, "training_config.model.dpo_cfg") is not None:
        return Technique.DPO
    is_tuned = any(get(recipe, f"training_config.{key}") is not None for key in ("peft", "model.peft"))
    return Technique.SFT if is_tuned else Technique.CPT


def generation_of(model_type: str) -> int:
    """Return the generation of a model, 1 or 2."""
    return 2 if model_type.startswith(_SECOND) else 1
