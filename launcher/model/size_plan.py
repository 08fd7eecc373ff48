"""Planned sizes of a job, and the values they are derived from."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from launcher.model.recipe_keys import Batch, BatchKeys

BatchName = Literal["train_batch_size", "micro_train_batch_size", "learning_rate"]
"""The numbers of a batch that a plan determines, by their names in `BatchKeys`."""
BATCH: BatchName = "train_batch_size"
MICRO: BatchName = "micro_train_batch_size"
RATE: BatchName = "learning_rate"
_MOST_SHOWN = 8


@dataclass(frozen=True, slots=True)
class BatchInputs:
    """The batch values that the files of a recipe set, and which of them the user chose.

    Args:
        keys: The family's keys of the batch.
        batch: The base recipe's batch, typed.
        table: The recipe's own `scale_config`, which `auto` shadows; empty if it has none.
        base: Values of the base keys below the user's own.
        own: Base keys that the user set: by an override, in the file that sets `auto`, or in a file of their own that
            inherits the table.
        has_rate: False if the recipe of a script states no learning rate.
    """

    keys: BatchKeys
    batch: Batch

    table: Mapping[str, Any]
    base: Mapping[BatchName, Any]
    own: frozenset[BatchName]
    has_rate: bool = True


@dataclass(frozen=True, slots=True)
class SizingBasis:
    """The values that every size is derived from.

    Args:
        samples: Samples per optimizer step, at every size.
        learning_rate: Peak, at every size; None leaves the base recipe's.
        max_micro: Maximum samples per forward pass on one rank: the memory bound.
        description: The three as text, with the source of each.
    """

    samples: int
    learning_rate: float | None
    max_micro: int
    description: str


@dataclass(frozen=True, slots=True)
class SizePlan:
    """The planned sizes.

    Args:
        basis: The values they are derived from.
        entries: Number of nodes, as text, to that size's values; ascending.
        starved: Sizes omitted because some rank would get no sample.
        undivided: Sizes omitted because their ranks do not divide into sequence-parallel groups.
        slower: Sizes omitted because a smaller one is as fast.
        accumulated: Planned sizes whose uneven shares take several passes.
    """

    basis: SizingBasis
    entries: Mapping[str, Mapping[str, Any]]
    starved: tuple[int, ...] = ()
    undivided: tuple[int, ...] = ()
    slower: tuple[int, ...] = ()
    accumulated: tuple[int, ...] = ()


def spans(sizes: Iterable[int]) -> str:
    """Return ascending numbers as `1 to 4, 6, 8`, the middle omitted if there are many parts."""
    parts: list[list[int]] = []
    for size in sizes:
        if parts and size == parts[-1][-1] + 1:
            parts[-1][1:] = [size]
        else:
            parts.append([size])
    words = [" to ".join(map(str, part)) for part in parts]
    if len(words) > _MOST_SHOWN:
        words[_MOST_SHOWN // 2 : -1] = ["…"]
    return ", ".join(words)
