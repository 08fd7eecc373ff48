"""Post-training by verl: GRPO on a Ray cluster; SFT and DPO by a process for each GPU, which each node's agent starts
with verl's complete configuration in a file, or by the open trainer.

Source: verl 0.7, verl.trainer.sft_trainer, which torchrun starts; Hydra, command-line flags.
"""

from collections.abc import Mapping
from typing import Any

from launcher.families.verl import ray
from launcher.families.verl.recipe import Recipe
from launcher.families.verl.translation import trained
from launcher.model import open_trainer
from launcher.model.config_tree import get
from launcher.model.environment import mlflow_variables
from launcher.model.interface import Interface, OpenRecipe, agent_workers
from launcher.model.job_spec import OPEN, PUBLISHED, JobSpec, Trainer

__all__ = ["OPEN_RECIPE", "Recipe", "interfaces"]

_PROGRAM = ("-m", "verl.trainer.sft_trainer", "--config-name", ray.CONFIG)


def _env(job: JobSpec) -> dict[str, str]:
    return mlflow_variables(get(job.scales[0].config, "training_config.mlflow"))


OPEN_RECIPE = OpenRecipe(
    keys_in="launcher.families.verl.open_keys",
    model="training_config.model.path",
    train="training_config.data.train_files",
    validation="training_config.data.val_files",
    adapters="training_config.model.lora_adapter_path",
    trained=trained,
    own_keys=("training_config.data.assistant_turns", "training_config.data.max_lost_share"),
)
_OPEN = open_trainer.interface(OPEN_RECIPE)
_OFFLINE = Interface(
    roles=(agent_workers(lambda job: _PROGRAM, env=_env),),
    runs_as_root=True,
    accelerator="gpu",
    has_own_checkpoints=True,
    own_configs=ray.own_configs,
)
_MEGATRON = _OFFLINE._replace(
    only_trainer="Megatron divides each layer among GPUs, and the open trainer shards by FSDP"
)


def interfaces(recipe: Mapping[str, Any]) -> Mapping[Trainer | None, Interface]:
    """Return how the program of a recipe's technique is started."""
    if get(recipe, "training_config.actor_rollout_ref") is not None:
        return {None: ray.INTERFACE}
    if get(recipe, "training_config.engine.tensor_model_parallel_size") is not None:
        return {None: _MEGATRON}
    return {None: _OFFLINE, PUBLISHED: _OFFLINE, OPEN: _OPEN}
