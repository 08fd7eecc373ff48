"""Whether the samples of one optimizer step can be dealt out at every size."""

import math
from collections.abc import Callable, Iterator, Sequence

from launcher.common.problems import Notice, Problem
from launcher.model import batch
from launcher.model.base_model import MOST_SAMPLES
from launcher.model.checked_recipe import CheckedRecipe, SizedRecipe
from launcher.model.config_tree import AUTO, get, size_of
from launcher.model.size_plan import spans
from launcher.rules import SIZES, MakeNotice, PlannedRecipe, notice_rule, rule

_ARGS = "training_config.training_args"
_BATCH_KEYS = (
    "train_batch_size",
    "micro_train_batch_size",
    "ring_attn_size",
    "ulysses_sequence_parallel_size",
    "uneven_batch",
)
_BATCH, _MICRO = (f"recipes.{_ARGS}.{key}" for key in _BATCH_KEYS[:2])
_NEEDS = (
    *(f"recipes.{_ARGS}.{key}" for key in _BATCH_KEYS),
    *("recipes.trainer", "recipes.distribution", "instance_type"),
    *SIZES,
)
_CHECKS = "docs/decisions.md, Checks"
_PLANNER = "docs/decisions.md, The planner"
_SOURCE = "AWS, Using elastic training in Amazon SageMaker HyperPod, Uneven Batch Size"


def planned(checked: CheckedRecipe) -> tuple[SizedRecipe, ...]:
    """Return the sizes that the job may take, but for those with a fault in themselves."""
    if checked.instance and checked.instance.processes and checked.devices > checked.instance.processes:
        return ()  # a Problem of its own; the arithmetic would only repeat it
    return tuple(scale for scale in checked.sizes if not scale.is_faulty)


def divided(checked: CheckedRecipe) -> tuple[SizedRecipe, ...]:
    """Return the sizes whose batches can be checked: none while some ranks do not divide into complete groups."""
    return () if _undivided(checked) else planned(checked)


def _undivided(checked: CheckedRecipe) -> list[SizedRecipe]:
    return [s for s in planned(checked) if s.nodes * checked.devices % s.ranks_per_sample]


def is_uneven(scale: SizedRecipe) -> bool:
    """Return whether a size deals its samples unevenly."""
    return bool(scale.args.uneven_batch and scale.args.uneven_batch.use_uneven_batch)


@rule("E220", *_NEEDS, source=_SOURCE)
def ranks_divide(checked: CheckedRecipe, problem: Callable[..., Problem]) -> Iterator[Problem]:
    """Ranks that share a sample's sequence form complete groups."""
    for scale in _undivided(checked)[:1]:
        ranks, group = scale.nodes * checked.devices, scale.ranks_per_sample
        if ranks % scale.recipe.model_parallel_size:
            return  # whatever shares its sequence, a replica has no room: a Problem of its own
        common = math.gcd(*(s.nodes * checked.devices for s in planned(checked)))
        yield problem(
            _path(scale, "ring_attn_size"),
            f"{ranks} ranks at {_where(checked, scale)} do not divide into groups of {group}",
            value=group,
            allowed=f"a divisor of {common}, which every size's ranks are a multiple of",
        )


@rule("E221", *_NEEDS, source=_SOURCE)
def even_batches_divide(checked: CheckedRecipe, problem: Callable[..., Problem]) -> Iterator[Problem]:
    """train_batch_size = W · micro_train_batch_size · accumulation steps, a whole number of them."""
    undivided: dict[str, list[SizedRecipe]] = {}
    for scale in divided(checked):
        pass_samples = checked.data_parallel_size(scale) * scale.args.micro_train_batch_size
        if not is_uneven(scale) and scale.args.train_batch_size % pass_samples:
            undivided.setdefault(_batch_path(checked, scale), []).append(scale)
    for path, scales in undivided.items():
        scale, more = scales[0], scales[1:]
        total = scale.args.train_batch_size
        its = "" if path.endswith(_BATCH_KEYS[0]) else f"size {scale.nodes} has no batch of its own: "
        yield problem(
            path,
            f"{its}{total} samples a step are not a multiple of {checked.data_parallel_size(scale)} data-parallel"
            f" ranks × micro batch {scale.args.micro_train_batch_size} at {_where(checked, scale)}{_nor_at(more)}",
            value=total,
            remedy=_even_remedy(checked, scales),
        )


