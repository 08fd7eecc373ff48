"""Follows jobs: their status, logs and events, and how they ended.

Slurm states whether a job waits, runs or has ended. A job of fixed size shows the rest in its files, attempt after
attempt; an elastic one in those of its operator. Slurm forgets an end, so that a command that saw one keeps it.
"""

import contextlib
import functools
import json
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from launcher.backends.slurm import run_files, states, submit
from launcher.backends.slurm.place import Place
from launcher.backends.slurm.queue import POLL_S, Seen, queue_of
from launcher.backends.slurm.run_files import EXIT_CODE, JobFiles
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
    refuse_scaling,
    refuse_unknown_attempt,
    refuse_unknown_ranks,
    streams,
    until,
)
from launcher.model.job_spec import JobEvent, JobHandle, JobState, JobStatus, LogLine, LogSelection
from launcher.operator.event_log import job_events
from launcher.operator.job_request import REQUEST_FILE, read_job_request, refuse_unplanned_size, size_request
from launcher.operator.snapshot import Attempt, Snapshot, read_snapshot
from launcher.operator.worker_logs import read_logs, tail
from launcher.runtime.durable import read_object, write_text

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
"""States of a job that has failed, or whose end is unknown."""
_KILLED = "ended by Slurm, which killed its batch script before that had noted why"
Status = Callable[[], JobStatus]


def patiently(question: Callable[[], Answer]) -> Callable[[], Answer]:
    """Return a question that waits for a controller or a connection that does not answer, once one has come."""
    return patient(question, _PATIENCE_S, _ASK_AGAIN_S)


def find(handle: JobHandle) -> "tuple[Job, Seen | None]":
    """Return the job of a handle, and the job as Slurm has it; None if Slurm does not know it."""
    job_id, seen = submit.found(handle)
    kind = ElasticJob if run_files.is_elastic(handle.bundle_dir) else FixedJob
    return kind(handle, job_id, submit.place_at(handle.bundle_dir)), seen


@dataclass(frozen=True)
class Job(ABC):
    """A job, what its files and Slurm show of it, and how another size or its end is requested.

    A method that takes `read` asks it for the job's status.

    Args:
        job_id: Its id; "" if it was never submitted.
        place: Where its files are.
    """

    handle: JobHandle
    job_id: str
    place: Place

    @property
    def bundle_dir(self) -> Path:
        """The folder of its bundle."""
        return self.handle.bundle_dir

    @property
    def _files(self) -> JobFiles:
        return JobFiles(self.bundle_dir, self.job_id)

    def status(self, seen: Seen | None) -> JobStatus:
        """Return its status once it was submitted, given the job as Slurm has it; its files are then here.

        One that failed has the last lines of its batch script in its message, unless that has others.
        """
        status = self._status(seen)
        if seen:
            self.keep(status)
        lines = self._last_lines() if status.state in _UNKNOWN and "\n" not in status.message else ()
        return replace(status, message="\n".join((status.message, *lines))) if lines else status

    @abstractmethod
    def _status(self, seen: Seen | None) -> JobStatus: ...

    def logs(self, selection: LogSelection, read: Status, *, follow: bool) -> Iterator[LogLine]:
        """Return `lines`, and after them those with which the batch script of a job that failed ended."""
        return self._with_reason(self.lines(selection, read, follow=follow), selection, read)

    def _with_reason(self, lines: Iterator[LogLine], selection: LogSelection, read: Status) -> Iterator[LogLine]:
        yield from lines
        if selection.attempt is not None or not self.job_id:
            return
        status = read()
        if status.state in _UNKNOWN and (last := self._last_lines()):
            reason = status.message.partition("\n")[0]
            first = f"{status.state.value}: {reason}; its batch script ended with:"
            yield from (LogLine("fault", None, text) for text in (first, *last))

    @abstractmethod
    def lines(self, selection: LogSelection, read: Status, *, follow: bool) -> Iterator[LogLine]:
        """Return what the selected ranks wrote; with `follow`, also the job's events, until it has ended.

        Raises:
            ProblemsFound: No such rank (E707) or attempt (E706) exists.
        """

    @abstractmethod
    def events(self, read: Status, *, follow: bool) -> Iterator[JobEvent]:
        """Return its events, oldest first; with `follow`, until it has ended."""

    @abstractmethod
    def scale(self, num_nodes: int, min_nodes: int | None, read: Status) -> None:
        """Request another size.

        Raises:
            ProblemsFound: The job does not run (E412), or has no such size (E413).
        """

    @abstractmethod
    def stop(self, read: Status) -> None:
        """Let a running job stop itself, as its recipe says, if it can; return when it has, or is late."""

    def keep(self, status: JobStatus) -> None:
        """Keep its end, which Slurm forgets; its batch script may have been killed before its note.

        A job that was requeued after its end has ended no more.
        """
        end = {"state": status.state.value, "message": status.message, "starts": self._starts(status.restarts)}
        kept, folder = read_object(self._files.folder / _END), self._files.folder
        with contextlib.suppress(OSError):  # the answer is the same without it
            if status.state.is_final and kept != end:
                folder.mkdir(parents=True, exist_ok=True)
                write_text(folder / _END, json.dumps(end) + "\n")
            elif kept and not status.state.is_final:
                (folder / _END).unlink(missing_ok=True)

    def _as_kept(self, restarts: int) -> JobStatus | None:
        """Return how a job ended that Slurm has forgotten; None if nothing was kept or noted."""
        with contextlib.suppress(KeyError, ValueError, TypeError):
            end = read_object(self._files.folder / _END)
            if end and end["starts"] == self._starts(restarts):
                return JobStatus(JobState(end["state"]), 0, str(end["message"]), restarts=restarts)
        if (code := self._files.number(EXIT_CODE)) is None:
            return None
        last = event.kind if (event := self._last_event()) else ""
        state, message = JobState.FAILED if code else JobState.SUCCEEDED, states.message_of("FAILED", "", (code, 0))
        if last == "Stopped":  # one that had returned to the queue was cancelled there
            state, message = JobState.CANCELLED, "cancelled"
        elif last == "TimedOut":
            state, message = JobState.FAILED, states.message_of("TIMEOUT", "", (0, 0))
        elif code == states.TERM_CODE and last != "Failed":
            state, message = JobState.FAILED, _KILLED
        return JobStatus(state, 0, message, restarts=restarts)

    def _starts(self, restarts: int) -> int:
        """Return a number that is greater after each start: a kept end does not count if the job was requeued."""
        return restarts + sum(event.kind == "Started" for event in self._files.events())

    def _last_event(self) -> JobEvent | None:
        return next(reversed([*self._files.events()]), None)

    def _last_lines(self) -> list[str]:
        """Return the last lines of its batch script's output, and of its errors if they are separate."""
        files = (self.bundle_dir / RUN_DIR / name for name in run_files.batch_logs(self.job_id))
        return [line for file in files for line in tail(file).splitlines()]


