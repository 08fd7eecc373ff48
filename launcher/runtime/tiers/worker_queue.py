"""Threads that complete saves while training continues."""

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import ParamSpec

from launcher.runtime.tiers.rank_group import Ranks

_Params = ParamSpec("_Params")


class WorkerQueue:
    """Runs jobs one after another, each together with the same queue of all other ranks.

    Args:
        name: Of its threads.
    """

    def __init__(self, name: str):
        self.ranks = Ranks()
        self._jobs = ThreadPoolExecutor(1, thread_name_prefix=name)
        self._attempts = ThreadPoolExecutor(1, thread_name_prefix=f"{name}-attempt")
        self._pending: list[Future[None]] = []
        self._lock = threading.Lock()

    def submit(self, job: Callable[_Params, None], *args: _Params.args, **kwargs: _Params.kwargs) -> None:
        """Run `job` after the jobs submitted before it."""
        with self._lock:
            self._pending.append(self._jobs.submit(job, *args, **kwargs))

    def attempt(self, work: Callable[_Params, object], *args: _Params.args, **kwargs: _Params.kwargs) -> str:
        """Run `work` and return its error as a message; "" if it succeeded.

        Nothing that a tier raises leaves this method, not even a BaseException: the other ranks wait for this one.
        """
        error = self._attempts.submit(work, *args, **kwargs).exception()
        return f"{type(error).__name__}: {error}" if error else ""

    def wait(self) -> list[BaseException]:
        """Wait for all jobs; return the errors of those that failed."""
        with self._lock:
            jobs, self._pending = self._pending, []
        return [error for job in jobs if (error := job.exception())]

    def done(self) -> list[BaseException]:
        """Return the errors of jobs that have failed since the last call."""
        with self._lock:
            done = [job for job in self._pending if job.done()]
            self._pending = [job for job in self._pending if job not in done]
        return [error for job in done if (error := job.exception())]
