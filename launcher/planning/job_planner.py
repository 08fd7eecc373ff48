"""A checked recipe and a context to the job: every size, one resolved configuration each."""

import dataclasses
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from launcher.common.problems import Notice
from launcher.families import interface
from launcher.model import batch
from launcher.model.backend_registry import backend_module
from launcher.model.checked_recipe import CheckedRecipe, SizedRecipe
from launcher.model.checkpointing import compiled
from launcher.model.composition import Composition
from launcher.model.config_tree import ABSENT, SCALES, get, lookup, replaced
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
    StepBatch,
    start_size,
)
from launcher.model.recipe import ElasticSettings, Mlflow
from launcher.rules import instance_notices, shadowed
from launcher.rules.batches import SizedBatch, sized_batch, split_of
from launcher.rules.custom import is_script, is_serverless, is_unstated
from launcher.rules.elasticity import bounds_moved
from launcher.rules.models import MODEL

_NUM_NODES = ("recipes.trainer.num_nodes", "recipes.training_cfg.run.nodes")
LAUNCHER_KEYS = ("extra_keys", "planner", "checkpointing", "instance_specs", "elastic_policy")
"""Keys of a recipe that only the launcher reads, as they are written. The published configurations of a size have no
elastic_policy either: the operator decides about sizes."""


def plan(checked: CheckedRecipe, context: LaunchContext) -> JobSpec:
    """Plan every size of a checked recipe. Pure: the same draft and context give the same job.

    Returns:
        The job, its sizes ascending. Its configurations hold no secret, and no MLflow run yet.
    """
    policy = checked.recipe.elastic_policy
    name = job_name(checked.recipe.run.name, context.suffix)
    section = checked.recipe.checkpointing
    tiers = compiled(section, name, context.cwd if checked.backend == "local" else None) if section else None
    sizes = tuple(_scale_point(checked, scale, name, tiers) for scale in checked.sizes)
    job = JobSpec(
        name=name,
        backend=checked.backend,
        recipe=checked.composition.recipe,
        model_type=checked.recipe.run.model_type,
        nproc_per_node=checked.devices,
        initial_nodes=_initial_nodes(checked),
        scales=sizes,
        elastic=_elastic(checked.elastic, sizes) if checked.elastic else None,
        resources=_resources(checked),
        image=checked.launch.container,
        base_results_dir=Path(context.cwd, checked.launch.base_results_dir),
        settings=checked.settings,
        config=_whole_config(checked),
        overrides=checked.composition.overrides,
        notices=tuple(_all_notices(checked, sizes)),
        cwd=context.cwd,
        save_timeout_s=(policy and policy.graceful_shutdown_timeout) or DEFAULT_SAVE_TIMEOUT_S,
    )
    job = _as_its_backend_starts_it(checked, job)
    parts = ("security", "stopping", "unsupported", "notices")
    own = filter(None, (backend_module(checked.backend, part) for part in parts))
    return dataclasses.replace(job, notices=(*job.notices, *(each for part in own for each in part.notices(job))))


def _as_its_backend_starts_it(checked: CheckedRecipe, job: JobSpec) -> JobSpec:
    """Return the job with the size that it starts with, where its backend decides that and not its recipe."""
    start = backend_module(checked.backend, "start")
    nodes = start and start.initial_nodes(job)
    if not nodes:
        return job
    notices = [notice for notice in job.notices if notice.code != "N102"]
    wanted = checked.recipe.trainer.num_nodes
    if nodes != wanted and any(map(checked.is_explicit, _NUM_NODES)):
        message = f"the job starts on {nodes} nodes, which its scenario gives it; num_nodes={wanted} has no effect"
        notices.append(Notice("N102", message))
    return dataclasses.replace(job, initial_nodes=nodes, notices=tuple(notices))


def _of_other_sizes(checked: CheckedRecipe) -> Iterator[Notice]:
    """Yield a notice for each override of a single size that a static job does not read."""
    decided = {} if checked.is_elastic else checked.composition.decided
    for text in dict.fromkeys(text for path, text in decided.items() if path.startswith(f"{SCALES}.")):
        yield Notice("N165", f"{text} changes nothing: the job is static")


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
    found = sized_batch(checked, scale)
    return ScalePoint(
        nodes=scale.nodes,
        ranks=scale.nodes * checked.devices,
        data_parallel_size=checked.data_parallel_size(scale),
        batch=_step_batch(checked, found) if found else None,
        config=_container_config(checked, scale.tree, name, tiers),
    )


