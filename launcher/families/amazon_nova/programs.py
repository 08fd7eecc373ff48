"""How Nova's programs are started: by the entry point of their image, which finds its configuration by itself."""

from collections.abc import Mapping
from typing import Any

from launcher.families.amazon_nova import ppo
from launcher.families.amazon_nova.sections import Images
from launcher.families.amazon_nova.techniques import Technique, technique_of
from launcher.model.config_tree import get
from launcher.model.interface import WORKERS, Entry, Interface, PodNeeds, Role
from launcher.model.job_spec import JobSpec, Trainer

_SHARED = ("/sagemaker/fsx/main", "/sagemaker/fsx/init", "/sagemaker/fsx/output_artifacts", "/var/log/aws/clusters")
"""Folders of a restricted node that its programs find at the same paths. Source: the published PyTorchJobs."""
_CLUSTER_CERTIFICATE = "/etc/kubernetes/pki/ca.crt"
_RESTRICTED = {"sagemaker.amazonaws.com/instance-group-type": "Restricted"}
_TOLERATION = {
    "key": "sagemaker.amazonaws.com/RestrictedNode",
    "operator": "Equal",
    "value": "Worker",
    "effect": "NoSchedule",
}
"""Source: HyperPod, restricted instance groups, which alone may load the weights of Nova."""


def _pod_needs(job: JobSpec) -> PodNeeds:
    """Return what Nova's pods need; an evaluation reaches AWS Lambda by the node's network."""
    images = Images.model_validate(job.recipe_tree["images"])
    return PodNeeds(
        node_labels=_RESTRICTED,
        tolerations=(_TOLERATION,),
        node_folders={**dict(zip(_SHARED, _SHARED, strict=True)), "/tmp": "/opt/dlami/nvme"},
        init_image=images.located(images.init_container),
        init_files=(_CLUSTER_CERTIFICATE,),
        calls_cluster=True,
        is_on_node_network=technique_of(job.recipe_tree) is Technique.EVALUATION,
    )


def _variables(job: JobSpec) -> dict[str, str]:
    """Return the variables that the image reads. Source: the published PyTorchJobs."""
    region = job.recipe_tree["images"]["region"]
    return {"INSTANCE_TYPE": job.resources.instance_type or "", "AWS_REGION": region}


_WORKERS = Role(WORKERS, image_env=_variables, pod_needs=_pod_needs)


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
    technique = technique_of(recipe)
    return {
        None: Interface(
            roles=ppo.roles(_WORKERS) if technique is Technique.PPO else (_WORKERS,),
            takes_config_path=False,
            runs_as_root=True,
            accelerator=None if technique is Technique.DISTILLATION else "gpu",
            entry=Entry.IMAGE,
            hyperparameters=_hyperparameters,
        )
    }
