"""A checked recipe and a context to the job: every size, one resolved configuration each."""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from launcher.families import interface
from launcher.model import batch
from launcher.model.backend_registry import described
from launcher.model.checked_recipe import CheckedRecipe, SizedRecipe
from launcher.model.checkpointing import compiled
from launcher.model.composition import Composition
from launcher.model.config_tree import get, replaced
from launcher.model.context import LaunchContext, job_name
from launcher.model.instances import canonical
from launcher.model.job_spec import (
    DEFAULT_SAVE_TIMEOUT_S,
    BatchSplit,
    ElasticPolicy,
    JobSpec,
    Preemption,
    Resources,
    ScalePoint,
    start_size,
)
from launcher.model.recipe import Mlflow
from launcher.rules.batches import is_uneven
from launcher.rules.custom import is_script, is_unstated

_ARGS = "training_config.training_args"
LAUNCHER_KEYS = ("extra_keys", "planner", "checkpointing", "instance_specs", "elastic_policy")
"""Keys of a recipe that only the launcher reads, as they are written. The published configurations of a size have no
elastic_policy either: the operator decides about sizes."""


def plan(checked: CheckedRecipe, context: LaunchContext) -> JobSpec:
    """Plan every size of a checked recipe. Pure: the same draft and context give the same job.

    Returns:
        The job, its sizes ascending. It has no notices yet, and its configurations hold no secret and no MLflow run.
    """
    policy = checked.recipe.elastic_policy
    name = job_name(checked.recipe.run.name, context.suffix)
    section = checked.recipe.checkpointing
    tiers = section and compiled(section, name, None if described(checked.backend).has_containers else context.cwd)
    sizes = tuple(_scale_point(checked, scale, name, tiers) for scale in checked.sizes)
    job = JobSpec(
        name=name,
        backend=checked.backend,
        recipe=checked.composition.recipe,
        model_type=checked.recipe.run.model_type,
        nproc_per_node=checked.devices,
        initial_nodes=_initial_nodes(checked),
        scales=sizes,
        elastic=_elastic(policy, sizes) if checked.is_elastic else None,
        resources=_resources(checked),
        image=checked.launch.container,
        base_results_dir=Path(context.cwd, checked.launch.base_results_dir),
        settings=checked.settings,
        config=_whole_config(checked),
        overrides=checked.composition.overrides,
        cwd=context.cwd,
        save_timeout_s=(policy and policy.graceful_shutdown_timeout) or DEFAULT_SAVE_TIMEOUT_S,
    )
    return dataclasses.replace(job, initial_nodes=described(job.backend).initial_nodes(job) or job.initial_nodes)


def tracking(job: JobSpec) -> Mlflow:
    """Return the job's tracking settings."""
    return Mlflow.model_validate(get(job.config, "recipes.training_config.mlflow"))


def with_run(job: JobSpec, **mlflow: str) -> JobSpec:
    """Return the job with its MLflow settings written into the configuration of every size."""

    def written(tree: Mapping[str, Any], path: str) -> Mapping[str, Any]:
        for key, value in mlflow.items():
            tree = replaced(tree, f"{path}.{key}", value)
        return tree

    return dataclasses.replace(
        job,
        config=written(job.config, "recipes.training_config.mlflow"),
        scales=tuple(
            dataclasses.replace(point, config=written(point.config, "training_config.mlflow")) for point in job.scales
        ),
    )


def _scale_point(
    checked: CheckedRecipe, scale: SizedRecipe, name: str, tiers: Mapping[str, Any] | None
) -> ScalePoint:
    args, size = scale.args, checked.data_parallel_size(scale)
    if is_uneven(scale):
        uneven = args.uneven_batch
        split = BatchSplit(
            uneven.small_local_batch_size,
            uneven.large_local_batch_size,
            uneven.num_dp_groups_with_small_batch_size,
        )
        micro, steps = batch.passes(split.large, _micro_of_uneven(checked, scale) or split.large)
    else:
        split = batch.even_split(args.train_batch_size, size)
        micro = args.micro_train_batch_size
        steps = batch.accumulation_steps(split.large, micro)
    return ScalePoint(
        nodes=scale.nodes,
        ranks=scale.nodes * checked.devices,
        data_parallel_size=size,
        split=split,
        micro_batch_size=micro,
        grad_accumulation=steps,
        learning_rate=_learning_rate(checked, scale),
        config=_container_config(checked, scale.tree, name, tiers),
    )


