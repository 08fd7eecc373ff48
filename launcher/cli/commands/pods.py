"""Commands about the pods of a job on a cluster."""

import dataclasses
import json
import re
import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from launcher.cli.commands.arguments import AsJson, JobName
from launcher.common.problems import fail

if TYPE_CHECKING:
    from launcher.jobs.registry import JobRecord
    from launcher.model.backend import PodBackend
    from launcher.model.job_spec import JobPod

_PAIR = re.compile(r"(?:(\d{1,5}):)?(\d{1,5})")
_HIGHEST_PORT = 65535
_COLUMNS = ("ranks", "pod", "node", "phase", "ready", "restarts", "age", "reason")
_MOST_PODS = 8
"""Pods that `recipes status` lists."""

Rank = Annotated[int, typer.Option("--rank", min=0, help="A rank that the pod runs.")]


def pods(job: JobName, as_json: AsJson = False) -> None:
    """List a job's pods. Shows ranks and nodes, and why a pod waits, restarts or failed."""
    from launcher.common import console

    backend, record = opened(job)
    found = backend.pods(record.handle)
    if as_json:
        print(json.dumps([pod_json(pod) for pod in found], indent=2))
    elif not found:
        console.say(f"{record.handle.job_name} has no pods now", "dim", stderr=True)
    else:
        show(found)


def exec_(
    job: JobName,
    command: Annotated[list[str] | None, typer.Argument(metavar="[-- COMMAND...]", help="Default: a shell.")] = None,
    rank: Rank = 0,
) -> None:
    """Run a command or a shell in a pod. Exits with the command's exit code."""
    backend, record = opened(job)
    raise typer.Exit(backend.run_in_pod(record.handle, rank, command or ()))


def port_forward(
    job: JobName,
    ports: Annotated[
        list[str], typer.Argument(metavar="[LOCAL:]PORT...", help="LOCAL may be 0 for any free port of this machine.")
    ],
    rank: Rank = 0,
) -> None:
    """Forward ports of this machine to a pod. On 127.0.0.1 only, until Ctrl-C."""
    pairs = [_pair(text) for text in ports]
    backend, record = opened(job)
    backend.forward_ports(record.handle, rank, pairs)


def opened(name: str) -> tuple["PodBackend", "JobRecord"]:
    """Return a submitted job that has pods, and its backend.

    Raises:
        ProblemsFound: No such job exists, it was never submitted, or its backend has no pods.
    """
    from launcher.cli.commands import lifecycle
    from launcher.model.backend import PodBackend
    from launcher.model.backend_registry import choices, described

    backend, record = lifecycle.opened(name)
    if not isinstance(backend, PodBackend):
        value, allowed = f"cluster={described(backend.name).choice}", choices(lambda each: each.has_pods)
        remedy = "use recipes status, logs or events, which work on every cluster"
        raise fail("E380", name, "its job has no pods", value=value, allowed=allowed, remedy=remedy)
    return backend, record


def show(found: tuple["JobPod", ...]) -> None:
    """Print a table of pods; on a narrow terminal, a reason moves below its pod."""
    from launcher.common import console

    styles = ["red" if pod.phase == "Failed" else "yellow" if pod.reason else "" for pod in found]
    console.show_table(_COLUMNS, [_cells(pod) for pod in found], styles)


def show_reasons(troubled: tuple["JobPod", ...] | None, job: str) -> None:
    """Print the pods that have a reason, one line each."""
    from launcher.common import console

    for pod in (troubled or ())[:_MOST_PODS]:
        where = f" on {pod.node}" if pod.node else ""
        console.say_wrapped(f"pod       {pod.name}{where}:", pod.reason, "yellow")
    more = len(troubled or ()) - _MOST_PODS
    if more > 0:
        console.say(f"pod       {more} more: recipes pods {job}", "yellow")


def troubled_json(troubled: tuple["JobPod", ...] | None) -> dict[str, Any]:
    """Return the pods that have a reason, as a part of a job's plain data; empty if they were not read."""
    return {} if troubled is None else {"troubled_pods": [pod_json(pod) for pod in troubled]}


def pod_json(pod: "JobPod") -> dict[str, Any]:
    """Return a pod as plain data."""
    fields = dataclasses.asdict(pod)
    created = datetime.fromtimestamp(fields.pop("created_s"), UTC).isoformat(timespec="seconds")
    return fields | {"created": created}


def age(created_s: float) -> str:
    """Return the time since a moment, in its two largest units."""
    left = max(0, int(time.time() - created_s))
    sizes = (("d", 86400), ("h", 3600), ("m", 60), ("s", 1))
    parts: list[str] = []
    for unit, seconds in sizes:
        count, left = divmod(left, seconds)
        if count or parts or unit == "s":
            parts.append(f"{count}{unit}")
    return "".join(part for part in parts[:2] if not part.startswith("0")) or "0s"


def _cells(pod: "JobPod") -> tuple[str, ...]:
    first, last = pod.ranks or (None, None)
    return (
        "-" if first is None else str(first) if first == last else f"{first}-{last}",
        pod.name,
        pod.node or "-",
        pod.phase,
        "yes" if pod.is_ready else "no",
        str(pod.restarts),
        age(pod.created_s),
        pod.reason,
    )


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
