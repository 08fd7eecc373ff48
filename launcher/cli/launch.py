"""`recipes run` and `python main.py`: from overrides to a running job and an exit code."""

import collections
import contextlib
import signal
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from launcher import pipeline
from launcher.bundle import store as bundles
from launcher.cli import terminal
from launcher.cli.output import refused
from launcher.common import console, interrupts, os_errors, process, redaction
from launcher.common.interrupts import Interrupted, deferred, exit_code, signals_as_interrupts
from launcher.common.names import RUN_DIR
from launcher.common.problems import Problem, ProblemsFound, fail, gathering, raise_any
from launcher.common.process import INTERRUPTED, mute_lost_streams
from launcher.config.composed_files import CompositionCache
from launcher.jobs import job_names, registry, tracking
from launcher.jobs.registry import JobRecord
from launcher.model import backend_registry
from launcher.model.backend import Backend
from launcher.model.context import LaunchContext
from launcher.model.job_spec import Bundle, JobHandle, JobSpec, JobState, JobStatus

if TYPE_CHECKING:
    from launcher.cli.launch_sweep import Sweep
    from launcher.timeline import Timeline

JOB_FAILED = 3
"""Exit code of a command whose job failed; the others are in `launcher.common.process`."""
EXIT_CODES = {
    JobState.SUCCEEDED: 0,
    JobState.FAILED: JOB_FAILED,
    JobState.DELETED: JOB_FAILED,
    JobState.CANCELLED: INTERRUPTED,
}
"""Exit codes of a command that follows a job to its end."""
_RESERVING = "reserving the MLflow run …"
_LATE = "about to finish; another Ctrl-C skips the rest"


def main(
    overrides: Sequence[str],
    name: str | None = None,
    cache: CompositionCache | None = None,
    sweep: "Sweep | None" = None,
) -> int:
    """Compile `overrides`, write the bundle, launch it and, if requested, follow it.

    Args:
        name: The user's name for the job, if any.
        cache: Files read by earlier launches of this process; None for the first.
        sweep: What may take the written bundle, to launch it together with others.

    Returns:
        The exit code: 0, 2 if the input is invalid, 3 if the job failed, 128 plus the signal's number if a signal
        ended it (130 for Ctrl-C, 143 for SIGTERM, 129 for SIGHUP).
    """
    redaction.install()
    outcome = "nothing was written or submitted"
    with signals_as_interrupts():
        try:
            context = LaunchContext.read()
            job = _prepared(overrides, context, name, cache)
            terminal.show_plan(job)
            if job.config["server_dry_run"]:
                pipeline.validate(job, context)
                console.say("the cluster would accept this job; nothing was created there")
            process.allow_clean_up()
            mode = backend_registry.described(job.backend).launch_mode(job.settings)
            is_only_written = bool(job.config["dry_run"] or job.config["server_dry_run"] or mode.is_written_only)
            if not is_only_written and tracking.is_tracked(job):
                console.say(_RESERVING, "dim", stderr=True)
            job = pipeline.track(job, context, is_launched=not is_only_written)
            bundle = pipeline.render(job, context)
            pipeline.write(bundle)
            if name is not None:
                job_names.give(bundle.directory, name)
            outcome = f"the bundle {bundle.directory.name} was written, nothing was submitted"
            terminal.show_bundle(bundle, is_only_written=is_only_written)
            wait = job.config["wait"] or mode.is_followed
            if sweep and sweep.takes(bundle, job.backend, is_rendered_only=is_only_written, wait=wait):
                return 0
            return 0 if is_only_written else launch(bundle, job.backend, wait=wait)
        except KeyboardInterrupt as interrupt:
            return exit_code(interrupt)
        except (ProblemsFound, OSError) as error:
            if isinstance(error, ProblemsFound) and "debug=true" in (text.lstrip("+") for text in overrides):
                import traceback

                traceback.print_exception(error, chain=False)  # its causes may contain a secret
            return refused(error, outcome)


def completed(bundle: Bundle) -> Bundle:
    """Return a bundle with its MLflow run, which a dry run left to the launch."""
    if tracking.lacks_run(bundle):
        console.say(_RESERVING, "dim", stderr=True)
    return pipeline.complete(bundle)


