"""Terminal output: the plan, a running job, its end. Other modules print through `console`."""

import functools
import itertools
import operator
import re
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from launcher.api.observing import NEWS, Bundle, JobHandle, JobSpec, JobState, JobStatus, LogLine
from launcher.common import text_table
from launcher.common.console import say, say_fitted, say_lines, show_notice, show_table, shown_path, typed_path, width
from launcher.common.lines import LineWriter
from launcher.common.names import LOG_DIR, RUN_DIR
from launcher.common.problems import ProblemsFound
from launcher.common.texts import counted, plain

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress, Task

    from launcher import Failure
    from launcher.api.plan_text import plan_report
    from launcher.api.timelines import Timeline

_STEP = re.compile(r"step (\d+)/(\d+)\s+(.*)")
_PATIENCE_S = 5.0
"""Seconds without a step after which a job counts as waiting, unless its steps take that long."""
_WAITING = "waiting"
"""Activity of a job without steps, if no event gives a better one."""
_STATE_STYLES = {
    JobState.PENDING: "yellow",
    JobState.SCALING: "yellow",
    JobState.RUNNING: "green",
    JobState.SUCCEEDED: "bold green",
    JobState.FAILED: "bold red",
    JobState.CANCELLED: "bold red",
    JobState.DELETED: "bold red",
}
_WIDE = 100
"""Minimum columns for a bar and the remaining time."""


def show_plan(
    job: JobSpec,
    *,
    in_full: bool = False,
    all_notes: bool = False,
    costs: "plan_report.Columns | None" = None,
) -> None:
    """Print a job's name, its sizes and its notices.

    `in_full` adds the idle time and speedup of each size. Without `all_notes`, the notices that every elastic job
    gets are named by their codes.
    """
    from launcher.api.plan_text import plan_report  # commands about jobs need none of it

    say(f"{job.name}   {plan_report.kind(job)}", "bold")
    columns = plan_report.aligned(job, in_full=in_full, costs=costs or plan_report.NO_COLUMNS)
    rate = _show_sizes(job, columns, is_charted=in_full)
    say_fitted(plan_report.summary(job) + rate)
    if in_full and len(job.scales) > 1:
        note = "speedup: of the computation, by the largest share; without communication, input and restarts"
        say_fitted(note, "dim")
    usual = [] if all_notes else plan_report.usual_codes(job)
    show_notice(*(notice for notice in job.notices if notice.code not in usual))
    if usual:
        where = "recipes plan --notes" if in_full else "plan.md in the bundle"
        say_fitted(f"{counted(len(usual), 'note')} of most elastic jobs: {', '.join(usual)}   {where}", "yellow")


def _show_sizes(job: JobSpec, sizes: "plan_report.Columns", *, is_charted: bool) -> str:
    """Print a table of sizes, as wide as the terminal; return what it leaves out: a learning rate that all share."""
    head, rows = sizes
    from launcher.api.plan_text import plan_report

    columns, needed = width(), max(map(len, text_table.table([head, *rows])))
    rate, left_out = plan_report.common_learning_rate(job), ""
    if columns is not None and needed > columns and rate is not None:
        i = plan_report.COLUMNS.index(plan_report.LEARNING_RATE)
        head, rows = (*head[:i], *head[i + 1 :]), [(*cells[:i], *cells[i + 1 :]) for cells in rows]
        left_out = f"; learning rate {rate}"
    elif columns is not None and is_charted and (bars := plan_report.bars(job, columns - needed - 2)):
        head, rows = (*head, plan_report.BARS), [(*cells, bar) for cells, bar in zip(rows, bars, strict=True)]
    show_table(head, rows)
    return left_out


def show_bundle(bundle: Bundle, name: str | None, *, is_only_written: bool) -> None:
    """Print a bundle's location and name and, if its job is not launched now, the command that does."""
    label = f" ({name})" if name else ""
    size = f"{len(bundle.files)} files, digest {bundle.digest[:6]}"
    next_step = f"   next: recipes launch {typed_path(bundle.directory)}" if is_only_written else ""
    say(f"bundle {shown_path(bundle.directory)}{label}  {size}{next_step}")


