"""Post-training by verl: GRPO on a Ray cluster; SFT and DPO by processes that each node's agent starts, or by the
open trainer."""

from collections.abc import Mapping
from typing import Any

from launcher.families.verl import offline, ray
from launcher.families.verl.open_recipe import OPEN_RECIPE
from launcher.families.verl.recipe import Recipe
from launcher.model import open_trainer
from launcher.model.config_tree import get
from launcher.model.interface import Interface
from launcher.model.job_spec import OPEN, PUBLISHED, Trainer

__all__ = ["OPEN_RECIPE", "Recipe", "interfaces"]

_OPEN = open_trainer.interface(OPEN_RECIPE)


def interfaces(recipe: Mapping[str, Any]) -> Mapping[Trainer | None, Interface]:
    """Return how the program of a recipe's technique is started."""
    if get(recipe, "training_config.actor_rollout_ref") is not None:
        return {None: ray.INTERFACE}
    if get(recipe, "training_config.engine.tensor_model_parallel_size") is not None:
        return {None: offline.MEGATRON}
    return {None: offline.INTERFACE, PUBLISHED: offline.INTERFACE, OPEN: _OPEN}