def _prepared(
    overrides: Sequence[str], context: LaunchContext, name: str | None, cache: CompositionCache | None
) -> JobSpec:
    """Return the planned job, or raise every Problem of the user's input and of the job's name."""
    found = job_names.problems(name)
    try:
        job = pipeline.prepare(overrides, context, cache)
    except ProblemsFound as error:
        raise ProblemsFound((*found, *error.problems)) from error
    raise_any(found or job_names.problems(name, job.base_results_dir))
    return job


def launch(bundle: Bundle, backend_name: str, *, wait: bool = False, is_again: bool = False) -> int:
    """Start the job of a bundle on disk; follow it to its end if it ends with this process, or with `wait`.

    Args:
        backend_name: The bundle's choice of `cluster`.
        wait: Whether to follow a job that outlives this process.
        is_again: Whether to start a finished job again; without it, one that has succeeded is refused (E715).

    Returns:
        The exit code, which depends on how the job ended if it was followed.
    """
    backend = backend_registry.load_backend(backend_name)
    with signals_as_interrupts():
        bundle = completed(bundle)
        if backend.ends_with_launcher:
            return _run_here(bundle, backend, is_again=is_again)
        (job,) = submit((bundle,), backend, is_again=is_again)
        with submitted_nevertheless((job,)):
            terminal.show_submitted(job.handle)
            return attend(bundle, backend, job, wait=wait)


@contextlib.contextmanager
def submitted_nevertheless(jobs: Sequence[JobRecord]) -> Iterator[None]:
    """Add to Problems of the block that jobs were submitted."""
    try:
        yield
    except ProblemsFound as error:
        what = f"the job was submitted as {jobs[0].handle.native_id}" if len(jobs) == 1 else "the jobs were submitted"
        raise ProblemsFound(error.problems, what) from error


def attend(bundle: Bundle, backend: Backend, job: JobRecord, *, wait: bool) -> int:
    """Follow a submitted job with `wait`; else print how to, or how it has ended."""
    if wait:
        return _follow(bundle, backend, job)
    if not job.handle.is_new and (status := registry.status(job, backend)).state.is_final:
        conclude(job, status)  # submitting has marked its run as running
        terminal.show_status(status)
        console.say(f"recipes launch --again {terminal.typed_path(bundle.directory)}  launches it again", "dim")
        return 0
    terminal.show_next(bundle)
    return 0


def submit(bundles: Sequence[Bundle], backend: Backend, *, is_again: bool) -> tuple[JobRecord, ...]:
    """Submit the jobs of bundles; other launches of the same bundles wait."""
    with contextlib.ExitStack() as launching:
        # In one order, so that two launches of the same bundles do not wait for each other.
        for folder in sorted(bundle.directory for bundle in bundles):
            launching.enter_context(registry.launching(folder))
        problems: list[Problem] = []
        for bundle in bundles:
            with gathering(problems):
                _settle_finished(bundle, backend, is_again=is_again)
        raise_any(problems)
        return pipeline.submit_all(bundles, backend)


def _settle_finished(bundle: Bundle, backend: Backend, *, is_again: bool) -> None:
    """Clear a finished job for another launch, if that is requested; else refuse one that has succeeded."""
    if not (ended := registry.finished(bundle.directory, backend)):
        return
    job, status = ended
    if is_again:
        backend.clear(job.handle)
    elif status.state is JobState.SUCCEEDED:
        if not backend.ends_with_launcher:
            conclude(job, status)
        place = console.shown_path(job.handle.bundle_dir)
        message = f"its job, submitted {job.submitted} by {job.user}, has succeeded; nothing was launched"
        remedy = "add --again to launch it once more, from its last checkpoint; or render the recipe again"
        raise fail("E715", place, message, remedy=remedy)


def conclude(job: JobRecord, status: JobStatus) -> None:
    """Close the MLflow run of a remote job, once; if the store refuses, the next command tries again."""
    if job.is_closed or status.state is JobState.DELETED or bundles.is_adopted(job.handle.bundle_dir):
        return  # an adopted job's run is known to its own bundle only
    try:
        tracking.finish(bundles.read(job.handle.bundle_dir)[0], status.state)
    except ProblemsFound as error:
        console.show_problems(error.problems, "the job has ended, but its MLflow run could not be closed")
    else:
        registry.close(job)


