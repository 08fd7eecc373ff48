"""The pods of a job: which ranks each runs, its node and state, and why one waits, restarts or failed. Pure."""

import re
import signal
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from launcher.backends.kubernetes import lenient
from launcher.common.redaction import masked
from launcher.model.cluster_view import JobPod

STARTING = ("ContainerCreating", "PodInitializing")
"""Reasons of a container that starts normally. Source: Kubernetes, pkg/kubelet/images and container statuses."""

_DEFAULT_CONTAINER = "kubectl.kubernetes.io/default-container"
_SIGNALLED = 128
"""A larger exit code is this plus a signal's number. Source: POSIX, Shell Command Language, 2.8.2."""

_LONGEST = 300
"""Characters of a message that are shown."""


@dataclass(frozen=True, slots=True)
class Places:
    """Which pod runs which ranks. A pod's place is its number, counted over all replica specs in order.

    Args:
        job: The job's name.
        parts: Name and largest size of each replica spec, in order.
        nproc_per_node: Ranks of a pod.
    """

    job: str
    parts: Sequence[tuple[str, int]]
    nproc_per_node: int

    @classmethod
    def of(cls, job: Mapping[str, Any]) -> "Places":
        """Read the places from a job's manifest."""
        spec = job["spec"]
        if kubeflow := spec.get("pytorchReplicaSpecs"):
            parts = [(name.lower(), part.get("replicas", 1)) for name, part in kubeflow.items()]
        else:
            parts = [
                (part["name"], part.get("maxReplicas", part.get("replicas", 0))) for part in spec["replicaSpecs"]
            ]
        nproc = str(spec.get("nprocPerNode", "1"))
        return cls(job["metadata"]["name"], parts, int(nproc) if nproc.isdigit() else 1)

    @property
    def num_ranks(self) -> int:
        return sum(count for _, count in self.parts) * self.nproc_per_node

    def place(self, pod: str) -> int | None:
        """Return a pod's place; None if its name does not contain it."""
        before = 0
        for name, count in self.parts:
            if match := re.match(rf"{re.escape(self.job)}-{re.escape(name)}-(\d+)(?:-|$)", pod):
                return before + int(match[1])
            before += count
        return None


def described(pods: Iterable[Mapping[str, Any]], places: Places) -> tuple[JobPod, ...]:
    """Return pods in the order of their ranks; those of unknown rank come last."""
    found = [_described(pod, places) for pod in pods]
    return tuple(sorted(found, key=lambda pod: (pod.ranks is None, pod.ranks or (0, 0), pod.created_s, pod.name)))


def reason(pod: Mapping[str, Any]) -> str:
    """Return why a pod waits, restarts or failed, as Kubernetes reports it; "" if nothing is wrong."""
    status = lenient.mapping(pod, "status")
    if why := lenient.text(status.get("reason")):  # Evicted, NodeLost, UnexpectedAdmissionError
        return _sentence(why, status.get("message"))
    parts = list(dict.fromkeys((*_of_containers(status), *_of_conditions(status))))
    if lenient.mapping(pod, "metadata").get("deletionTimestamp"):
        parts.append("Terminating")
    if not parts and status.get("phase") == "Failed":
        parts.append("Failed")
    return "; ".join(parts)


def failures(pods: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    """Yield why pods ended with a failure, each reason once with the pods that have it."""
    found: dict[str, list[str]] = {}
    for pod in pods:
        if lenient.mapping(pod, "status").get("phase") == "Failed" and (why := reason(pod)):
            found.setdefault(why, []).append(_name_and_node(pod))
    for why, names in found.items():
        more = f" and {len(names) - 1} more" if len(names) > 1 else ""
        yield f"{names[0]}{more}: {why}"


def container_of(pod: Mapping[str, Any]) -> str:
    """Return the name of the training container: the pod's default one, else its first."""
    names: list[str] = [each["name"] for each in pod["spec"]["containers"]]
    chosen = (pod["metadata"].get("annotations") or {}).get(_DEFAULT_CONTAINER)
    return names[names.index(chosen)] if chosen in names else names[0]


def _described(pod: Mapping[str, Any], places: Places) -> JobPod:
    status, place, nproc = pod.get("status") or {}, places.place(pod["metadata"]["name"]), places.nproc_per_node
    ready = {each["type"]: each["status"] for each in status.get("conditions") or ()}
    containers = status.get("containerStatuses") or ()
    are_ready = bool(containers) and all(each.get("ready") for each in containers)
    is_ready = ready["Ready"] == "True" if "Ready" in ready else are_ready
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


def _of_conditions(status: Mapping[str, Any]) -> Iterator[str]:
    for condition in lenient.mappings(status.get("conditions")):
        kind, value = condition.get("type"), condition.get("status")
        why, message = lenient.text(condition.get("reason")), condition.get("message")
        if (kind, value) == ("PodScheduled", "False"):
            yield _sentence("FailedScheduling", message or why)
        if (kind, value) == ("DisruptionTarget", "True"):
            yield _sentence(why or "DisruptionTarget", message)


def _of_containers(status: Mapping[str, Any]) -> Iterator[str]:
    lists = (status.get("initContainerStatuses"), status.get("containerStatuses"))
    for container in (container for each in lists for container in lenient.mappings(each)):
        waiting, terminated = (lenient.mapping(container, "state", name) for name in ("waiting", "terminated"))
        why = lenient.text(waiting.get("reason"))
        if why and why not in STARTING:
            yield _sentence(why, waiting.get("message"))
        if terminated.get("exitCode"):
            yield _end(terminated)
        last = lenient.mapping(container, "lastState", "terminated")
        if last and not terminated:
            yield f"last run: {_end(last)}"


def _end(terminated: Mapping[str, Any]) -> str:
    """Return how a container ended: its reason, its exit code, and its termination message."""
    code = lenient.count(terminated.get("exitCode"))
    name = _signal_name(code)
    why = lenient.text(terminated.get("reason")) or "ended"
    return _sentence(f"{why}, exit code {code}" + (f" ({name})" if name else ""), terminated.get("message"))


def _signal_name(code: int) -> str:
    try:
        return signal.Signals(code - _SIGNALLED).name
    except ValueError:
        return ""


def _sentence(what: str, message: object) -> str:
    """Return a reason and the first line of its message, safe to print on a terminal."""
    line = lenient.text(message).strip().partition("\n")[0].rstrip(".")
    text = masked(f"{what}: {line}" if line else what)
    return text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…"


def _name_and_node(pod: Mapping[str, Any]) -> str:
    node = lenient.text(lenient.mapping(pod, "spec").get("nodeName"))
    name = lenient.text(lenient.mapping(pod, "metadata").get("name"))
    return f"{name} on {node}" if node else name
