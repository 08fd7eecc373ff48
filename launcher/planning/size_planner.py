"""`scale_config: auto`: every size a job may take, derived from one batch, one memory bound and the real devices.

The result has the form of a `scale_config` written by hand, so that the rules check it by the same arithmetic.
"""

import math
from collections.abc import Mapping
from typing import Any

from launcher.config.provenance import is_stand_in
from launcher.model import batch
from launcher.model.composition import Composition
from launcher.model.config_tree import AUTO, get, merged
from launcher.model.size_plan import _BATCH, _MICRO, _RATE, ARGS, BatchInputs, SizePlan, SizingBasis

_DIGITS = 4
"""Significant digits of a scaled learning rate. Source: the published elastic recipes, 1e-4 · √8 = 0.0002828."""
_OWN_SIZES, _BASE = "the recipe's own sizes", "the base recipe"


def given(composition: Composition) -> BatchInputs:
    """Return the batch values in a recipe's files, below those that the user chose."""
    written = composition.sources.layers("recipes.scale_config")
    first_own = max((layer for layer, value in written if value == AUTO), default=math.inf)
    below = max((layer for layer, value in written if value != AUTO), default=-1)
    chosen = {layer for layer in composition.sources.own_layers if layer > below}
    table: Mapping[str, Any] = {}
    for _, value in written:
        table = merged(table, value) if isinstance(value, Mapping) else table if value == AUTO else {}
    base, own = {}, set()
    for name in (_BATCH, _MICRO, _RATE):
        path = f"recipes.{ARGS}.{name}"
        layers = composition.sources.layers(path)
        inherited = [value for layer, value in layers if layer < first_own and layer not in chosen]
        base[name] = inherited[-1] if inherited else None
        if path in composition.explicit or len(inherited) < len(layers):
            own.add(name)
    has_rate = not is_stand_in(composition.origin(f"recipes.{ARGS}.{_RATE}"))
    return BatchInputs(table, base, frozenset(own), has_rate)


def basis(recipe: Any, given: BatchInputs, *, is_elastic: bool) -> SizingBasis:
    """Return batch, learning rate and memory bound: the user's, else the recipe's own sizes', else the base recipe's.

    Batch and learning rate belong together, so they are taken from the recipe's own sizes only where these agree on
    both. A static job has never read them.

    Args:
        recipe: The typed base recipe.
        given: The batch values in its files.
        is_elastic: Whether the job may change its size.
    """
    args = recipe.training_config.training_args
    known = (_number(given.base[_BATCH]) or args.train_batch_size, _number(given.base[_RATE]) or args.learning_rate)
    pairs = {(_size_arg(e, _BATCH) or known[0], _size_arg(e, _RATE) or known[1]) for e in given.table.values()}
    is_agreed = is_elastic and len(pairs) == 1
    (samples, rate), source = (pairs.pop(), _OWN_SIZES) if is_agreed else (known, _BASE)
    texts = [f"{samples} samples a step and learning rate {rate:g} ({source})"]
    if given.own & {_BATCH, _RATE}:
        rate, rate_source = _learning_rate(recipe, given, samples, rate, source)
        is_own = _BATCH in given.own
        samples = args.train_batch_size if is_own else samples
        whose = "yours" if is_own else source
        texts = [f"{samples} samples a step ({whose})", f"learning rate {rate:g} ({rate_source})"]
    if not given.has_rate:
        rate, texts = None, [f"{samples} samples a step ({'yours' if _BATCH in given.own else source})"]
    max_micro, micro_source = _memory_bound(recipe, given)
    texts.append(f"at most {max_micro} in a pass ({micro_source})")
    return SizingBasis(samples, rate, max_micro, ", ".join(texts))


def _learning_rate(recipe: Any, given: BatchInputs, samples: int, rate: float, source: str) -> tuple[float, str]:
    """Return the learning rate where the user chose a part of the batch, and why it is that.

    Source: the linear rule, Goyal et al. 2017, "Accurate, Large Minibatch SGD"; the square root for Adam, Malladi et
    al. 2022, "On the SDEs and Scaling Rules for Adaptive Gradient Algorithms". The published elastic recipes follow
    the square root.
    """
    args = recipe.training_config.training_args
    policy = recipe.planner.learning_rate if recipe.planner else None
    factor = args.train_batch_size / samples if _BATCH in given.own else 1.0
    if _RATE in given.own:
        is_idle = policy not in (None, "keep")
        return args.learning_rate, f"yours, planner.learning_rate={policy} has no effect" if is_idle else "yours"
    if factor == 1 or policy in (None, "keep"):
        return rate, f"kept from {source}"
    scaled = rate * (math.sqrt(factor) if policy == "sqrt" else factor)
    ratio = f"{args.train_batch_size}/{samples}"
    return float(f"{scaled:.{_DIGITS}g}"), f"{rate:g} · {f'√({ratio})' if policy == 'sqrt' else ratio}"


