"""What people see: the plan, the Problems, a running job. Only this module imports rich, and only on a terminal."""

import re
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from launcher import report, tracking
from launcher.backends.base import NEWS
from launcher.contract import LOG_DIR, RUN_DIR
from launcher.problems import Problem
from launcher.specs import Bundle, JobSpec, JobState, JobStatus

if TYPE_CHECKING:
    from launcher.timeline import Timeline

_STEP = re.compile(r"step (\d+)/(\d+)\s+(.*)")
_NEWS = re.compile(rf"({'|'.join(NEWS)})  ")
_QUIET_S = 2.0
"""Seconds between two step lines where there is no progress bar."""


def say(text: str, style: str = "", *, stderr: bool = False) -> None:
    """Print a line, in `style` (rich's words) where it goes to a terminal that shows colours."""
    stream = sys.stderr if stderr else sys.stdout
    if style and stream.isatty():
        from rich.console import Console

        Console(stderr=stderr, highlight=False, soft_wrap=True).print(text, style=style, markup=False)
    else:
        print(text, file=stream, flush=True)


def show_problems(problems: tuple[Problem, ...], outcome: str = "nothing was written or submitted") -> None:
    """Print every Problem on standard error, then what came of it."""
    for problem in problems:
        head, *rest = str(problem).splitlines()
        say(head, "bold red", stderr=True)
        for line in rest:
            say(line, stderr=True)
    say(f"{len(problems)} problem{'s' if len(problems) > 1 else ''}; {outcome}", stderr=True)


def show_plan(job: JobSpec) -> None:
    """Print a job's name, its sizes and its notices."""
    say(f"{job.name}   {report.kind(job)}", "bold")
    head, *rows = report.table(job)
    say(head, "dim")
    for row in rows:
        say(row)
    for notice in job.notices:
        say(str(notice), "yellow")


def show_bundle(bundle: Bundle, next_step: str | None = None) -> None:
    """Print where a bundle is and what to do with it."""
    where = f"bundle {shown_path(bundle.directory)}  {len(bundle.files)} files, digest {bundle.digest[:6]}"
    say(where + (f"   next: {next_step}" if next_step else ""))


def show_end(bundle: Bundle, status: JobStatus) -> None:
    """Print how a job ended, and where its logs and its curve are."""
    is_success = status.state is JobState.SUCCEEDED
    said = "" if is_success else f"  {status.message}"
    say(f"{status.state.value}{said}", "bold green" if is_success else "bold red", stderr=not is_success)
    say(f"logs {shown_path(bundle.directory / RUN_DIR / LOG_DIR)}")
    if settings := tracking.run_of(bundle):
        say(f"mlflow run {settings.run_id} in {settings.tracking_uri}")


def show_timeline(course: "Timeline", run_dir: Path) -> None:
    """Print the timeline of a job's last launch, and where its picture is or what it lacks."""
    from launcher import timeline

    head, *rows = timeline.text(course).splitlines()
    say(head, "bold")
    for row in rows:
        say(row)
    pictures = [path for path in timeline.report_files(run_dir) if path.suffix == ".svg"]
    say(f"picture {shown_path(pictures[0])}" if pictures else timeline.NO_PICTURE)


def shown_path(path: Path) -> str:
    """Return a path as short as it can be typed from the current folder."""
    here = Path.cwd()
    return str(path.relative_to(here) if path.is_relative_to(here) else path)


def follow(lines: Iterator[str]) -> None:
    """Print a job's log as it comes; its steps as a progress bar on a terminal, else one in two seconds.

    A step that is done again moves the bar back.
    """
    if not sys.stdout.isatty():
        _follow_plain(lines)
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    said = TextColumn("{task.fields[said]}", markup=False)
    columns = TextColumn("training"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(), said
    with Progress(*columns, console=Console(highlight=False)) as progress:
        task = progress.add_task("training", total=None, said="starting")
        for line in lines:
            if match := _STEP.match(line):
                done, total, rest = match.groups()
                progress.update(task, completed=int(done), total=int(total), said=rest)
            elif _NEWS.match(line):
                progress.console.print(line, style="yellow", markup=False)
            else:
                progress.console.print(line, markup=False)


def _follow_plain(lines: Iterator[str]) -> None:
    last = 0.0
    for line in lines:
        match = _STEP.match(line)
        is_last = match and match[1] == match[2]
        if not match or is_last or time.monotonic() - last >= _QUIET_S:
            say(line)
            last = time.monotonic() if match else last