@rule("E222", *_NEEDS, source=_SOURCE)
def uneven_batches_are_complete(checked: CheckedRecipe, problem: Callable[..., Problem]) -> Iterator[Problem]:
    """0 < ranks with the small share < W, and 1 <= small <= large."""
    for scale in filter(is_uneven, divided(checked)):
        uneven, size = scale.args.uneven_batch, checked.data_parallel_size(scale)
        small, large, num_small = _shares(scale)
        if None in (small, large, num_small):
            missing = [name for name, value in uneven.model_dump().items() if value is None]
            yield problem(
                _path(scale, "uneven_batch"),
                f"lacks {', '.join(missing)}",
                remedy=_uneven_remedy(checked, scale, size),
            )
            continue
        if not 0 < num_small < size:
            yield problem(
                _path(scale, "uneven_batch.num_dp_groups_with_small_batch_size"),
                f"{num_small} of {size} ranks cannot take the small share at {_where(checked, scale)}",
                value=num_small,
                allowed=f"1 to {size - 1}",
                remedy=_uneven_remedy(checked, scale, size),
            )
        if not 1 <= small <= large:
            yield problem(
                _path(scale, "uneven_batch.small_local_batch_size"),
                f"small {small} and large {large} are not in order",
                value=small,
                allowed=f"1 to {large}",
                remedy=_uneven_remedy(checked, scale, size),
            )


@rule("E223", *_NEEDS, source=_SOURCE)
def uneven_batches_add_up(checked: CheckedRecipe, problem: Callable[..., Problem]) -> Iterator[Problem]:
    """train_batch_size = small · num_small + large · (W - num_small)."""
    wrong: dict[str, list[SizedRecipe]] = {}
    for scale in filter(is_uneven, divided(checked)):
        small, large, num_small = _shares(scale)
        if None in (small, large, num_small) or not 0 < num_small < checked.data_parallel_size(scale):
            continue
        if _dealt(checked, scale) != scale.args.train_batch_size:
            path = _BATCH if checked.is_explicit(_BATCH) else _path(scale, "uneven_batch")
            wrong.setdefault(path, []).append(scale)
    for path, (scale, *more) in wrong.items():
        size = checked.data_parallel_size(scale)
        small, large, num_small = _shares(scale)
        yield problem(
            path,
            f"{num_small}·{small} + {size - num_small}·{large} = {_dealt(checked, scale)}, but train_batch_size is"
            f" {scale.args.train_batch_size} at {_where(checked, scale)}{_nor_at(more)}",
            remedy=_uneven_remedy(checked, scale, size),
        )


