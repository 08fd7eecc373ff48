"""`python main.py`: overrides to a running job, and an exit code."""

import shlex
import signal
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from types import FrameType

from launcher import pipeline, terminal, tracking
from launcher.backends.base import Backend
from launcher.context import LaunchContext
from launcher.contract import RUN_DIR
from launcher.problems import ProblemsFound
from launcher.specs import Bundle, JobHandle, JobState, JobStatus

USER_ERROR, JOB_FAILED, INTERRUPTED = 2, 3, 130
"""Exit codes. 0 is success, 1 a fault of our own (with a traceback)."""
_NEXT = {"local": "recipes launch {}", "k8s": "kubectl apply -f {}/manifests"}
"""What launches a bundle in a folder."""
_EXIT_CODES = {JobState.SUCCEEDED: 0, JobState.FAILED: JOB_FAILED, JobState.CANCELLED: INTERRUPTED}


def main(overrides: Sequence[str]) -> int:
    """Compile `overrides`, write the bundle, launch it and follow it.

    Returns:
        The exit code: 0, 2 when the input is at fault, 3 when the job failed, 130 when interrupted.
    """
    outcome = "nothing was written or submitted"
    try:
        context = LaunchContext.read()
        job = pipeline.prepare(overrides, context)
        terminal.show_plan(job)
        if tracking.is_tracked(job):
            terminal.say("opening the MLflow run …", "dim", stderr=True)
        job = pipeline.track(job, context)
        bundle = pipeline.render(job, context)
        pipeline.write(bundle)
        outcome = f"the bundle {bundle.directory.name} is written, nothing was submitted"
        if job.config["dry_run"]:
            folder = shlex.quote(terminal.shown_path(bundle.directory))
            terminal.show_bundle(bundle, next_step=_NEXT[job.backend].format(folder))
            return 0
        terminal.show_bundle(bundle)
        return launch(bundle, job.backend)
    except KeyboardInterrupt:
        return INTERRUPTED
    except ProblemsFound as error:
        if "debug=true" in (text.lstrip("+") for text in overrides):
            traceback.print_exception(error, chain=False)  # what it was raised from may repeat a secret
        terminal.show_problems(error.problems, outcome)
        return USER_ERROR


def launch(bundle: Bundle, backend_name: str) -> int:
    """Start the job of a bundle on disk and follow it to its end. Ctrl-C stops it, a second one at once.

    Raises:
        ProblemsFound: The backend refuses.
    """
    backend = pipeline.load_backend(backend_name)
    handle = pipeline.submit(bundle, backend)
    is_interrupted = False
    try:
        terminal.follow(backend.logs(handle, follow=True))
    except KeyboardInterrupt:
        is_interrupted = True
        _cancel(backend, handle)
    with _late_interrupts():
        status = backend.status(handle)
        if is_interrupted and status.state is JobState.CANCELLED:
            status = replace(status, message="stopped by Ctrl-C")
        _close(bundle, status)
    return _EXIT_CODES[status.state]


def _cancel(backend: Backend, handle: JobHandle) -> None:
    terminal.say("stopping; the job saves a checkpoint first (Ctrl-C again: at once, without it)", stderr=True)
    try:
        backend.cancel(handle)
    except KeyboardInterrupt:
        with _late_interrupts():
            terminal.say("stopping at once", stderr=True)
            backend.cancel(handle)  # the job's second signal, which it does not put off


def _close(bundle: Bundle, status: JobStatus) -> None:
    """Send what is left to tell of a job that has ended, and say how it ended."""
    from launcher import timeline  # compiling a recipe does not pay for it

    run_dir = bundle.directory / RUN_DIR
    course = None
    try:
        course = timeline.refresh(run_dir)
    except OSError as error:
        terminal.say(f"no timeline: {error}", stderr=True)
    try:
        tracking.finish(bundle, status.state, course)
    except ProblemsFound as error:  # a job that has run is not undone by its tracking store
        terminal.show_problems(error.problems, f"unsent metrics stay in {run_dir}")
    if course and (course.has_scaled or course.unfired):
        terminal.show_timeline(course, run_dir)
    # Without a last word the operator has died.
    terminal.show_end(bundle, status, can_go_on=course is not None and course.state is None)


@contextmanager
def _late_interrupts() -> Iterator[None]:
    """Pass over a Ctrl-C on the last steps of a launch, which end by themselves; the next one interrupts them."""

    def pass_over(_signum: int, _frame: FrameType | None) -> None:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        terminal.say("about to end; Ctrl-C once more leaves the rest undone", stderr=True)

    before = signal.signal(signal.SIGINT, pass_over)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
