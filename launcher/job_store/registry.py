"""Submitted jobs: the record in each bundle, `job.json`, through which any later process finds the job."""

import contextlib
import json
import os
import shlex
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from launcher.bundle.manifest import MANIFEST
from launcher.bundle.store import drafted, existing, given_name, removed
from launcher.common import os_errors, redaction
from launcher.common.interrupts import Interrupted
from launcher.common.locks import locked
from launcher.common.names import ADOPTED_FILE, JOB_FILE, RUN_DIR
from launcher.common.problems import Problem, ProblemsFound, fail
from launcher.model import backend_registry
from launcher.model.backend import Backend
from launcher.model.failure import Failure, failure_from, to_data
from launcher.model.job_spec import Bundle, JobHandle, JobState, JobStatus
from launcher.runtime.durable import write_text

_NATIVE = ("native_id", "kind", "namespace", "context", "uid", "server")
"""Fields of a handle that a record keeps, beside the bundle's name and location."""

_DOUBT_S = 180.0
"""How long after a launch was cut short its job may still appear: servers work on a request without its sender.

Source: kube-apiserver, --request-timeout, 60 s; the rest is for a launch that was killed while it sent requests.
"""
_LOOK_S = 2.0
"""How long to wait before another look at a job that may still appear."""


@dataclass(frozen=True, slots=True)
class JobRecord:
    """A job that was submitted.

    Args:
        handle: How its backend finds it.
        submitted: Time of submission, ISO 8601 in UTC.
        cancelled_by: The user who cancelled it from this bundle; None if it was not.
        ended: Final status, once a command has observed it; the job itself may be deleted by then.
        is_closed: Whether its MLflow run also has the final state.
        is_submitted: False while a launch is under way, and after one that was cut short.
        requested: When a launch that was cut short sent its last request, as far as it is known; ISO 8601 in UTC.
        notified: What messages have been sent about, so that each is sent once.
        failure: Why it failed, once a command has found it; its logs may be deleted by then.
    """

    handle: JobHandle
    digest: str
    submitted: str
    user: str
    cancelled_by: str | None = None
    ended: JobStatus | None = None
    is_closed: bool = False
    is_submitted: bool = True
    requested: str | None = None
    notified: tuple[str, ...] = ()
    failure: Failure | None = None

    @property
    def in_doubt_until(self) -> datetime | None:
        """Until when the job may appear although it does not exist; None if its launch was completed."""
        if self.is_submitted or self.requested is None:
            return None
        return datetime.fromisoformat(self.requested) + timedelta(seconds=_DOUBT_S)


def refuse_unwritable(folder: Path) -> None:
    """Raise a Problem if a job of the bundle in `folder` could not be recorded."""
    if not os.access(folder, os.W_OK):
        raise _unwritten(folder, "the folder cannot be written to; nothing was submitted")


@contextlib.contextmanager
def launching(folder: Path) -> Iterator[None]:
    """Make other launches of a bundle wait; the next one finds the job of this one.

    Raises:
        ProblemsFound: The folder was removed, before or in the block (E703).
    """
    with existing(folder), locked(folder / MANIFEST):
        yield


@contextlib.contextmanager
def following(folder: Path, *, waits: bool) -> Iterator[bool]:
    """Be the process that closes the MLflow run of a bundle's job on this machine, once that is launched.

    False if another one is, and this one does not wait.

    Raises:
        ProblemsFound: The job's folder was removed (E703).
    """
    run_dir = folder / RUN_DIR
    with existing(run_dir), locked(run_dir, waits=waits) as is_held:
        yield is_held


def refused(folder: Path, backend: Backend) -> JobState:
    """Return the state of a bundle's job after a launch that was refused: an earlier launch may still run.

    An unknown state counts as pending.
    """
    if (job := _known(folder)) is None:
        return JobState.FAILED
    try:
        state = status(_findable(job), backend).state
    except ProblemsFound:
        return JobState.PENDING
    return JobState.FAILED if state is JobState.DELETED else state


