"""The keys of `cluster.sm_jobs_config` for rules: each has the launcher's name, some also the estimator's.

Every compilation imports this; the first rule that needs the typed settings imports those.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from launcher.rules import rule

if TYPE_CHECKING:
    from launcher.backends.sagemaker.training_options import SmJobs
    from launcher.model.base_model import HasOptions
    from launcher.model.checked_recipe import CheckedRecipe

JOBS = "cluster.sm_jobs_config"
KWARGS = f"{JOBS}.additional_estimator_kwargs"
API = "Amazon SageMaker API, CreateTrainingJob"
SCRIPT = "recipes.training_cfg"

SDK_NAMES = {
    "role": "role",
    "max_run": "stopping_condition.max_runtime_s",
    "max_wait": "stopping_condition.max_wait_s",
    "use_spot_instances": "spot",
    "max_retry_attempts": "max_retries",
    "keep_alive_period_in_seconds": "keep_alive_s",
    "volume_size": "volume_size_gb",
    "volume_kms_key": "volume_kms_key",
    "output_kms_key": "output_kms_key",
    "input_mode": "input_mode",
    "subnets": "vpc.subnets",
    "security_group_ids": "vpc.security_group_ids",
    "encrypt_inter_container_traffic": "encrypt_traffic",
    "enable_network_isolation": "network_isolation",
    "checkpoint_s3_uri": "checkpoints.s3_uri",
    "checkpoint_local_path": "checkpoints.local_path",
    "code_location": "recipe_path",
    "source_dir": "source_dir",
    "training_plan": "training_plan_arn",
    "hyperparameters": "hyperparameters",
    "metric_definitions": "metric_definitions",
    "container_entry_point": "container_entrypoint",
    "container_arguments": "container_arguments",
    "tags": "tags",
}
"""The estimator's name of a key, to the launcher's. Source: SageMaker Python SDK 2.257.6, EstimatorBase."""


def needs(*keys: str) -> tuple[str, ...]:
    """Return the paths of keys, and of the estimator's names for them."""
    same = (name for name, path in SDK_NAMES.items() if any(path == k or path.startswith(f"{k}.") for k in keys))
    return (*(f"{JOBS}.{key}" for key in keys), *(f"{KWARGS}.{name}" for name in same))


def sm_rule(code: str, *keys: str, more: tuple[str, ...] = (), source: str) -> Callable[[Any], Any]:
    """Register a rule about keys of `sm_jobs_config`."""
    return rule(code, *needs(*keys), *more, source=source)


def given_jobs(job: "HasOptions") -> "SmJobs":
    """Return the typed keys of a checked recipe or a planned job, as given."""
    from launcher.backends.sagemaker.training_options import Settings
    from launcher.model.base_model import options_of

    return options_of(job, Settings).sm_jobs_config


def jobs_of(checked: "CheckedRecipe") -> "SmJobs":
    """Return the typed keys, the estimator's names resolved."""
    return effective(given_jobs(checked))


def path_of(checked: "CheckedRecipe", key: str) -> str:
    """Return the path under which a key was given: its own name, or the estimator's."""
    given = given_jobs(checked).additional_estimator_kwargs
    for name, path in SDK_NAMES.items():
        if path == key and getattr(given, name, None) is not None:
            return f"{KWARGS}.{name}"
    return f"{JOBS}.{key}"


def effective(job: "SmJobs") -> "SmJobs":
    """Return the keys, with those given under the estimator's names resolved."""
    from launcher.backends.sagemaker.training_options import Metric

    given = job.additional_estimator_kwargs
    for name, path in SDK_NAMES.items():
        value = getattr(given, name, None)
        if value is None:
            continue
        if name == "tags":
            value = {tag.Key: tag.Value for tag in value}
        elif name == "metric_definitions":
            # Not validated again: rules also read these keys when others of the job are faulty.
            value = [Metric.model_construct(name=metric.Name, regex=metric.Regex) for metric in value]
        section, _, key = path.rpartition(".")
        if section:
            key, value = section, getattr(job, section).model_copy(update={key: value})
        job = job.model_copy(update={key: value})
    return job
