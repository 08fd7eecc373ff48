"""Follows jobs: their status, logs and events, and how they ended.

Slurm states whether a job waits, runs or has ended. A job of fixed size shows the rest in its files, attempt after
attempt; an elastic one in those of its operator. Slurm forgets an end, so that a command that saw one keeps it.
"""

import contextlib
import itertools
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from launcher.backends.slurm import run_files, states, submit
from launcher.backends.slurm.place import HERE, Place
from launcher.backends.slurm.queue import POLL_S, Seen
from launcher.bundle import store as bundles
from launcher.common.names import RUN_DIR
from launcher.common.texts import counted
from launcher.model.following import (
    Answer,
    LateEnd,
    Start,
    Tail,
    ended,
    event_line,
    followed,
    patient,
    refuse_unknown_attempt,
    refuse_unknown_ranks,
    until,
)
from launcher.model.job_spec import JobEvent, JobHandle, JobState, JobStatus, LogSelection
from launcher.operator.event_log import job_events
from launcher.operator.job_request import REQUEST_FILE, read_job_request, refuse_unplanned_size, size_request
from launcher.operator.snapshot import Attempt, Snapshot, read_snapshot
from launcher.operator.worker_logs import STDERR, STDOUT, read_logs, tail
from launcher.runtime.durable import write_text

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
_STOP_MARGIN_S = 60.0
"""Time to end an elastic job, beyond the time its workers have to save."""
_REMOVED = JobStatus(JobState.CANCELLED, 0, "cancelled before it started")
_FORGOTTEN = JobStatus(JobState.DELETED, 0, "Slurm no longer knows it, and its batch script has not noted an end")
_FORGOTTEN_ELASTIC = JobStatus(JobState.DELETED, 0, "Slurm no longer knows it, and its operator has not noted an end")
_END = "end.json"
"""In the folder of a job: its end as Slurm had it, which a command saw."""
_UNKNOWN = (JobState.FAILED, JobState.DELETED)
"""States of a job that has failed, or whose end nobody saw."""
_KILLED = "ended by Slurm, which killed its batch script before that had noted why"
Status = Callable[[], JobStatus]


def patiently(question: Callable[[], Answer]) -> Callable[[], Answer]:
    """Return a question that waits for a controller or a connection that does not answer, once one has come."""
    return patient(question, _PATIENCE_S, _ASK_AGAIN_S)


@dataclass(frozen=True, slots=True)
class Job:
    """A submitted job of fixed size, and what its bundle plans.

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
            self.place.fetch(self.bundle_dir, run_files.of_job(self.job_id, ranks, self.processes))

    def refuse_unknown(self, selection: LogSelection) -> None:
        """Raise a Problem if it cannot have the requested lines.

        Raises:
            ProblemsFound: No such rank (E707) or attempt (E706) exists.
        """
        refuse_unknown_ranks(selection.ranks, self.nodes * self.processes)
        refuse_unknown_attempt(selection.attempt, self.attempts)

    def starts(self, selection: LogSelection) -> list[Start]:
        """Return its attempts, as far as they are selected."""
        name = STDERR if selection.is_stderr else STDOUT

        def file(attempt: int, rank: int) -> Path | None:
            return run_files.rank_log(self.bundle_dir, self.job_id, attempt, divmod(rank, self.processes), name)

        return [
            Start(each, range(self.nodes * self.processes), lambda: counted(self.nodes, "node"), partial(file, each))
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
    """Return the status of a job of fixed size, whose files are then here.

    Args:
        handle: The job.
        job_id: Its id.
        seen: The job as Slurm has it; None if it no longer knows the job.
    """
    folder = handle.bundle_dir
    submit.place_at(folder).fetch(folder, run_files.of_job(job_id, (), 1))
    restarts = max(run_files.attempts(folder, job_id), default=0)
    if seen:
        nodes = seen.nodes if seen.state is JobState.RUNNING else 0
        last = _last_event(folder, job_id) if seen.word == "FAILED" else None
        reason = last.message if last and last.kind == "TimedOut" else seen.message
        return JobStatus(seen.state, nodes, reason, restarts=restarts)
    noted = _as_kept(folder, job_id, restarts) or (_REMOVED if submit.was_removed(handle, job_id) else _FORGOTTEN)
    return replace(noted, restarts=restarts)


def logs(job: Job, selection: LogSelection, read: Status, *, follow: bool) -> Iterator[str]:
    """Yield the selected lines of a job of fixed size; with `follow`, also its events, until it has ended.

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

    def patience_s() -> float:
        # Only a job that succeeded has certainly written its logs.
        return _LATE_FILES_S if state is JobState.SUCCEEDED else 0.0

    over = LateEnd(has_ended, _LATE_LOOKS, has_files, patience_s)

    def new(is_last: bool) -> Iterator[str]:
        fetch()
        yield from tail.new_lines(job.starts(selection), is_last=is_last)
        if follow and selection.attempt is None:
            yield from map(event_line, new_events())

    def pause() -> None:
        time.sleep(_ASK_AGAIN_S if over.deadline else job.place.poll_s)

    return followed(new, lambda: not follow or over(), pause)