def _step_batch(checked: CheckedRecipe, found: SizedBatch) -> StepBatch:
    """Return how a checked size trains the samples of an optimizer step."""
    own, rate = found.batch, _learning_rate(checked, found)
    if split := found.uneven and split_of(found.uneven):
        micro, steps = batch.passes(split.large, _micro_of_uneven(checked, found) or split.large)
        return StepBatch(split, micro, steps, rate)
    # The rules have made sure that it divides.
    share = own.train_batch_size // found.data_parallel_size
    micro = own.micro_train_batch_size
    return StepBatch(BatchSplit(share, share, found.data_parallel_size), micro, share // micro, rate)


def _learning_rate(checked: CheckedRecipe, found: SizedBatch) -> float | None:
    """Return the learning rate of a size; None if the recipe of a script states none and a stand-in holds."""
    key = found.keys.learning_rate
    if is_script(checked) and get(found.size.own, key) is None and is_unstated(checked, f"recipes.{key}"):
        return None
    return found.batch.learning_rate


def _micro_of_uneven(checked: CheckedRecipe, found: SizedBatch) -> int | None:
    """Return the largest pass of a size with uneven shares, None where a share is one pass.

    Source: the published elastic recipes, whose uneven sizes set no micro batch beside a base of 1.
    """
    is_own = get(found.size.own, found.keys.micro_train_batch_size) is not None
    is_cut = is_own or interface(checked.recipe.run.model_type).cuts_uneven_shares
    return found.batch.micro_train_batch_size if is_cut else None


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
    config: Mapping[str, Any] = {key: value for key, value in tree.items() if key not in LAUNCHER_KEYS}
    config = {**config, "checkpointing": tiers} if tiers else config
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


def _elastic(policy: ElasticSettings, sizes: tuple[ScalePoint, ...]) -> ElasticPolicy:
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
        preemption=Preemption(**policy.preemption.model_dump()) if policy.preemption else None,
    )


