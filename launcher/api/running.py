"""The one way of a launch, from words to the end of its job: compile, write, submit, follow. Prints nothing."""

import collections
import contextlib
import signal
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from launcher import pipeline
from launcher.api import launching
from launcher.api.observing import Observer
from launcher.api.session import Session
from launcher.bundle import store
from launcher.common import interrupts, os_errors, process
from launcher.common.interrupts import Interrupted, deferred, signals_as_interrupts
from launcher.common.names import RUN_DIR
from launcher.common.problems import ProblemsFound, fail, raise_any
from launcher.job_store import job_names, notifications, registry, tracking
from launcher.job_store.registry import JobRecord
from launcher.model import backend_registry
from launcher.model.backend import Backend, LaunchMode
from launcher.model.context import LaunchContext
from launcher.model.environment import unset_secrets
from launcher.model.job_spec import Bundle, JobSpec, JobState

if TYPE_CHECKING:
    from launcher.timeline import Timeline

_LATE = "about to finish; another Ctrl-C skips the rest"


class End(NamedTuple):
    """The end of a launch.

    Args:
        state: How the job ended; None if it was not followed to its end.
        interrupt: The signal that ended the following, or the job.
    """

    state: JobState | None
    interrupt: KeyboardInterrupt | None = None


def compiled(words: Sequence[str], session: Session, name: str | None = None) -> tuple[JobSpec, LaunchContext]:
    """Compile the words of a command line, which choose the recipe too, for a job that is to have a name.

    Raises:
        ProblemsFound: Every fault of both.
    """
    found, context = job_names.problems(name), session.context()
    try:
        job = pipeline.prepare(words, context, session.cache)
    except ProblemsFound as error:
        raise ProblemsFound((*found, *error.problems)) from error
    raise_any(found or job_names.problems(name, job.base_results_dir))
    return job, context


def write(
    job: JobSpec,
    context: LaunchContext,
    observer: Observer,
    *,
    name: str | None = None,
    is_launched: bool | None = None,
) -> tuple[Bundle, bool, bool]:
    """Write the bundle of a planned job, with a new MLflow run if it is launched now.

    Returns whether it is only written too, and whether its own keys request that its job be followed.

    Args:
        name: The user's name for the job, if any.
        is_launched: Whether it is launched now; None if its own keys decide that.

    Raises:
        ProblemsFound: A secret of the job is not set here (E448), or the cluster, the tracking store or the disk
            refuses.
    """
    if job.config["server_dry_run"]:
        pipeline.validate(job, context)
        observer.accepted()
    process.allow_clean_up()
    if is_launched is None:
        is_launched = only_written_by(job) is None
    if is_launched and backend_registry.described(job.backend).runs_here:  # other clusters ask when they submit
        raise_any(unset_secrets(job.config))
    if is_launched and tracking.is_tracked(job):
        observer.reserves_run()
    bundle = pipeline.render(pipeline.track(job, context, is_launched=is_launched), context)
    with observer.recording():
        pipeline.write(bundle)
    if name is not None:
        job_names.give(bundle.directory, name)
    return bundle, not is_launched, job.config["wait"] or _mode(job).is_followed


def only_written_by(job: JobSpec) -> str | None:
    """Return the key of a planned job that requests that its bundle be written and not launched; None without one."""
    asks = {**{key: job.config[key] for key in ("dry_run", "server_dry_run")}, "cluster": _mode(job).is_written_only}
    return next((key for key, is_asked in asks.items() if is_asked), None)


def refuse_only_written(job: JobSpec) -> None:
    """Raise a Problem if a job that is to be launched has a key that requests that it be written alone (E726)."""
    if key := only_written_by(job):
        raise fail("E726", key, "requests that the job be only written", remedy="leave it out, or write the bundle")


def _mode(job: JobSpec) -> LaunchMode:
    return backend_registry.described(job.backend).launch_mode(job.settings)


