"""The pods of a job as people see them: ranks, nodes, states, and why one waits, restarts or failed. Pure."""

import signal
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from typing import Any

from launcher.backends.kubernetes.ranks import Places
from launcher.problems import masked
from launcher.specs import JobPod

_STARTING = ("ContainerCreating", "PodInitializing")
"""Reasons of a container that starts as it should. Source: Kubernetes, container statuses."""

_DEFAULT_CONTAINER = "kubectl.kubernetes.io/default-container"
_SIGNALLED = 128
"""Exit codes above it are a signal's number more. Source: POSIX, Shell Command Language, 2.8.2."""

_LONGEST = 300
"""Characters of a message that are shown."""


def described(pods: Iterable[Mapping[str, Any]], places: Places) -> tuple[JobPod, ...]:
    """Return pods in the order of their ranks; those whose name has no place come last."""
    found = [_described(pod, places) for pod in pods]
    return tuple(sorted(found, key=lambda pod: (pod.ranks is None, pod.ranks or (0, 0), pod.created_s, pod.name)))


def reason(pod: Mapping[str, Any]) -> str:
    """Return why a pod waits, restarts or failed, in the words of Kubernetes; "" if nothing is wrong with it."""
    status = pod.get("status") or {}
    if status.get("reason"):  # Evicted, NodeLost, UnexpectedAdmissionError
        return _sentence(status["reason"], status.get("message"))
    parts = list(dict.fromkeys(_of_containers(status)))
    for condition in status.get("conditions") or ():
        if condition["type"] == "PodScheduled" and condition["status"] == "False":
            parts.append(_sentence("FailedScheduling", condition.get("message") or condition.get("reason")))
        if condition["type"] == "DisruptionTarget" and condition["status"] == "True":
            parts.append(_sentence(condition.get("reason") or "DisruptionTarget", condition.get("message")))
    if pod["metadata"].get("deletionTimestamp"):
        parts.append("Terminating")
    if not parts and status.get("phase") == "Failed":
        parts.append("Failed")
    return "; ".join(parts)


def failures(pods: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    """Yield why pods ended with a failure, each reason once with the pods that have it."""
    found: dict[str, list[str]] = {}
    for pod in pods:
        if (pod.get("status") or {}).get("phase") == "Failed" and (why := reason(pod)):
            found.setdefault(why, []).append(_name_and_node(pod))
    for why, names in found.items():
        more = f" and {len(names) - 1} more" if len(names) > 1 else ""
        yield f"{names[0]}{more}: {why}"


def container_of(pod: Mapping[str, Any]) -> str:
    """Return the name of the container that trains: the pod's default one, else its first."""
    names = [each["name"] for each in pod["spec"]["containers"]]
    chosen = (pod["metadata"].get("annotations") or {}).get(_DEFAULT_CONTAINER)
    return chosen if chosen in names else names[0]


def _described(pod: Mapping[str, Any], places: Places) -> JobPod:
    status, place, nproc = pod.get("status") or {}, places.place(pod["metadata"]["name"]), places.nproc_per_node
    ready = {each["type"]: each["status"] for each in status.get("conditions") or ()}
    containers = status.get("containerStatuses") or ()
    is_ready = ready["Ready"] == "True" if "Ready" in ready else _all_ready(containers)
    return JobPod(
        pod["metadata"]["name"],
        None if place is None else (place * nproc, (place + 1) * nproc - 1),
        pod["spec"].get("nodeName"),
        status.get("phase") or "Pending",
        is_ready,
        sum(each.get("restartCount") or 0 for each in containers),
        datetime.fromisoformat(pod["metadata"]["creationTimestamp"]).timestamp(),
        reason(pod),
    )


def _all_ready(containers: Iterable[Mapping[str, Any]]) -> bool:
    states = [bool(each.get("ready")) for each in containers]
    return bool(states) and all(states)


def _of_containers(status: Mapping[str, Any]) -> Iterator[str]:
    for container in (*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ())):
        state, last = container.get("state") or {}, (container.get("lastState") or {}).get("terminated")
        before = f"last run: {_end(last)}" if last else ""
        if waiting := state.get("waiting"):
            if waiting.get("reason") not in (None, *_STARTING):
                yield _sentence(waiting["reason"], waiting.get("message"))
            if before:
                yield before
        elif terminated := state.get("terminated"):
            if terminated.get("exitCode"):
                yield _end(terminated)
        elif before:
            yield before


def _end(terminated: Mapping[str, Any]) -> str:
    """Return how a container ended: its reason, its exit code, and its own last words."""
    code = terminated.get("exitCode") or 0
    name = _signal_name(code)
    words = f"{terminated.get('reason') or 'ended'}, exit code {code}" + (f" ({name})" if name else "")
    return _sentence(words, terminated.get("message"))


def _signal_name(code: int) -> str:
    try:
        return signal.Signals(code - _SIGNALLED).name
    except ValueError:
        return ""


def _sentence(what: str, message: str | None) -> str:
    """Return a reason and the first line of its message, as a terminal may show it."""
    line = (message or "").strip().partition("\n")[0].rstrip(".")
    text = masked(f"{what}: {line}" if line else what)
    text = "".join(sign if sign.isprintable() else " " for sign in text)
    return text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…"


def _name_and_node(pod: Mapping[str, Any]) -> str:
    node = pod["spec"].get("nodeName")
    return f"{pod['metadata']['name']} on {node}" if node else pod["metadata"]["name"]
