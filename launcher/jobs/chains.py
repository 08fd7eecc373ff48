"""The jobs that a bundle waits for, found by their names when it is submitted."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

from launcher.bundle import store as bundles
from launcher.common.console import shown_path
from launcher.common.problems import Problem, ProblemsFound
from launcher.jobs import registry
from launcher.jobs.registry import JobRecord
from launcher.model.backend import Backend
from launcher.model.earlier_jobs import KEY, EarlierJob, QueuedJob, Wait, waits
from launcher.model.job_spec import Bundle, JobHandle, JobState


def queued(bundle: Bundle, backend: Backend) -> QueuedJob:
    """Return a bundle, the jobs that it waits for, and why it could not wait for them."""
    after: list[EarlierJob] = []
    problems: list[Problem] = []
    for wait in waits(bundles.config_of(bundle).get(KEY)):
        try:
            after += _awaited(wait, bundle, backend)
        except ProblemsFound as error:
            problems += error.problems
    return QueuedJob(bundle, tuple(after), tuple(problems))


def _awaited(wait: Wait, bundle: Bundle, backend: Backend) -> Iterator[EarlierJob]:
    """Yield the job to wait for, unless it has ended as required.

    Raises:
        ProblemsFound: It is unknown, on another cluster, or has ended otherwise.
    """
    record = _submitted(wait, bundle)
    _refuse_elsewhere(wait, record.handle, backend.intent(bundle, None), backend)
    status = registry.status(record, backend)
    if status.state is JobState.DELETED:
        raise _refused("E451", wait, f"cannot be waited for: {status.message or 'it is deleted'}", _again(record))
    if not status.state.is_final:
        yield EarlierJob(wait.condition, record.handle)
    elif not wait.is_fulfilled_by(status.state):
        reason = f": {status.message}" if status.message not in ("", status.state.value) else ""
        message = f"has ended as {status.state.value}{reason}; the job would stay pending for ever"
        raise _refused("E453", wait, message, f"{_again(record)}, or {KEY}=any:{wait.name}")


def _submitted(wait: Wait, bundle: Bundle) -> JobRecord:
    """Return the record of a job to wait for.

    Raises:
        ProblemsFound: No such job exists, or it was never submitted.
    """
    if (folder := _folder(wait.name, bundle.directory.parent)) is None:
        raise _refused("E451", wait, "is not a job under results/, nor beside this bundle", "recipes jobs lists them")
    if (record := registry.read(folder)) is None:
        raise _refused("E451", wait, "was never launched", f"recipes launch {shown_path(folder)}")
    return record


def _folder(name: str, results: Path) -> Path | None:
    """Return the folder of a job as a user names it, also of one in the results folder of the waiting job."""
    beside = next((folder for folder, known in bundles.given_names(results) if known == name), results / name)
    for path in (name, str(beside)):
        with contextlib.suppress(ProblemsFound):
            return bundles.locate_job(path)
    return None


def _refuse_elsewhere(wait: Wait, known: JobHandle, own: JobHandle | None, backend: Backend) -> None:
    places = [(each.backend, each.context, each.server) for each in (known, own) if each]
    if known.backend != backend.name or len(set(places)) > 1:
        place = ", ".join(filter(None, places[0]))
        raise _refused("E452", wait, f"is on another cluster ({place}), which this one does not know", None)


def _again(record: JobRecord) -> str:
    return f"recipes launch {shown_path(record.handle.bundle_dir)}"


def _refused(code: str, wait: Wait, message: str, remedy: str | None) -> ProblemsFound:
    return ProblemsFound((Problem(code, KEY, message, value=wait.name, remedy=remedy),))
