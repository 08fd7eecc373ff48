"""A checked recipe and a context to the job: every size, one resolved configuration each."""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from launcher.model.backend_registry import described
from launcher.model.checked_recipe import CheckedRecipe, SizedRecipe
from launcher.model.checkpointing import compiled
from launcher.model.composition import Composition
from launcher.model.config_tree import get, replaced, without
from launcher.model.context import LaunchContext, job_name
from launcher.model.family_registry import interface, recipe_model
from launcher.model.instances import canonical
from launcher.model.job_spec import (
    DEFAULT_SAVE_TIMEOUT_S,
    BatchSplit,
    ElasticPolicy,
    JobSpec,
    ScalePoint,
    StepBatch,
    start_size,
)
from launcher.model.recipe import ElasticSettings, Mlflow
from launcher.model.recipe_keys import LAUNCHER_KEYS
from launcher.rules.custom import is_script
from launcher.runtime.shares import passes


def plan(checked: CheckedRecipe, context: LaunchContext) -> JobSpec:
    """Plan every size of a checked recipe, ascending. Pure: the same recipe and context give the same job.

    It has no notices yet, and its configurations hold no secret and no MLflow run.
    """
    policy, nodes = checked.recipe.elastic_policy, tuple(size.nodes for size in checked.sizes)
    name = job_name(checked.recipe.run.name, context.suffix)
    section = checked.recipe.checkpointing
    base = context.cwd if described(checked.backend).files.are_shared(checked.settings) else None
    tiers = compiled(section, name, base) if section else None
    config = replaced(checked.composition.tree, "instance_type", canonical(checked.launch.instance_type))
    elastic = _elastic(checked.elastic, nodes) if checked.elastic else None
    job = JobSpec(
        name=name,
        backend=checked.backend,
        recipe=checked.composition.recipe,
        model_type=checked.recipe.run.model_type,
        nproc_per_node=checked.devices,
        initial_nodes=start_size(checked.recipe.trainer.num_nodes, nodes),
        scales=tuple(
            ScalePoint(
                nodes=size.nodes,
                ranks=size.nodes * checked.devices,
                data_parallel_size=checked.data_parallel_size(size),
                batch=_step_batch(checked, size),
                config=_container_config(checked, size.tree, name, tiers),
            )
            for size in checked.sizes
        ),
        elastic=elastic,
        resources=checked.resources,
        image=checked.launch.container,
        base_results_dir=Path(context.cwd, checked.launch.base_results_dir),
        settings=checked.settings,
        config=config,
        overrides=checked.composition.overrides,
        cwd=context.cwd,
        save_timeout_s=(policy and policy.graceful_shutdown_timeout) or DEFAULT_SAVE_TIMEOUT_S,
        trainer=checked.trainer,
        is_rehearsal=checked.is_rehearsal,
        published_model=checked.published_model,
        rehearsal_steps=checked.rehearsal.steps,
    )
    scaling = described(job.backend).scaling
    if elastic and policy and policy.resize is None:
        elastic = elastic._replace(is_in_place=_resizes_in_place(checked, job))
    initial_nodes = (scaling and scaling.initial_nodes(job)) or job.initial_nodes
    return dataclasses.replace(job, initial_nodes=initial_nodes, elastic=elastic)


def _resizes_in_place(checked: CheckedRecipe, job: JobSpec) -> bool:
    """Return whether workers stay where the recipe leaves it open."""
    backend, stays = described(job.backend), interface(checked).workers.stays
    is_told = backend.scaling is not None and backend.scaling.resizes_in_place
    is_asked_to_save = checked.elastic is not None and checked.elastic.use_graceful_shutdown
    if stays is None or not (is_told and is_asked_to_save) or backend.programs.are_replaced(checked.settings):
        return False
    return stays(job)


def tracking(job: JobSpec) -> Mlflow:
    """Return the job's tracking settings; those of an untracked job if its family has none."""
    key = recipe_model(job.model_type).keys.mlflow
    section = get(job.config, f"recipes.{key}") if key else None
    # Of a planned job: the section was validated with its recipe.
    return Mlflow.model_construct(**(section or {"enabled": False, "tracking_uri": None, "run_id": None}))


