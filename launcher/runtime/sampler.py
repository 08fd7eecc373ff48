"""The samples of each rank, so that every sample is taken exactly once for any sequence of world sizes.

Training consumes one stream of samples: epoch after epoch, each in its own seeded order. The only state is a cursor,
the number of samples that all ranks have consumed since the start; it does not depend on the world size, nor on the
number of steps, loader workers or prefetched batches.
"""

import itertools
import weakref
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch

from launcher.runtime import process_group
from launcher.runtime.shares import SharesMismatch, micro_batches, nearest_even, rank_positions, step_shares


class SamplerMismatch(ValueError):
    """A saved cursor counts the samples of another stream."""


@lru_cache(maxsize=2)
def epoch_order(num_samples: int, seed: int, epoch: int) -> torch.Tensor:
    """Return the order of one epoch, shape `(num_samples,)`: a permutation of the dataset's indices.

    Source: PyTorch documentation, DistributedSampler: epoch e of seed s shuffles with the seed s + e.
        With equal shares a step takes the same samples here as there.
    """
    generator = torch.Generator().manual_seed(seed + epoch)
    return torch.randperm(num_samples, generator=generator)


@dataclass(frozen=True, slots=True)
class SampleStream:
    """The samples of a training run in the order of consumption; `seed` seeds every epoch's order."""

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


@dataclass(frozen=True, slots=True)
class Batch:
    """The samples that a rank processes in one forward pass.

    Args:
        positions: In the stream; empty if this rank has no samples left in the step.
        step_start: Cursor at the start of the optimizer step.
        step_samples: Samples of the step, over all ranks.
        completes_step: Whether it is the rank's last batch of the step.
    """

    positions: range
    step_start: int
    step_samples: int
    completes_step: bool

    @property
    def step_stop(self) -> int:
        return self.step_start + self.step_samples


@dataclass(frozen=True, slots=True)
class Draw:
    """A batch that a loader drew from the sampler, and the dataset indices of its samples, if it has any."""

    batch: Batch
    samples: tuple[int, ...]


