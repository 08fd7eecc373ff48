"""Follows a job of fixed size: its status, its log files, attempt after attempt, and its events."""

import itertools
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from launcher.backends.slurm import endings, run_files, submit, written
from launcher.backends.slurm.place import HERE, Place
from launcher.backends.slurm.queue import Seen
from launcher.bundle import store as bundles
from launcher.model.following import (
    Answer,
    LateEnd,
    Start,
    Tail,
    event_line,
    followed,
    patient,
    refuse_unknown_attempt,
    refuse_unknown_ranks,
)
from launcher.model.job_spec import JobEvent, JobHandle, JobState, JobStatus, LogSelection
from launcher.operator.types import count_nodes

_ASK_AGAIN_S = 0.2
"""Seconds after which a question that failed is asked again, and until the next look after the end."""
_PATIENCE_S = 900.0
"""Time for which a controller may not answer before following ends: one that restarts reads its state first."""
_LATE_LOOKS = 5
"""Looks after the job has ended: a shared file system shows the last lines late."""
_LATE_FILES_S = 30.0
"""Time limit for files of an ended job to appear. A shared file system remembers that a file was absent.

Source: nfs(5), acdirmax: 60 s by default, less where nodes and login nodes are synchronised.
"""
_HAS_RUN = (JobState.SUCCEEDED,)
"""Final states of a job that has certainly written its logs."""
_REMOVED = JobStatus(JobState.CANCELLED, 0, "cancelled before it started")
_FORGOTTEN = JobStatus(JobState.DELETED, 0, "Slurm no longer knows it, and its batch script has not noted an end")


def patiently(question: Callable[[], Answer]) -> Callable[[], Answer]:
    """Return a question that waits for a controller or a connection that does not answer, once one has come."""
    return patient(question, _PATIENCE_S, _ASK_AGAIN_S)


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

    @classmethod
    def of(cls, handle: JobHandle) -> "Job":
        """Return the job that a bundle plans.

        Raises:
            ProblemsFound: The bundle is damaged.
        """
        plan = json.loads(bundles.read(handle.bundle_dir)[0].files["plan.json"])
        job_id, place = submit.found(handle)[0], submit.place_at(handle.bundle_dir)
        return cls(handle.bundle_dir, job_id, plan["initial_nodes"], plan["nproc_per_node"], place)

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

    def refuse_unknown(self, selection: LogSelection) -> None:
        """Raise a Problem if it cannot have the requested lines.

        Raises:
            ProblemsFound: No such rank (E707) or attempt (E706) exists.
        """
        refuse_unknown_ranks(selection.ranks, self.nodes * self.processes)
        refuse_unknown_attempt(selection.attempt, self.attempts)

    def starts(self, selection: LogSelection) -> list[Start]:
        """Return its attempts, as far as they are selected."""
        name = run_files.STDERR if selection.is_stderr else run_files.STDOUT

        def file(attempt: int, rank: int) -> Path | None:
            return run_files.rank_log(self.bundle_dir, self.job_id, attempt, divmod(rank, self.processes), name)

        return [
            Start(each, range(self.nodes * self.processes), lambda: count_nodes(self.nodes), partial(file, each))
            for each in self.attempts
            if selection.attempt in (None, each)
        ]

    def new_events(self) -> Callable[[], Iterator[JobEvent]]:
        """Return a function that yields its events, each once."""
        count = 0

        def new() -> Iterator[JobEvent]:
            nonlocal count
            known = run_files.events(self.bundle_dir, self.job_id) if self.job_id else iter(())
            for event in itertools.islice(known, count, None):
                count += 1
                yield event

        return new


def status(handle: JobHandle, job_id: str, seen: Seen | None) -> JobStatus:
    """Return the status of a job, whose files are then here.

    Args:
        handle: The job.
        job_id: Its id.
        seen: The job as Slurm has it; None if it no longer knows the job.
    """
    Job(handle.bundle_dir, job_id, 0, 1, submit.place_at(handle.bundle_dir)).fetch()
    restarts = max(run_files.attempts(handle.bundle_dir, job_id), default=0)
    if seen:
        nodes = seen.nodes if seen.state is JobState.RUNNING else 0
        return JobStatus(seen.state, nodes, endings.reason(handle.bundle_dir, job_id, seen), restarts=restarts)
    noted = endings.as_kept(handle.bundle_dir, job_id, restarts)
    if noted is None:
        noted = _REMOVED if submit.was_removed(handle, job_id) else _FORGOTTEN
    return replace(noted, restarts=restarts)


def logs(job: Job, selection: LogSelection, read: Callable[[], JobStatus], *, follow: bool) -> Iterator[str]:
    """Yield the selected lines; with `follow`, also the job's events, until it has ended.

    Args:
        job: The job.
        selection: The lines.
        read: Returns the job's status.
        follow: Whether to wait for more.
    """
    tail, new_events, state = Tail(selection, is_shared=True), job.new_events(), JobState.PENDING
    fetch = patiently(partial(job.fetch, selection.ranks))

    def has_ended() -> bool:
        nonlocal state
        state = read().state
        return state.is_final

    def has_files() -> bool:
        starts = job.starts(selection)
        return bool(starts) and tail.has_files(starts[-1])

    over = LateEnd(has_ended, _LATE_LOOKS, has_files, lambda: _LATE_FILES_S if state in _HAS_RUN else 0.0)

    def new(is_last: bool) -> Iterator[str]:
        fetch()
        yield from tail.new_lines(job.starts(selection), is_last=is_last)
        if follow and selection.attempt is None:
            yield from map(event_line, new_events())

    def pause() -> None:
        time.sleep(_ASK_AGAIN_S if over.deadline else job.place.poll_s)

    return followed(new, lambda: not follow or over(), pause)


def events(job: Job, read: Callable[[], JobStatus], *, follow: bool) -> Iterator[JobEvent]:
    """Yield a job's events, oldest first; with `follow`, until it has ended."""
    fetch, new_events = patiently(job.fetch), job.new_events()

    def new(_is_last: bool) -> Iterator[JobEvent]:
        fetch()
        return new_events()

    return followed(new, lambda: not follow or read().state.is_final, partial(time.sleep, job.place.poll_s))
