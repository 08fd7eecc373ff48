"""Commands about one job, on every backend: launch and follow it, scale it, wait for it, cancel it."""

import dataclasses
import itertools
import json
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from launcher.cli.commands import pods
from launcher.cli.commands.arguments import (
    FLAGS,
    AsJson,
    AsLines,
    BundleName,
    BundleNames,
    GivenName,
    JobName,
    complete_run,
)
from launcher.cli.output import print_json, utc, with_created
from launcher.common import console
from launcher.common.interrupts import exit_code
from launcher.common.problems import fail
from launcher.common.texts import counted

if TYPE_CHECKING:
    from launcher.api.observing import JobRecord, LogLine

_KNOWN = ("attempt", "host", "stream", "time_s")


def run(
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[FLAG]... [KEY=VALUE]...",
            help=f"recipes=RECIPE and other overrides; {', '.join(FLAGS)}. Default: the tiny recipe, here.",
            autocompletion=complete_run,
        ),
    ] = None,
) -> None:
    """Compile a recipe, launch it and follow it. Same words as python main.py; --help lists every key."""
    from launcher.cli import run_command

    raise typer.Exit(run_command.run(words or ()))


def launch(
    names: BundleNames,
    wait: Annotated[bool, typer.Option("--wait", help="Follow it to its end. Always so on this machine.")] = False,
    again: Annotated[bool, typer.Option("--again", help="Launch again even if its job has succeeded.")] = False,
    name: GivenName = None,
) -> None:
    """Launch a bundle that was rendered earlier and follow the job. One that failed resumes from its checkpoint.
    Several bundles are submitted together where jobs are queued, else they are launched in turn."""
    from launcher.api import running
    from launcher.cli import launch_sweep

    try:
        with running.opened(names, name) as (bundles, backend):
            code = launch_sweep.launch_all(bundles, backend, wait=wait, is_again=again)
    except KeyboardInterrupt as interrupt:
        code = exit_code(interrupt)
    raise typer.Exit(code)


def logs(
    job: JobName,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Continue until the job has ended.")] = False,
    rank: Annotated[
        list[int] | None, typer.Option("--rank", min=0, help="Rank to show; repeatable. Default: 0.")
    ] = None,
    all_ranks: Annotated[bool, typer.Option("--all-ranks", help="Show all ranks.")] = False,
    all_lines: Annotated[
        bool,
        typer.Option("--all", help="One stream of all ranks, attempts and outputs, by time where that is known."),
    ] = False,
    grep: Annotated[
        str | None, typer.Option("--grep", metavar="REGEX", help="Only lines that contain a pattern, of RE2.")
    ] = None,
    attempt: Annotated[
        int | None,
        typer.Option("--attempt", min=0, help="Only one start of the workers; in a pod, of its container."),
    ] = None,
    launch: Annotated[
        int | None, typer.Option("--launch", min=0, help="One launch of a job on this machine. Default: the last.")
    ] = None,
    stderr: Annotated[bool, typer.Option("--stderr", help="Show standard error.")] = False,
    operator: Annotated[
        bool, typer.Option("--operator", help="On k8s: the training operator's own log about the job.")
    ] = False,
    as_json: AsLines = False,
) -> None:
    """Show the workers' output, by attempt, and why a job failed."""
    from launcher.api.job import attach
    from launcher.cli import terminal
    from launcher.common.lines import LineWriter

    if all_lines and (rank or stderr):
        raise fail("E801", "--all", "has all ranks and outputs; it cannot be combined with --rank or --stderr")
    if operator:
        if follow or rank or all_ranks or all_lines or {grep, attempt, launch} != {None} or stderr:
            raise fail("E801", "--operator", "cannot be combined with ranks, attempts, launches or --follow")
        for line in attach(job).operator_log():
            console.say(json.dumps({"kind": "operator", "rank": None, "text": line}) if as_json else line)
        return
    if follow and launch is not None:
        raise fail("E801", "--follow", "the last launch alone is followed: it cannot be combined with --launch")
    ranks = None if all_ranks or all_lines else set(rank or (0,))
    with_writer = ranks is None or len(ranks) > 1
    found = attach(job)
    streams = None if all_lines else stderr
    lines = found.logs(ranks, attempt=attempt, stderr=streams, follow=follow, grep=grep, launch=launch)
    with LineWriter(console.say_lines) as writer:
        for each in lines:
            shown = each.shown(with_writer=with_writer, with_attempt=all_lines)
            writer.put(_as_json(each) if as_json else shown)
    if grep is None and launch is None and (failure := terminal.failure_of(found.folder)):
        if as_json:
            console.say(json.dumps({"kind": "failure", "rank": None, "text": str(failure)}))
        else:
            terminal.show_failure(failure, stderr=True)