def show_end(bundle: Bundle, status: JobStatus, *, is_here: bool, can_resume: bool) -> None:
    """Print how a job ended, and the location of its logs and its metrics.

    `is_here`: whether its logs are on this machine.
    """
    from launcher.api import launching  # its import takes as long as planning

    is_success = status.state is JobState.SUCCEEDED
    said = "" if is_success else f"  {status.message}"
    say(f"{status.state.value}{said}", "bold green" if is_success else "bold red", stderr=not is_success)
    if status.state is JobState.FAILED:
        show_failure(failure_of(bundle.directory), stderr=True)
    folder = typed_path(bundle.directory)
    if can_resume:
        say(f"resume from the last checkpoint with: recipes launch {folder}", stderr=True)
    say(f"logs {shown_path(bundle.directory / RUN_DIR / LOG_DIR)}" if is_here else f"logs: recipes logs {folder}")
    if run := launching.run_of(bundle):
        say(f"mlflow run {run.run_id} in {run.tracking_uri}")
        if command := launching.ui_command(run.tracking_uri):
            say(command)


def failure_of(folder: Path) -> "Failure | None":
    """Return why the job of a folder failed; None unless it has, and if nothing shows why."""
    from launcher.api.job import Job

    try:
        return Job(folder).failure
    except ProblemsFound:  # the command has its answer without
        return None


def show_failure(failure: "Failure | None", *, stderr: bool = False) -> None:
    """Print the lines of a failure: the first error, the cause and the remedy; nothing if there is none."""
    for heading, text in failure.lines() if failure else ():
        say(f"{heading:<11} {text}", stderr=stderr)


def show_submitted(handle: JobHandle, place: Path | None = None) -> None:
    """Print the backend's name of a job, whether it was already submitted, and the place of its bundle if given."""
    name = native_name(handle)
    before = f"{name} was already submitted from this bundle; nothing was submitted"
    where = f"  {typed_path(place)}" if place else ""
    say((f"submitted {name}" if handle.is_new else before) + where, "bold")


def native_name(handle: JobHandle) -> str:
    """Return the backend's name of a job, and its location."""
    name = "/".join(part for part in (handle.kind, handle.native_id) if part)
    places = (("namespace", handle.namespace), ("context", handle.context))
    where = ", ".join(f"{word} {place}" for word, place in places if place)
    return f"{name} ({where})" if where else name


def show_next(bundle: Bundle) -> None:
    """Print the commands that follow a submitted job, and the one that ends it."""
    folder = typed_path(bundle.directory)
    for command, what in (("logs -f", "its log"), ("wait", "until it has ended"), ("cancel", "cancels it")):
        say(f"recipes {command} {folder}  {what}", "dim")


def show_status(status: JobStatus) -> None:
    """Print a job's state, its size, and why it is pending or why it ended, in one line."""
    target = f" -> {status.target_nodes}" if status.target_nodes is not None else ""
    nodes = f"{status.nodes}{target} node{'' if status.nodes == 1 and not target else 's'}"
    parts = [status.state.value, nodes if status.nodes or target else "", status.message]
    say("  ".join(filter(None, parts)), _STATE_STYLES.get(status.state, ""))


def show_timeline(course: "Timeline", files: Sequence[Path]) -> None:
    """Print the timeline of a launch, and the path of its picture, one of its files, or why there is none."""
    from launcher.api import timelines

    head, *rows = timelines.text(course, width()).splitlines()
    say(head, "bold")
    for row in rows:
        say(row)
    pictures = [path for path in files if path.suffix == ".svg"]
    say(f"picture {shown_path(pictures[0])}" if pictures else timelines.NO_PICTURE)