@contextlib.contextmanager
def opened(names: Sequence[str], name: str | None = None) -> Iterator[tuple[list[Bundle], str]]:
    """Yield the bundles that a user names, each once, and their backend; the block launches them.

    Args:
        name: A name for the job of the only one; a launch that is refused restores the earlier name.

    Raises:
        ProblemsFound: No such bundle exists, they are of several clusters, or cannot have the name.
    """
    if name is not None and len(names) > 1:
        raise fail("E801", "--name", "names one job, but several are given", value=name)
    found = {folder: store.read(folder) for folder in dict.fromkeys(map(store.locate, names))}
    if len(places := {backend for _, backend in found.values()}) > 1:
        raise fail("E801", "recipes launch", "the bundles are of several clusters", value=", ".join(places))
    with job_names.given(next(iter(found)), name):
        yield [bundle for bundle, _ in found.values()], places.pop()


def completed(bundle: Bundle, observer: Observer) -> Bundle:
    """Return a bundle with its MLflow run, which a dry run left to the launch."""
    if tracking.lacks_run(bundle):
        observer.reserves_run()
    return pipeline.complete(bundle)


def launch(
    bundle: Bundle, backend_name: str, observer: Observer, *, wait: bool = False, is_again: bool = False
) -> End:
    """Start the job of a bundle on disk; follow it to its end if it ends with this process, or with `wait`.

    Args:
        backend_name: The bundle's choice of `cluster`.
        wait: Whether to follow a job that outlives this process.
        is_again: Whether to start a finished job again; without it, one that has succeeded is refused (E715).

    Raises:
        ProblemsFound: The backend, the tracking store or the disk refuses.
    """
    backend = backend_registry.load_backend(backend_name)
    with signals_as_interrupts():
        bundle = completed(bundle, observer)
        if backend_registry.described(backend_name).runs_here:
            with contextlib.ExitStack() as following:
                return _run_here(bundle, backend, observer, following, is_again=is_again)
        (job,) = launching.submit((bundle,), backend, is_again=is_again)
        with launching.submitted_nevertheless((job,)):
            observer.submitted(job)
            return attend(bundle, backend, job, observer, wait=wait)


def attend(bundle: Bundle, backend: Backend, job: JobRecord, observer: Observer, *, wait: bool) -> End:
    """Follow a submitted job with `wait`; else close the run of one that has ended before."""
    if wait:
        return _follow(bundle, backend, job, observer)
    status = None
    if not job.handle.is_new and (seen := registry.status(job, backend)).state.is_final:
        launching.conclude(job, seen, observer)  # submitting has marked its run as running
        status = seen
    observer.left(bundle, status)
    return End(None)


def _follow(bundle: Bundle, backend: Backend, job: JobRecord, observer: Observer) -> End:
    """Follow a job that outlives this process: first its states, then its log. A signal only ends the following.

    The log is read even if the job was never seen running: it may have the reason.
    """
    notifier = notifications.of_job(job, observer.warned)
    notifier.watch(backend)
    try:
        for status in registry.changes(job, backend):
            observer.changed(status)
            if status.state is not JobState.PENDING:
                break
        if not job.ended:
            _read_log(backend, job, observer, follow=not status.state.is_final)
        if not status.state.is_final:
            *_, status = registry.changes(job, backend)
    except KeyboardInterrupt as interrupt:
        observer.left(bundle, None, interrupt)
        return End(None, interrupt)
    notifier.saw(status, backend)
    launching.conclude(job, status, observer)
    observer.ended(bundle, status, is_here=False)
    notifier.close()
    return End(status.state)


def _read_log(backend: Backend, job: JobRecord, observer: Observer, *, follow: bool) -> None:
    """Offer a job's log, or why it cannot be read; the job itself does not depend on that."""
    try:
        observer.read(backend.logs(job.handle, follow=follow))
    except ProblemsFound as error:
        observer.refused(error.problems, "the job is not affected, only its log cannot be shown")


