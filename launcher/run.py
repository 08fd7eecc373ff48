"""`python main.py`: overrides to a running job, and an exit code."""

import shlex
import traceback
from collections.abc import Sequence

from launcher import pipeline, terminal, tracking
from launcher.context import LaunchContext
from launcher.contract import RUN_DIR
from launcher.problems import ProblemsFound
from launcher.specs import Bundle, JobState

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
    """Start the job of a bundle on disk and follow it to its end. Ctrl-C stops it.

    Raises:
        ProblemsFound: The backend refuses.
    """
    from launcher import timeline  # compiling a recipe does not pay for it

    backend = pipeline.load_backend(backend_name)
    handle = pipeline.submit(bundle, backend)
    try:
        terminal.follow(backend.logs(handle, follow=True))
    except KeyboardInterrupt:
        terminal.say("stopping; the job saves a checkpoint first", stderr=True)
        backend.cancel(handle)
    status = backend.status(handle)
    course = timeline.refresh(bundle.directory / RUN_DIR)
    try:
        tracking.finish(bundle, status.state, course)
    except ProblemsFound as error:  # a job that has run is not undone by its tracking store
        terminal.show_problems(error.problems, f"unsent metrics stay in {bundle.directory / RUN_DIR}")
    if course and (course.has_scaled or course.unfired):
        terminal.show_timeline(course, bundle.directory / RUN_DIR)
    terminal.show_end(bundle, status)
    return _EXIT_CODES[status.state]