def follow(lines: Iterator[LogLine]) -> None:
    """Print a job's log as it arrives; its steps as a progress bar on a terminal, else line by line.

    A repeated step moves the bar back. The last progress line is the last step, and reports that the job
    ended or that following it was interrupted.
    """
    if not sys.stdout.isatty():
        with LineWriter(say_lines) as writer:
            for line in lines:
                writer.put(line.shown(with_writer=False))
        return
    from rich.console import Console

    console = Console(highlight=False)
    pulse = _Pulse()
    with _progress(console, pulse) as progress:
        task = progress.add_task("training", total=None)
        with pulse.until_over(), LineWriter(functools.partial(_print_all, console)) as writer:
            for line in lines:
                text = plain(line.shown(with_writer=False))
                if line.kind == "line" and (match := _STEP.match(text)):
                    done, total, rest = match.groups()
                    pulse.step(rest, time.monotonic())
                    progress.update(task, completed=int(done), total=int(total))
                    continue
                if is_news := line.kind in NEWS:
                    pulse.news(line)
                writer.put((is_news, text))


def _print_all(console: "Console", lines: Sequence[tuple[bool, str]]) -> None:
    """Print lines above the progress bar, each with whether it is news, which are in colour."""
    for is_news, group in itertools.groupby(lines, key=operator.itemgetter(0)):
        console.print("\n".join(text for _, text in group), style="yellow" if is_news else None, markup=False)


def _progress(console: "Console", pulse: "_Pulse") -> "Progress":
    """Return a progress bar; on a narrow terminal only its step and the activity."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, TextColumn, TimeRemainingColumn
    from rich.table import Column
    from rich.text import Text

    class Now(ProgressColumn):
        def render(self, _task: "Task") -> Text:
            return Text(pulse.words(time.monotonic()), no_wrap=True, overflow="ellipsis")

    class Remaining(TimeRemainingColumn):
        def render(self, task: "Task") -> Text:
            return Text() if pulse.is_over else Text("remaining ").append_text(super().render(task))

    columns = [TextColumn("step"), MofNCompleteColumn(table_column=Column(no_wrap=True))]
    if console.width >= _WIDE:
        columns[1:1] = [BarColumn(bar_width=20)]
        columns.append(Remaining(table_column=Column(no_wrap=True)))
    return Progress(*columns, Now(), console=console)


class _Pulse:
    """A job's activity as text: that of its last step, or why there is no next one."""

    def __init__(self) -> None:
        self._said = ""
        self._pause = "starting"
        self._since: float | None = None
        self._patience_s = _PATIENCE_S
        self._outcome = ""

    @property
    def is_over(self) -> bool:
        """Whether nothing more is followed."""
        return bool(self._outcome)

    @contextmanager
    def until_over(self) -> Iterator[None]:
        """From the end of the block on, report that the job ended, or that following it was interrupted."""
        self._outcome = ""
        try:
            yield
        except BaseException:
            self._outcome = "interrupted"
            raise
        self._outcome = "ended"

    def step(self, said: str, now_s: float) -> None:
        """Record a step's text, at a time of the monotonic clock."""
        gap_s = now_s - self._since if self._since is not None else float("inf")
        if self._pause == _WAITING:
            self._patience_s = max(_PATIENCE_S, 3 * gap_s)
        elif gap_s > self._patience_s:
            self._pause = _WAITING  # the event is over
        self._said, self._since = said, now_s

    def news(self, line: LogLine) -> None:
        """Record an event's line. A fault and a suspension stop the training; scaling up does not."""
        is_suspension = line.kind == "scale" and " -> 0 " in line.text
        if line.kind == "fault" or is_suspension:
            self._said = ""
        if line.kind == "fault" or (line.kind == "scale" and " -> " in line.text):
            self._pause = "waiting for nodes" if is_suspension else "restarting"

    def words(self, now_s: float) -> str:
        """Return the activity at a time of the monotonic clock."""
        if self._outcome:
            return f"{self._outcome}; last step: {self._said}" if self._said else self._outcome
        if self._since is None:
            return self._pause
        quiet_s = now_s - self._since
        if self._said and quiet_s <= self._patience_s:
            return self._said
        return f"{self._pause} ({quiet_s:.0f} s since the last step)"
