"""Commands about the pods of a job on a cluster."""

import json
import re
from typing import TYPE_CHECKING, Annotated

import typer

from launcher.cli.commands import lifecycle, pod_table
from launcher.cli.commands.arguments import AsJson, JobName
from launcher.common.problems import fail

if TYPE_CHECKING:
    from launcher.jobs.registry import JobRecord
    from launcher.model.capabilities import Pods

_PAIR = re.compile(r"(?:(\d{1,5}):)?(\d{1,5})")
_HIGHEST_PORT = 65535

Rank = Annotated[int, typer.Option("--rank", min=0, help="A rank that the pod runs.")]


def pods(job: JobName, as_json: AsJson = False) -> None:
    """List a job's pods. Shows ranks and nodes, and why a pod waits, restarts or failed."""
    from launcher.common import console

    access, record = opened(job)
    found = access.pods(record.handle)
    if as_json:
        print(json.dumps([pod_table.as_json(pod) for pod in found], indent=2))
    elif not found:
        console.say(f"{record.handle.job_name} has no pods now", "dim", stderr=True)
    else:
        pod_table.show(found)


def exec_(
    job: JobName,
    command: Annotated[list[str] | None, typer.Argument(metavar="[-- COMMAND...]", help="Default: a shell.")] = None,
    rank: Rank = 0,
) -> None:
    """Run a command or a shell in a pod. Exits with the command's exit code."""
    access, record = opened(job)
    raise typer.Exit(access.run_in_pod(record.handle, rank, command or ()))


def port_forward(
    job: JobName,
    ports: Annotated[
        list[str], typer.Argument(metavar="[LOCAL:]PORT...", help="LOCAL may be 0 for any free port of this machine.")
    ],
    rank: Rank = 0,
) -> None:
    """Forward ports of this machine to a pod. On 127.0.0.1 only, until Ctrl-C."""
    pairs = [_pair(text) for text in ports]
    access, record = opened(job)
    access.forward_ports(record.handle, rank, pairs)


def opened(name: str) -> tuple["Pods", "JobRecord"]:
    """Return a submitted job that has pods, and the operations on them.

    Raises:
        ProblemsFound: No such job exists, it was never submitted, or its backend has no pods.
    """
    from launcher.model.backend_registry import choices, described

    backend, record = lifecycle.opened(name)
    description = described(backend.name)
    if (access := description.pods()) is None:
        value, allowed = f"cluster={description.choice}", choices(lambda each: each.pods() is not None)
        remedy = "use recipes status, logs or events, which work on every cluster"
        raise fail("E380", name, "its job has no pods", value=value, allowed=allowed, remedy=remedy)
    return access, record


def _pair(text: str) -> tuple[int, int]:
    """Return a local port and one of a pod.

    Raises:
        ProblemsFound: They are not ports.
    """
    match = _PAIR.fullmatch(text)
    local, remote = (int(match[1] or match[2]), int(match[2])) if match else (-1, -1)
    if not 0 <= local <= _HIGHEST_PORT or not 0 < remote <= _HIGHEST_PORT:
        allowed = f"PORT or LOCAL:PORT, 1 to {_HIGHEST_PORT}; LOCAL may be 0"
        raise fail("E384", "LOCAL:PORT", "is not a pair of ports", value=text, allowed=allowed)
    return local, remote
