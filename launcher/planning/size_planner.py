"""`scale_config: auto`: every size a job may take, derived from one batch, one memory bound and the real devices.

The result has the form of a hand-written `scale_config`, so the rules check it by the same arithmetic.
"""

import functools
import math
from collections.abc import Mapping
from typing import Any

from launcher.model import batch
from launcher.model.composition import Composition
from launcher.model.config_tree import AUTO, get, merged, replaced
from launcher.model.recipe import USEFUL, RecipeBase
from launcher.model.recipe_keys import Batch, BatchKeys, BatchName
from launcher.model.size_plan import BATCH, MICRO, RATE, BatchInputs, SizePlan, SizingBasis

_DIGITS = 4
"""Significant digits of a scaled learning rate. Source: the published elastic recipes, 1e-4 · √8 = 0.0002828."""
_OWN_SIZES, _BASE = "the recipe's own sizes", "the base recipe"


def given(composition: Composition, keys: BatchKeys, base_batch: Batch) -> BatchInputs:
    """Return the batch values that a recipe's files set, without the user's."""
    written = composition.sources.layers("recipes.scale_config")
    # The layer that plans the sizes, and the user's layers above all that write them by hand.
    first_own: float = max((layer for layer, value in written if value == AUTO), default=math.inf)
    by_hand = max((layer for layer, value in written if value != AUTO), default=-1)
    chosen = {layer for layer in composition.sources.own_layers if layer > by_hand}
    table: Mapping[str, Any] = {}
    for _, value in written:
        if isinstance(value, Mapping):
            table = merged(table, value)
        elif value != AUTO:  # which leaves the sizes that are written by hand
            table = {}
    base: dict[BatchName, Any] = {}
    own: set[BatchName] = set()
    for name in (BATCH, MICRO, RATE):
        path = f"recipes.{keys.path(name)}"
        layers = composition.sources.layers(path)
        inherited = [value for layer, value in layers if layer < first_own and layer not in chosen]
        base[name] = inherited[-1] if inherited else None
        if path in composition.explicit or len(inherited) < len(layers):
            own.add(name)
    has_rate = not composition.is_unstated(f"recipes.{keys.learning_rate}")
    return BatchInputs(keys, base_batch, table, base, frozenset(own), has_rate)


def basis(recipe: RecipeBase, given: BatchInputs, *, is_elastic: bool) -> SizingBasis:
    """Return batch, learning rate and memory bound: the user's, else the recipe's own sizes', else the base recipe's.

    Batch and learning rate belong together, so they are taken from the recipe's own sizes only if these agree on
    both. A static job has never read them.
    """
    (samples, rate), source = _inherited(given, is_elastic=is_elastic)
    is_own = BATCH in given.own
    texts = [f"{samples} samples per step and learning rate {rate:g} ({source})"]
    chosen: float | None = rate
    if is_own or RATE in given.own:
        chosen, reason = _learning_rate(recipe, given, samples, rate, source)
        samples = given.batch.train_batch_size if is_own else samples
        texts = [
            f"{samples} samples per step ({'yours' if is_own else source})",
            f"learning rate {chosen:g} ({reason})",
        ]
    if not given.has_rate:
        chosen, texts = None, [f"{samples} samples per step ({'yours' if is_own else source})"]
    max_micro, reason = _memory_bound(recipe, given)
    return SizingBasis(samples, chosen, max_micro, ", ".join([*texts, f"at most {max_micro} in a pass ({reason})"]))


def _inherited(given: BatchInputs, *, is_elastic: bool) -> tuple[tuple[int, float], str]:
    """Return batch and learning rate without the user's values, and their source."""
    keys, own = given.keys, given.batch
    base = _whole(given.base[BATCH]) or own.train_batch_size, _number(given.base[RATE]) or own.learning_rate
    pairs = {
        (
            _whole(get(entry, keys.train_batch_size)) or base[0],
            _number(get(entry, keys.learning_rate)) or base[1],
        )
        for entry in given.table.values()
    }
    return (pairs.pop(), _OWN_SIZES) if is_elastic and len(pairs) == 1 else (base, _BASE)


def _learning_rate(
    recipe: RecipeBase, given: BatchInputs, samples: int, rate: float, source: str
) -> tuple[float, str]:
    """Return the learning rate if the user chose a part of the batch, and the reason for it.

    Source: the linear rule, Goyal et al. 2017, "Accurate, Large Minibatch SGD"; the square root for Adam, Malladi et
    al. 2022, "On the SDEs and Scaling Rules for Adaptive Gradient Algorithms". The published elastic recipes follow
    the square root.
    """
    policy, wanted = recipe.planner.learning_rate if recipe.planner else None, given.batch.train_batch_size
    factor = wanted / samples if BATCH in given.own else 1.0
    if RATE in given.own:
        is_idle = policy not in (None, "keep")
        reason = f"yours, planner.learning_rate={policy} has no effect" if is_idle else "yours"
        return given.batch.learning_rate, reason
    if factor == 1 or policy in (None, "keep"):
        return rate, f"kept from {source}"
    scaled = rate * (math.sqrt(factor) if policy == "sqrt" else factor)
    ratio = f"{wanted}/{samples}"
    return float(f"{scaled:.{_DIGITS}g}"), f"{rate:g} · {f'√({ratio})' if policy == 'sqrt' else ratio}"


