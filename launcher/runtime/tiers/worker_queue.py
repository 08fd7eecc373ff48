"""Threads that finish saves while training goes on."""

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from launcher.runtime.tiers.rank_group import Ranks


class Lane:
    """Does one thing after another, each with the same lane of all other ranks.

    Args:
        name: Of its threads.
    """

    def __init__(self, name: str):
        self.ranks = Ranks()
        self._jobs = ThreadPoolExecutor(1, thread_name_prefix=name)
        self._attempts = ThreadPoolExecutor(1, thread_name_prefix=f"{name}-attempt")
        self._pending: list[Future[None]] = []
        self._lock = threading.Lock()

    def submit(self, job: Callable[..., None], *args: Any) -> None:
        """Do `job` when what was asked for before is done."""
        with self._lock:
            self._pending.append(self._jobs.submit(job, *args))

    def attempt(self, work: Callable[..., object], *args: Any) -> str:
        """Do `work` and return what went wrong, in words; nothing where all went well.

        Whatever a tier raises, be it no Exception, stays here: the other ranks wait for this one's word.
        """
        error = self._attempts.submit(work, *args).exception()
        return f"{type(error).__name__}: {error}" if error else ""

    def wait(self) -> list[BaseException]:
        """Wait for all jobs; return what ended some of them."""
        with self._lock:
            jobs, self._pending = self._pending, []
        return [error for job in jobs if (error := job.exception())]

    def done(self) -> list[BaseException]:
        """Return what ended some of the jobs that are done, once each."""
        with self._lock:
            done = [job for job in self._pending if job.done()]
            self._pending = [job for job in self._pending if job not in done]
        return [error for job in done if (error := job.exception())]
