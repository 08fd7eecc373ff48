"""Commands about one job, on every backend: launch and follow it, scale it, wait for it, cancel it."""

import dataclasses
import itertools
import json
import re
import sys
from typing import TYPE_CHECKING, Annotated, Any

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
    opened,
)
from launcher.cli.output import print_json, utc, with_created
from launcher.common import console, os_errors
from launcher.common.interrupts import exit_code
from launcher.common.problems import fail
from launcher.common.texts import counted

if TYPE_CHECKING:
    from launcher.model.job_spec import LogSelection

_RANK = re.compile(r"rank (\d+)(?: on \S+)? \| ")


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
    from launcher.bundle import store
    from launcher.cli import launch_sweep
    from launcher.jobs import job_names

    if name is not None and len(names) > 1:
        raise fail("E801", "--name", "names one job, but several are given", value=name)
    try:
        found = {folder: store.read(folder) for folder in dict.fromkeys(map(store.locate, names))}
        if len(places := {backend for _, backend in found.values()}) > 1:
            raise fail("E801", "recipes launch", "the bundles are of several clusters", value=", ".join(places))
        with job_names.given(next(iter(found)), name):
            every = [bundle for bundle, _ in found.values()]
            code = launch_sweep.launch_all(every, *places, wait=wait, is_again=again)
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
    attempt: Annotated[
        int | None,
        typer.Option("--attempt", min=0, help="Only one start of the workers; in a pod, of its container."),
    ] = None,
    stderr: Annotated[bool, typer.Option("--stderr", help="Show standard error.")] = False,
    operator: Annotated[
        bool, typer.Option("--operator", help="On k8s: the training operator's own log about the job.")
    ] = False,
    as_json: AsLines = False,
) -> None:
    """Show the output of the workers, by attempt."""
    from launcher.common.lines import LineWriter
    from launcher.model.job_spec import LogSelection

    if operator:
        if follow or rank or all_ranks or attempt is not None or stderr:
            raise fail("E801", "--operator", "cannot be combined with ranks, attempts or --follow")
        access, record = pods.opened(job)
        for line in access.operator_log(record.handle):
            console.say(json.dumps({"kind": "operator", "rank": None, "text": line}) if as_json else line)
        return
    ranks = None if all_ranks else tuple(sorted(set(rank or (0,))))
    selection = LogSelection(ranks, attempt, stderr, has_headings=True)
    backend, record = opened(job)
    with LineWriter(console.say_lines) as writer:
        for line in backend.logs(record.handle, selection, follow=follow):
            writer.put(json.dumps(log_json(line, selection)) if as_json else line)


def log_json(line: str, selection: "LogSelection") -> dict[str, Any]:
    """Return a line of a job's log as plain data: with its rank, or the kind of event."""
    from launcher.model.backend import NEWS

    kind, _, rest = line.partition("  ")
    if kind in NEWS:
        return {"kind": kind, "rank": None, "text": rest}
    if selection.has_headings and line.startswith("== attempt "):
        return {"kind": "attempt", "rank": None, "text": line.removeprefix("== ")}
    if selection.has_prefixes and (match := _RANK.match(line)):
        return {"kind": "line", "rank": int(match[1]), "text": line[match.end() :]}
    rank = selection.ranks[0] if selection.ranks and not selection.has_prefixes else None
    return {"kind": "line", "rank": rank, "text": line}


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
    backend, record = opened(job)
    backend.scale(record.handle, nodes, min_nodes)
    if as_json:
        print_json({"job": record.handle.job_name, "nodes": nodes})
    else:
        console.say(f"requested {counted(nodes, 'node')}; follow the change with: recipes events -f {job}")


