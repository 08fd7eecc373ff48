"""`recipes run` and `python main.py`: a launch as text, and its exit code."""

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from launcher.api import running
from launcher.api.observing import Bundle, JobRecord, JobState, JobStatus, LogLine, Observer
from launcher.api.session import CompositionCache, Session
from launcher.cli import terminal
from launcher.cli.output import refused
from launcher.common import console, interrupts, redaction
from launcher.common.interrupts import exit_code, signals_as_interrupts
from launcher.common.problems import Problem, ProblemsFound
from launcher.common.process import INTERRUPTED

if TYPE_CHECKING:
    from launcher.api.timelines import Timeline
    from launcher.cli.launch_sweep import Sweep

JOB_FAILED = 3
"""Exit code of a command whose job failed; the others are in `launcher.common.process`."""
EXIT_CODES = {
    JobState.SUCCEEDED: 0,
    JobState.FAILED: JOB_FAILED,
    JobState.DELETED: JOB_FAILED,
    JobState.CANCELLED: INTERRUPTED,
}
"""Exit codes of a command that follows a job to its end."""


class Shown(Observer):
    """Prints a launch while it happens."""

    def accepted(self) -> None:
        console.say("the cluster would accept this job; nothing was created there")

    def reserves_run(self) -> None:
        console.say("reserving the MLflow run …", "dim", stderr=True)

    def recording(self) -> contextlib.AbstractContextManager[None]:
        return console.slow("recording code and data …")

    def submitted(self, job: JobRecord) -> None:
        terminal.show_submitted(job.handle)

    def left(self, bundle: Bundle, status: JobStatus | None, interrupt: KeyboardInterrupt | None = None) -> None:
        if interrupt:
            console.say("detached; the job keeps running", stderr=True)
        if status:
            terminal.show_status(status)
            console.say(f"recipes launch --again {console.typed_path(bundle.directory)}  launches it again", "dim")
        else:
            terminal.show_next(bundle)

    def changed(self, status: JobStatus) -> None:
        terminal.show_status(status)

    def read(self, lines: Iterator[LogLine]) -> None:
        terminal.follow(lines)

    def stopping(self, job: JobRecord | None, interrupt: KeyboardInterrupt, *, at_once: bool = False) -> None:
        signal_name = interrupts.name(interrupt)
        if at_once:
            text = "stopping immediately"
        elif job:
            again = f"{signal_name} again: stop immediately, without one"
            text = f"stopping; an elastic job saves a checkpoint first ({again})"
        else:
            text = f"cancelled  stopped by {signal_name} before the job started"
        console.say(text, stderr=True)

    def ended(self, bundle: Bundle, status: JobStatus, *, is_here: bool, can_resume: bool = False) -> None:
        terminal.show_end(bundle, status, is_here=is_here, can_resume=can_resume)

    def scaled(self, course: "Timeline", run_dir: Path) -> None:
        from launcher.api.timelines import report_files

        terminal.show_timeline(course, report_files(run_dir))

    def refused(self, problems: tuple[Problem, ...], outcome: str) -> None:
        console.show_problems(problems, outcome)

    def warned(self, line: str) -> None:
        console.say(line, "yellow", stderr=True)


SHOWN = Shown()


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
            job, context = running.compiled(overrides, Session(cache=cache or CompositionCache()), name)
            terminal.show_plan(job)
            bundle, is_only_written, wait = running.write(job, context, SHOWN, name=name)
            outcome = written(bundle)
            terminal.show_bundle(bundle, name, is_only_written=is_only_written)
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


def written(bundle: Bundle) -> str:
    """Return what exists when the launch of a new bundle fails."""
    return f"the bundle {bundle.directory.name} was written, nothing was submitted"


def launch(bundle: Bundle, backend_name: str, *, wait: bool = False, is_again: bool = False) -> int:
    """Start the job of a bundle on disk, as `running.launch` does; return the exit code."""
    return code_of(running.launch(bundle, backend_name, SHOWN, wait=wait, is_again=is_again))


def code_of(end: running.End) -> int:
    """Return the exit code of a command whose launch ended so."""
    if end.interrupt:
        return exit_code(end.interrupt)
    return EXIT_CODES[end.state] if end.state else 0
