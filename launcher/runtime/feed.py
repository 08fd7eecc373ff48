"""A loader's batches, each matched with what the sampler drew for it.

A loader may fetch ahead, in threads or processes, and cannot be inspected in general. The sampler can: an iterator
over it records what it gave out, and each batch of the loader must have been drawn before.
"""

from collections.abc import Iterable, Iterator
from typing import TypeVar

import torch

from launcher.runtime import agent
from launcher.runtime.sampler import Batch, DatasetIndices, Draw, StepSampler

Data = TypeVar("Data")
_END = object()


class LoaderMismatch(ValueError):
    """The loader's batches are not those that the sampler drew."""


def matched(sampler: StepSampler, items: Iterator[Data]) -> Iterator[tuple[Draw, Data]]:
    """Yield the batches of `items`, each with what the sampler drew for it, from the cursor to the end.

    Args:
        sampler: Records its draws.
        items: A loader's iterator, begun already.

    Raises:
        LoaderMismatch: A batch was not drawn from the sampler, or was drawn for another place in the stream; or
            there are fewer batches than the sampler has, or more.
    """
    source, num_batches = None, len(sampler)
    drawn_before = {iterator.number: iterator.num_drawn for iterator in sampler.iterators()}
    for number, planned in enumerate(sampler.batches()):
        data = next(items, _END)
        if data is _END:
            raise LoaderMismatch(
                f"the loader ended after {number} of {num_batches} batches: it is shorter than the sampler, "
                "which it must draw from as its batch_sampler, one batch for each draw"
            )
        source = source or _source(sampler, drawn_before)
        yield _draw_for(planned, source), data
    if next(items, _END) is not _END:
        raise LoaderMismatch(f"the loader is longer than the sampler, which has {num_batches} batches")


def _source(sampler: StepSampler, drawn_before: dict[int, int]) -> DatasetIndices | None:
    """Return the iterator over the sampler that the loader draws from: of those with draws that nobody consumed,
    one that drew for this loader, and the newest."""
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
            f"{planned.step_start}: begin its iteration after `restore`, and anew after leaving the loop"
        )
    return draw


def begun(loader: Iterable[Data]) -> Iterator[Data]:
    """Return the loader's iterator, its workers begun.

    The workers are spared the stop signal, which goes to a whole process group: without a handler, as in
    spawned workers, it would end them. The seed that is drawn for them is put back, so that a resumed run
    draws the numbers of one that was not interrupted.

    Raises:
        LoaderMismatch: The loader gives its batches in any order.
    """
    if getattr(loader, "in_order", True) is False:
        raise LoaderMismatch("the loader has in_order=False: its batches must come in the order of the sampler")
    with agent.stop_signal_held(), torch.random.fork_rng(devices=[]):
        return iter(loader)
