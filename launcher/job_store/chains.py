"""The jobs that a bundle waits for, found by their names when it is submitted."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

from launcher.bundle import store as bundles
from launcher.common.console import shown_path
from launcher.common.problems import Problem, ProblemsFound, fail, gathering
from launcher.job_store import registry
from launcher.model.backend import Backend
from launcher.model.earlier_jobs import KEY, EarlierJob, QueuedJob, Wait, waits
from launcher.model.job_spec import Bundle, JobState


def queued(bundle: Bundle, backend: Backend) -> QueuedJob:
    """Return a bundle, the jobs that it waits for, and why it could not wait for them."""
    after: list[EarlierJob] = []
    problems: list[Problem] = []
    for wait in waits(bundles.config_of(bundle).get(KEY)):
        with gathering(problems):
            after += _awaited(wait, bundle, backend)
    return QueuedJob(bundle, tuple(after), tuple(problems))


def _awaited(wait: Wait, bundle: Bundle, backend: Backend) -> Iterator[EarlierJob]:
    """Yield the job to wait for, unless it has ended as required.

    Raises:
        ProblemsFound: It is unknown, was never launched, is on another cluster, or has ended otherwise.
    """
    if (folder := _folder(wait.name, bundle.directory.parent)) is None:
        raise _refused("E451", wait, "is not a job under results/, nor beside this bundle", "recipes jobs lists them")
    if (record := registry.read(folder)) is None:
        raise _refused("E451", wait, "was never launched", f"recipes launch {shown_path(folder)}")
    own = backend.intent(bundle, None)
    places = [(each.backend, each.context, each.server) for each in (record.handle, own) if each]
    if record.handle.backend != backend.name or len(set(places)) > 1:
        place = ", ".join(filter(None, places[0]))
        raise _refused("E452", wait, f"is on another cluster ({place}), which this one does not know", None)
    status = registry.status(record, backend)
    again = f"recipes launch {shown_path(record.handle.bundle_dir)}"
    if status.state is JobState.DELETED:
        raise _refused("E451", wait, f"cannot be waited for: {status.message or 'it is deleted'}", again)
    if not status.state.is_final:
        yield EarlierJob(wait.condition, record.handle)
    elif not wait.is_fulfilled_by(status.state):
        reason = f": {status.message}" if status.message not in ("", status.state.value) else ""
        message = f"has ended as {status.state.value}{reason}; the job would stay pending for ever"
        raise _refused("E453", wait, message, f"{again}, or {KEY}=any:{wait.name}")


def _folder(name: str, results: Path) -> Path | None:
    """Return the folder of a job as a user names it, also of one in the results folder of the waiting job."""
    beside = next(bundles.named(results, name), results / name)
    for path in (name, str(beside)):
        with contextlib.suppress(ProblemsFound):
            return bundles.locate_job(path)
    return None


def _refused(code: str, wait: Wait, message: str, remedy: str | None) -> ProblemsFound:
    return fail(code, KEY, message, value=wait.name, remedy=remedy)