def with_run(job: JobSpec, **mlflow: str) -> JobSpec:
    """Return the job with its MLflow settings written into the configuration of every size."""
    section = recipe_model(job.model_type).keys.mlflow
    if section is None:
        return job

    def written(tree: Mapping[str, Any], path: str) -> Mapping[str, Any]:
        for key, value in mlflow.items():
            tree = replaced(tree, f"{path}.{key}", value)
        return tree

    return dataclasses.replace(
        job,
        config=written(job.config, f"recipes.{section}"),
        scales=tuple(point._replace(config=written(point.config, section)) for point in job.scales),
    )


def _step_batch(checked: CheckedRecipe, scale: SizedRecipe) -> StepBatch | None:
    """Return how a checked size trains the samples of an optimizer step; None if the family has no batch."""
    if (found := checked.batch_of(scale)) is None:
        return None
    own, keys = found.batch, found.keys
    # The recipe of a script may have a placeholder instead of a learning rate.
    is_placeholder = is_script(checked) and not found.states(keys.learning_rate)
    has_rate = not (is_placeholder and checked.composition.is_unstated(f"recipes.{keys.learning_rate}"))
    rate = own.learning_rate if has_rate else None
    if split := found.split:
        # The published elastic recipes set no micro batch in sizes with uneven shares, beside a base of 1: the
        # published image takes each share in one pass.
        is_cut = interface(checked).cuts_uneven_shares
        is_cut = is_cut or found.states(keys.micro_train_batch_size)
        micro, steps = passes(split.large, own.micro_train_batch_size if is_cut else split.large)
        return StepBatch(split, micro, steps, rate)
    # The rules have made sure that it divides.
    share = own.train_batch_size // found.data_parallel_size
    micro = own.micro_train_batch_size
    return StepBatch(BatchSplit(share, share, found.data_parallel_size), micro, share // micro, rate)


def _container_config(
    checked: CheckedRecipe, tree: Mapping[str, Any], name: str, tiers: Mapping[str, Any] | None
) -> Mapping[str, Any]:
    """Return the recipe for the container: the job's name, real devices, no secret, no launcher keys.

    Values that are the same at every size are shared; they must not be modified.
    """
    config: Mapping[str, Any] = {key: value for key, value in tree.items() if key not in LAUNCHER_KEYS}
    config = {**config, "checkpointing": tiers} if tiers else config
    config = named(config, checked.composition, name)
    config = replaced(config, "trainer.devices", checked.devices)
    config = replaced(config, "run.hf_access_token", None)
    for key in checked.recipe.keys.launcher_only:
        config = without(config, key)
    section = checked.recipe.keys.mlflow
    if section is None or (mlflow := get(config, section)) is None:
        return config
    kept = {key: value for key, value in mlflow.items() if key != "enabled"}
    if mlflow.get("enabled") is False:
        kept |= {"tracking_uri": "", "run_id": ""}  # empty for no tracking
    return replaced(config, section, kept)


def named(recipe: Mapping[str, Any], composition: Composition, name: str) -> Mapping[str, Any]:
    """Return a recipe with the job's name where the composition has its run.name."""
    for path in composition.name_paths:
        recipe = replaced(recipe, path.removeprefix("recipes."), name)
    return recipe


def _elastic(policy: ElasticSettings, nodes: tuple[int, ...]) -> ElasticPolicy:
    step = policy.replica_increment_step
    return ElasticPolicy(
        min_nodes=policy.min_nodes,
        max_nodes=policy.max_nodes,
        replica_increment_step=step,
        replica_values=None if step else nodes,
        use_graceful_shutdown=policy.use_graceful_shutdown,
        scaling_timeout_s=policy.scaling_timeout,
        graceful_shutdown_timeout_s=policy.graceful_shutdown_timeout,
        faulty_timeout_s=policy.faulty_timeout,
        scale_up_snooze_s=policy.scale_up_snooze_time,
        preemption=policy.preemption,
        is_in_place=policy.resize == "in_place",
    )