def events(job: Job, read: Status, *, follow: bool) -> Iterator[JobEvent]:
    """Yield the events of a job of fixed size, oldest first; with `follow`, until it has ended."""
    fetch, new_events = patiently(job.fetch), job.new_events()

    def new(_is_last: bool) -> Iterator[JobEvent]:
        fetch()
        return new_events()

    return followed(new, lambda: not follow or read().state.is_final, partial(time.sleep, job.place.poll_s))


@dataclass(frozen=True, slots=True)
class ElasticJob:
    """A job with an operator.

    Args:
        name: Its name.
        bundle_dir: The bundle's folder.
        place: Where it was submitted and its files are.
    """

    name: str
    bundle_dir: Path
    place: Place

    @property
    def _snapshot(self) -> Snapshot | None:
        return read_snapshot(self.bundle_dir / RUN_DIR)

    def status(self, job_id: str, seen: Seen | None) -> JobStatus:
        """Return the status of the job once it was submitted, as `status` does."""
        has_ended = seen is None or seen.state.is_final
        # After Slurm's answer: the files of a job that has ended are its last.
        self.place.fetch(self.bundle_dir, run_files.of_operator(job_id, has_ended=has_ended))
        snapshot = self._snapshot
        restarts = snapshot.attempt if snapshot else 0
        if snapshot and snapshot.state.is_final and has_ended:
            return JobStatus(snapshot.state, 0, snapshot.message, restarts=restarts)
        if seen is None:
            noted = _as_kept(self.bundle_dir, job_id, restarts)
            return replace(noted, restarts=restarts) if noted else _FORGOTTEN_ELASTIC
        if seen.state is not JobState.RUNNING or snapshot is None:
            return JobStatus(seen.state, 0, seen.message, restarts=restarts)
        if snapshot.state.is_final:  # Slurm waits for its last process
            return JobStatus(JobState.RUNNING, 0, "ending the nodes", restarts=restarts)
        state = JobState.RUNNING if snapshot.state is JobState.PENDING and snapshot.nodes else snapshot.state
        return JobStatus(state, snapshot.nodes, snapshot.message, restarts=restarts)

    def logs(self, selection: LogSelection, read: Status, *, follow: bool) -> Iterator[str]:
        """Return what the selected ranks wrote; with `follow`, also the job's events, until it has ended.

        Raises:
            ProblemsFound: The job has no such attempt (E706) or rank (E707).
        """

        def attempts() -> tuple[tuple[Attempt, ...], bool]:
            is_over = read().state.is_final  # before the snapshot, which is then its last
            snapshot = self._snapshot
            started = snapshot.attempts if snapshot else ()
            shown = [each for each in started if selection.attempt in (None, each.number)]
            processes = read_job_request(self.bundle_dir).nproc_per_node
            name = STDERR if selection.is_stderr else STDOUT
            self.place.fetch(self.bundle_dir, run_files.of_attempts(shown, selection.ranks, processes, name))
            return started, is_over

        poll_s = self.place.poll_s
        return read_logs(self.bundle_dir, selection, follow=follow, attempts=patiently(attempts), poll_s=poll_s)

    def events(self, read: Status, *, follow: bool) -> Iterator[JobEvent]:
        """Yield what the operator saw and did; with `follow`, until the job has ended."""
        read()  # brings the files here
        pause = partial(time.sleep, self.place.poll_s) if follow else None
        return job_events(self.bundle_dir / RUN_DIR, lambda: read().state.is_final, pause)

    def scale(self, num_nodes: int, min_nodes: int | None, read: Status) -> None:
        """Ask the operator of a running job for another size.

        Raises:
            ProblemsFound: The job does not run (E412), or has no such size (E413); its least is always the plan's.
        """
        seen = read()
        if seen.state.is_final or self._snapshot is None:
            raise ended(seen, self.name)
        refuse_unplanned_size(self.bundle_dir, num_nodes, min_nodes)
        self.place.replace(self.bundle_dir, REQUEST_FILE, size_request(num_nodes))

    def stop(self, job_id: str, read: Status) -> None:
        """Let the operator of a running job stop it, as its recipe says; return when it has, or is late."""
        if read().state is JobState.PENDING or (snapshot := self._snapshot) is None or snapshot.state.is_final:
            return
        if self.place.run("scancel", "--batch", "--signal=INT", job_id).code:
            return
        grace_s = read_job_request(self.bundle_dir).policy.graceful_timeout_s or 0

        def is_over() -> bool:
            return read().state.is_final or ((now := self._snapshot) is not None and now.state.is_final)

        until(is_over, grace_s + _STOP_MARGIN_S, POLL_S / 4)


