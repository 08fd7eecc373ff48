"""The division of an optimizer step's samples among the ranks. Standard library only."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass


class SharesMismatch(ValueError):
    """Batch sizes do not match each other or the number of ranks."""


@dataclass(frozen=True, slots=True)
class Shares:
    """The samples of a full optimizer step for each rank, and at most how many are in one forward pass."""

    per_rank: tuple[int, ...]
    micro: int

    @property
    def samples_per_step(self) -> int:
        return sum(self.per_rank)


def nearest_even(samples: int, world_size: int) -> tuple[int, ...]:
    """Return each rank's share of `samples`: equal, or with one more for the first few."""
    share, extra = divmod(samples, world_size)
    return tuple(share + (rank < extra) for rank in range(world_size))


def step_shares(per_rank: Sequence[int], remaining: int) -> tuple[int, ...]:
    """Return each rank's samples of the next step when `remaining` samples are left.

    A full step takes `per_rank`; a shorter last step divides the rest as evenly as possible, so that a rank may take
    none.
    """
    return tuple(per_rank) if remaining >= sum(per_rank) else nearest_even(remaining, len(per_rank))


def passes(share: int, max_micro_batch_size: int) -> tuple[int, int]:
    """Return micro batch and number of passes for an uneven `share`: the fewest passes, then the smallest batch."""
    steps = -(-share // max_micro_batch_size)
    return -(-share // steps), steps


def rank_positions(shares: Sequence[int], rank: int, cursor: int) -> range:
    """Return the positions of the stream that `rank` takes in the step that begins at `cursor`."""
    start = cursor + sum(shares[:rank])
    return range(start, start + shares[rank])


def micro_batches(positions: range, largest_share: int, micro: int) -> Iterator[range]:
    """Yield a rank's samples of one step in parts of at most `micro`.

    All ranks get as many parts as the rank with the largest share needs, including empty ones: under `fully_shard`
    every forward pass is a collective.
    """
    for start in range(0, max(largest_share, 1), micro):
        yield positions[start : start + micro]
