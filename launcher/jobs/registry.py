"""Submitted jobs: the record in each bundle, `job.json`, through which any later process finds the job."""

import contextlib
import fcntl
import json
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from launcher.bundle.render import MANIFEST
from launcher.bundle.store import given_name
from launcher.common import os_errors, redaction
from launcher.common.interrupts import Interrupted
from launcher.common.names import JOB_FILE
from launcher.common.problems import ProblemsFound, fail
from launcher.model import backend_registry
from launcher.model.backend import Backend
from launcher.model.job_spec import Bundle, JobHandle, JobState, JobStatus
from launcher.runtime.durable import write_text

_NATIVE = ("native_id", "kind", "namespace", "context", "uid", "server")
"""Fields of a handle that a record keeps, beside the bundle's name and location."""


@dataclass(frozen=True, slots=True)
class JobRecord:
    """A job that was submitted.

    Args:
        handle: How its backend finds it.
        digest: Its bundle's.
        submitted: Time of submission, ISO 8601 in UTC.
        user: Who submitted it.
        cancelled_by: The user who cancelled it from this bundle; None if it was not.
        ended: Final status, once a command has observed it; the job itself may be deleted by then.
        is_closed: Whether its MLflow run also has the final state.
        is_submitted: False while a launch is under way, and after one that was killed.
    """

    handle: JobHandle
    digest: str
    submitted: str
    user: str
    cancelled_by: str | None = None
    ended: JobStatus | None = None
    is_closed: bool = False
    is_submitted: bool = True


def refuse_unwritable(folder: Path) -> None:
    """Raise a Problem if a job of the bundle in `folder` could not be recorded.

    Raises:
        ProblemsFound: The folder cannot be written to.
    """
    if not os.access(folder, os.W_OK):
        raise _unwritten(folder, "the folder cannot be written to; nothing was submitted")


@contextlib.contextmanager
def launching(folder: Path) -> Iterator[None]:
    """Make other launches of a bundle wait; the next one finds the job of this one."""
    with locked(folder / MANIFEST):
        yield


def refused(folder: Path, backend: Backend) -> JobState:
    """Return the state of a bundle's job after a launch that was refused: an earlier launch may still run.

    An unknown state counts as pending.
    """
    if (job := _known(folder)) is None:
        return JobState.FAILED
    try:
        state = status(job, backend).state
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
    job = known or JobRecord(handle, bundle.digest, datetime.now(UTC).isoformat(timespec="seconds"), user)
    try:
        with locked(bundle.directory):
            write(bundle.directory, replace(job, is_submitted=False))
    except OSError as error:
        raise _unwritten(bundle.directory, "nothing was submitted", error) from error
    try:
        yield
    except (ProblemsFound, KeyboardInterrupt) as error:
        if _is_rolled_back(error):
            _restore(bundle.directory, known)
        raise


def _is_rolled_back(error: ProblemsFound | KeyboardInterrupt) -> bool:
    """Return whether a failed submission is known to have left nothing."""
    if isinstance(error, ProblemsFound):
        return error.outcome is None and all(problem.code != "E352" for problem in error.problems)
    return isinstance(error, Interrupted) and error.is_rolled_back


def _restore(folder: Path, known: JobRecord | None) -> None:
    """Restore the record from before a submission that left nothing."""
    with contextlib.suppress(OSError), locked(folder):
        if known:
            write(folder, known)
        else:
            (folder / JOB_FILE).unlink(missing_ok=True)


def record(bundle: Bundle, handle: JobHandle, user: str) -> JobRecord:
    """Record that a bundle's job was submitted now; a job that existed before keeps its record.

    Its MLflow run is open again, since submitting marks it as running.

    Raises:
        ProblemsFound: The disk refuses.
    """
    known = None if handle.is_new else _known(bundle.directory)
    if known and _is_same(known.handle, handle):
        job = replace(known, handle=handle, is_closed=False, is_submitted=True)
        if handle.server and job.ended and job.ended.state is JobState.CANCELLED:
            job = replace(job, ended=None, cancelled_by=None)  # it was wrongly recorded as deleted
    else:
        job = JobRecord(handle, bundle.digest, datetime.now(UTC).isoformat(timespec="seconds"), user)
    try:
        with locked(bundle.directory):
            write(bundle.directory, job)
    except OSError as error:
        unwritten = _unwritten(bundle.directory, f"the job runs as {handle.native_id}, but is not recorded", error)
        raise ProblemsFound(unwritten.problems, f"the job was submitted as {handle.native_id}") from error
    return job


def read(folder: Path) -> JobRecord | None:
    """Return the record of the job of the bundle in `folder`; None if it was never submitted.

    Raises:
        ProblemsFound: The record is damaged.
    """
    job = _stored(folder)
    return job and _findable(job)


def _findable(job: JobRecord) -> JobRecord:
    """Return a record whose handle finds the job: without the uid if a launch may have replaced the job."""
    return job if job.is_submitted else replace(job, handle=replace(job.handle, uid=None))


