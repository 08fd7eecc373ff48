"""How the samples of one optimizer step fall on the ranks. Standard library only."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass


class SharesMismatch(ValueError):
    """Batch sizes do not fit each other or the number of ranks that started."""


@dataclass(frozen=True, slots=True)
class Shares:
    """How the samples of a full optimizer step fall on the ranks.

    Args:
        per_rank: Samples per rank; its length is the world size.
        micro: Most samples in one forward pass of a rank.
    """

    per_rank: tuple[int, ...]
    micro: int

    @property
    def samples_per_step(self) -> int:
        return sum(self.per_rank)


def nearest_even(samples: int, world_size: int) -> tuple[int, ...]:
    """Return each rank's share of `samples`: the same for all, or one more for the first few."""
    share, extra = divmod(samples, world_size)
    return tuple(share + (rank < extra) for rank in range(world_size))


def step_shares(per_rank: Sequence[int], remaining: int) -> tuple[int, ...]:
    """Return each rank's samples of the next step when `remaining` are left to train on.

    A full step takes `per_rank`; the last one, if shorter, spreads what is left as evenly as it can,
    so that a rank may take none.
    """
    return tuple(per_rank) if remaining >= sum(per_rank) else nearest_even(remaining, len(per_rank))


def rank_positions(shares: Sequence[int], rank: int, cursor: int) -> range:
    """Return the positions of the stream that `rank` takes in the step that begins at `cursor`."""
    start = cursor + sum(shares[:rank])
    return range(start, start + shares[rank])


def micro_batches(positions: range, largest_share: int, micro: int) -> Iterator[range]:
    """Yield the parts, of at most `micro`, that a rank's samples of one step are processed in.

    All ranks get as many parts as the rank with the largest share needs, empty ones included: ranks
    that shard their parameters must run equally many forward passes.
    """
    for start in range(0, max(largest_share, 1), micro):
        yield positions[start : start + micro]