@rule("E224", *_NEEDS, source=_PLANNER)
def some_size_is_planned(checked: CheckedRecipe, problem: Callable[..., Problem]) -> Iterator[Problem]:
    """A planned job has at least one size at which each rank gets a sample."""
    if checked.size_plan is None or not checked.is_elastic or checked.sizes:
        return
    if checked.size_plan.entries:
        yield problem("recipes.scale_config", "every planned size is removed", value="auto")
        return
    policy, samples = checked.recipe.elastic_policy, checked.size_plan.basis.samples
    if policy.min_nodes > policy.max_nodes:
        return
    group = checked.recipe.training_config.training_args.ranks_per_sample * checked.recipe.model_parallel_size
    needed = -(-policy.min_nodes * checked.devices // group)
    yield problem(
        "recipes.scale_config",
        f"no size from {policy.min_nodes} to {policy.max_nodes} nodes × {checked.devices} devices can be planned:"
        f" {needed} data-parallel ranks at least, each of {group} device{'s' if group > 1 else ''},"
        f" {samples} samples a step",
        value="auto",
        remedy=f"recipes.{_ARGS}.train_batch_size={needed} or more"
        if needed > samples
        else "a max_nodes whose devices are a multiple of the sequence-parallel group",
    )


@rule("E225", *_NEEDS, source=_PLANNER)
def every_step_is_planned(checked: CheckedRecipe, problem: Callable[..., Problem]) -> Iterator[Problem]:
    """The operator takes any size that a step leads to, so none can be left out."""
    step = checked.is_elastic and checked.recipe.elastic_policy.replica_increment_step
    if not step or checked.size_plan is None or not checked.size_plan.entries:
        return
    plan, path = checked.size_plan, "recipes.elastic_policy.replica_increment_step"
    asked = [key for key, value in checked.entries.items() if value is None]
    if missing := (*plan.starved, *plan.undivided):
        last = list(plan.entries)[-1]
        remedy = f"recipes.elastic_policy.max_nodes={last}" if not plan.undivided else "leave out the step"
        yield problem(
            path, f"leads to sizes that cannot be planned: {spans(sorted(missing))}", value=step, remedy=remedy
        )
    if plan.slower or asked:
        yield problem(
            path,
            "takes every size from min_nodes on, so none can be left out",
            value=step,
            remedy="leave out the step" if plan.slower else f"keep size {', '.join(asked)}",
        )


@rule("E226", *_NEEDS, source=_PLANNER)
def corrected_sizes_are_planned(checked: CheckedRecipe, problem: Callable[..., Problem]) -> Iterator[Problem]:
    """What is typed for a single size changes a planned one."""
    if checked.size_plan is None or not checked.is_elastic:
        return
    for key in checked.entries:
        if size_of(key) and key not in checked.size_plan.entries:
            yield problem(
                f"recipes.scale_config.{key}",
                "is not among the planned sizes",
                value=key,
                allowed=spans(map(int, checked.size_plan.entries)),
            )


def _shares(scale: SizedRecipe) -> tuple[int | None, int | None, int | None]:
    uneven = scale.args.uneven_batch
    return (
        uneven.small_local_batch_size,
        uneven.large_local_batch_size,
        uneven.num_dp_groups_with_small_batch_size,
    )


def _where(checked: CheckedRecipe, scale: SizedRecipe) -> str:
    nodes = f"{scale.nodes} node{'s' if scale.nodes > 1 else ''}"
    return f"{nodes} × {checked.devices} devices" + (f" of {checked.instance.name}" if checked.instance else "")


def _path(scale: SizedRecipe, key: str) -> str:
    """Return where the user finds `key`: in the scale's own entry if that sets it, else in the base recipe."""
    rel = f"{_ARGS}.{key}"
    return f"{scale.path}.{rel}" if get(scale.own, rel) is not None else f"recipes.{rel}"


def _batch_path(checked: CheckedRecipe, scale: SizedRecipe) -> str:
    """Return where a batch that does not divide was chosen: by a size that states none, in its own entry."""
    is_stated = any(get(scale.own, f"{_ARGS}.{key}") is not None for key in _BATCH_KEYS)
    if scale.path == "recipes" or is_stated or checked.is_explicit(_BATCH) or checked.is_explicit(_MICRO):
        return _path(scale, _BATCH_KEYS[0])
    return scale.path


def _nor_at(scales: Sequence[SizedRecipe]) -> str:
    return f"; it fails at {spans(scale.nodes for scale in scales)} nodes too" if scales else ""


def _dealt(checked: CheckedRecipe, scale: SizedRecipe) -> int:
    """Return the samples of a step that uneven shares add up to."""
    small, large, num_small = _shares(scale)
    return small * num_small + large * (checked.data_parallel_size(scale) - num_small)


def _auto(checked: CheckedRecipe, total: int, size: int) -> str:
    """Return the remedy that plans the sizes, where it would help."""
    if total < size or checked.recipe.scale_config == AUTO:
        return ""
    return "; or ++recipes.scale_config=auto plans it"


def _even_remedy(checked: CheckedRecipe, scales: Sequence[SizedRecipe]) -> str:
    """Return what to type so that the same batch divides at all of these sizes."""
    total, micro = scales[0].args.train_batch_size, min(scale.args.micro_train_batch_size for scale in scales)
    sizes = [checked.data_parallel_size(scale) for scale in scales]
    auto = _auto(checked, total, sizes[0])
    is_one = len(scales) == 1
    if all(total % size == 0 for size in sizes):
        path = _path(scales[0], _BATCH_KEYS[1]) if is_one else _MICRO
        return f"{path}={batch.largest_micro_batch(math.gcd(*(total // size for size in sizes)), micro)}{auto}"
    step = math.lcm(*(checked.data_parallel_size(scale) * scale.args.micro_train_batch_size for scale in scales))
    below = total // step * step
    is_own = _batch_path(checked, scales[0]) != _BATCH
    path = f"++{scales[0].path}.{_ARGS}.{_BATCH_KEYS[0]}" if is_own else _BATCH
    even = " or ".join(f"{path}={number}" for number in (below, below + step) if 0 < number <= MOST_SAMPLES)
    split = batch.nearest_split(total, sizes[0]) if is_one else None
    parts = [even, f"or {_split_text(scales[0], split)}" if split else ""]
    return f"{', '.join(filter(None, parts))}{auto}".removeprefix("; or ").removeprefix("or ")


def _uneven_remedy(checked: CheckedRecipe, scale: SizedRecipe, size: int) -> str:
    total = scale.args.train_batch_size
    split = batch.nearest_split(total, size)
    if split is None:
        return f"{_path(scale, _BATCH_KEYS[0])}={size} or more: every rank needs a sample"
    if split.is_even:
        path = f"{_path(scale, 'uneven_batch')}.use_uneven_batch"
        return f"{path}=false: {total} divides evenly over {size} ranks"
    return f"{_split_text(scale, split)} gives {total}{_auto(checked, total, size)}"


def _split_text(scale: SizedRecipe, split: batch.BatchSplit) -> str:
    """Return the override that deals a size's samples by a split."""
    return (
        f'"++{scale.path}.{_ARGS}.uneven_batch={{use_uneven_batch: true,'
        f" num_dp_groups_with_small_batch_size: {split.num_small}, small_local_batch_size: {split.small},"
        f' large_local_batch_size: {split.large}}}"'
    )


@notice_rule("N105", source=_CHECKS)
def elasticity_changes_training(planned: PlannedRecipe, notice: MakeNotice) -> Iterator[Notice]:
    """Making a job elastic replaces its static batch and learning rate, which changes the training."""
    checked = planned.checked
    if not checked.is_explicit("recipes.elastic_policy.is_elastic") or not checked.is_elastic:
        return
    static, changed = checked.recipe.training_config.training_args, []
    for name in ("train_batch_size", "learning_rate"):
        values = {get(point.config, f"{_ARGS}.{name}") for point in planned.job.scales}
        if values != {getattr(static, name)}:
            changed.append(f"{name} {getattr(static, name)} → {', '.join(map(str, sorted(values)))}")
    if changed:
        yield notice(f"elastic sizes change {', '.join(changed)}")


@notice_rule("N106", source=_CHECKS)
def samples_per_step_differ(planned: PlannedRecipe, notice: MakeNotice) -> Iterator[Notice]:
    """Samples per step differ between sizes, so a scale event changes the training."""
    sizes = planned.job.scales
    if len({point.samples_per_step for point in sizes}) > 1:
        counts = ", ".join(f"{point.samples_per_step} at {point.nodes}" for point in sizes)
        yield notice(f"samples per optimizer step differ between sizes: {counts}")