def _run_here(
    bundle: Bundle, backend: Backend, observer: Observer, following: contextlib.ExitStack, *, is_again: bool
) -> End:
    """Run a job that ends with this process. A signal or a lost reader stops it, a second signal immediately.

    Args:
        following: Holds the lock of the process that closes the job's MLflow run.
    """
    job: JobRecord | None = None
    notifier: notifications.Notifier | None = None
    interrupt: KeyboardInterrupt | None = None
    try:
        (job,) = launching.submit((bundle,), backend, is_again=is_again)
        following.enter_context(registry.following(bundle.directory, waits=True))
        observer.started(job)
        notifier = notifications.of_job(job, observer.warned)
        notifier.watch(backend)
        _read_log(backend, job, observer, follow=True)
        with contextlib.suppress(ProblemsFound):  # its status is read once more below
            collections.deque(backend.wait(job.handle), maxlen=0)  # also until its processes have ended
    except (KeyboardInterrupt, BrokenPipeError) as error:
        interrupt = error if isinstance(error, KeyboardInterrupt) else Interrupted(signal.SIGPIPE)
        if job is None:
            if interrupt is error:
                observer.stopping(None, interrupt)
            raise
        process.mute_lost_streams()
        _cancel(backend, job, observer, interrupt)
    notifier = notifier or notifications.of_job(job, observer.warned)
    return _end_here(bundle, backend, job, observer, notifier, interrupt)


def _cancel(backend: Backend, job: JobRecord, observer: Observer, interrupt: KeyboardInterrupt) -> None:
    from launcher.operator.snapshot import note_stop  # few launches need it

    observer.stopping(job, interrupt)
    note_stop(job.handle.bundle_dir / RUN_DIR, f"stopped by {interrupts.name(interrupt)}")
    try:
        backend.cancel(job.handle)
    except KeyboardInterrupt:
        with deferred(_LATE):
            observer.stopping(job, interrupt, at_once=True)
            backend.cancel(job.handle)  # the job's second signal, which it does not defer


def _end_here(
    bundle: Bundle,
    backend: Backend,
    job: JobRecord,
    observer: Observer,
    notifier: notifications.Notifier,
    interrupt: KeyboardInterrupt | None,
) -> End:
    """Report how a job on this machine ended, to its MLflow run too."""
    from launcher import timeline  # not imported at the top, to keep compiling fast

    with deferred(_LATE):
        try:
            status = backend.status(job.handle)
        except ProblemsFound as error:  # its folder was deleted, or its record is damaged
            observer.refused(error.problems, "the job was started, but its final status cannot be read")
            _close_run(bundle, observer, JobState.FAILED, outcome="its unsent metrics are lost")
            return End(JobState.FAILED)
        is_cancelled = status.state is JobState.CANCELLED
        if interrupt and is_cancelled:
            status = replace(status, message=f"stopped by {interrupts.name(interrupt)}")
        notifier.saw(status, backend)
        run_dir, course = bundle.directory / RUN_DIR, None
        try:
            course = timeline.refresh(run_dir)
        except OSError as error:
            observer.warned(f"no timeline: {os_errors.described(error, error.filename or run_dir)[0]}")
        if _close_run(bundle, observer, status.state, course):
            registry.close(job)
        if course and (course.has_scaled or course.unfired):
            observer.scaled(course, run_dir)
        # Without a final state the operator has crashed.
        can_resume = course is not None and course.state is None
        observer.ended(bundle, status, is_here=True, can_resume=can_resume)
        notifier.close()
    return End(status.state, interrupt if is_cancelled else None)


def _close_run(
    bundle: Bundle,
    observer: Observer,
    state: JobState,
    course: "Timeline | None" = None,
    outcome: str = "",
) -> bool:
    """Close a job's MLflow run with the job's state, unless the tracking store refuses, which the observer gets."""
    try:
        tracking.finish(bundle, state, course)
    except ProblemsFound as error:
        observer.refused(error.problems, outcome or f"unsent metrics stay in {bundle.directory / RUN_DIR}")
        return False
    return True
