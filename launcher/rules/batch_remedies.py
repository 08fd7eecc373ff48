"""What to type where the samples of a step cannot be distributed: with it, the batch of every size divides."""

import itertools
import math
from collections.abc import Iterator, Sequence

from launcher.model import batch
from launcher.model.base_model import MOST_SAMPLES
from launcher.model.checked_recipe import CheckedRecipe, SizedBatch
from launcher.model.config_tree import AUTO, SCALES
from launcher.model.job_spec import BatchSplit

_BASE = "recipes"
"""Path of a size without an entry of its own."""
_MOST_SIZES = 8
"""Sizes that one remedy changes."""
_PLANS = "++recipes.scale_config=auto plans it"


def adds_up(each: SizedBatch, total: int | None = None) -> bool:
    """Return whether a size distributes all samples of a step: of its batch, or of another."""
    total, ranks = total or each.batch.train_batch_size, each.data_parallel_size
    if not each.uneven:
        return total % (ranks * each.batch.micro_train_batch_size) == 0
    return is_complete(each) and each.split is not None and each.split.samples(ranks) == total


def is_complete(each: SizedBatch) -> bool:
    """Return whether the shares of an uneven batch are in order."""
    split = each.split
    return split is not None and 0 < split.num_small < each.data_parallel_size and 1 <= split.small <= split.large


def has_equal_shares(each: SizedBatch) -> bool:
    """Return whether every rank would take the same number of samples."""
    return each.batch.train_batch_size % each.data_parallel_size == 0


def remedy(checked: CheckedRecipe, batches: Sequence[SizedBatch], faulty: Sequence[SizedBatch]) -> str | None:
    """Return overrides with which the faulty ones of all sizes' batches add up; None if there are none.

    If other sizes fail, too, the overrides mend all of them, or else these alone beside the remedies of the others.
    """
    failing = [each for each in batches if not adds_up(each)]
    auto = _PLANS if _is_planned_by_auto(checked, failing) else ""
    if len(failing) == 1 and _has_own_keys(batches, failing[0]):
        found = _of_one(failing[0])
    elif not (found := " or ".join(_of_all(checked, batches, failing))) and not auto:
        found = _of_each(batches, failing, faulty)
    return "; or ".join(filter(None, (found, auto))) or None