class FixedJob(Job):
    """A job of fixed size."""

    @functools.cached_property
    def size(self) -> tuple[int, int]:
        """Its nodes, and the worker processes of each, as its bundle plans them."""
        plan = bundles.read(self.bundle_dir)[0].plan
        return plan["initial_nodes"], plan["nproc_per_node"]

    @property
    def _num_ranks(self) -> int:
        nodes, processes = self.size
        return 1 if run_files.has_ray(self.bundle_dir) else nodes * processes

    def _fetch(self, ranks: tuple[int, ...] | None = ()) -> None:
        """Bring its files up to date, with the logs of some ranks; None for all."""
        _, processes = self.size
        if self.job_id:
            self.place.fetch(self.bundle_dir, run_files.of_job(self.job_id, ranks, processes))

    def _status(self, seen: Seen | None) -> JobStatus:
        self.place.fetch(self.bundle_dir, run_files.of_job(self.job_id, (), 1))
        restarts = max(self._files.attempts(), default=0)
        if seen:
            nodes = seen.nodes if seen.state is JobState.RUNNING else 0
            last = self._last_event() if seen.word == "FAILED" else None
            reason = last.message if last and last.kind == "TimedOut" else seen.message
            return JobStatus(seen.state, nodes, reason, restarts=restarts)
        return self._as_kept(restarts) or replace(_REMOVED if self._was_removed() else _FORGOTTEN, restarts=restarts)

    def _was_removed(self) -> bool:
        """Return whether it is a task that was cancelled before it started: Slurm keeps nothing of it."""
        its = run_files.array_task(self.bundle_dir)
        if its is None or "_" not in self.job_id or self._files.folder.exists():
            return False
        return queue_of(self.place).knows_array(self.job_id, its.array)

    def lines(self, selection: LogSelection, read: Status, *, follow: bool) -> Iterator[LogLine]:
        """Return what the selected ranks wrote."""
        self._fetch()
        refuse_unknown_ranks(selection.ranks, self._num_ranks)
        refuse_unknown_attempt(selection.attempt, self._files.attempts())
        log, reader, state = Tail(selection, is_shared=True), self._files.event_reader(), JobState.PENDING
        fetch = patiently(partial(self._fetch, selection.ranks))

        def has_ended() -> bool:
            nonlocal state
            state = read().state
            return state.is_final

        def has_files() -> bool:
            starts = self._selected(selection)
            return bool(starts) and log.has_files(starts[-1])

        def patience_s() -> float:
            # Only a job that succeeded has certainly written its logs.
            return _LATE_FILES_S if state is JobState.SUCCEEDED else 0.0

        over = LateEnd(has_ended, _LATE_LOOKS, has_files, patience_s)

        def new(is_last: bool) -> Iterator[LogLine]:
            fetch()
            yield from log.new_lines(self._selected(selection), is_last=is_last)
            if follow and selection.attempt is None:
                yield from map(event_line, self._files.events(reader))

        def pause() -> None:
            time.sleep(_ASK_AGAIN_S if over.deadline else self.place.poll_s)

        return followed(new, lambda: not follow or over(), pause)

    def _selected(self, selection: LogSelection) -> list[Start]:
        """Return its attempts, as far as they are selected."""
        nodes, processes = self.size

        def file(attempt: int, rank: int, stream: str) -> Path | None:
            return self._files.rank_log(attempt, *divmod(rank, processes), f"{stream}.log")

        return [
            Start(each, range(self._num_ranks), lambda: counted(nodes, "node"), partial(file, each))
            for each in self._files.attempts()
            if selection.attempt in (None, each)
        ]

    def events(self, read: Status, *, follow: bool) -> Iterator[JobEvent]:
        """Return the starts and ends of its attempts."""
        fetch, reader = patiently(self._fetch), self._files.event_reader()

        def new(_is_last: bool) -> Iterator[JobEvent]:
            fetch()
            return self._files.events(reader)

        return followed(new, lambda: not follow or read().state.is_final, partial(time.sleep, self.place.poll_s))

    def scale(self, num_nodes: int, min_nodes: int | None, read: Status) -> None:
        """Refuse another size."""
        refuse_scaling(read(), self.handle.job_name, num_nodes, self.size[0])

    def stop(self, read: Status) -> None:
        """Do nothing: Slurm ends the job."""