def _follow(bundle: Bundle, backend: Backend, job: JobRecord) -> int:
    """Follow a job that outlives this process: first its states, then its log. A signal only ends the following.

    The log is shown even if the job was never seen running: it may have the reason.
    """
    try:
        for status in registry.changes(job, backend):
            terminal.show_status(status)
            if status.state is not JobState.PENDING:
                break
        if not job.ended:
            _show_log(backend, job.handle, follow=not status.state.is_final)
        if not status.state.is_final:
            *_, status = registry.changes(job, backend)
    except KeyboardInterrupt as interrupt:
        console.say("detached; the job keeps running", stderr=True)
        terminal.show_next(bundle)
        return exit_code(interrupt)
    conclude(job, status)
    terminal.show_end(bundle, status, is_here=False)
    return EXIT_CODES[status.state]


def _show_log(backend: Backend, handle: JobHandle, *, follow: bool) -> None:
    """Show a job's log, or why it cannot be read; the job itself does not depend on that."""
    try:
        terminal.follow(backend.logs(handle, follow=follow))
    except ProblemsFound as error:
        console.show_problems(error.problems, "the job is not affected, only its log cannot be shown")


def _run_here(bundle: Bundle, backend: Backend, *, is_again: bool) -> int:
    """Run a job that ends with this process. A signal or a lost reader stops it, a second signal immediately."""
    job: JobRecord | None = None
    interrupt: KeyboardInterrupt | None = None
    try:
        (job,) = submit((bundle,), backend, is_again=is_again)
        _show_log(backend, job.handle, follow=True)
        with contextlib.suppress(ProblemsFound):  # its status is read once more below
            collections.deque(backend.wait(job.handle), maxlen=0)  # also until its processes have ended
    except (KeyboardInterrupt, BrokenPipeError) as error:
        if job is None:
            if isinstance(error, KeyboardInterrupt):
                console.say(f"cancelled  stopped by {interrupts.name(error)} before the job started", stderr=True)
            raise
        mute_lost_streams()
        interrupt = error if isinstance(error, KeyboardInterrupt) else Interrupted(signal.SIGPIPE)
        _cancel(backend, job.handle, interrupts.name(interrupt))
    return _end_here(bundle, backend, job.handle, interrupt)


def _end_here(bundle: Bundle, backend: Backend, handle: JobHandle, interrupt: KeyboardInterrupt | None) -> int:
    """Report how a job on this machine ended, to its MLflow run too; return the exit code."""
    from launcher import timeline  # not imported at the top, to keep compiling fast

    with deferred(_LATE):
        try:
            status = backend.status(handle)
        except ProblemsFound as error:  # its folder was deleted, or its record is damaged
            console.show_problems(error.problems, "the job was started, but its final status cannot be read")
            _close_run(bundle, JobState.FAILED, outcome="its unsent metrics are lost")
            return JOB_FAILED
        is_cancelled = status.state is JobState.CANCELLED
        if interrupt and is_cancelled:
            status = replace(status, message=f"stopped by {interrupts.name(interrupt)}")
        run_dir, course = bundle.directory / RUN_DIR, None
        try:
            course = timeline.refresh(run_dir)
        except OSError as error:
            console.say(f"no timeline: {os_errors.described(error, error.filename or run_dir)[0]}", stderr=True)
        _close_run(bundle, status.state, course)
        if course and (course.has_scaled or course.unfired):
            terminal.show_timeline(course, run_dir)
        # Without a final state the operator has crashed.
        terminal.show_end(bundle, status, can_resume=course is not None and course.state is None)
    return exit_code(interrupt) if interrupt and is_cancelled else EXIT_CODES[status.state]


def _cancel(backend: Backend, handle: JobHandle, signal_name: str) -> None:
    again = f"{signal_name} again: stop immediately, without one"
    console.say(f"stopping; an elastic job saves a checkpoint first ({again})", stderr=True)
    try:
        backend.cancel(handle)
    except KeyboardInterrupt:
        with deferred(_LATE):
            console.say("stopping immediately", stderr=True)
            backend.cancel(handle)  # the job's second signal, which it does not defer


def _close_run(bundle: Bundle, state: JobState, course: "Timeline | None" = None, outcome: str = "") -> None:
    """Close a job's MLflow run with the job's state; an error of the tracking store does not change that state."""
    try:
        tracking.finish(bundle, state, course)
    except ProblemsFound as error:
        console.show_problems(error.problems, outcome or f"unsent metrics stay in {bundle.directory / RUN_DIR}")