def _learning_rate(checked: CheckedRecipe, scale: SizedRecipe) -> float | None:
    """Return the learning rate of a size; None where the recipe of a script states none and a stand-in holds."""
    path = f"{_ARGS}.learning_rate"
    if is_script(checked) and get(scale.own, path) is None and is_unstated(checked, f"recipes.{path}"):
        return None
    return scale.args.learning_rate


def _micro_of_uneven(checked: CheckedRecipe, scale: SizedRecipe) -> int | None:
    """Return the largest pass of a size with uneven shares, None where a share is one pass.

    Source: the published elastic recipes, whose uneven sizes set no micro batch beside a base of 1.
    """
    is_own = get(scale.own, f"{_ARGS}.micro_train_batch_size") is not None
    is_cut = is_own or interface(checked.recipe.run.model_type).cuts_uneven_shares
    return scale.args.micro_train_batch_size if is_cut else None


def _container_config(
    checked: CheckedRecipe, tree: Mapping[str, Any], name: str, tiers: Mapping[str, Any] | None
) -> Mapping[str, Any]:
    """Return the recipe as the container reads it: the job's name, real devices, no secret, no launcher keys.

    It shares what is the same at every size; nobody changes it.
    """
    mlflow = get(tree, "training_config.mlflow")
    kept = {key: value for key, value in mlflow.items() if key != "enabled"}
    if mlflow.get("enabled") is False:
        kept |= {"tracking_uri": "", "run_id": ""}
    config = {key: value for key, value in tree.items() if key not in LAUNCHER_KEYS}
    config |= {"checkpointing": tiers} if tiers else {}
    config = named(config, checked.composition, name)
    config = replaced(config, "trainer.devices", checked.devices)
    config = replaced(config, "run.hf_access_token", None)
    return replaced(config, "training_config.mlflow", kept)


def named(recipe: Mapping[str, Any], composition: Composition, name: str) -> Mapping[str, Any]:
    """Return a recipe with the job's name where the composition has its run.name."""
    for path in composition.name_paths:
        recipe = replaced(recipe, path.removeprefix("recipes."), name)
    return recipe


def _whole_config(checked: CheckedRecipe) -> Mapping[str, Any]:
    return replaced(checked.composition.tree, "instance_type", canonical(checked.launch.instance_type))


def _initial_nodes(checked: CheckedRecipe) -> int:
    return start_size(checked.recipe.trainer.num_nodes, [s.nodes for s in checked.sizes])


def _elastic(policy: Any, sizes: tuple[ScalePoint, ...]) -> ElasticPolicy:
    step = policy.replica_increment_step
    return ElasticPolicy(
        min_nodes=policy.min_nodes,
        max_nodes=policy.max_nodes,
        replica_increment_step=step,
        replica_values=None if step else tuple(point.nodes for point in sizes),
        use_graceful_shutdown=policy.use_graceful_shutdown,
        scaling_timeout_s=policy.scaling_timeout,
        graceful_shutdown_timeout_s=policy.graceful_shutdown_timeout,
        faulty_timeout_s=policy.faulty_timeout,
        scale_up_snooze_s=policy.scale_up_snooze_time,
        preemption=policy.preemption and Preemption(**policy.preemption.model_dump()),
    )


def _resources(checked: CheckedRecipe) -> Resources:
    instance = checked.instance
    if instance is None:
        return Resources(None, 0, None, 0)
    per_device = max(1, instance.processes // max(1, instance.accelerators))
    accelerators = -(-checked.devices // per_device) if instance.accelerators else 0
    efa = instance.efa_of(accelerators)
    return Resources(instance.name, accelerators, instance.accelerator_resource, efa, instance)