class ElasticJob(Job):
    """A job with an operator."""

    @property
    def _snapshot(self) -> Snapshot | None:
        return read_snapshot(self.bundle_dir / RUN_DIR)

    def _status(self, seen: Seen | None) -> JobStatus:
        has_ended = seen is None or seen.state.is_final
        # After Slurm's answer: the files of a job that has ended are its last.
        self.place.fetch(self.bundle_dir, run_files.of_operator(self.job_id, has_ended=has_ended))
        snapshot = self._snapshot
        restarts = snapshot.attempt if snapshot else 0
        if snapshot and snapshot.state.is_final and has_ended:
            return JobStatus(snapshot.state, 0, snapshot.message, restarts=restarts)
        if seen is None:
            return self._as_kept(restarts) or _FORGOTTEN_ELASTIC
        if seen.state is not JobState.RUNNING or snapshot is None:
            return JobStatus(seen.state, 0, seen.message, restarts=restarts)
        if snapshot.state.is_final:  # Slurm waits for its last process
            return JobStatus(JobState.RUNNING, 0, "ending the nodes", restarts=restarts)
        state = JobState.RUNNING if snapshot.state is JobState.PENDING and snapshot.nodes else snapshot.state
        return JobStatus(state, snapshot.nodes, snapshot.message, restarts=restarts)

    def lines(self, selection: LogSelection, read: Status, *, follow: bool) -> Iterator[LogLine]:
        """Return what the selected ranks wrote."""

        def attempts() -> tuple[tuple[Attempt, ...], bool]:
            is_over = read().state.is_final  # before the snapshot, which is then its last
            snapshot = self._snapshot
            started = snapshot.attempts if snapshot else ()
            shown = [each for each in started if selection.attempt in (None, each.number)]
            processes = read_job_request(self.bundle_dir).nproc_per_node
            for stream in streams(selection):
                wanted = run_files.of_attempts(shown, selection.ranks, processes, f"{stream}.log")
                self.place.fetch(self.bundle_dir, wanted)
            return started, is_over

        poll_s = self.place.poll_s
        return read_logs(self.bundle_dir, selection, follow=follow, attempts=patiently(attempts), poll_s=poll_s)

    def events(self, read: Status, *, follow: bool) -> Iterator[JobEvent]:
        """Return what the operator saw and did."""
        read()  # brings the files here
        pause = partial(time.sleep, self.place.poll_s) if follow else None
        return job_events(self.bundle_dir / RUN_DIR, lambda: read().state.is_final, pause)

    def scale(self, num_nodes: int, min_nodes: int | None, read: Status) -> None:
        """Ask the operator for another size; its least is always the plan's."""
        seen = read()
        if seen.state.is_final or self._snapshot is None:
            raise ended(seen, self.handle.job_name)
        refuse_unplanned_size(self.bundle_dir, num_nodes, min_nodes)
        self.place.put(self.bundle_dir, REQUEST_FILE, size_request(num_nodes))

    def stop(self, read: Status) -> None:
        """Let the operator stop the job."""
        if read().state is JobState.PENDING or (snapshot := self._snapshot) is None or snapshot.state.is_final:
            return
        if self.place.run("scancel", "--batch", "--signal=INT", self.job_id).code:
            return
        grace_s = read_job_request(self.bundle_dir).policy.graceful_timeout_s or 0

        def is_over() -> bool:
            return read().state.is_final or ((now := self._snapshot) is not None and now.state.is_final)

        until(is_over, grace_s + _STOP_MARGIN_S, POLL_S / 4)