@contextlib.contextmanager
def submitting(bundle: Bundle, backend: Backend, user: str) -> Iterator[None]:
    """Record a submission before it starts, so that commands find its job after a launch that was killed.

    The block submits. If it fails, the record is restored, unless objects of the submission are left.

    Raises:
        ProblemsFound: The bundle's job runs on another cluster (E348), or the disk refuses.
    """
    known = _known(bundle.directory)
    handle = backend.intent(bundle, known.handle if known and known.is_submitted and not known.ended else None)
    if handle is None:
        yield
        return
    job = known or JobRecord(handle, bundle.digest, _now(), user)
    # Not those of an earlier one.
    job = replace(job, cancelled_by=None, ended=None, is_closed=False, is_submitted=False, notified=(), failure=None)
    try:
        with locked(bundle.directory):
            write(bundle.directory, replace(job, requested=_now()))
    except OSError as error:
        raise _unwritten(bundle.directory, "nothing was submitted", error) from error
    try:
        yield
    except (ProblemsFound, KeyboardInterrupt) as error:
        _restore(bundle.directory, known if _is_rolled_back(error) else replace(job, requested=_now()))
        raise


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def _is_rolled_back(error: ProblemsFound | KeyboardInterrupt) -> bool:
    """Return whether a failed submission is known to have left nothing."""
    if isinstance(error, ProblemsFound):
        return error.outcome is None and all(problem.code != "E352" for problem in error.problems)
    return isinstance(error, Interrupted) and error.is_rolled_back


def _restore(folder: Path, job: JobRecord | None) -> None:
    """Write the record after a submission that failed; remove it if nothing was submitted before."""
    with contextlib.suppress(OSError), locked(folder):
        if job:
            write(folder, job)
        else:
            (folder / JOB_FILE).unlink(missing_ok=True)


def record(bundle: Bundle, handle: JobHandle, user: str) -> JobRecord:
    """Record that a bundle's job was submitted now; a job that existed before keeps its record.

    Its MLflow run is open again, since submitting marks it as running.

    Raises:
        ProblemsFound: The disk refuses.
    """
    known = None if handle.is_new else _known(bundle.directory)
    # The server may be recorded differently.
    if known and known.handle == replace(handle, bundle_dir=known.handle.bundle_dir, server=known.handle.server):
        job = replace(known, handle=handle, is_closed=False, is_submitted=True, requested=None)
        if handle.server and job.ended and job.ended.state is JobState.CANCELLED:
            job = replace(job, ended=None, cancelled_by=None)  # it was wrongly recorded as deleted
    else:
        job = JobRecord(handle, bundle.digest, _now(), user)
    try:
        with locked(bundle.directory):
            write(bundle.directory, job)
    except OSError as error:
        unwritten = _unwritten(bundle.directory, f"the job runs as {handle.native_id}, but is not recorded", error)
        raise ProblemsFound(unwritten.problems, f"the job was submitted as {handle.native_id}") from error
    return job


def read(folder: Path, resolved: Path | None = None) -> JobRecord | None:
    """Return the record of the job of the bundle in `folder`; None if it was never submitted.

    Args:
        resolved: The folder's absolute path without links, if known.

    Raises:
        ProblemsFound: The record is damaged.
    """
    job = _stored(folder, resolved)
    return job and _findable(job)


def _findable(job: JobRecord) -> JobRecord:
    """Return a record whose handle finds the job: without the uid if a launch may have replaced the job."""
    return job if job.is_submitted else replace(job, handle=replace(job.handle, uid=None))


def _stored(folder: Path, resolved: Path | None = None) -> JobRecord | None:
    try:
        fields = json.loads((folder / JOB_FILE).read_text(encoding="utf-8"))
        native = {"server": None, **fields["native"]}  # earlier versions did not record it
        native = {name: native[name] for name in _NATIVE}
        if fields["backend"] not in backend_registry.names():
            raise ValueError(f"unknown backend {fields['backend']}")
        handle = JobHandle(fields["backend"], fields["job_name"], resolved or folder.resolve(), **native)
        ended = None
        if seen := fields["ended"]:
            typed = {"state": JobState(seen["state"]), "faulty_nodes": tuple(seen["faulty_nodes"])}
            ended = JobStatus(**{**seen, **typed})
        if ended and ended.state is JobState.DELETED:  # earlier versions recorded it as final
            ended = None
        own = (fields["digest"], fields["submitted"], fields["user"], fields["cancelled_by"])
        launch = (fields.get("is_submitted", True), fields.get("requested"))
        later = (tuple(fields.get("notified", ())), failure_from(fields.get("failure")))
        return JobRecord(handle, *own, ended, fields["is_closed"], *launch, *later)
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise damaged(folder, error) from error


def damaged(folder: Path, error: Exception) -> ProblemsFound:
    """Return the Problem of a record that cannot be read (E711)."""
    remedy = "recipes launch finds a job that still exists"
    return fail("E711", str(folder / JOB_FILE), f"is damaged: {error!r}", remedy=remedy)


