"""Commands about the pods of a job on a cluster, and how pods are shown."""

import re
import time
from typing import TYPE_CHECKING, Annotated

import typer

from launcher.cli.commands.arguments import AsJson, JobName
from launcher.cli.output import print_json, with_created
from launcher.common import console
from launcher.common.problems import fail

if TYPE_CHECKING:
    from launcher.api.clusters import JobPod

_COLUMNS = ("ranks", "pod", "node", "phase", "ready", "restarts", "age", "reason")
_MOST_PODS = 8
"""Pods that `recipes status` lists."""
_PAIR = re.compile(r"(?:(\d{1,5}):)?(\d{1,5})")
_HIGHEST_PORT = 65535

Rank = Annotated[int, typer.Option("--rank", min=0, help="A rank that the pod runs.")]


def pods(job: JobName, as_json: AsJson = False) -> None:
    """List a job's pods. Shows ranks and nodes, and why a pod waits, restarts or failed."""
    from launcher.api.job import attach

    found = (opened := attach(job)).pods()
    if as_json:
        print_json(list(map(with_created, found)))
    elif not found:
        console.say(f"{opened.name} has no pods now", "dim", stderr=True)
    else:
        styles = ["red" if pod.phase == "Failed" else "yellow" if pod.reason else "" for pod in found]
        console.show_table(_COLUMNS, [_cells(pod) for pod in found], styles)


def exec_(
    job: JobName,
    command: Annotated[list[str] | None, typer.Argument(metavar="[-- COMMAND...]", help="Default: a shell.")] = None,
    rank: Rank = 0,
) -> None:
    """Run a command or a shell in a pod. Exits with the command's exit code."""
    from launcher.api.job import attach

    raise typer.Exit(attach(job).run_in_pod(rank, command or ()))


def port_forward(
    job: JobName,
    ports: Annotated[
        list[str], typer.Argument(metavar="[LOCAL:]PORT...", help="LOCAL may be 0 for any free port of this machine.")
    ],
    rank: Rank = 0,
) -> None:
    """Forward ports of this machine to a pod. On 127.0.0.1 only, until Ctrl-C."""
    from launcher.api.job import attach

    pairs = [_pair(text) for text in ports]
    attach(job).forward_ports(rank, pairs)


def _pair(text: str) -> tuple[int, int]:
    """Return a local port and one of a pod."""
    match = _PAIR.fullmatch(text)
    local, remote = (int(match[1] or match[2]), int(match[2])) if match else (-1, -1)
    if not 0 <= local <= _HIGHEST_PORT or not 0 < remote <= _HIGHEST_PORT:
        allowed = f"PORT or LOCAL:PORT, 1 to {_HIGHEST_PORT}; LOCAL may be 0"
        raise fail("E384", "LOCAL:PORT", "is not a pair of ports", value=text, allowed=allowed)
    return local, remote


def show_reasons(troubled: tuple["JobPod", ...], job: str) -> None:
    """Print the pods that have a reason, one line each."""
    for pod in troubled[:_MOST_PODS]:
        where = f" on {pod.node}" if pod.node else ""
        console.say_wrapped(f"pod       {pod.name}{where}:", pod.reason, "yellow")
    if (more := len(troubled) - _MOST_PODS) > 0:
        console.say(f"pod       {more} more: recipes pods {job}", "yellow")


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
