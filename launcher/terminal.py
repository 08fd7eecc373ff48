"""What people see: the plan, the Problems, a running job. The only module that imports rich."""

import re
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from rich.console import Console
from rich.table import Table

from launcher import report
from launcher.problems import Problem
from launcher.specs import Bundle, JobSpec

_STEP = re.compile(r"step (\d+)/(\d+)\s+(.*)")
_QUIET_S = 2.0
"""Seconds between two step lines where there is no progress bar."""
_PLAIN_WIDTH = 200


def console(*, stderr: bool = False) -> Console:
    """Return a console for this process; plain and wide where its output is no terminal."""
    stream = sys.stderr if stderr else sys.stdout
    return Console(stderr=stderr, highlight=False, soft_wrap=True, width=None if stream.isatty() else _PLAIN_WIDTH)


def show_problems(problems: tuple[Problem, ...], outcome: str = "nothing was written or submitted") -> None:
    """Print every Problem on standard error, then what came of it."""
    out = console(stderr=True)
    for problem in problems:
        head, *rest = str(problem).splitlines()
        code, _, path = head.partition(" ")
        out.print(f"[bold red]{code}[/] [bold]{_plain(path)}[/]")
        for line in rest:
            out.print(_plain(line))
    out.print(f"{len(problems)} problem{'s' if len(problems) > 1 else ''}; {outcome}")


def show_plan(job: JobSpec) -> None:
    """Print a job's name, its sizes and its notices."""
    out = console()
    out.print(f"[bold]{job.name}[/]   {report.kind(job)}")
    table = Table(box=None, pad_edge=True, padding=(0, 1), header_style="dim")
    for column in report.COLUMNS:
        table.add_column(column, justify="right" if column in ("nodes", "ranks") else "left", no_wrap=True)
    for point in job.scales:
        table.add_row(*report.row(point))
    out.print(table)
    for notice in job.notices:
        out.print(f"[yellow]note[/]  {notice.code} {_plain(notice.message)}")


def show_bundle(bundle: Bundle, next_step: str | None = None) -> None:
    """Print where a bundle is and what to do with it."""
    line = f"bundle {_plain(shown_path(bundle.directory))}  {len(bundle.files)} files, digest {bundle.digest[:6]}"
    console().print(line + (f"   next: [bold]{_plain(next_step)}[/]" if next_step else ""))


def shown_path(path: Path) -> str:
    """Return a path as short as it can be typed from the current folder."""
    here = Path.cwd()
    return str(path.relative_to(here) if path.is_relative_to(here) else path)


def follow(lines: Iterator[str]) -> None:
    """Print a job's log as it comes, its steps as a progress bar on a terminal."""
    out = console()
    if not out.is_terminal:
        _follow_plain(lines)
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn("training"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[said]}"),
    )
    with Progress(*columns, console=out) as progress:
        task = progress.add_task("training", total=None, said="starting")
        for line in lines:
            if match := _STEP.match(line):
                done, total, said = match.groups()
                progress.update(task, completed=int(done), total=int(total), said=said)
            else:
                progress.console.print(_plain(line))


def _follow_plain(lines: Iterator[str]) -> None:
    last = 0.0
    for line in lines:
        match = _STEP.match(line)
        is_last = match and match[1] == match[2]
        if not match or is_last or time.monotonic() - last >= _QUIET_S:
            print(line, flush=True)
            last = time.monotonic() if match else last


def _plain(text: str) -> str:
    """Escape rich's own markup."""
    return text.replace("[", r"\[")
