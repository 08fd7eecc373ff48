"""Commands that observe submitted jobs, wait for them and cancel them, on every backend."""

import dataclasses
import itertools
import json
from typing import Annotated

import typer

from launcher.cli.commands.arguments import AsJson, AsLines, JobName, opened
from launcher.cli.commands.pods import show_reasons
from launcher.cli.output import print_json, utc, with_created
from launcher.common import console


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
    show_reasons(troubled, job)
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
