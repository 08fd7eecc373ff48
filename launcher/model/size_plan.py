"""Planned sizes of a job, and what they were derived from."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

ARGS = "training_config.training_args"


_BATCH, _MICRO, _RATE = "train_batch_size", "micro_train_batch_size", "learning_rate"


BOUND = f"recipes.{ARGS}.{_MICRO}"
"""The key whose override bounds every planned size and replaces none's value."""


_GROUPS = ("ring_attn_size", "ulysses_sequence_parallel_size")


NEEDS = (
    *(f"recipes.{ARGS}.{name}" for name in (_BATCH, _MICRO, _RATE, *_GROUPS)),
    "recipes.trainer",
    "recipes.elastic_policy",
    "recipes.planner",
    "recipes.scale_config",
)
"""Dotted paths it reads."""


_MOST_SHOWN = 8


@dataclass(frozen=True, slots=True)
class BatchInputs:
    """What the files say of a recipe's batch, and which of it is the user's own choice.

    Args:
        table: The recipe's own `scale_config`, which `auto` shadows; empty when it has none.
        base: Values of the base keys below the user's own.
        own: Base keys that the user set: by an override, in the file that says `auto`, or in a file of his own that
            inherits the table.
        has_rate: False where the recipe of a script states no learning rate.
    """

    table: Mapping[str, Any]
    base: Mapping[str, Any]
    own: frozenset[str]
    has_rate: bool = True


@dataclass(frozen=True, slots=True)
class SizingBasis:
    """What every size is derived from.

    Args:
        samples: Per optimizer step, at every size.
        learning_rate: Peak, at every size; None leaves the base recipe's.
        max_micro: Most samples of one rank in a forward pass: the memory bound.
        said: The three in words, with where each was taken from.
    """

    samples: int
    learning_rate: float | None
    max_micro: int
    said: str


@dataclass(frozen=True, slots=True)
class SizePlan:
    """The planned sizes.

    Args:
        basis: What they are derived from.
        entries: Number of nodes, as text, to what that size sets; ascending.
        starved: Sizes left out because some rank would get no sample.
        undivided: Sizes left out because their ranks do not come in whole sequence-parallel groups.
        slower: Sizes left out because a smaller one is as fast.
        accumulated: Sizes, not left out, whose uneven shares take several passes.
    """

    basis: SizingBasis
    entries: Mapping[str, Mapping[str, Any]]
    starved: tuple[int, ...] = ()
    undivided: tuple[int, ...] = ()
    slower: tuple[int, ...] = ()
    accumulated: tuple[int, ...] = ()


def spans(sizes: Any) -> str:
    """Return ascending numbers as `1 to 4, 6, 8`, the middle left out where there are many parts."""
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