def _as_json(line: "LogLine") -> str:
    """Return a line as JSON, with what is known of it; that of several ranks has them in its text."""
    is_of_several = line.kind == "line" and line.rank is None
    text = line.shown(with_writer=True) if is_of_several else line.text
    known = {name: value for name in _KNOWN if (value := getattr(line, name)) is not None}
    return json.dumps({"kind": line.kind, "rank": line.rank, "text": text, **known})


def scale(
    job: JobName,
    nodes: Annotated[int, typer.Option("--nodes", min=1, help="Requested number of nodes; a size of its plan.")],
    min_nodes: Annotated[
        int | None,
        typer.Option(
            "--min-nodes", min=1, help="On k8s: minimum number of nodes; default: its plan's smallest size."
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Request another size of a running job. During a scenario, it is an upper limit."""
    from launcher.api.job import attach

    found = attach(job)
    found.scale(nodes, min_nodes)
    if as_json:
        print_json({"job": found.name, "nodes": nodes})
    else:
        console.say(f"requested {counted(nodes, 'node')}; follow the change with: recipes events -f {job}")


def timeline(
    bundle: BundleName,
    launch: Annotated[int | None, typer.Option("--launch", min=0, help="One launch. Default: the last.")] = None,
    as_json: AsJson = False,
) -> None:
    """Show when a job scaled, and the cost of it."""
    from launcher.api import timelines
    from launcher.cli import terminal

    course, files = timelines.write(bundle, launch)
    if as_json:
        (report,) = (path for path in files if path.suffix == ".json")
        sys.stdout.write(report.read_text(encoding="utf-8") + "\n")
    else:
        terminal.show_timeline(course, files)


def status(job: JobName, as_json: AsJson = False) -> None:
    """Show a job's state and size. Includes why it is pending, or why it ended."""
    from launcher.api.job import attach
    from launcher.cli import terminal

    record, seen, name, troubled, failure = found = attach(job).report()
    if as_json:
        known = {} if troubled is None else {"troubled_pods": list(map(with_created, troubled))}
        print_json(found.as_json | known)
        return
    terminal.show_status(seen)
    terminal.show_failure(failure)
    pods.show_reasons(troubled or (), job)
    if seen.restarts:
        console.say(f"restarts  {seen.restarts}")
    if seen.faulty_nodes:
        console.say(f"faulty    {', '.join(seen.faulty_nodes)}")
    if name:
        console.say(f"name      {name}")
    console.say(f"runs as   {terminal.native_name(record.handle)}")
    console.say(f"submitted {record.submitted} by {record.user}")


def events(
    job: JobName,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Continue until the job has ended.")] = False,
    as_json: AsLines = False,
) -> None:
    """Show the events of a job. On this machine, the observations and actions of its operator in the last launch."""
    from launcher.api.job import attach

    for event in attach(job).events(follow=follow):
        time = utc(event.time_s)
        if as_json:
            console.say(json.dumps(dataclasses.asdict(event) | {"time": time}))
        else:
            about = f"{event.about}: " if event.about else ""
            console.say(f"{time}  {event.kind}  {about}{event.message}", "yellow" if event.is_warning else "")


def wait(
    job: JobName,
    timeout_s: Annotated[
        float | None,
        typer.Option("--timeout", metavar="SECONDS", min=0, help="Give up after this time, with exit code 2."),
    ] = None,
    as_json: AsLines = False,
) -> None:
    """Wait until a job has ended. Exit code 0 if it succeeded, 3 if it failed, 130 if it was cancelled."""
    from launcher.api.job import attach
    from launcher.cli import launch, terminal

    found = attach(job)
    changes = found.changes(timeout_s, launch.SHOWN)
    with console.while_waiting(f"asking for the state of {terminal.native_name(found.record.handle)} …"):
        first = [next(changes)]  # it yields at least one, or raises
    for seen in itertools.chain(first, changes):
        if as_json:
            console.say(json.dumps(found.as_json(seen)))
        else:
            terminal.show_status(seen)
            terminal.show_failure(found.why(seen), stderr=True)
    raise typer.Exit(launch.EXIT_CODES[seen.state])


def cancel(job: JobName, as_json: AsJson = False) -> None:
    """Cancel a job and everything it started. As its recipe defines; a finished job is left unchanged."""
    from launcher.api.job import attach
    from launcher.cli import launch, terminal

    is_over = True

    class Shown(launch.Shown):
        def cancelling(self, job: "JobRecord") -> None:
            nonlocal is_over
            is_over = False
            if not as_json:
                console.say(f"cancelling {job.handle.job_name} …", "dim", stderr=True)

    found = attach(job)
    seen = found.cancel(Shown())
    if as_json:
        print_json(found.as_json(seen))
        return
    if is_over:
        console.say("the job has already ended; nothing was done", stderr=True)
    terminal.show_status(seen)
