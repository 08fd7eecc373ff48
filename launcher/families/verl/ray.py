"""How GRPO is started: by the head of a Ray cluster, with verl's whole configuration in a file.

Source: the published RayJobs of verl's recipes.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from launcher.model.config_tree import get
from launcher.model.environment import mlflow_variables
from launcher.model.interface import CONFIG_MOUNT, HEAD, SUBMITTER, WORKERS, Interface, Role
from launcher.model.job_spec import JobSpec, ScalePoint
from launcher.model.ray_job import CPU, GPU, Pool, ResourceCheck

CONFIG = "verl_config"
_PROGRAM = (
    *("python", "-u", "-m", "verl.trainer.main_ppo"),
    *("--config-path", CONFIG_MOUNT, "--config-name", CONFIG),
)
_TRAINING = "training_config"
_CPUS, _LEGACY_CPUS = 3, 1
"""CPUs of a placement group's bundle, max_colocate_count, in verl 0.7 and before."""
_OWN_POOL = "reward_model.enable_resource_pool"
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
        env=_env,
        nodes=lambda job: job.initial_nodes if nodes is None else nodes,
        requests=(lambda job: amounts(job, "")) if section else lambda job: {"cpu": "1", "memory": "2Gi"},
        limits=(lambda job: amounts(job, "Limit")) if section else lambda job: {"cpu": "2", "memory": "4Gi"},
    )


def resource_check(configs: Mapping[str, Any], words: Sequence[str]) -> ResourceCheck:
    """Return what main_ppo reserves: one placement group on each node, with a bundle for each of its GPUs.

    Words of the start command such as trainer.nnodes=4 replace what the configuration has.

    Source: verl 0.6.1 and 0.7.0: trainer/main_ppo.py, init_resource_pool_mgr; trainer/ppo/ray_trainer.py,
    ResourcePoolManager; single_controller/ray/base.py, RayResourcePool.
    """
    training = configs[f"{CONFIG}.yaml"]
    own = {key.lstrip("+"): value for key, equals, value in (word.partition("=") for word in words) if equals}
    is_current = "global_profiler" in training  # the configuration of 0.7
    bundle = {CPU: _CPUS if is_current else _LEGACY_CPUS, GPU: 1}

    def pool(name: str, section: str) -> Pool:
        keys = (f"{section}.nnodes", f"{section}.n_gpus_per_node")
        nodes, processes = (int(own.get(key, get(training, key))) for key in keys)
        return Pool(name, nodes, processes, bundle, f"{keys[0]}={nodes} × {keys[1]}={processes}")

    pools = [pool("global_pool", "trainer")]
    if str(own.get(_OWN_POOL, get(training, _OWN_POOL))).lower() == "true":
        pools.append(pool("reward_pool", "reward_model"))
    engine = get(training, "actor_rollout_ref.rollout.name")
    return ResourceCheck(
        tuple(pools),
        "STRICT_PACK",
        driver_cpus=1,
        next_step=f"the rollout engine ({engine}) loads the model onto the GPUs, which are only simulated here",
        source=f"verl {'0.7' if is_current else '0.6'}, single_controller/ray/base.py and trainer/ppo/ray_trainer.py",
    )


INTERFACE = Interface(
    roles=(_role(HEAD, "head_node", nodes=1), _role(WORKERS, "worker_nodes"), _role(SUBMITTER, nodes=1)),
    takes_config_path=False,
    runs_as_root=True,
    accelerator="gpu",
    has_own_checkpoints=True,
    only_trainer="GRPO generates answers while it trains, and the open trainer trains on given ones",
    own_configs=own_configs,
    resource_check=resource_check,
)