def _resources(checked: CheckedRecipe) -> Resources:
    instance = checked.instance
    if instance is None:
        return Resources(None, 0, None, 0)
    per_device = max(1, instance.processes // max(1, instance.accelerators))
    accelerators = -(-checked.devices // per_device) if instance.accelerators else 0
    efa = instance.efa_of(accelerators)
    return Resources(instance.name, accelerators, instance.accelerator_resource, efa, instance)


def _all_notices(checked: CheckedRecipe, sizes: tuple[ScalePoint, ...]) -> Iterator[Notice]:
    yield from checked.composition.notices
    yield from _of_other_sizes(checked)
    yield from shadowed.notices(checked)
    yield from checked.notices
    yield from instance_notices.notices(checked)
    yield from _notices(checked, sizes)
    yield from checked.recipe.notices
    yield from _about_checkpoints(checked)


def _notices(checked: CheckedRecipe, sizes: tuple[ScalePoint, ...]) -> list[Notice]:
    notices = _about_sizes(checked, sizes)
    if checked.instance and checked.devices != checked.recipe.trainer.devices:
        notices.append(
            Notice(
                "N103",
                f"{checked.devices} processes a node, as {checked.instance.name} has; the recipe says"
                f" {checked.recipe.trainer.devices}",
            )
        )
    if checked.size_plan and not checked.is_elastic:
        how = "++recipes.elastic_policy.is_elastic=true makes it elastic"
        notices.append(Notice("N124", f"the job is static, so auto plans its one size: {how}"))
    if checked.composition.has_default_policy and (policy := checked.elastic):
        bounds = f"{policy.min_nodes} to {policy.max_nodes} nodes"
        notices.append(
            Notice("N125", f"the recipe has no elastic_policy: base/elastic/policy stands for it, {bounds}")
        )
    if checked.recipe.planner and checked.size_plan is None:
        notices.append(Notice("N115", "recipes.planner has no effect: scale_config is not auto"))
    notices += _changed_by_elasticity(checked, sizes)
    keys = checked.recipe.keys.batch
    if keys and is_script(checked) and is_unstated(checked, f"recipes.{keys.train_batch_size}"):
        words = "the recipe states no batch for your script, so the plan counts one sample per rank"
        notices.append(Notice("N116", words))
    if len({point.samples_per_step for point in sizes}) > 1:
        counts = ", ".join(f"{point.samples_per_step} at {point.nodes}" for point in sizes)
        notices.append(Notice("N106", f"samples per optimizer step differ between sizes: {counts}"))
    if empty := _left_empty(checked):
        names = ", ".join(key.removeprefix("training_config.") for key in empty)
        verb = "is" if len(empty) == 1 else "are"
        notices.append(Notice("N107", f"{names} {verb} empty: the container's own default applies"))
    return [*notices, *_likely_slips(checked)]


def _about_checkpoints(checked: CheckedRecipe) -> Iterator[Notice]:
    """Say where checkpoints will not fit; what reckons them is not imported for other jobs."""
    if checked.recipe.checkpointing or checked.is_elastic:
        from launcher.rules.checkpoint_notices import notices

        yield from notices(checked)


def _likely_slips(checked: CheckedRecipe) -> Iterator[Notice]:
    """Say what may be meant, and more likely is an oversight."""
    if unmatched := [key for key in checked.recipe.extra_keys or () if not _has(checked, key)]:
        yield Notice("N127", f"extra_keys names {', '.join(unmatched)}, which this recipe does not set")
    if checked.instance and (idle := _idle(checked)) and not is_serverless(checked):
        of = f"{checked.instance.accelerators} accelerators of {checked.instance.name}"
        yield Notice("N128", f"{idle} of {of} stay idle: trainer.devices is {checked.devices}")
    if get(checked.composition.tree, MODEL) == "":
        yield Notice("N126", "model_name_or_path is empty: give a folder, or a name on the Hugging Face Hub")


def _has(checked: CheckedRecipe, key: str) -> bool:
    """Tell whether the recipe sets a key, at some size at least."""
    trees = (checked.composition.tree["recipes"], *(scale.tree for scale in checked.scales))
    return any(lookup(tree, key) is not ABSENT for tree in trees)


def _idle(checked: CheckedRecipe) -> int:
    """Return the accelerators of a node that no process uses."""
    return checked.instance.accelerators - _resources(checked).accelerators if checked.instance else 0


def _about_sizes(checked: CheckedRecipe, sizes: tuple[ScalePoint, ...]) -> list[Notice]:
    """Say which sizes are left out or not reached, and where the job starts instead of where it was to."""
    notices = []
    kept = {point.nodes for point in sizes}
    dropped = [scale.nodes for scale in checked.scales if scale.nodes not in kept]
    if dropped and bounds_moved(checked):
        notices.append(Notice("N101", f"sizes {_listed(dropped)} lie outside the bounds you set and are left out"))
    largest = sizes[-1].nodes
    if checked.elastic and checked.is_explicit("recipes.elastic_policy.max_nodes"):
        limit = checked.elastic.max_nodes
        if limit > largest and checked.recipe.scale_config:
            notices.append(Notice("N108", f"the largest size is {largest} nodes; max_nodes={limit} adds none"))
    start, wanted = _initial_nodes(checked), checked.recipe.trainer.num_nodes
    if start != wanted:
        notices.append(Notice("N102", f"the job starts on {start} nodes: {wanted} is not one of its sizes"))
    return notices


def _changed_by_elasticity(checked: CheckedRecipe, sizes: tuple[ScalePoint, ...]) -> list[Notice]:
    """Say which hyperparameters the user changed by making the job elastic."""
    if not checked.is_explicit("recipes.elastic_policy.is_elastic") or not checked.is_elastic:
        return []
    static, keys = checked.recipe.batch, checked.recipe.keys.batch
    if static is None or keys is None:
        return []
    changed = []
    for key, value in (
        (keys.train_batch_size, static.train_batch_size),
        (keys.learning_rate, static.learning_rate),
    ):
        values = {get(point.config, key) for point in sizes}
        if values != {value}:
            changed.append(f"{key.rpartition('.')[2]} {value} → {_listed(sorted(values))}")
    return [Notice("N105", f"elastic sizes change {', '.join(changed)}")] if changed else []


def _left_empty(checked: CheckedRecipe) -> list[str]:
    """Return the keys for which the container's own default applies."""
    keys = () if checked.backend == "local" else checked.recipe.keys.left_to_image
    return [key for key in keys if get(checked.composition.tree["recipes"], key) == ""]


def _listed(values: list[Any]) -> str:
    return ", ".join(map(str, values))