def _of_all(checked: CheckedRecipe, batches: Sequence[SizedBatch], failing: Sequence[SizedBatch]) -> Iterator[str]:
    """Yield the overrides of the base recipe that mend all sizes: of the micro batch, else of the batch."""
    keys = batches[0].keys
    micro = keys.micro_train_batch_size
    if all(has_equal_shares(each) and not each.uneven for each in failing):
        even = [each for each in batches if not each.uneven]
        if not any(_is_typed(checked, each, micro) for each in even):
            share = math.gcd(*(each.batch.train_batch_size // each.data_parallel_size for each in even))
            limit = min(each.batch.micro_train_batch_size for each in failing)
            yield f"{_BASE}.{micro}={batch.largest_micro_batch(share, limit)}"
            return
    found = _common_batches(checked, batches)
    yield from (f"{_BASE}.{keys.train_batch_size}={total}" for total in found)
    if not found and not any(_is_typed(checked, each, key) for each in batches for key in keys.dealt_by):
        yield from itertools.islice(_batches_with_micro(batches), 1)


def _batches_with_micro(batches: Sequence[SizedBatch]) -> Iterator[str]:
    """Yield overrides of both the batch and the micro batch of the base recipe that add up at all sizes."""
    even, keys = [each for each in batches if not each.uneven], batches[0].keys
    for total in _totals(batches, math.lcm(*(each.data_parallel_size for each in even))):
        uneven = all(adds_up(each, total) for each in batches if each.uneven)
        if even and uneven and all(total % each.data_parallel_size == 0 for each in even):
            share = math.gcd(*(total // each.data_parallel_size for each in even))
            micro = batch.largest_micro_batch(share, min(each.batch.micro_train_batch_size for each in even))
            yield f"{_BASE}.{keys.train_batch_size}={total} {_BASE}.{keys.micro_train_batch_size}={micro}"


def _totals(batches: Sequence[SizedBatch], step: int) -> list[int]:
    """Return the batch that uneven shares allow, which are fixed; else the multiples of a step next to the batch."""
    splits = ((each.split, each.data_parallel_size) for each in batches if each.uneven)
    sums = {split.samples(ranks) for split, ranks in splits if split}
    total = next((each for each in batches if not adds_up(each)), batches[0]).batch.train_batch_size
    found = sorted(sums) if sums else [total // step * step, total // step * step + step]
    return [each for each in found if 0 < each <= MOST_SAMPLES]


def _common_batches(checked: CheckedRecipe, batches: Sequence[SizedBatch]) -> list[int]:
    """Return the batches next to the present one that add up at all sizes: that of uneven shares, which are fixed."""
    key = batches[0].keys.train_batch_size
    typed = [each for each in batches if _is_typed(checked, each, key)]
    others = [each for each in batches if each not in typed]
    if not others or not all(map(adds_up, typed)):
        return []
    even = [each.data_parallel_size * each.batch.micro_train_batch_size for each in others if not each.uneven]
    return [total for total in _totals(others, math.lcm(*even)) if all(adds_up(each, total) for each in others)]


def _of_each(batches: Sequence[SizedBatch], failing: Sequence[SizedBatch], faulty: Sequence[SizedBatch]) -> str:
    """Return overrides, one after the other, that mend each of some sizes; empty unless all that fail have one."""
    if len(failing) > _MOST_SIZES or not all(_has_own_keys(batches, each) for each in failing):
        return ""
    return " ".join(next(_alternatives(each)) for each in faulty)


def _of_one(each: SizedBatch) -> str:
    """Return the overrides that mend a size, and what they do."""
    total, found = each.batch.train_batch_size, list(_alternatives(each))
    if not each.uneven:
        batches = list(itertools.takewhile(lambda text: not text.startswith('"'), found))
        return ", or ".join(filter(None, (" or ".join(batches), *found[len(batches) :])))
    if has_equal_shares(each):
        return f"{found[0]}: {total} divides evenly over {each.data_parallel_size} ranks"
    return f"{found[0]} gives {total}" if total >= each.data_parallel_size else found[0]


def _alternatives(each: SizedBatch) -> Iterator[str]:
    """Yield the overrides that each mend one size, which has keys of its own or is the only one."""
    keys, total, ranks = each.keys, each.batch.train_batch_size, each.data_parallel_size
    micro = each.batch.micro_train_batch_size
    split = batch.nearest_split(total, ranks)
    evened = [f"{_own(each, keys.uneven_batch)}.use_uneven_batch=false"] if each.uneven else []
    if split and split.is_even:
        largest = batch.largest_micro_batch(split.large, micro)
        passes = [f"{_own(each, keys.micro_train_batch_size)}={largest}"] if largest != micro else []
        yield " ".join((*evened, *passes))
        return
    of_batch = _own(each, keys.train_batch_size)
    if not each.uneven:
        step = ranks * micro
        found = (total // step * step, total // step * step + step)
        yield from (f"{of_batch}={number}" for number in found if 0 < number <= MOST_SAMPLES)
    if split:
        yield _split_text(each, split)
    elif each.uneven and each.split and is_complete(each):
        yield f"{of_batch}={each.split.samples(ranks)}"
    elif ranks * micro > MOST_SAMPLES:
        yield " ".join((f"{of_batch}={ranks}", *evened, f"{_own(each, keys.micro_train_batch_size)}=1"))
    elif each.uneven:
        yield " ".join((f"{of_batch}={ranks * micro}", *evened))


def _split_text(each: SizedBatch, split: BatchSplit) -> str:
    """Return the override that distributes a size's samples by a split."""
    return (
        f'"++{each.own_path(each.keys.uneven_batch)}={{use_uneven_batch: true,'
        f" num_dp_groups_with_small_batch_size: {split.num_small}, small_local_batch_size: {split.small},"
        f' large_local_batch_size: {split.large}}}"'
    )


def _own(each: SizedBatch, key: str) -> str:
    """Return the start of an override of a key of one size."""
    is_there = each.states(key) or each.size.path == _BASE
    return f"{'' if is_there else '++'}{each.own_path(key)}"


def _has_own_keys(batches: Sequence[SizedBatch], each: SizedBatch) -> bool:
    """Return whether one size can be changed alone."""
    return each.size.path != _BASE or len(batches) == 1


def _is_typed(checked: CheckedRecipe, each: SizedBatch, key: str) -> bool:
    """Return whether the user's overrides set a size's own key, over which none of the base key has an effect."""
    return each.size.path != _BASE and each.own_path(key) in checked.composition.decided


def _is_planned_by_auto(checked: CheckedRecipe, failing: Sequence[SizedBatch]) -> bool:
    """Return whether planned sizes would have no such fault: nothing that was typed is set over them."""
    recipe, keys = checked.recipe, checked.recipe.keys.batch
    if recipe.scale_config == AUTO or recipe.batch is None or keys is None or not failing:
        return False
    own = (f"{_BASE}.{keys.uneven_batch}", *([SCALES] if checked.is_elastic else []))
    if any(path.startswith(f"{each}.") for each in own for path in checked.composition.decided):
        return False
    is_given = checked.composition.is_given(f"{_BASE}.{keys.train_batch_size}")
    totals = [recipe.batch.train_batch_size] if is_given else [each.batch.train_batch_size for each in failing]
    steps = checked.elastic.steps if checked.elastic else (recipe.trainer.num_nodes,)
    ranks = [divmod(nodes * checked.devices, recipe.ranks_per_sample) for nodes in steps]
    divided = [size for size, rest in ranks if not rest]
    if failing[0].batch.train_batch_size < failing[0].data_parallel_size or not divided:
        return False
    if checked.elastic and checked.elastic.replica_increment_step:  # which leads to every size
        return len(divided) == len(ranks) and min(totals) >= max(divided)
    return min(totals) >= min(divided)