class StepSampler:
    """A `batch_sampler` that takes every sample of every epoch exactly once, however the ranks change.

    It covers all epochs in one pass, from the cursor on. The state of a StatefulDataLoader holds the cursor, too, if
    it takes a snapshot after every batch, which is its default. Iterating does not move the cursor, since a loader
    prefetches: the training loop sets `cursor` once the samples of a step are consumed, as `Job` does.

    Args:
        num_samples: Size of the dataset.
        samples_per_step: Samples of an optimizer step, over all ranks; the same at every world size.
        epochs: Passes over the dataset.
        seed: Seeds every epoch's order.
        micro_batch_size: Maximum samples in one forward pass of a rank; None for its full share.
        per_rank: Samples of each rank in a step; None for equal shares, with one more for the first ranks if needed.
        rank: Of this process among the data-parallel ranks; None to ask the process group at every use.
        world_size: Number of data-parallel ranks, likewise.
    """

    def __init__(
        self,
        num_samples: int,
        samples_per_step: int,
        epochs: int = 1,
        *,
        seed: int = 0,
        micro_batch_size: int | None = None,
        per_rank: Sequence[int] | None = None,
        rank: int | None = None,
        world_size: int | None = None,
    ):
        if min(num_samples, samples_per_step, epochs, 1 if micro_batch_size is None else micro_batch_size) < 1:
            raise ValueError("num_samples, samples_per_step, epochs and micro_batch_size are at least 1")
        self.stream = SampleStream(num_samples, seed)
        self.samples_per_step = samples_per_step
        self.total_samples = num_samples * epochs
        self.micro_batch_size = micro_batch_size
        self.cursor = 0
        self.records_draws = False
        self._per_rank, self._rank, self._world_size = per_rank, rank, world_size
        self._iterators: weakref.WeakSet[DatasetIndices] = weakref.WeakSet()

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_iterators": None}  # iterators belong to their process

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _iterators=weakref.WeakSet())

    @property
    def rank(self) -> int:
        return process_group.rank() if self._rank is None else self._rank

    @property
    def world_size(self) -> int:
        return process_group.world_size() if self._world_size is None else self._world_size

    @property
    def per_rank(self) -> tuple[int, ...]:
        """Each rank's samples of a full step, shape `(world_size,)`.

        Raises:
            SharesMismatch: The given shares do not match this number of ranks and samples.
        """
        if self._per_rank is None:
            return nearest_even(self.samples_per_step, self.world_size)
        shares = tuple(self._per_rank)
        if len(shares) != self.world_size or sum(shares) != self.samples_per_step or min(shares) < 0:
            raise SharesMismatch(
                f"per_rank={shares} does not split samples_per_step={self.samples_per_step} "
                f"over {self.world_size} ranks"
            )
        return shares

    @property
    def steps_left(self) -> int:
        """Optimizer steps from the cursor to the end."""
        return -(-max(self.total_samples - self.cursor, 0) // self.samples_per_step)

    def batches(self) -> Iterator[Batch]:
        """Yield the batches of this rank from the cursor to the end, one per forward pass."""
        rank, full_step, cursor = self.rank, self.per_rank, self.cursor
        while cursor < self.total_samples:
            shares = step_shares(full_step, self.total_samples - cursor)
            micro = self.micro_batch_size or max(shares)
            parts = list(micro_batches(rank_positions(shares, rank, cursor), max(shares), micro))
            for number, positions in enumerate(parts, start=1):
                yield Batch(positions, cursor, sum(shares), number == len(parts))
            cursor += sum(shares)

    def __iter__(self) -> "DatasetIndices":
        iterator = DatasetIndices(self)
        self._iterators.add(iterator)
        return iterator

    def iterators(self) -> "list[DatasetIndices]":
        """Return the iterators over this sampler that are in use."""
        return list(self._iterators)

    def __len__(self) -> int:
        """Return the number of batches from the cursor to the end."""
        micro, left = self.micro_batch_size, self.total_samples - self.cursor
        full_steps, tail = divmod(max(left, 0), self.samples_per_step)
        of_full, of_tail = max(self.per_rank), -(-tail // self.world_size)
        if micro is None:
            return full_steps + (tail > 0)
        return full_steps * -(-of_full // micro) + -(-of_tail // micro)

    def state_dict(self) -> dict[str, int]:
        """Return the cursor and the stream that it counts; the same on all ranks."""
        return {"cursor": self.cursor, "num_samples": self.stream.num_samples, "seed": self.stream.seed}

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        """Set the cursor to a saved one, saved by any rank at any world size.

        Raises:
            SamplerMismatch: It was saved for another number of samples or another seed.
        """
        own = self.state_dict()
        if any(state[name] != own[name] for name in ("num_samples", "seed")):
            there, here = (f"{each['num_samples']} samples with seed {each['seed']}" for each in (state, own))
            raise SamplerMismatch(f"the saved cursor counts a stream of {there}; this one is of {here}")
        self.cursor = state["cursor"]


_numbers = itertools.count()


class DatasetIndices:
    """The iterator over a sampler's batches, as lists of dataset indices.

    If its sampler records draws, `draws` holds those not matched with a batch yet, and `num_drawn` counts all.

    It has a state for torchdata's StatefulDataLoader, which reads it after every batch and keeps the state of the
    batch that its consumer has.
    """

    def __init__(self, sampler: StepSampler):
        self.number = next(_numbers)
        self.num_drawn = 0
        self.draws: deque[Draw] = deque()
        self._sampler = sampler
        self._restart()

    def _restart(self) -> None:
        self._batches = self._sampler.batches()
        self._cursor = self._sampler.cursor
        self.draws.clear()

    def __iter__(self) -> "DatasetIndices":
        return self

    def __next__(self) -> list[int]:
        batch = next(self._batches)
        if batch.completes_step:
            self._cursor = batch.step_stop
        # A rank without samples processes one with weight 0, since it must take part in the collectives.
        filler = range(batch.step_start, batch.step_start + 1)
        indices = self._sampler.stream.indices(batch.positions or filler).tolist()
        if self._sampler.records_draws:
            self.num_drawn += 1
            self.draws.append(Draw(batch, tuple(indices) if batch.positions else ()))
        return indices

    def state_dict(self) -> dict[str, int]:
        """Return the state after the last step that was drawn completely."""
        return self._sampler.state_dict() | {"cursor": self._cursor}

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        """Continue, with sampler and iterator, from a saved state."""
        self._sampler.load_state_dict(state)
        self._restart()