def _memory_bound(recipe: RecipeBase, given: BatchInputs) -> tuple[int, str]:
    if recipe.planner and recipe.planner.max_micro_batch_size:
        return recipe.planner.max_micro_batch_size, "max_micro_batch_size"
    micro = given.batch.micro_train_batch_size
    if MICRO in given.own:
        return micro, "yours"
    base = _whole(given.base[MICRO]) or micro
    largest = max((_pass_of(given.keys, entry, base) for entry in given.table.values()), default=0)
    return (largest, f"the largest in {_OWN_SIZES}") if largest > base else (base, _BASE)


def _pass_of(keys: BatchKeys, entry: object, base_micro: int) -> int:
    """Return the largest pass of a hand-written size: an uneven share is one pass.

    Source: the published elastic recipes: sizes whose uneven share exceeds the micro batch of the others are absent.
    """
    uneven = get(entry, keys.uneven_batch)
    if get(uneven, "use_uneven_batch") is True:
        return _whole(get(uneven, "large_local_batch_size")) or base_micro
    return _whole(get(entry, keys.micro_train_batch_size)) or base_micro


def _number(value: object) -> float | None:
    """Return a positive number that a file holds, None for anything else: the shadowed part was never validated."""
    return value if isinstance(value, int | float) and not isinstance(value, bool) and value > 0 else None


def _whole(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None


def plan(recipe: RecipeBase, devices: int, given: BatchInputs, *, is_elastic: bool) -> SizePlan:
    """Plan every size of a job; a static job has one.

    Args:
        recipe: The typed base recipe; `BatchKeys.planned_from` must be valid.
        devices: Worker processes per node.
    """
    found = basis(recipe, given, is_elastic=is_elastic)
    own = recipe.trainer.num_nodes
    sizes = recipe.elastic_policy.steps if is_elastic and recipe.elastic_policy else range(own, own + 1)
    fits: dict[int, batch.Fit] = {}
    starved, undivided = [], []
    for nodes in sizes:
        size, rest = divmod(nodes * devices, recipe.ranks_per_sample)
        if rest:  # not of full model replicas
            undivided.append(nodes)
        elif fitted := batch.fit(found.samples, size, found.max_micro):
            fits[nodes] = fitted
        else:  # the batch is too small for it
            starved.append(nodes)
    slower: set[int] = set()
    if is_elastic and recipe.planner is not None and recipe.planner.sizes in USEFUL:
        others = batch.no_faster_than(fit.split.large for fit in fits.values())
        slower = {nodes for nodes, other in zip(fits, others, strict=True) if other is not None}
    kept = {nodes: fitted for nodes, fitted in fits.items() if nodes not in slower}
    return SizePlan(
        basis=found,
        entries=_entries(kept, found, given),
        starved=tuple(starved),
        undivided=tuple(undivided),
        slower=tuple(nodes for nodes in fits if nodes in slower),
    )


def _entries(fits: Mapping[int, batch.Fit], found: SizingBasis, given: BatchInputs) -> dict[str, Mapping[str, Any]]:
    """Return the sizes as entries of `scale_config`."""
    keys = given.keys

    @functools.cache  # equal parts of entries are shared
    def of_micro_batch(size: int) -> Mapping[str, Any]:
        tree = replaced({"trainer": {}}, keys.train_batch_size, found.samples)
        tree = replaced(tree, keys.micro_train_batch_size, size)
        return tree if found.learning_rate is None else replaced(tree, keys.learning_rate, found.learning_rate)

    entries: dict[str, Mapping[str, Any]] = {}
    for nodes, fitted in fits.items():
        tree, split = of_micro_batch(fitted.micro_batch_size), fitted.split
        if not split.is_even:
            uneven = {
                "use_uneven_batch": True,
                "num_dp_groups_with_small_batch_size": split.num_small,
                "small_local_batch_size": split.small,
                "large_local_batch_size": split.large,
            }
            tree = replaced(tree, keys.uneven_batch, uneven)
        elif given.batch.uneven_batch is not None:
            tree = replaced(tree, keys.uneven_batch, {"use_uneven_batch": False})
        entries[str(nodes)] = replaced(tree, "trainer.num_nodes", nodes)
    return entries


def corrected(plan: SizePlan, corrections: Mapping[str, Any]) -> dict[str, Any]:
    """Return the planned entries with the user's overrides of single sizes over them; None removes a size."""
    entries = dict(plan.entries)
    for key, value in corrections.items():
        if key in entries and value is None:
            del entries[key]
        elif key in entries:
            entries[key] = merged(entries[key], value) if isinstance(value, Mapping) else value
    return entries
