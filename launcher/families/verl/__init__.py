"""Post-training by verl: GRPO on a Ray cluster; SFT and DPO by processes that each node's agent starts."""

from collections.abc import Mapping
from typing import Any

from launcher.families.verl import offline, ray
from launcher.families.verl.recipe import Recipe
from launcher.model.config_tree import get
from launcher.model.interface import Interface
from launcher.model.job_spec import Trainer

__all__ = ["Recipe", "interfaces"]


def interfaces(recipe: Mapping[str, Any]) -> Mapping[Trainer | None, Interface]:
    """Return how the program of a recipe's technique is started."""
    is_grpo = get(recipe, "training_config.actor_rollout_ref") is not None
    return {None: ray.INTERFACE if is_grpo else offline.INTERFACE}
