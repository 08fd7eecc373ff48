"""The batches of a loader, each matched with the sampler's draw for it.

A loader may prefetch in threads or processes and cannot be inspected in general. The sampler can: its iterators
record their draws, and each batch of the loader must have been drawn before, for the current place in the stream. So
prefetching loaders and wrappers work, and loaders that do not draw from the sampler are refused.
"""

import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Generic, TypeVar

import torch

from launcher.common import names
from launcher.runtime import agent, process_group, startup_timing
from launcher.runtime.durable import append_json
from launcher.runtime.sampler import Batch, DatasetIndices, Draw, StepSampler

Data = TypeVar("Data")


class LoaderMismatch(ValueError):
    """The loader's batches do not match the sampler's draws."""


def matched(sampler: StepSampler, items: Iterator[Data]) -> Iterator[tuple[Draw, Data]]:
    """Yield the batches of `items` from the cursor to the end, each with the sampler's draw for it."""
    source, num_batches = None, len(sampler)
    drawn_before = {iterator.number: iterator.num_drawn for iterator in sampler.iterators()}
    for number, planned in enumerate(sampler.batches()):
        try:
            data = next(items)
        except StopIteration:
            raise LoaderMismatch(
                f"the loader ended after {number} of {num_batches} batches: it is shorter than the sampler, "
                "which it must draw from as its batch_sampler, one batch for each draw"
            ) from None
        source = source or _source(sampler, drawn_before)
        yield _draw_for(planned, source), data
    for _ in items:
        raise LoaderMismatch(f"the loader is longer than the sampler, which has {num_batches} batches")


def _source(sampler: StepSampler, drawn_before: dict[int, int]) -> DatasetIndices | None:
    """Return the iterator over the sampler that the loader draws from.

    It has draws that no batch has used; one that drew since this loader started is preferred, then the newest.
    """
    waiting = [iterator for iterator in sampler.iterators() if iterator.draws]
    drew_since = [iterator for iterator in waiting if iterator.num_drawn > drawn_before.get(iterator.number, 0)]
    return max(drew_since or waiting, key=lambda iterator: iterator.number, default=None)


def _draw_for(planned: Batch, source: DatasetIndices | None) -> Draw:
    if not source or not source.draws:
        raise LoaderMismatch(
            "the loader gave a batch that it did not draw from the sampler of this job: make it "
            "DataLoader(dataset, batch_sampler=sampler), or iterate over the sampler, which gives lists of indices"
        )
    draw = source.draws.popleft()
    if draw.batch != planned:
        raise LoaderMismatch(
            f"the loader drew its batch for position {draw.batch.step_start} of the samples, training is at "
            f"{planned.step_start}: start its iteration after `restore`, and again after leaving the loop"
        )
    return draw


def begun(loader: Iterable[Data]) -> Iterator[Data]:
    """Return the loader's iterator, with its workers started.

    The workers do not receive the stop signal, which goes to the complete process group: without a handler, as in
    spawned workers, it would kill them. The random number drawn to seed them is put back, so that a resumed run draws
    the same numbers as an uninterrupted one.
    """
    if getattr(loader, "in_order", True) is False:
        raise LoaderMismatch("the loader has in_order=False: its batches must come in the order of the sampler")
    with agent.stop_signal_held(), torch.random.fork_rng(devices=[]):
        return iter(loader)


class TimedIterator(Generic[Data]):
    """An iterator that measures how long its consumer waits for its start and its items."""

    def __init__(self, begin: Callable[[], Iterable[Data]]):
        began = time.perf_counter()
        self._items = iter(begin())
        self._waited_s = time.perf_counter() - began

    def __iter__(self) -> Iterator[Data]:
        return self

    def __next__(self) -> Data:
        began = time.perf_counter()
        try:
            return next(self._items)
        finally:
            self._waited_s += time.perf_counter() - began

    def take_waited_s(self) -> float:
        """Return the seconds waited since the last call."""
        waited_s, self._waited_s = self._waited_s, 0.0
        return waited_s


def log_samples(run_dir: Path, step: int, draw: Draw) -> None:
    """Append the samples of a forward pass to `run/samples/rank-<r>.jsonl`, which shows that each was taken once."""
    folder = run_dir / names.SAMPLES_DIR
    folder.mkdir(parents=True, exist_ok=True)
    record: dict[str, object] = {"time": time.time(), "attempt": startup_timing.attempt(), "step": step}
    record |= {"position": draw.batch.positions.start, "samples": draw.samples}
    append_json(folder / f"rank-{process_group.rank()}.jsonl", record)
