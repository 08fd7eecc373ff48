"""Commands that observe submitted jobs, wait for them and cancel them, on every backend."""

import dataclasses
import itertools
import json
import re
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from launcher.cli.commands.arguments import AsJson, AsLines, JobName
from launcher.cli.commands.pod_table import show_reasons, troubled_json

if TYPE_CHECKING:
    from launcher.jobs.registry import JobRecord
    from launcher.model.backend import Backend
    from launcher.model.job_spec import JobEvent, JobPod, JobStatus, LogSelection

_RANK = re.compile(r"rank (\d+)(?: on \S+)? \| ")


def status(job: JobName, as_json: AsJson = False) -> None:
    """Show a job's state and size. Includes why it is pending, or why it ended."""
    from launcher.bundle.store import given_name
    from launcher.cli import terminal
    from launcher.common import console
    from launcher.jobs.registry import as_json as to_json
    from launcher.jobs.registry import status as now

    backend, record = opened(job)
    seen = now(record, backend)
    troubled = _troubled_pods(backend, record, seen)
    if as_json:
        print(json.dumps(to_json(record, seen) | troubled_json(troubled), indent=2))
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
    from launcher.common import console

    backend, record = opened(job)
    for event in backend.events(record.handle, follow=follow):
        if as_json:
            console.say(json.dumps(_event_json(event)))
        else:
            words = (
                f"{_clock(event.time_s)}  {event.kind}  {f'{event.about}: ' if event.about else ''}{event.message}"
            )
            console.say(words, "yellow" if event.is_warning else "")


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
    from launcher.common import console
    from launcher.jobs.registry import as_json as to_json
    from launcher.jobs.registry import changes

    backend, record = opened(job)
    found = changes(record, backend, timeout_s=timeout_s)
    with console.while_waiting(f"asking for the state of {terminal.native_name(record.handle)} …"):
        first = [next(found)]  # it yields at least one, or raises
    for seen in itertools.chain(first, found):
        if as_json:
            console.say(json.dumps(to_json(record, seen)))
        else:
            terminal.show_status(seen)
    if not backend.ends_with_launcher:  # else its launcher does
        launch.conclude(record, seen)
    raise typer.Exit(launch.EXIT_CODES[seen.state])


def cancel(job: JobName, as_json: AsJson = False) -> None:
    """Cancel a job and everything it started. As its recipe defines; a finished job is left unchanged."""
    from launcher.cli import launch, terminal
    from launcher.common import console
    from launcher.jobs.registry import as_json as to_json
    from launcher.jobs.registry import cancel as end
    from launcher.jobs.registry import status as now
    from launcher.model.context import current_user
    from launcher.model.job_spec import JobState

    backend, record = _after_launch(*opened(job))
    before = now(record, backend)
    seen = before
    is_partial = not record.is_submitted and before.state is JobState.DELETED  # other objects may exist
    is_over = before.state.is_final and not is_partial
    if not is_over:
        if not as_json:
            console.say(f"cancelling {record.handle.job_name} …", "dim", stderr=True)
        seen = end(record, backend, current_user())
        if not backend.ends_with_launcher:
            launch.conclude(record, seen)
    if as_json:
        print(json.dumps(to_json(record, seen), indent=2))
        return
    if is_over:
        console.say("the job has already ended; nothing was done", stderr=True)
    terminal.show_status(seen)


def _after_launch(backend: "Backend", record: "JobRecord") -> tuple["Backend", "JobRecord"]:
    """Return a job and its backend, after waiting for a launch in progress."""
    from launcher.jobs import registry

    if record.is_submitted:
        return backend, record
    with registry.launching(record.handle.bundle_dir):
        return backend, registry.submitted(record.handle.bundle_dir)


def opened(name: str) -> tuple["Backend", "JobRecord"]:
    """Return a submitted job that a user names, and its backend.

    Raises:
        ProblemsFound: No such job exists, or it was never submitted.
    """
    from launcher.bundle import store as bundles
    from launcher.jobs.registry import submitted
    from launcher.model import backend_registry

    record = submitted(bundles.locate_job(name))
    return backend_registry.load_backend(record.handle.backend), record


def _troubled_pods(backend: "Backend", record: "JobRecord", seen: "JobStatus") -> tuple["JobPod", ...] | None:
    """Return pods that wait, restart or failed; None without pods, or if the job's status has their reasons."""
    from launcher.model.backend_registry import described

    access = described(backend.name).pods()
    if access is None or seen.state.is_final:
        return None
    return tuple(pod for pod in access.pods(record.handle) if pod.reason)


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


def _event_json(event: "JobEvent") -> dict[str, Any]:
    return dataclasses.asdict(event) | {"time": _clock(event.time_s)}


def _clock(time_s: float) -> str:
    return datetime.fromtimestamp(time_s, UTC).isoformat(timespec="seconds")
