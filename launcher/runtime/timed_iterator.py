"""The time that training waits for its data."""

import time
from collections.abc import Callable, Iterable, Iterator
from typing import Generic, TypeVar

Data = TypeVar("Data")


class TimedIterator(Generic[Data]):
    """An iterator that measures how long its consumer waits for its start and its items.

    Args:
        begin: Starts the iteration.
    """

    def __init__(self, begin: Callable[[], Iterable[Data]]):
        self._waited_s = 0.0
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