def adopt(folder: Path, job: JobRecord, outline: Mapping[str, Any]) -> JobRecord:
    """Write the folder of a job that was launched elsewhere atomically; return its record.

    It holds no bundle: commands that need one refuse such a job. Beside the record is an outline of the job from its
    cluster, without its containers' commands and variables, which may hold secrets.

    Raises:
        ProblemsFound: A folder of that name exists, or the disk refuses.
    """
    folder = folder.absolute()
    if folder.exists():
        known = read(folder)
        if known and known.handle.uid == job.handle.uid:
            raise fail("E714", str(folder), "already follows this job", remedy=f"recipes status {folder.name}")
        raise fail("E714", str(folder), "belongs to another job", remedy="--as another-name")
    with os_errors.refusing("E702", str(folder), folder), drafted(folder) as draft:
        text = json.dumps(redaction.masked_tree(outline), indent=2) + "\n"
        (draft / ADOPTED_FILE).write_text(text, encoding="utf-8")
        write(draft, job)
        draft.chmod(0o755)
        draft.rename(folder)
    return replace(job, handle=replace(job.handle, bundle_dir=folder.resolve()))


def submitted(folder: Path) -> JobRecord:
    """Return the record of a job that was submitted.

    Raises:
        ProblemsFound: It was not, its record is damaged, or its folder was removed (E703).
    """
    job = read(folder)
    if job is None and not folder.is_dir():
        raise removed(folder)
    if job is None:
        remedy = f"recipes launch {shlex.quote(str(folder))}"
        raise fail("E705", str(folder), "its job was never launched", remedy=remedy)
    return job


def status(job: JobRecord, backend: Backend) -> JobStatus:
    """Return the current status of a job; for one that is known to have ended, the recorded one."""
    return job.ended or settled(job, backend.status(job.handle), backend)


def finished(folder: Path, backend: Backend) -> tuple[JobRecord, JobStatus] | None:
    """Return the job of the bundle in `folder` and its final status; None if it has not ended or was never launched.

    Raises:
        ProblemsFound: Its backend cannot be reached.
    """
    job = None
    with contextlib.suppress(ProblemsFound):  # a damaged record is replaced by the launch
        job = read(folder)
    if job is None or not job.is_submitted:
        return None
    seen = status(job, backend)
    return (job, seen) if seen.state.is_final and seen.state is not JobState.DELETED else None


def changes(job: JobRecord, backend: Backend, *, timeout_s: float | None = None) -> Iterator[JobStatus]:
    """Yield a job's status now and after each change, up to its final one.

    Raises:
        ProblemsFound: It has not ended after `timeout_s` seconds (None never gives up), or the backend refuses.
    """
    if job.ended:
        yield job.ended
        return
    from launcher.model.following import Deadline  # no compile needs it

    deadline = Deadline(timeout_s)
    with contextlib.suppress(ProblemsFound):  # waiting is more patient with a cluster that does not answer
        if (ended := status(job, backend)).state.is_final:  # a watch of what is deleted has nothing to report
            yield ended
            return
    seen, is_pending = None, True
    while is_pending:
        for each in backend.wait(job.handle, timeout_s=timeout_s and deadline.left_s):
            before, seen = seen, settled(job, each, backend)
            if seen != before:
                yield seen
        is_pending = bool(seen and not seen.state.is_final and _is_in_doubt(job) and deadline.left_s)
        if is_pending:
            time.sleep(min(_LOOK_S, deadline.left_s))
    if seen is None or not seen.state.is_final:
        words = [seen.state.value, seen.message] if seen else ["its cluster did not answer in that time"]
        after = "" if timeout_s is None else f" after {timeout_s:g} s"
        message = f"has not ended{after}: {', '.join(filter(None, words))}"
        raise fail("E712", job.handle.job_name, message)


def settled(job: JobRecord, seen: JobStatus, backend: Backend) -> JobStatus:
    """Record how a job ended, since its cluster forgets it; return the status it is seen in.

    For a deleted job, the end that another command has recorded is returned. Jobs that end with their launcher record
    their end themselves.
    """
    if not seen.state.is_final or backend_registry.described(backend.name).runs_here:
        return seen
    if seen.state is JobState.DELETED and _is_in_doubt(job):
        message = f"its launch was cut short, and its last request may still create it until {_clock(job)}"
        return replace(seen, state=JobState.PENDING, message=f"{message}; {seen.message}")
    # If the folder cannot be written to, the next command finds the end again.
    with contextlib.suppress(OSError), _current(job) as current:
        if current is None:
            return seen
        if current.cancelled_by and seen.state is JobState.DELETED:
            seen = replace(seen, state=JobState.CANCELLED, message=f"cancelled by {current.cancelled_by}")
        if current.ended:
            return current.ended
        if seen.state is not JobState.DELETED:  # not final: the job may be found again after a wrong answer
            write(job.handle.bundle_dir, replace(current, ended=seen))
    return seen


def _is_in_doubt(job: JobRecord) -> bool:
    """Return whether a job that does not exist may still appear: its launch was cut short."""
    return bool(job.in_doubt_until and datetime.now(UTC) < job.in_doubt_until)


