"""How GRPO is started: by the head of a Ray cluster, with verl's whole configuration in a file.

Source: the published RayJobs of verl's recipes.
"""

from collections.abc import Mapping
from typing import Any

from launcher.model.config_tree import get
from launcher.model.environment import mlflow_variables
from launcher.model.interface import CONFIG_MOUNT, HEAD, SUBMITTER, WORKERS, Interface, Role
from launcher.model.job_spec import JobSpec, ScalePoint

CONFIG = "verl_config"
_PROGRAM = (
    *("python", "-u", "-m", "verl.trainer.main_ppo"),
    *("--config-path", CONFIG_MOUNT, "--config-name", CONFIG),
)
_TRAINING = "training_config"
_FILES = {"TRAIN_FILES": "data.train_files", "VAL_FILES": "data.val_files"}


def own_configs(point: ScalePoint) -> Mapping[str, Mapping[str, Any]]:
    """Return verl's configuration: the recipe's `training_config`, which is complete."""
    return {f"{CONFIG}.yaml": point.config[_TRAINING]}


def _env(job: JobSpec) -> dict[str, str]:
    training = job.scales[0].config[_TRAINING]
    files = {name: value for name, key in _FILES.items() if isinstance(value := get(training, key), str)}
    found = {"INSTANCE_TYPE": (job.resources.instance_type or "").removeprefix("ml."), **files}
    if "global_profiler" in training:  # verl 0.7 gives each worker its devices itself
        found["RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES"] = "1"
    return found | mlflow_variables(training["mlflow"])


def _role(name: str, section: str = "", *, nodes: int | None = None) -> Role:
    """Return a role whose pods have the processors and the memory of a section of `ray_cluster`."""

    def amounts(job: JobSpec, suffix: str) -> Mapping[str, str]:
        own = get(job.config, f"recipes.ray_cluster.{section}") or {}
        named = {key: own.get(f"{key}{suffix}") for key in ("cpu", "memory")}
        return {key: value for key, value in named.items() if value is not None}

    return Role(
        name,
        program=lambda job: _PROGRAM,
        image_command=lambda job: (),
        env=_env,
        nodes=lambda job: job.initial_nodes if nodes is None else nodes,
        requests=(lambda job: amounts(job, "")) if section else lambda job: {"cpu": "1", "memory": "2Gi"},
        limits=(lambda job: amounts(job, "Limit")) if section else lambda job: {"cpu": "2", "memory": "4Gi"},
    )


INTERFACE = Interface(
    roles=(_role(HEAD, "head_node", nodes=1), _role(WORKERS, "worker_nodes"), _role(SUBMITTER, nodes=1)),
    takes_config_path=False,
    runs_as_root=True,
    accelerator="gpu",
    has_own_checkpoints=True,
    own_configs=own_configs,
)
