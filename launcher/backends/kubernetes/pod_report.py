"""The pods of a job: the ranks, the node and the state of each, and why one waits, restarts or failed. Pure."""

import signal
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from typing import Any

from launcher.backends.kubernetes import lenient
from launcher.backends.kubernetes.target import Places
from launcher.common.redaction import masked
from launcher.common.texts import first_of
from launcher.model.cluster_view import JobPod

STARTING = ("ContainerCreating", "PodInitializing")
"""Reasons of a container that starts normally. Source: Kubernetes, pkg/kubelet/images and container statuses."""

_DEFAULT_CONTAINER = "kubectl.kubernetes.io/default-container"
_SIGNALLED = 128
"""A larger exit code is this plus a signal's number. Source: POSIX, Shell Command Language, 2.8.2."""

_LONGEST = 300
"""Characters of a message that are shown."""


def phase(pod: object) -> str:
    """Return a pod's phase; Pending before it has one."""
    return lenient.text(lenient.mapping(pod, "status").get("phase")) or "Pending"


def described(pods: Iterable[Mapping[str, Any]], places: Places) -> tuple[JobPod, ...]:
    """Return pods in the order of their ranks; those of unknown rank come last."""
    found = [_described(pod, places) for pod in pods]
    return tuple(sorted(found, key=lambda pod: (pod.ranks is None, pod.ranks or (0, 0), pod.created_s, pod.name)))


def reason(pod: Mapping[str, Any]) -> str:
    """Return why a pod waits, restarts or failed, as Kubernetes reports it; "" if nothing is wrong."""
    status = lenient.mapping(pod, "status")
    if why := lenient.text(status.get("reason")):  # Evicted, NodeLost, UnexpectedAdmissionError
        return _sentence(why, status.get("message"))
    parts = list(dict.fromkeys((*_of_containers(pod), *_of_conditions(pod))))
    if lenient.mapping(pod, "metadata").get("deletionTimestamp"):
        parts.append("Terminating")
    if not parts and phase(pod) == "Failed":
        parts.append("Failed")
    return "; ".join(parts)


def failures(pods: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    """Yield why pods ended with a failure, each reason once with the pods that have it."""
    found: dict[str, list[str]] = {}
    for pod in pods:
        if phase(pod) == "Failed" and (why := reason(pod)):
            found.setdefault(why, []).append(_name_and_node(pod))
    for why, names in found.items():
        yield f"{first_of(names, 1)}: {why}"


def container_of(pod: Mapping[str, Any]) -> str:
    """Return the name of the training container: the pod's default one, else its first."""
    names: list[str] = [each["name"] for each in pod["spec"]["containers"]]
    chosen = lenient.mapping(pod, "metadata", "annotations").get(_DEFAULT_CONTAINER)
    return names[names.index(chosen)] if chosen in names else names[0]


def _described(pod: Mapping[str, Any], places: Places) -> JobPod:
    place, nproc = places.place(pod["metadata"]["name"]), places.nproc_per_node
    status = pod.get("status") or {}
    containers = status.get("containerStatuses") or ()
    ready = {each["type"]: each["status"] for each in status.get("conditions") or ()}
    are_ready = bool(containers) and all(each.get("ready") for each in containers)
    is_ready = ready["Ready"] == "True" if "Ready" in ready else are_ready
    return JobPod(
        pod["metadata"]["name"],
        None if place is None else (place * nproc, (place + 1) * nproc - 1),
        pod["spec"].get("nodeName"),
        phase(pod),
        is_ready,
        sum(each.get("restartCount") or 0 for each in containers),
        datetime.fromisoformat(pod["metadata"]["creationTimestamp"]).timestamp(),
        reason(pod),
    )


def containers(pod: object) -> list[Mapping[str, Any]]:
    """Return the statuses of a pod's containers, those that run before the others first."""
    status = lenient.mapping(pod, "status")
    return lenient.mappings(status.get("initContainerStatuses")) + lenient.mappings(status.get("containerStatuses"))


def obstacle(container: Mapping[str, Any]) -> tuple[str, str] | None:
    """Return reason and message of a container that waits for something else than a normal start; None for others."""
    waiting = lenient.mapping(container, "state", "waiting")
    why = lenient.text(waiting.get("reason"))
    return (why, lenient.text(waiting.get("message"))) if why and why not in STARTING else None


def unscheduled(pod: object) -> Mapping[str, Any] | None:
    """Return the condition of a pod for which the scheduler finds no node; None for others."""
    return lenient.conditions(pod, "False").get("PodScheduled")


def _of_conditions(pod: Mapping[str, Any]) -> Iterator[str]:
    if (condition := unscheduled(pod)) is not None:
        yield _sentence("FailedScheduling", condition.get("message") or lenient.text(condition.get("reason")))
    if (condition := lenient.conditions(pod).get("DisruptionTarget")) is not None:
        yield _sentence(lenient.text(condition.get("reason")) or "DisruptionTarget", condition.get("message"))


def _of_containers(pod: Mapping[str, Any]) -> Iterator[str]:
    for container in containers(pod):
        if found := obstacle(container):
            yield _sentence(*found)
        terminated = lenient.mapping(container, "state", "terminated")
        if terminated.get("exitCode"):
            yield _end(terminated)
        last = lenient.mapping(container, "lastState", "terminated")
        if last and not terminated:
            yield f"last run: {_end(last)}"


def _end(terminated: Mapping[str, Any]) -> str:
    """Return how a container ended: its reason, its exit code, and its termination message."""
    code = lenient.count(terminated.get("exitCode"))
    name = next((each.name for each in signal.Signals if each == code - _SIGNALLED), None)
    why = lenient.text(terminated.get("reason")) or "ended"
    return _sentence(f"{why}, exit code {code}" + (f" ({name})" if name else ""), terminated.get("message"))


def _sentence(what: str, message: object) -> str:
    """Return a reason and the first line of its message, safe to print on a terminal."""
    line = lenient.text(message).strip().partition("\n")[0].rstrip(".")
    text = masked(f"{what}: {line}" if line else what)
    return text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…"


def _name_and_node(pod: Mapping[str, Any]) -> str:
    node = lenient.text(lenient.mapping(pod, "spec").get("nodeName"))
    name = lenient.text(lenient.mapping(pod, "metadata").get("name"))
    return f"{name} on {node}" if node else name
