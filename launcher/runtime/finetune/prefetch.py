"""The batches of a rank, made ahead of their use in a thread of their own."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

import torch

DEPTH = 2
"""Batches that wait for their use. Our own choice: one hides the time of making one, the other its variation."""

Item = TypeVar("Item")
Made = TypeVar("Made")


def ahead(items: Iterable[Item], make: Callable[[Item], Made], device: torch.device) -> Iterator[Made]:
    """Yield what `make` returns for each item; it is called up to `DEPTH` items ahead, in another thread.

    Args:
        items: Drawn in this thread.
        make: Reads samples and lays out rows.
        device: That the rows are for. A thread starts with the first accelerator as its current one, and pinning
            memory would take memory there.
    """
    prepare = (lambda: torch.cuda.set_device(device)) if device.type == "cuda" else None
    waiting: deque[Future[Made]] = deque()
    drawn = iter(items)  # kept to the end: a sampler forgets the draws of an iterator that is no longer in use
    with ThreadPoolExecutor(1, "batches", prepare) as thread:
        for item in drawn:
            waiting.append(thread.submit(make, item))
            if len(waiting) > DEPTH:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
