"""How Nova's programs are started: by the entry point of their image, which finds its configuration by itself."""

from collections.abc import Mapping
from typing import Any

from launcher.families.amazon_nova.techniques import Technique, technique_of
from launcher.model.config_tree import get
from launcher.model.interface import WORKERS, Entry, Interface, Role
from launcher.model.job_spec import Trainer

_WORKERS = Role(name=WORKERS, program=lambda job: (), image_command=lambda job: ())


def _hyperparameters(recipe: Mapping[str, Any], role: str) -> dict[str, str]:
    """Return what the image of a training job reads beside the recipe.

    Source: SageMaker Python SDK 2.257.6, PyTorch._setup_for_nova_recipe.
    """
    run = recipe["run"]
    found = {"model_type": run["model_type"]}
    if model := run["model_name_or_path"]:
        found["base_model_location" if model.startswith("s3://") else "base_model"] = model
    if distillation := get(recipe, "training_config.distillation_data"):
        key = get(recipe, "training_config.kms_key") or ""
        found |= {"distillation_data": distillation, "role_arn": role, "kms_key": key}
    if recipe.get("evaluation") and (scorer := get(recipe, "processor.lambda_arn")):
        found["eval_lambda_arn"] = scorer
    if reward := run.get("reward_lambda_arn"):
        found["reward_lambda_arn"] = reward
    return found


def interfaces(recipe: Mapping[str, Any]) -> dict[Trainer | None, Interface]:
    """Return how the program of a recipe is started."""
    needs_gpu = technique_of(recipe) is not Technique.DISTILLATION
    return {
        None: Interface(
            roles=(_WORKERS,),
            takes_config_path=False,
            runs_as_root=True,
            accelerator="gpu" if needs_gpu else None,
            entry=Entry.IMAGE,
            hyperparameters=_hyperparameters,
        )
    }
