"""`python main.py`: overrides to a running job, and an exit code."""

import traceback
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from launcher import adopted, console, jobs, pipeline, process, terminal, tracking
from launcher import bundle as bundles
from launcher.backends.base import Backend
from launcher.context import LaunchContext
from launcher.contract import RUN_DIR
from launcher.interrupts import deferred, exit_code, sigterm_as_interrupt
from launcher.jobs import JobRecord
from launcher.problems import ProblemsFound
from launcher.scales import get
from launcher.specs import Bundle, JobHandle, JobState, JobStatus

if TYPE_CHECKING:
    from launcher.timeline import Timeline

USER_ERROR, JOB_FAILED, INTERRUPTED = 2, 3, 130
"""Exit codes. 0 is success, 1 a fault of our own (with a traceback)."""
EXIT_CODES = {
    JobState.SUCCEEDED: 0,
    JobState.FAILED: JOB_FAILED,
    JobState.GONE: JOB_FAILED,
    JobState.CANCELLED: INTERRUPTED,
}
"""What a command that follows a job to its end exits with."""
_LATE = "about to end; Ctrl-C once more leaves the rest undone"


def main(overrides: Sequence[str]) -> int:
    """Compile `overrides`, write the bundle, launch it and follow it where that is asked for.

    Returns:
        The exit code: 0, 2 when the input is at fault, 3 when the job failed, 130 at Ctrl-C, 143 at SIGTERM while
        it submits.
    """
    outcome = "nothing was written or submitted"
    try:
        context = LaunchContext.read()
        job = pipeline.prepare(overrides, context)
        terminal.show_plan(job)
        if job.config["server_dry_run"]:
            pipeline.validate(job, context)
            console.say("the cluster would take this job; nothing was created there")
        process.allow_clean_up()
        if tracking.is_tracked(job):
            console.say("opening the MLflow run …", "dim", stderr=True)
        job = pipeline.track(job, context)
        bundle = pipeline.render(job, context)
        pipeline.write(bundle)
        outcome = f"the bundle {bundle.directory.name} is written, nothing was submitted"
        if job.config["dry_run"] or job.config["server_dry_run"]:
            terminal.show_bundle(bundle, next_step=f"recipes launch {terminal.typed_path(bundle.directory)}")
            return 0
        terminal.show_bundle(bundle)
        return launch(
            bundle, job.backend, wait=job.config["wait"] or get(job.config, "cluster.sm_jobs_config.wait") is True
        )
    except KeyboardInterrupt as interrupt:
        return exit_code(interrupt)
    except ProblemsFound as error:
        if "debug=true" in (text.lstrip("+") for text in overrides):
            traceback.print_exception(error, chain=False)  # what it was raised from may repeat a secret
        console.show_problems(error.problems, outcome)
        return USER_ERROR


def launch(bundle: Bundle, backend_name: str, *, wait: bool = False) -> int:
    """Start the job of a bundle on disk; follow it to its end if it ends with this process, or with `wait`.

    Returns:
        The exit code: of a job that is followed, how it ended.

    Raises:
        ProblemsFound: The backend refuses.
    """
    backend = pipeline.load_backend(backend_name)
    with jobs.launching(bundle.directory):
        if backend.ends_with_launcher:
            job = pipeline.submit(bundle, backend)
        else:
            with sigterm_as_interrupt():
                job = pipeline.submit(bundle, backend)
    if backend.ends_with_launcher:
        return _accompany(bundle, backend, job.handle)
    terminal.show_submitted(job.handle)
    if wait:
        return _follow(bundle, backend, job)
    if not job.handle.is_new and (status := jobs.status(job, backend)).state.is_final:
        conclude(job, status)  # submitting has marked its run as running
        terminal.show_status(status)
        return 0
    terminal.show_next(bundle)
    return 0