def _clock(job: JobRecord) -> str:
    return f"{job.in_doubt_until:%H:%M:%S} UTC"


def cancel(job: JobRecord, backend: Backend, user: str) -> JobStatus:
    """End a job; return how it ended.

    Raises:
        ProblemsFound: The backend refuses, or the job may still appear (E508).
    """
    if _is_in_doubt(job) and backend.status(job.handle).state is not JobState.DELETED:
        job = replace(job, requested=None)  # it has appeared
    if backend_registry.described(backend.name).runs_here:
        from launcher.operator.snapshot import note_stop  # few commands need it

        note_stop(job.handle.bundle_dir / RUN_DIR, f"cancelled by {user}")
    else:
        # First, since other commands that follow the job see only that it is deleted.
        _update(job, cancelled_by=user, requested=job.requested)
    backend.cancel(job.handle)
    ended = settled(job, backend.status(job.handle), backend)
    if _is_in_doubt(job) and not ended.state.is_final:
        _update(job, cancelled_by=None, requested=job.requested)
        message = "nothing of it exists, but the last request of its launch may still create it"
        remedy = f"recipes cancel {job.handle.bundle_dir.name}, after {_clock(job)}"
        problem = Problem("E508", "job", message, value=job.handle.job_name, remedy=remedy)
        raise ProblemsFound((problem,), "what existed of it was removed")
    return ended


def close(job: JobRecord) -> None:
    """Record that the job's MLflow run has its final state."""
    _update(job, is_closed=True)


def note_failure(job: JobRecord, failure: Failure) -> None:
    """Record why a job failed; if its folder cannot be written to, the next command finds it again."""
    _update(job, failure=failure)


def claim_message(job: JobRecord, about: str) -> bool:
    """Record that a message about a job is sent; return False if another process has sent it."""
    with contextlib.suppress(OSError), _current(job) as current:
        if current is None or about in current.notified:
            return False
        write(job.handle.bundle_dir, replace(current, notified=(*current.notified, about)))
    return True


def as_json(job: JobRecord, seen: JobStatus | None) -> dict[str, Any]:
    """Return a job as plain data; `seen` is None if its status is unknown."""
    native = {name: value for name in _NATIVE if (value := getattr(job.handle, name))}
    return {
        "job": job.handle.job_name,
        "name": given_name(job.handle.bundle_dir),
        "backend": job.handle.backend,
        **(asdict(seen) if seen else {"state": None}),
        "submitted": job.submitted,
        "user": job.user,
        "digest": job.digest,
        "native": native,
        "bundle": str(job.handle.bundle_dir),
    }


def _known(folder: Path) -> JobRecord | None:
    """Return the record; None also if it is damaged, since it is about to be replaced."""
    with contextlib.suppress(ProblemsFound):
        return _stored(folder)
    return None


def write(folder: Path, job: JobRecord) -> None:
    """Write a job's record into its folder. The caller holds the folder's lock, or the folder is new."""
    fields = {
        "backend": job.handle.backend,
        "job_name": job.handle.job_name,
        "native": {name: getattr(job.handle, name) for name in _NATIVE},
        "digest": job.digest,
        "submitted": job.submitted,
        "user": job.user,
        "cancelled_by": job.cancelled_by,
        "ended": redaction.masked_tree(asdict(job.ended)) if job.ended else None,
        "is_closed": job.is_closed,
        "is_submitted": job.is_submitted,
        "requested": job.requested,
        "notified": job.notified,
        "failure": redaction.masked_tree(to_data(job.failure)),
    }  # its other fields are names, by which the job is found again
    write_text(folder / JOB_FILE, json.dumps(fields, indent=2) + "\n")


def _update(job: JobRecord, **fields: Any) -> None:
    """Change fields of a job's record, unless the job was submitted anew or its folder cannot be written to."""
    with contextlib.suppress(OSError), _current(job) as current:
        if current:
            write(job.handle.bundle_dir, replace(current, **fields))


@contextlib.contextmanager
def _current(job: JobRecord) -> Iterator[JobRecord | None]:
    """Yield a job's current record under the folder's lock; None if the job was submitted anew."""
    with locked(job.handle.bundle_dir):
        current = _known(job.handle.bundle_dir)
        found = current and _findable(current)
        yield current if found and (found.handle, found.submitted) == (job.handle, job.submitted) else None


def _unwritten(folder: Path, message: str, error: OSError | None = None) -> ProblemsFound:
    reason = f": {os_errors.described(error)[0]}" if error else ""
    return fail("E710", str(folder / JOB_FILE), message + reason, remedy="choose another base_results_dir")
