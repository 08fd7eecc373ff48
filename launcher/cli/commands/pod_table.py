"""Pods of a job, as tables, lines and plain data."""

import dataclasses
import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from launcher.model.job_spec import JobPod

_COLUMNS = ("ranks", "pod", "node", "phase", "ready", "restarts", "age", "reason")
_MOST_PODS = 8
"""Pods that `recipes status` lists."""


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
    return {} if troubled is None else {"troubled_pods": [as_json(pod) for pod in troubled]}


def as_json(pod: "JobPod") -> dict[str, Any]:
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
