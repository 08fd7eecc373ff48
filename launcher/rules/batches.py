"""Whether the samples of one optimizer step can be dealt out at every size."""

import math
from collections.abc import Callable, Iterator

from launcher import batch
from launcher.check import Draft, Scale
from launcher.problems import Problem
from launcher.rules import SIZES, rule
from launcher.scales import get

_ARGS = "training_config.training_args"
_BATCH_KEYS = ("train_batch_size", "micro_train_batch_size", "ring_attn_size", "uneven_batch")
_NEEDS = (*(f"recipes.{_ARGS}.{key}" for key in _BATCH_KEYS), "recipes.trainer", "instance_type", *SIZES)
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
    return [s for s in planned(draft) if s.nodes * draft.devices % s.args.ring_attn_size]


def is_uneven(scale: Scale) -> bool:
    """Tell whether a size deals its samples unevenly."""
    return bool(scale.args.uneven_batch and scale.args.uneven_batch.use_uneven_batch)


@rule("E220", *_NEEDS, source=_SOURCE)
def ranks_divide(draft: Draft, problem: Callable[..., Problem]) -> Iterator[Problem]:
    """Ranks that share a sample's sequence come in whole groups."""
    for scale in _undivided(draft)[:1]:
        ranks, group = scale.nodes * draft.devices, scale.args.ring_attn_size
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
            remedy=_remedy(total, size, micro),
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
                remedy=_uneven_remedy(scale, size),
            )
            continue
        if not 0 < num_small < size:
            yield problem(
                _path(scale, "uneven_batch.num_dp_groups_with_small_batch_size"),
                f"{num_small} of {size} ranks cannot take the small share at {_where(draft, scale)}",
                value=num_small,
                allowed=f"1 to {size - 1}",
                remedy=_uneven_remedy(scale, size),
            )
        if not 1 <= small <= large:
            yield problem(
                _path(scale, "uneven_batch.small_local_batch_size"),
                f"small {small} and large {large} are not in order",
                value=small,
                allowed=f"1 to {large}",
                remedy=_uneven_remedy(scale, size),
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
                remedy=_uneven_remedy(scale, size),
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


def _remedy(total: int, size: int, micro: int) -> str:
    if even := batch.even_split(total, size):
        return f"micro_train_batch_size={batch.largest_micro_batch(even.large, micro)}"
    below = total // (size * micro) * size * micro
    sizes = " or ".join(str(n) for n in (below, below + size * micro) if n)
    split = batch.nearest_split(total, size)
    uneven = f", or {_split_text(split)}" if split else ""
    return f"train_batch_size={sizes}{uneven}"


def _uneven_remedy(scale: Scale, size: int) -> str:
    total = scale.args.train_batch_size
    split = batch.nearest_split(total, size)
    if split is None:
        return f"train_batch_size of at least {size}: every rank needs a sample"
    if split.is_even:
        return f"use_uneven_batch=false: {total} divides evenly over {size} ranks"
    return f"{_split_text(split)} gives {total}"


def _split_text(split: batch.BatchSplit) -> str:
    return (
        f"num_dp_groups_with_small_batch_size={split.num_small} small_local_batch_size={split.small}"
        f" large_local_batch_size={split.large}"
    )