def conclude(job: JobRecord, status: JobStatus) -> None:
    """Mark the MLflow run of a job elsewhere by how it ended, once; a store that refuses is asked again next time."""
    if job.is_closed or status.state is JobState.GONE or adopted.is_adopted(job.handle.bundle_dir):
        return  # an adopted job's run is known to its own bundle only
    try:
        tracking.finish(bundles.read(job.handle.bundle_dir)[0], status.state)
    except ProblemsFound as error:
        console.show_problems(error.problems, "the job has ended; only its MLflow run does not say so")
    else:
        jobs.close(job)


def _follow(bundle: Bundle, backend: Backend, job: JobRecord) -> int:
    """Follow a job that goes on without this process: first its states, then its log. Ctrl-C leaves it alone.

    One that was not seen to run has a log all the same, which says why.
    """
    try:
        for status in jobs.changes(job, backend):
            terminal.show_status(status)
            if status.state is not JobState.PENDING:
                break
        if not job.ended:
            _show_log(backend, job.handle, follow=not status.state.is_final)
        if not status.state.is_final:
            *_, status = jobs.changes(job, backend)
    except KeyboardInterrupt:
        console.say("the job goes on without this command", stderr=True)
        terminal.show_next(bundle)
        return INTERRUPTED
    conclude(job, status)
    terminal.show_end(bundle, status, is_here=False)
    return EXIT_CODES[status.state]


def _show_log(backend: Backend, handle: JobHandle, *, follow: bool) -> None:
    """Show a job's log; how the job ends does not depend on whether it can be read."""
    try:
        terminal.follow(backend.logs(handle, follow=follow))
    except ProblemsFound as error:
        console.show_problems(error.problems, "only the job's log cannot be shown")


def _accompany(bundle: Bundle, backend: Backend, handle: JobHandle) -> int:
    """Follow a job that ends with this process. Ctrl-C stops it, a second one at once."""
    is_interrupted = False
    try:
        terminal.follow(backend.logs(handle, follow=True))
    except KeyboardInterrupt:
        is_interrupted = True
        _cancel(backend, handle)
    with deferred(_LATE):
        try:
            status = backend.status(handle)
        except ProblemsFound as error:  # its folder is gone
            console.show_problems(error.problems, "the job has failed")
            _close_run(bundle, JobState.FAILED, outcome="its metrics that were not sent yet are lost")
            return JOB_FAILED
        if is_interrupted and status.state is JobState.CANCELLED:
            status = replace(status, message="stopped by Ctrl-C")
        _close(bundle, status)
    return EXIT_CODES[status.state]


def _cancel(backend: Backend, handle: JobHandle) -> None:
    console.say("stopping; the job saves a checkpoint first (Ctrl-C again: at once, without it)", stderr=True)
    try:
        backend.cancel(handle)
    except KeyboardInterrupt:
        with deferred(_LATE):
            console.say("stopping at once", stderr=True)
            backend.cancel(handle)  # the job's second signal, which it does not put off


def _close(bundle: Bundle, status: JobStatus) -> None:
    """Send what is left to tell of a job that has ended on this machine, and say how it ended."""
    from launcher import timeline  # compiling a recipe does not pay for it

    run_dir = bundle.directory / RUN_DIR
    course = None
    try:
        course = timeline.refresh(run_dir)
    except OSError as error:
        console.say(f"no timeline: {error}", stderr=True)
    _close_run(bundle, status.state, course)
    if course and (course.has_scaled or course.unfired):
        terminal.show_timeline(course, run_dir)
    # Without a last word the operator has died.
    terminal.show_end(bundle, status, can_go_on=course is not None and course.state is None)


def _close_run(bundle: Bundle, state: JobState, course: "Timeline | None" = None, outcome: str = "") -> None:
    """Mark the MLflow run of a job by how it ended; a job that has run is not undone by its tracking store."""
    try:
        tracking.finish(bundle, state, course)
    except ProblemsFound as error:
        console.show_problems(error.problems, outcome or f"unsent metrics stay in {bundle.directory / RUN_DIR}")