def timeline(bundle: BundleName, as_json: AsJson = False) -> None:
    """Show when a job scaled, and the cost of it."""
    from launcher import timeline as timelines
    from launcher.bundle import store
    from launcher.cli import terminal
    from launcher.common.names import EVENTS_FILE, RUN_DIR, TIMELINE

    run_dir = store.locate(bundle) / RUN_DIR
    if not (run_dir / EVENTS_FILE).exists():
        raise fail("E705", bundle, "its job was never launched on this machine")
    try:
        course = timelines.write(run_dir)
    except OSError as error:
        raise os_errors.refused("E708", str(run_dir), error, error.filename or run_dir) from error
    if as_json:
        sys.stdout.write((run_dir / TIMELINE).with_suffix(".json").read_text(encoding="utf-8") + "\n")
    else:
        terminal.show_timeline(course, run_dir)


def status(job: JobName, as_json: AsJson = False) -> None:
    """Show a job's state and size. Includes why it is pending, or why it ended."""
    from launcher.bundle.store import given_name
    from launcher.cli import terminal
    from launcher.jobs import registry
    from launcher.model.backend_registry import described

    backend, record = opened(job)
    seen = registry.status(record, backend)
    access = None if seen.state.is_final else described(backend.name).pods()  # an end has the reasons of its pods
    troubled = tuple(pod for pod in access.pods(record.handle) if pod.reason) if access else ()
    if as_json:
        known = {"troubled_pods": list(map(with_created, troubled))} if access else {}
        print_json(registry.as_json(record, seen) | known)
        return
    terminal.show_status(seen)
    pods.show_reasons(troubled, job)
    if seen.restarts:
        console.say(f"restarts  {seen.restarts}")
    if seen.faulty_nodes:
        console.say(f"faulty    {', '.join(seen.faulty_nodes)}")
    if name := given_name(record.handle.bundle_dir):
        console.say(f"name      {name}")
    console.say(f"runs as   {terminal.native_name(record.handle)}")
    console.say(f"submitted {record.submitted} by {record.user}")


def events(
    job: JobName,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Continue until the job has ended.")] = False,
    as_json: AsLines = False,
) -> None:
    """Show the events of a job. On this machine, the observations and actions of its operator in the last launch."""
    backend, record = opened(job)
    for event in backend.events(record.handle, follow=follow):
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
    from launcher.cli import launch, terminal
    from launcher.jobs import registry

    backend, record = opened(job)
    found = registry.changes(record, backend, timeout_s=timeout_s)
    with console.while_waiting(f"asking for the state of {terminal.native_name(record.handle)} …"):
        first = [next(found)]  # it yields at least one, or raises
    for seen in itertools.chain(first, found):
        if as_json:
            console.say(json.dumps(registry.as_json(record, seen)))
        else:
            terminal.show_status(seen)
    if not backend.ends_with_launcher:  # else its launcher does
        launch.conclude(record, seen)
    raise typer.Exit(launch.EXIT_CODES[seen.state])


def cancel(job: JobName, as_json: AsJson = False) -> None:
    """Cancel a job and everything it started. As its recipe defines; a finished job is left unchanged."""
    from launcher.cli import launch, terminal
    from launcher.jobs import registry
    from launcher.model.context import current_user
    from launcher.model.job_spec import JobState

    backend, record = opened(job)
    if not record.is_submitted:  # a launch in progress comes first
        with registry.launching(record.handle.bundle_dir):
            record = registry.submitted(record.handle.bundle_dir)
    seen = registry.status(record, backend)
    is_partial = not record.is_submitted and seen.state is JobState.DELETED  # other objects may exist
    is_over = seen.state.is_final and not is_partial
    if not is_over:
        if not as_json:
            console.say(f"cancelling {record.handle.job_name} …", "dim", stderr=True)
        seen = registry.cancel(record, backend, current_user())
        if not backend.ends_with_launcher:
            launch.conclude(record, seen)
    if as_json:
        print_json(registry.as_json(record, seen))
        return
    if is_over:
        console.say("the job has already ended; nothing was done", stderr=True)
    terminal.show_status(seen)
