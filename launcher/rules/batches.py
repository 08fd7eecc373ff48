"""Whether the samples of one optimizer step can be dealt out at every size."""

import math
from collections.abc import Callable, Iterator

from launcher import batch
from launcher.check import Draft, Scale
from launcher.planner import spans
from launcher.problems import Problem
from launcher.rules import SIZES, rule
from launcher.scales import AUTO, get, size_of

_ARGS = "training_config.training_args"
_BATCH_KEYS = (
    "train_batch_size",
    "micro_train_batch_size",
    "ring_attn_size",
    "ulysses_sequence_parallel_size",
    "uneven_batch",
)
_NEEDS = (
    *(f"recipes.{_ARGS}.{key}" for key in _BATCH_KEYS),
    *("recipes.trainer", "recipes.distribution", "instance_type"),
    *SIZES,
)
_PLANNER = "docs/decisions.md, The planner"
_SOURCE = "AWS, Using elastic training in Amazon SageMaker HyperPod, Uneven Batch Size"


def planned(draft: Draft) -> tuple[Scale, ...]:
    """Return the sizes that the job may take, but for those with a fault in themselves."""
    if draft.instance and draft.instance.processes and draft.devices > draft.instance.processes:
        return ()  # a Problem of its own; the arithmetic would follow from it
    return tuple(scale for scale in draft.sizes if not scale.is_faulty)


def divided(draft: Draft) -> tuple[Scale, ...]:
    """Return the sizes whose batches can be judged: none while some ranks do not divide into whole groups."""
    return () if _undivided(draft) else planned(draft)


def _undivided(draft: Draft) -> list[Scale]:
    return [s for s in planned(draft) if s.nodes * draft.devices % s.ranks_per_sample]


def is_uneven(scale: Scale) -> bool:
    """Tell whether a size deals its samples unevenly."""
    return bool(scale.args.uneven_batch and scale.args.uneven_batch.use_uneven_batch)


@rule("E220", *_NEEDS, source=_SOURCE)
def ranks_divide(draft: Draft, problem: Callable[..., Problem]) -> Iterator[Problem]:
    """Ranks that share a sample's sequence come in whole groups."""
    for scale in _undivided(draft)[:1]:
        ranks, group = scale.nodes * draft.devices, scale.ranks_per_sample
        if ranks % scale.recipe.model_parallel_size:
            return  # whatever shares its sequence, a replica has no room: a Problem of its own
        common = math.gcd(*(s.nodes * draft.devices for s in planned(draft)))
        yield problem(
            _path(scale, "ring_attn_size"),
            f"{ranks} ranks at {_where(draft, scale)} do not divide into groups of {group}",
            value=group,
            allowed=f"a divisor of {common}, which every size's ranks are a multiple of",
        )


@rule("E221", *_NEEDS, source=_SOURCE)
def even_batches_divide(draft: Draft, problem: Callable[..., Problem]) -> Iterator[Problem]:
    """train_batch_size = W · micro_train_batch_size · accumulation steps, a whole number of them."""
    for scale in divided(draft):
        size, micro = draft.data_parallel_size(scale), scale.args.micro_train_batch_size
        total = scale.args.train_batch_size
        if is_uneven(scale) or total % (size * micro) == 0:
            continue
        yield problem(
            _path(scale, "train_batch_size"),
            f"{total} samples a step are no multiple of {size} data-parallel ranks × micro batch {micro}"
            f" at {_where(draft, scale)}",
            value=total,
            remedy=_remedy(draft, total, size, micro),
        )


@rule("E222", *_NEEDS, source=_SOURCE)
def uneven_batches_are_complete(draft: Draft, problem: Callable[..., Problem]) -> Iterator[Problem]:
    """0 < ranks with the small share < W, and 1 <= small <= large."""
    for scale in filter(is_uneven, divided(draft)):
        uneven, size = scale.args.uneven_batch, draft.data_parallel_size(scale)
        small, large, num_small = _shares(scale)
        if None in (small, large, num_small):
            missing = [name for name, value in uneven.model_dump().items() if value is None]
            yield problem(
                _path(scale, "uneven_batch"),
                f"lacks {', '.join(missing)}",
                remedy=_uneven_remedy(draft, scale, size),
            )
            continue
        if not 0 < num_small < size:
            yield problem(
                _path(scale, "uneven_batch.num_dp_groups_with_small_batch_size"),
                f"{num_small} of {size} ranks cannot take the small share at {_where(draft, scale)}",
                value=num_small,
                allowed=f"1 to {size - 1}",
                remedy=_uneven_remedy(draft, scale, size),
            )
        if not 1 <= small <= large:
            yield problem(
                _path(scale, "uneven_batch.small_local_batch_size"),
                f"small {small} and large {large} are not in order",
                value=small,
                allowed=f"1 to {large}",
                remedy=_uneven_remedy(draft, scale, size),
            )


