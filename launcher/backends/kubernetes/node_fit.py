"""Whether a cluster's nodes can run a job's pods: labels, taints, and what a node has for pods."""

from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from typing import Any

from launcher.backends.kubernetes import api_objects, lenient
from launcher.backends.kubernetes.api_objects import Manifest
from launcher.backends.kubernetes.connection import Connection
from launcher.backends.kubernetes.job_watch import objects
from launcher.common.problems import Problem
from launcher.common.quantities import shown
from launcher.common.texts import counted
from launcher.governance.quotas import per_pod
from launcher.model.finding import Answer, ok, warning

Node = Mapping[str, Any]
_REQUESTS = "requests."
_KEYS = {"memory": "recipes.resources.memory", "cpu": "recipes.resources.cpu"}
_REFUSING = ("NoSchedule", "NoExecute")
"""Effects of a taint that keep a pod away. Source: Kubernetes, Taints and Tolerations."""


def answers(connection: Connection, programs: Sequence[Manifest]) -> Iterator[Answer]:
    """Yield for each part of a job whether nodes have its labels, hold one of its pods, and are ready in number."""
    nodes = objects(connection, api_objects.path("Node", None))
    found: list[Answer] = []
    for program in programs:
        for name, part in api_objects.parts(program.body).items():
            count = int(part.get("replicas", 1)) + int(part.get("spares", 0))
            if count:
                found.append(_fit(name or program.name, part["template"]["spec"], count, nodes))
    yield from dict.fromkeys(found)


def _fit(name: str, spec: Mapping[str, Any], count: int, nodes: Sequence[Node]) -> Answer:
    labels = ", ".join(f"{key}={value}" for key, value in (spec.get("nodeSelector") or {}).items())
    matching = [node for node in nodes if _selects(spec, (node["metadata"].get("labels") or {}))]
    if not matching:
        message = f"none of {counted(len(nodes), 'node')} has the labels of {name} ({labels or 'its affinity'})"
        return warning("nodes", f"{message}: its pods wait until one is added", "instance_type=… of nodes that exist")
    needed = {
        key.removeprefix(_REQUESTS): value
        for key, value in per_pod(spec, {}).items()
        if key.startswith(_REQUESTS) and value
    }
    fitting = [node for node in matching if all(_has(node, key) >= value for key, value in needed.items())]
    if not fitting:
        return _too_small(name, labels, needed, matching)
    ready = [node for node in fitting if _is_ready(node) and not _taints(node, spec)]
    has = f"{len(ready)} of {counted(len(matching), 'node')} with its labels hold a pod of {name} and are ready"
    if len(ready) < count:
        return warning("nodes", f"{has}; it starts with {count}", "it waits for nodes; or start it with fewer")
    return ok("nodes", f"{has}; it starts with {count}, jobs that run now apart")


def _too_small(name: str, labels: str, needed: Mapping[str, Fraction], matching: Sequence[Node]) -> Answer:
    """Return that no node holds a pod, with the resource that the largest of them lacks."""
    largest = {key: max(_has(node, key) for node in matching) for key in needed}
    lacking = [key for key in needed if largest[key] < needed[key]] or list(needed)
    amounts = ", ".join(f"{shown(needed[key])} {key} (a node has at most {shown(largest[key])})" for key in lacking)
    message = f"a pod of {name} requests {amounts}"
    key = next((_KEYS[each] for each in lacking if each in _KEYS), "instance_type")
    if not labels:  # a larger node may be added
        return warning("nodes", message, f"a smaller {key}, or larger nodes")
    return Problem("E358", key, f"{message}: no node with its labels can run it", remedy="request less of a node")


def _has(node: Node, resource: str) -> Fraction:
    """Return what a node has for pods; 0 of what is not stated as a quantity."""
    return lenient.quantity(lenient.mapping(node, "status", "allocatable").get(resource, 0))


def _is_ready(node: Node) -> bool:
    return "Ready" in lenient.conditions(node) and not lenient.mapping(node, "spec").get("unschedulable")


def _taints(node: Node, spec: Mapping[str, Any]) -> bool:
    """Return whether a taint of a node keeps a pod away."""
    taints = lenient.mappings(lenient.mapping(node, "spec").get("taints"))
    return any(
        taint.get("effect") in _REFUSING
        and not any(_tolerates(each, taint) for each in spec.get("tolerations") or ())
        for taint in taints
    )


def _tolerates(toleration: Mapping[str, Any], taint: Mapping[str, Any]) -> bool:
    """Source: Kubernetes, Taints and Tolerations: when a toleration matches a taint."""
    if toleration.get("effect") not in (None, "", taint.get("effect")):
        return False
    if toleration.get("operator") == "Exists":
        return toleration.get("key") in (None, "", taint.get("key"))
    return (toleration.get("key"), toleration.get("value") or "") == (taint.get("key"), taint.get("value") or "")


def _selects(spec: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    """Return whether a pod may run on nodes with these labels. Of terms of affinity one has to hold."""
    if any(labels.get(key) != value for key, value in (spec.get("nodeSelector") or {}).items()):
        return False
    affinity = lenient.mapping(spec, "affinity", "nodeAffinity", "requiredDuringSchedulingIgnoredDuringExecution")
    terms = lenient.mappings(affinity.get("nodeSelectorTerms"))
    return not terms or any(
        all(_holds(each, labels) for each in lenient.mappings(term.get("matchExpressions"))) for term in terms
    )


def _holds(expression: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    """Source: Kubernetes, Assigning Pods to Nodes: Operators."""
    key, values, operator = expression.get("key", ""), expression.get("values") or (), expression.get("operator")
    if operator == "In":
        return labels.get(key) in values
    if operator == "NotIn":
        return labels.get(key) not in values
    return (key in labels) == (operator != "DoesNotExist")  # Gt and Lt, which recipes do not write, count as Exists
