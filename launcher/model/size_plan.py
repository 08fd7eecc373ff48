"""Planned sizes of a job, and the values they are derived from."""

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from launcher.model.recipe_keys import Batch, BatchKeys, BatchName

BATCH: BatchName = "train_batch_size"
MICRO: BatchName = "micro_train_batch_size"
RATE: BatchName = "learning_rate"
_MOST_SHOWN = 8


class BatchInputs(NamedTuple):
    """The batch values that the files of a recipe set, and which of them the user chose."""

    keys: BatchKeys
    batch: Batch
    table: Mapping[str, Any]
    """The recipe's own `scale_config`, which `auto` shadows; empty if it has none."""
    base: Mapping[BatchName, Any]
    """Values of the base keys below the user's own."""
    own: frozenset[BatchName]
    """Base keys that the user set: by an override, in the file that sets `auto`, or in a file of their own that
    inherits the table."""
    has_rate: bool = True
    """False if the recipe of a script states no learning rate."""


class SizingBasis(NamedTuple):
    """The values that every size is derived from."""

    samples: int
    """Per optimizer step, at every size."""
    learning_rate: float | None
    """Peak, at every size; None leaves the base recipe's."""
    max_micro: int
    """Maximum samples per forward pass on one rank: the memory bound."""
    description: str
    """The three as text, with the source of each."""


class SizePlan(NamedTuple):
    """The planned sizes, and those that are omitted."""

    basis: SizingBasis
    entries: Mapping[str, Mapping[str, Any]]
    """Number of nodes, as text, to that size's values; ascending."""
    starved: tuple[int, ...] = ()
    """Omitted because some rank would get no sample."""
    undivided: tuple[int, ...] = ()
    """Omitted because their ranks do not divide into sequence-parallel groups."""
    slower: tuple[int, ...] = ()
    """Omitted because a smaller one is as fast."""


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