@rule("E223", *_NEEDS, source=_SOURCE)
def uneven_batches_add_up(draft: Draft, problem: Callable[..., Problem]) -> Iterator[Problem]:
    """train_batch_size = small · num_small + large · (W - num_small)."""
    for scale in filter(is_uneven, divided(draft)):
        size, total = draft.data_parallel_size(scale), scale.args.train_batch_size
        small, large, num_small = _shares(scale)
        if None in (small, large, num_small) or not 0 < num_small < size:
            continue
        num_large = size - num_small
        if (found := small * num_small + large * num_large) != total:
            yield problem(
                _path(scale, "uneven_batch"),
                f"{num_small}·{small} + {num_large}·{large} = {found}, but train_batch_size is {total}"
                f" at {_where(draft, scale)}",
                remedy=_uneven_remedy(draft, scale, size),
            )


@rule("E224", *_NEEDS, source=_PLANNER)
def some_size_is_planned(draft: Draft, problem: Callable[..., Problem]) -> Iterator[Problem]:
    """A planned job has at least one size at which each rank gets a sample."""
    if draft.size_plan is None or not draft.is_elastic or draft.sizes:
        return
    if draft.size_plan.entries:
        yield problem("recipes.scale_config", "every planned size is removed", value="auto")
        return
    policy, samples = draft.recipe.elastic_policy, draft.size_plan.basis.samples
    if policy.min_nodes > policy.max_nodes:
        return
    group = draft.recipe.training_config.training_args.ranks_per_sample * draft.recipe.model_parallel_size
    needed = -(-policy.min_nodes * draft.devices // group)
    yield problem(
        "recipes.scale_config",
        f"no size from {policy.min_nodes} to {policy.max_nodes} nodes × {draft.devices} devices can be planned:"
        f" {needed} data-parallel ranks at least, each of {group} device{'s' if group > 1 else ''},"
        f" {samples} samples a step",
        value="auto",
        remedy=f"recipes.{_ARGS}.train_batch_size={needed} or more"
        if needed > samples
        else "a max_nodes whose devices are a multiple of the sequence-parallel group",
    )


@rule("E225", *_NEEDS, source=_PLANNER)
def every_step_is_planned(draft: Draft, problem: Callable[..., Problem]) -> Iterator[Problem]:
    """The operator takes any size that a step leads to, so none can be left out."""
    step = draft.is_elastic and draft.recipe.elastic_policy.replica_increment_step
    if not step or draft.size_plan is None or not draft.size_plan.entries:
        return
    plan, path = draft.size_plan, "recipes.elastic_policy.replica_increment_step"
    asked = [key for key, value in draft.entries.items() if value is None]
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
def corrected_sizes_are_planned(draft: Draft, problem: Callable[..., Problem]) -> Iterator[Problem]:
    """What is typed for a single size changes a planned one."""
    if draft.size_plan is None or not draft.is_elastic:
        return
    for key in draft.entries:
        if size_of(key) and key not in draft.size_plan.entries:
            yield problem(
                f"recipes.scale_config.{key}",
                "is not among the planned sizes",
                value=key,
                allowed=spans(map(int, draft.size_plan.entries)),
            )


def _shares(scale: Scale) -> tuple[int | None, int | None, int | None]:
    uneven = scale.args.uneven_batch
    return (
        uneven.small_local_batch_size,
        uneven.large_local_batch_size,
        uneven.num_dp_groups_with_small_batch_size,
    )


def _where(draft: Draft, scale: Scale) -> str:
    nodes = f"{scale.nodes} node{'s' if scale.nodes > 1 else ''}"
    return f"{nodes} × {draft.devices} devices" + (f" of {draft.instance.name}" if draft.instance else "")


def _path(scale: Scale, key: str) -> str:
    """Return where the user finds `key`: in the scale's own entry if that sets it, else in the base recipe."""
    rel = f"{_ARGS}.{key}"
    return f"{scale.path}.{rel}" if get(scale.own, rel) is not None else f"recipes.{rel}"


def _auto(draft: Draft, total: int, size: int) -> str:
    """Return the remedy that plans the sizes, where it would help."""
    if total < size or draft.recipe.scale_config == AUTO:
        return ""
    return "; or ++recipes.scale_config=auto plans it"


def _remedy(draft: Draft, total: int, size: int, micro: int) -> str:
    if even := batch.even_split(total, size):
        return f"micro_train_batch_size={batch.largest_micro_batch(even.large, micro)}{_auto(draft, total, size)}"
    below = total // (size * micro) * size * micro
    sizes = " or ".join(str(n) for n in (below, below + size * micro) if n)
    split = batch.nearest_split(total, size)
    uneven = f", or {_split_text(split)}" if split else ""
    return f"train_batch_size={sizes}{uneven}{_auto(draft, total, size)}"


def _uneven_remedy(draft: Draft, scale: Scale, size: int) -> str:
    total = scale.args.train_batch_size
    split = batch.nearest_split(total, size)
    if split is None:
        return f"train_batch_size of at least {size}: every rank needs a sample"
    if split.is_even:
        return f"use_uneven_batch=false: {total} divides evenly over {size} ranks"
    return f"{_split_text(split)} gives {total}{_auto(draft, total, size)}"


def _split_text(split: batch.BatchSplit) -> str:
    return (
        f"num_dp_groups_with_small_batch_size={split.num_small} small_local_batch_size={split.small}"
        f" large_local_batch_size={split.large}"
    )
