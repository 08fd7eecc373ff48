"""Questions to clusters that a page does not wait for: the last answer is shown until the next has come."""

import logging
import threading
import time
from collections.abc import Callable, Hashable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from launcher.common import os_errors
from launcher.common.problems import Problem, ProblemsFound, fail

T = TypeVar("T")
_LOG = logging.getLogger(__name__)
_REPEAT_S = 30.0
"""After how long a question that could not be answered is asked again at the latest."""
_MOST_PLACES = 32
"""Places that keep a thread of their own."""
_MOST_KEPT = 500
"""Answers that are kept, the newest ones."""


@dataclass(frozen=True, slots=True)
class Answer(Generic[T]):
    """What was answered.

    Args:
        value: None if there is none yet, or only problems.
        problems: Why there is none.
        number: Counts the answers to a question; 0 before the first.
    """

    value: T | None
    problems: tuple[Problem, ...]
    number: int
    at: float


_NONE: Answer[Any] = Answer(None, (), 0, 0.0)


class Answers:
    """Answers by their questions. A place is asked one question at a time, so that a silent one blocks no other."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: dict[Hashable, Answer[Any]] = {}
        self._asked: dict[Hashable, Future[None]] = {}
        self._places: dict[Hashable, ThreadPoolExecutor] = {}

    def get(
        self, place: Hashable, key: Hashable, ask: Callable[[], T], *, age_s: float, wait_s: float = 0.0
    ) -> Answer[T]:
        """Return the last answer to a question, which is asked again if it is older than `age_s`.

        Args:
            place: Who is asked.
            key: Which question it is.
            ask: Returns the answer, or raises Problems.
            wait_s: How long to wait for a first answer.
        """
        whole = (place, key)
        with self._lock:
            known = self._known.get(whole, _NONE)
            running = self._asked.get(whole)
            due_s = min(age_s, _REPEAT_S) if known.problems else age_s
            if running is None and (not known.number or time.monotonic() - known.at >= due_s):
                pool = self._places.pop(place, None) or ThreadPoolExecutor(1, thread_name_prefix="question")
                self._places[place] = pool
                if len(self._places) > _MOST_PLACES:  # the one that was asked longest ago
                    self._places.pop(next(iter(self._places))).shutdown(wait=False)
                running = self._asked[whole] = pool.submit(self._ask, whole, ask)
        if running is not None and not known.number and wait_s:
            try:
                running.result(wait_s)
            except TimeoutError:
                return known
            return self._known.get(whole, known)
        return known

    def _ask(self, whole: Hashable, ask: Callable[[], Any]) -> None:
        value: Any = None
        problems: tuple[Problem, ...] = ()
        try:
            value = ask()
        except ProblemsFound as error:
            problems = error.problems
        except Exception as error:  # of any damage; without a Problem, no answer would look like an empty one
            problems = damaged("job", whole, error).problems
        finally:
            with self._lock:
                number = self._known.pop(whole, _NONE).number + 1
                self._known[whole] = Answer(value, problems, number, time.monotonic())
                del self._asked[whole]
                while len(self._known) > _MOST_KEPT:
                    del self._known[next(iter(self._known))]

    def close(self) -> None:
        """Ask nothing more."""
        for pool in self._places.values():
            pool.shutdown(wait=False, cancel_futures=True)


def damaged(name: str, about: object, error: Exception) -> ProblemsFound:
    """Return the Problem of damage that no reader of a file has named; the terminal shows where it is (E711)."""
    if isinstance(error, OSError):
        return os_errors.refused("E711", str(error.filename or name), error)
    _LOG.warning("%s", about, exc_info=error)
    said = f"a file of it is damaged: {type(error).__name__}: {error}"
    return fail("E711", name, said, remedy="the terminal of recipes ui shows which; restore it from a copy")
