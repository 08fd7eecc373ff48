"""Which samples a rank takes, so that each is taken exactly once at any sequence of world sizes.

Training is one endless stream of samples: epoch after epoch, each in its own seeded order. The only
state is a cursor, the samples consumed since the start; neither the world size nor the number of
steps is part of it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import torch


@lru_cache(maxsize=2)
def epoch_order(num_samples: int, seed: int, epoch: int) -> torch.Tensor:
    """Return the order of one epoch, shape `(num_samples,)`: a permutation of the dataset's indices."""
    generator = torch.Generator().manual_seed(seed + 1_000_003 * epoch)
    return torch.randperm(num_samples, generator=generator)


@dataclass(frozen=True, slots=True)
class SampleStream:
    """The samples of a training run in the order they are consumed.

    Args:
        num_samples: Size of the dataset.
        seed: Seeds every epoch's order.
    """

    num_samples: int
    seed: int

    def indices(self, positions: range) -> torch.Tensor:
        """Return the dataset index at each of `positions` of the stream, shape `(len(positions),)`."""
        parts = [torch.empty(0, dtype=torch.int64)]
        start = positions.start
        while start < positions.stop:
            epoch, offset = divmod(start, self.num_samples)
            taken = min(self.num_samples - offset, positions.stop - start)
            parts.append(epoch_order(self.num_samples, self.seed, epoch)[offset : offset + taken])
            start += taken
        return torch.cat(parts)


def step_shares(per_rank: Sequence[int], remaining: int) -> tuple[int, ...]:
    """Return each rank's samples of the next step when `remaining` are left to train on.

    A full step takes `per_rank`; the last one, if shorter, spreads what is left as evenly as it can,
    so that a rank may take none.
    """
    if remaining >= sum(per_rank):
        return tuple(per_rank)
    share, extra = divmod(remaining, len(per_rank))
    return tuple(share + (rank < extra) for rank in range(len(per_rank)))


def rank_positions(shares: Sequence[int], rank: int, cursor: int) -> range:
    """Return the positions of the stream that `rank` takes in the step that begins at `cursor`."""
    start = cursor + sum(shares[:rank])
    return range(start, start + shares[rank])