def _memory_bound(recipe: Any, given: BatchInputs) -> tuple[int, str]:
    if recipe.planner and recipe.planner.max_micro_batch_size:
        return recipe.planner.max_micro_batch_size, "max_micro_batch_size"
    micro = recipe.training_config.training_args.micro_train_batch_size
    if _MICRO in given.own:
        return micro, "yours"
    base = _positive_int(given.base[_MICRO]) or micro
    largest = max((_pass_of(entry, base) for entry in given.table.values()), default=0)
    return (largest, f"the largest in {_OWN_SIZES}") if largest > base else (base, _BASE)


def _pass_of(entry: Any, base_micro: int) -> int:
    """Return the largest pass of a size written by hand: an uneven share is one pass.

    Source: the published elastic recipes: sizes whose uneven share exceeds the micro batch of the others are absent.
    """
    uneven = get(entry, f"{ARGS}.uneven_batch")
    if get(uneven, "use_uneven_batch") is True:
        return _positive_int(get(uneven, "large_local_batch_size")) or base_micro
    return _positive_int(_size_arg(entry, _MICRO)) or base_micro


def _size_arg(entry: Any, name: str) -> float | None:
    return _number(get(entry, f"{ARGS}.{name}"))


def _number(value: Any) -> float | None:
    """Return a positive number that a file holds, None for anything else: the shadowed part was never typed."""
    return value if isinstance(value, int | float) and not isinstance(value, bool) and value > 0 else None


def _positive_int(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None


def plan(recipe: Any, devices: int, given: BatchInputs, *, is_elastic: bool) -> SizePlan:
    """Plan every size of a job; a static job has one.

    Args:
        recipe: The typed base recipe; `NEEDS` must be without fault.
        devices: Worker processes a node.
        given: The batch values in its files.
        is_elastic: Whether the job may change its size.
    """
    found = basis(recipe, given, is_elastic=is_elastic)
    group = recipe.training_config.training_args.ranks_per_sample * recipe.model_parallel_size
    fits: dict[int, batch.Fit] = {}
    starved, undivided = [], []
    for nodes in _candidates(recipe, is_elastic):
        size, rest = divmod(nodes * devices, group)
        if rest:
            undivided.append(nodes)
        elif fitted := batch.fit(found.samples, size, found.max_micro):
            fits[nodes] = fitted
        else:
            starved.append(nodes)
    is_picky = recipe.planner is not None and recipe.planner.sizes == "worthwhile"
    slower = _slower(fits) if is_elastic and is_picky else frozenset()
    had_uneven = recipe.training_config.training_args.uneven_batch is not None
    kept = {nodes: fitted for nodes, fitted in fits.items() if nodes not in slower}
    return SizePlan(
        basis=found,
        entries={str(nodes): _entry(nodes, fitted, found, had_uneven) for nodes, fitted in kept.items()},
        starved=tuple(starved),
        undivided=tuple(undivided),
        slower=tuple(nodes for nodes in fits if nodes in slower),
        accumulated=tuple(n for n, f in kept.items() if f.grad_accumulation > 1 and not f.split.is_even),
    )


def _candidates(recipe: Any, is_elastic: bool) -> range:
    policy, start = recipe.elastic_policy, recipe.trainer.num_nodes
    if not is_elastic:
        return range(start, start + 1)
    return range(policy.min_nodes, policy.max_nodes + 1, policy.replica_increment_step or 1)


def _slower(fits: Mapping[int, batch.Fit]) -> frozenset[int]:
    others = batch.no_faster_than(fit.split.large for fit in fits.values())
    return frozenset(nodes for nodes, other in zip(fits, others, strict=True) if other is not None)


def _entry(nodes: int, fitted: batch.Fit, found: SizingBasis, had_uneven: bool) -> dict[str, Any]:
    """Return a size as `scale_config` writes it."""
    args: dict[str, Any] = {
        _BATCH: found.samples,
        _MICRO: fitted.micro_batch_size,
    }
    if found.learning_rate is not None:
        args[_RATE] = found.learning_rate
    split = fitted.split
    if not split.is_even:
        args["uneven_batch"] = {
            "use_uneven_batch": True,
            "num_dp_groups_with_small_batch_size": split.num_small,
            "small_local_batch_size": split.small,
            "large_local_batch_size": split.large,
        }
    elif had_uneven:
        args["uneven_batch"] = {"use_uneven_batch": False}
    return {"trainer": {"num_nodes": nodes}, "training_config": {"training_args": args}}


def corrected(plan: SizePlan, corrections: Mapping[str, Any]) -> dict[str, Any]:
    """Return the planned entries with the user's overrides of single sizes over them; None removes a size."""
    entries = dict(plan.entries)
    for key, value in corrections.items():
        if key in entries and value is None:
            del entries[key]
        elif key in entries:
            entries[key] = merged(entries[key], value) if isinstance(value, Mapping) else value
    return entries