def _stored(folder: Path) -> JobRecord | None:
    """Return the record on disk; see `read`."""
    try:
        fields = json.loads((folder / JOB_FILE).read_text(encoding="utf-8"))
        native = {"server": None, **fields["native"]}  # earlier versions did not record it
        native = {name: native[name] for name in _NATIVE}
        if fields["backend"] not in backend_registry.names():
            raise ValueError(f"unknown backend {fields['backend']}")
        handle = JobHandle(fields["backend"], fields["job_name"], folder.resolve(), **native)
        ended = fields["ended"] and _status(fields["ended"])
        if ended and ended.state is JobState.DELETED:  # earlier versions recorded it as final
            ended = None
        own = (fields["digest"], fields["submitted"], fields["user"], fields["cancelled_by"])
        return JobRecord(handle, *own, ended, fields["is_closed"], fields.get("is_submitted", True))
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        remedy = "recipes launch finds a job that still exists"
        raise fail("E711", str(folder / JOB_FILE), f"is damaged: {error!r}", remedy=remedy) from error


def _is_same(known: JobHandle, found: JobHandle) -> bool:
    """Return whether a recorded job is the one that was found: the server may be recorded differently."""
    return known == replace(found, bundle_dir=known.bundle_dir, server=known.server)


def submitted(folder: Path) -> JobRecord:
    """Return the record of a job that was submitted.

    Raises:
        ProblemsFound: It was not, or its record is damaged.
    """
    job = read(folder)
    if job is None:
        raise fail("E705", str(folder), "its job was never launched", remedy=f"recipes launch {folder}")
    return job


def status(job: JobRecord, backend: Backend) -> JobStatus:
    """Return the current status of a job; for one that is known to have ended, the recorded one."""
    return job.ended or settled(job, backend.status(job.handle), backend)


def changes(job: JobRecord, backend: Backend, *, timeout_s: float | None = None) -> Iterator[JobStatus]:
    """Yield a job's status now and after each change, up to its final one.

    Raises:
        ProblemsFound: It has not ended after `timeout_s` seconds (None never gives up), or the backend refuses.
    """
    if job.ended:
        yield job.ended
        return
    seen = None
    for each in backend.wait(job.handle, timeout_s=timeout_s):
        yield (seen := settled(job, each, backend))
    if seen is None or not seen.state.is_final:
        words = [seen.state.value, seen.message] if seen else ["its cluster did not answer in that time"]
        after = "" if timeout_s is None else f" after {timeout_s:g} s"
        message = f"has not ended{after}: {', '.join(filter(None, words))}"
        raise fail("E712", job.handle.job_name, message)


def settled(job: JobRecord, seen: JobStatus, backend: Backend) -> JobStatus:
    """Record how a job ended, since its cluster forgets it; return the status.

    Args:
        job: The record as it was read.
        seen: Its current status; for a deleted job, the end that another command has recorded is returned.
        backend: The job's. Jobs that end with their launcher record their end themselves.
    """
    if not seen.state.is_final or backend.ends_with_launcher:
        return seen
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


def cancel(job: JobRecord, backend: Backend, user: str) -> JobStatus:
    """End a job; return how it ended.

    Raises:
        ProblemsFound: The backend refuses.
    """
    if not backend.ends_with_launcher:
        # First, since other commands that follow the job see only that it is deleted.
        with contextlib.suppress(OSError), _current(job) as current:
            if current:
                write(job.handle.bundle_dir, replace(current, cancelled_by=user))
    backend.cancel(job.handle)
    return settled(job, backend.status(job.handle), backend)


def close(job: JobRecord) -> None:
    """Record that the job's MLflow run has its final state."""
    with contextlib.suppress(OSError), _current(job) as current:
        if current:
            write(job.handle.bundle_dir, replace(current, is_closed=True))


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
        "ended": asdict(job.ended) if job.ended else None,
        "is_closed": job.is_closed,
        "is_submitted": job.is_submitted,
    }
    write_text(folder / JOB_FILE, json.dumps(redaction.masked_tree(fields), indent=2) + "\n")


def _status(fields: dict[str, Any]) -> JobStatus:
    return JobStatus(**{**fields, "state": JobState(fields["state"]), "faulty_nodes": tuple(fields["faulty_nodes"])})


@contextlib.contextmanager
def _current(job: JobRecord) -> Iterator[JobRecord | None]:
    """Yield a job's current record under the folder's lock; None if the job was submitted anew."""
    with locked(job.handle.bundle_dir):
        current = _known(job.handle.bundle_dir)
        found = current and _findable(current)
        yield current if found and (found.handle, found.submitted) == (job.handle, job.submitted) else None


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold the lock of a file or folder; other commands on this machine wait for it."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
        fcntl.flock(descriptor, fcntl.LOCK_UN)  # a process that was forked meanwhile may hold the file open
    finally:
        os.close(descriptor)


def _unwritten(folder: Path, message: str, error: OSError | None = None) -> ProblemsFound:
    reason = f": {os_errors.described(error)[0]}" if error else ""
    return fail("E710", str(folder / JOB_FILE), message + reason, remedy="choose another base_results_dir")
