"""Follows a job: its log files, attempt after attempt, and its events."""

import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TypeVar

from launcher.backends.slurm import run_files, written
from launcher.backends.slurm.place import HERE, Place
from launcher.common.line_reader import LineReader
from launcher.common.problems import ProblemsFound, fail
from launcher.model.job_spec import JobEvent, JobState, JobStatus, LogSelection
from launcher.operator.events import count_nodes

_ASK_AGAIN_S = 0.2
"""Seconds after which a question that failed is asked again, and until the next look after the end."""
_PATIENCE_S = 900.0
"""Time for which a controller may not answer before following ends: one that restarts reads its state first."""
Answer = TypeVar("Answer")
_LATE_LOOKS = 5
"""Looks after the job has ended: a shared file system shows the last lines late."""
_LATE_FILES_S = 30.0
"""Time limit for files of an ended job to appear. A shared file system remembers that a file was absent.

Source: nfs(5), acdirmax: 60 s by default, less where nodes and login nodes are synchronised.
"""
_HAS_RUN = (JobState.SUCCEEDED,)
"""Final states of a job that has certainly written its logs."""


@dataclass(frozen=True, slots=True)
class Job:
    """A submitted job, and what its bundle plans.

    Args:
        bundle_dir: The bundle's folder.
        job_id: Its id; "" if it was never submitted.
        nodes: Number of its nodes.
        processes: Worker processes per node.
        place: Where its files are.
    """

    bundle_dir: Path
    job_id: str
    nodes: int
    processes: int
    place: Place = HERE

    @property
    def attempts(self) -> list[int]:
        """Numbers of the attempts that have started."""
        return run_files.attempts(self.bundle_dir, self.job_id) if self.job_id else []

    def fetch(self, ranks: tuple[int, ...] | None = ()) -> None:
        """Bring its files up to date, with the logs of some ranks.

        Raises:
            ProblemsFound: Their machine does not answer.
        """
        if self.job_id:
            self.place.fetch(self.bundle_dir, written.of_job(self.job_id, ranks, self.processes))


def patient(question: Callable[[], Answer]) -> Callable[[], Answer]:
    """Return a question, such as a job's status, that waits for a controller or a connection that does not answer.

    Once an answer has come, it waits; the first question fails at once.
    """
    answered_s: float | None = None

    def read() -> Answer:
        nonlocal answered_s
        while True:
            try:
                found = question()
                answered_s = time.monotonic()
                return found
            except ProblemsFound:
                if answered_s is None or time.monotonic() - answered_s > _PATIENCE_S:
                    raise
                time.sleep(_ASK_AGAIN_S)

    return read


def refuse_unknown(job: Job, selection: LogSelection) -> None:
    """Raise a Problem if a job cannot have the requested lines.

    Raises:
        ProblemsFound: No such rank (E707) or attempt (E706) exists.
    """
    most = job.nodes * job.processes - 1
    for rank in selection.ranks or ():
        if rank > most:
            raise fail("E707", "--rank", "no such rank exists", value=rank, allowed=f"0 to {most}")
    if selection.attempt is not None and selection.attempt not in job.attempts:
        allowed = ", ".join(map(str, job.attempts)) or "none yet"
        raise fail("E706", "--attempt", "no such attempt exists", value=selection.attempt, allowed=allowed)


def logs(job: Job, selection: LogSelection, status: Callable[[], JobStatus], *, follow: bool) -> Iterator[str]:
    """Yield the selected lines; with `follow`, also the job's events, until it has ended.

    Args:
        job: The job.
        selection: The lines.
        status: Returns the job's status.
        follow: Whether to wait for more.
    """
    reader, events = _Reader(job, selection), _News(job)
    fetch = patient(partial(job.fetch, selection.ranks))
    looks_left, give_up_s = _LATE_LOOKS, None
    while True:
        now = status() if follow else None
        if now and now.state.is_final:
            looks_left -= 1
            give_up_s = give_up_s or time.monotonic() + (_LATE_FILES_S if now.state in _HAS_RUN else 0)
        is_late = give_up_s is not None and time.monotonic() < give_up_s and not reader.has_every_file
        is_last = not follow or (looks_left < 0 and not is_late)
        fetch()
        yield from reader.lines(is_last=is_last)
        if follow and selection.attempt is None:
            yield from (
                f"{'fault' if each.is_warning else 'event'}  {each.kind}: {each.message}" for each in events()
            )
        if is_last:
            return
        time.sleep(_ASK_AGAIN_S if give_up_s else job.place.poll_s)


def events(job: Job, status: Callable[[], JobStatus], *, follow: bool) -> Iterator[JobEvent]:
    """Yield a job's events, oldest first; with `follow`, until it has ended."""
    news, fetch = _News(job), patient(job.fetch)
    while True:
        over = not follow or status().state.is_final
        fetch()
        yield from news()
        if over:
            return
        time.sleep(job.place.poll_s)


class _News:
    """Yields a job's events that it has not yielded before."""

    def __init__(self, job: Job):
        self._job = job
        self._count = 0

    def __call__(self) -> Iterator[JobEvent]:
        known = run_files.events(self._job.bundle_dir, self._job.job_id) if self._job.job_id else iter(())
        for event in itertools.islice(known, self._count, None):
            self._count += 1
            yield event


@dataclass(slots=True)
class _Reader:
    """Reads the selected logs, each from where the last read ended.

    Args:
        job: The job.
        selection: The lines to yield.
        files: Open logs by attempt and rank.
        headed: Attempts whose heading has been yielded.
    """

    job: Job
    selection: LogSelection
    files: dict[tuple[int, int], LineReader] = field(default_factory=dict)
    headed: set[int] = field(default_factory=set)

    def lines(self, *, is_last: bool) -> Iterator[str]:
        """Yield new lines, attempt by attempt; an unfinished one only if no further read follows."""
        attempts = self.job.attempts
        for attempt in attempts:
            if self.selection.attempt in (None, attempt):
                is_over = is_last or attempt < attempts[-1]
                yield from self._of_attempt(attempt, complete_only=not is_over)

    @property
    def has_every_file(self) -> bool:
        """Whether the logs of the selected ranks are found, of the newest selected attempt."""
        attempts = [each for each in self.job.attempts if self.selection.attempt in (None, each)]
        return bool(attempts) and all((attempts[-1], rank) in self.files for rank in self._ranks())

    def _of_attempt(self, attempt: int, *, complete_only: bool) -> Iterator[str]:
        if self.selection.has_headings and attempt not in self.headed:
            self.headed.add(attempt)
            yield f"== attempt {attempt}: {count_nodes(self.job.nodes)}"
        for rank in self._ranks():
            if reader := self._file(attempt, rank):
                prefix = f"rank {rank} | " if self.selection.has_prefixes else ""
                yield from (f"{prefix}{line}" for line in reader.new_lines(complete_only=complete_only))

    def _ranks(self) -> Sequence[int]:
        everything = range(self.job.nodes * self.job.processes)
        return everything if self.selection.ranks is None else self.selection.ranks

    def _file(self, attempt: int, rank: int) -> LineReader | None:
        if (attempt, rank) not in self.files:
            name = run_files.STDERR if self.selection.is_stderr else run_files.STDOUT
            place = divmod(rank, self.job.processes)
            path = run_files.rank_log(self.job.bundle_dir, self.job.job_id, attempt, place, name)
            if path is None:
                return None
            self.files[attempt, rank] = LineReader(path)
        return self.files[attempt, rank]
