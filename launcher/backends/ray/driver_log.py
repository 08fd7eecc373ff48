"""The log of a Ray job's driver: read as it grows, and its lines, each once."""

import asyncio
import queue
import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from launcher.backends.ray.client import Cluster
from launcher.model.following import CLOCK, Clock, event_line
from launcher.model.job_spec import LAST_LINES, JobEvent, LogLine, LogSelection

if TYPE_CHECKING:
    from ray.dashboard.modules.job.pydantic_models import JobDetails

_SILENCE_S = 30.0
"""How long a connection may bring nothing before the complete log is read: one may break unnoticed, or be refused."""


class GrowingLog:
    """Returns what a driver has printed since the last call.

    Ray gives a log as a whole, or from its beginning over a connection that stays open. While a job is followed, its
    log comes over such a connection, so that a look costs no more the longer the log is. The complete log is read at
    the end, and after silence.
    """

    def __init__(self, cluster: Cluster, job: str, read: Callable[[], str], pause_s: float, clock: Clock = CLOCK):
        """Connect later, at the first call that is not the last.

        Args:
            read: Returns the complete log.
            pause_s: Seconds before a connection that has ended is made again.
        """
        self._cluster, self._job, self._read, self._pause_s, self._clock = cluster, job, read, pause_s, clock
        self._arrived: queue.SimpleQueue[tuple[int, str]] = queue.SimpleQueue()
        self._listener: threading.Thread | None = None
        self._is_over = threading.Event()
        self._given, self._heard_s = 0, clock.now()

    def new(self, *, is_last: bool) -> str:
        """Return what is new; all of it if this is the last call."""
        if self._listener is None and not is_last:
            self._listener = threading.Thread(target=self._listen, daemon=True)
            self._listener.start()
        found, now_s = "".join(self._drained()), self._clock.now()
        if is_last or (not found and now_s - self._heard_s >= _SILENCE_S):
            rest = self._read()[self._given :]
            self._given += len(rest)
            self._heard_s = now_s
            return found + rest
        if found:
            self._heard_s = now_s
        return found

    def close(self) -> None:
        """Make no further connection."""
        self._is_over.set()

    def _drained(self) -> Iterator[str]:
        """Yield what has arrived and was not given yet: each connection begins at the start of the log."""
        while not self._arrived.empty():
            start, text = self._arrived.get()
            new = text[max(0, self._given - start) :]
            self._given += len(new)
            yield new

    def _listen(self) -> None:
        while not self._is_over.is_set():
            asyncio.run(self._connected())
            self._is_over.wait(self._pause_s)

    async def _connected(self) -> None:
        start = 0
        async for text in self._cluster.tail(self._job):
            if self._is_over.is_set():
                return
            self._arrived.put((start, text))
            start += len(text)


class DriverLines:
    """Yields the lines of a driver's log, and what Ray itself writes before them as events."""

    def __init__(self, selection: LogSelection):
        self._selection, self._rest, self._is_begun = selection, "", False

    def of(self, text: str, job: "JobDetails", *, is_last: bool) -> Iterator[LogLine]:
        """Yield the lines that a further part of the log completes; an unfinished one only if it is the last part."""
        self._rest += text
        if not self._is_begun:
            head, found, rest = self._rest.partition(_begin(job))
            if not (found or is_last):
                return  # what Ray itself writes is not complete
            self._is_begun, self._rest = True, rest
            for line in head.splitlines():
                yield event_line(JobEvent(0.0, "Ray", line.rpartition(" -- ")[2]))
            if self._selection.has_headings:
                yield LogLine("attempt", None, "attempt 0", 0)
        end = len(self._rest) if is_last else self._rest.rfind("\n") + 1
        new, self._rest = self._rest[:end], self._rest[end:]
        if new:
            lines = new.removesuffix("\n").split("\n")
            kept = lines[-LAST_LINES:] if self._selection.is_excerpt else lines
            yield from (LogLine("line", 0, line, 0) for line in kept)


def _begin(job: "JobDetails") -> str:
    """Return the line after which the output of a driver begins. Source: Ray, job_supervisor.py."""
    return f"Running entrypoint for job {job.submission_id}: {job.entrypoint}\n"