def keep(bundle_dir: Path, job_id: str, status: JobStatus) -> None:
    """Keep the end of a job, which Slurm forgets; its batch script may have been killed before its note.

    A job that was requeued after its end has ended no more.
    """
    starts = _starts(bundle_dir, job_id, status.restarts)
    end = {"state": status.state.value, "message": status.message, "starts": starts}
    kept, folder = _kept(bundle_dir, job_id), run_files.folder(bundle_dir, job_id)
    with contextlib.suppress(OSError):  # the answer is the same without it
        if status.state.is_final and kept != end:
            folder.mkdir(parents=True, exist_ok=True)
            write_text(folder / _END, json.dumps(end) + "\n")
        elif kept and not status.state.is_final:
            (folder / _END).unlink(missing_ok=True)


def _kept(bundle_dir: Path, job_id: str) -> dict[str, Any] | None:
    with contextlib.suppress(OSError, ValueError):
        found = json.loads((run_files.folder(bundle_dir, job_id) / _END).read_text(encoding="utf-8"))
        return found if isinstance(found, dict) else None
    return None


def _as_kept(bundle_dir: Path, job_id: str, restarts: int) -> JobStatus | None:
    """Return how a job ended that Slurm has forgotten; None if nothing was kept or noted.

    Args:
        bundle_dir: The bundle's folder.
        job_id: The job's id.
        restarts: How often its workers were started again, by its files.
    """
    with contextlib.suppress(KeyError, ValueError, TypeError):
        end, starts = _kept(bundle_dir, job_id), _starts(bundle_dir, job_id, restarts)
        # Earlier versions kept no number of starts.
        if end and end.get("starts", starts) == starts:
            return JobStatus(JobState(end["state"]), 0, str(end["message"]))
    code = run_files.exit_code(bundle_dir, job_id)
    if code is None:
        return None
    event = _last_event(bundle_dir, job_id)
    last = event.kind if event else ""
    if last == "Stopped":  # one that had returned to the queue was cancelled there
        return JobStatus(JobState.CANCELLED, 0, "cancelled")
    if last == "TimedOut":
        return JobStatus(JobState.FAILED, 0, states.message_of("TIMEOUT", "", (0, 0)))
    if code == states.TERM_CODE and last != "Failed":
        return JobStatus(JobState.FAILED, 0, _KILLED)
    return JobStatus(JobState.FAILED if code else JobState.SUCCEEDED, 0, states.message_of("FAILED", "", (code, 0)))


def _starts(bundle_dir: Path, job_id: str, restarts: int) -> int:
    """Return a number that is greater after each start: a kept end does not count if the job was requeued later."""
    return restarts + sum(event.kind == "Started" for event in run_files.events(bundle_dir, job_id))


def _last_event(bundle_dir: Path, job_id: str) -> JobEvent | None:
    return next(reversed([*run_files.events(bundle_dir, job_id)]), None)


def explained(status: JobStatus, bundle_dir: Path, job_id: str) -> JobStatus:
    """Return the status of a job that failed with the last lines of its batch script, unless it has its own."""
    if status.state not in _UNKNOWN or "\n" in status.message:
        return status
    lines = _last_lines(bundle_dir, job_id)
    return replace(status, message="\n".join((status.message, *lines))) if lines else status


def with_reason(
    lines: Iterator[str], read: Status, selection: LogSelection, bundle_dir: Path, job_id: str
) -> Iterator[str]:
    """Yield lines, and those with which the batch script of a job that failed ended."""
    yield from lines
    if selection.attempt is not None or not job_id:
        return
    status = read()
    if status.state in _UNKNOWN and (last := _last_lines(bundle_dir, job_id)):
        yield f"fault  {status.state.value}: {status.message.partition(chr(10))[0]}; its batch script ended with:"
        yield from (f"fault  {line}" for line in last)


def _last_lines(bundle_dir: Path, job_id: str) -> list[str]:
    """Return the last lines of a batch script's output, and of its errors if they are separate."""
    files = (bundle_dir / RUN_DIR / name for name in run_files.batch_logs(job_id)) if job_id else ()
    return [line for file in files for line in tail(file).splitlines()]
