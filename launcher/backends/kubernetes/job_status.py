"""What the operator, Kueue and the kubelets say of a job, as one state and a few words. Pure."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from launcher.backends.kubernetes import lenient
from launcher.backends.kubernetes.pod_report import failures
from launcher.model.job_spec import JobState, JobStatus

STATES = (
    ("Failed", JobState.FAILED),
    ("Completed", JobState.SUCCEEDED),
    ("Succeeded", JobState.SUCCEEDED),
    ("Running", JobState.RUNNING),
    ("PodsRunning", JobState.PENDING),
    ("Created", JobState.PENDING),
)
"""Condition of a job to its state; the first that holds counts. Succeeded is a Kubeflow job's Completed.

Source: HyperPod training operator, status.conditions; Kubeflow training operator, JobConditionType.
"""

QUEUE_LABEL = "kueue.x-k8s.io/queue-name"

_IMAGE_REASONS = ("ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull", "RegistryUnavailable")
_CONTAINERS = ("initContainerStatuses", "containerStatuses")
_LONGEST_VALUE = 200
"""Characters of a value that is shown as it is."""
_STARTING = ("ContainerCreating", "PodInitializing")
"""Why a container waits. Source: Kubernetes, pkg/kubelet/images and container statuses."""


@dataclass(frozen=True, slots=True)
class View:
    """A job as the cluster has it now.

    Args:
        job: The custom resource; None when it is gone.
        pods: Its pods.
        workloads: Kueue's, where they can be read.
    """

    job: Mapping[str, Any] | None
    pods: Sequence[Mapping[str, Any]] = ()
    workloads: Sequence[Mapping[str, Any]] = ()


def read(view: View) -> JobStatus:
    """Return a job's status. Never raises: what it cannot interpret is part of the message, as it is."""
    pods = [pod for pod in view.pods if isinstance(pod, Mapping)]
    nodes = len([pod for pod in pods if _phase(pod) == "Running"])
    if view.job is None:
        return _finished(view, nodes) or JobStatus(JobState.DELETED, nodes, "the cluster no longer has it")
    status = lenient.mapping(view.job, "status")
    held = _held(status)
    name, state = next(((name, state) for name, state in STATES if name in held), ("", JobState.PENDING))
    extras = {"restarts": lenient.count(status.get("restartCount")), "faulty_nodes": _faulty(status)}
    odd = tuple(_odd(view.job.get("status"), held))
    if state.is_final:  # also while it is removed: it has ended as it did
        why = failures(pods) if state is JobState.FAILED else ()
        return JobStatus(state, nodes, "; ".join((_said(held[name]), *why, *odd)).removeprefix("; "), **extras)
    if lenient.mapping(view.job, "metadata").get("deletionTimestamp"):
        return JobStatus(JobState.PENDING, nodes, "is being removed", **extras)
    if state is JobState.PENDING:
        words = (_waiting(view, nodes), *_faults(extras), *odd)
        return JobStatus(state, nodes, "; ".join(words), **extras)
    return _running(view, nodes, extras, odd)


def _finished(view: View, nodes: int) -> JobStatus | None:
    """Return how Kueue saw a deleted job end; None if it did not.

    Source: Kueue, Workload condition Finished, reasons Succeeded and Failed.
    """
    for workload in view.workloads:
        finished = _held(lenient.mapping(workload, "status")).get("Finished", {})
        if state := _REASONS.get(lenient.text(finished.get("reason"))):
            return JobStatus(state, nodes, _said(finished))
    return None


_REASONS = {"Succeeded": JobState.SUCCEEDED, "Failed": JobState.FAILED}


def _held(status: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """Return the conditions that hold, by their types."""
    conditions = lenient.mappings(status.get("conditions"))
    return {lenient.text(each.get("type")): each for each in conditions if each.get("status") == "True"}


def _running(view: View, nodes: int, extras: dict[str, Any], odd: tuple[str, ...]) -> JobStatus:
    scaling = lenient.mapping(view.job, "status", "elasticScalingStatus")
    target = target_nodes(view.job) or nodes
    words = [*_faults(extras), *odd]
    if target == nodes:
        return JobStatus(JobState.RUNNING, nodes, "; ".join(words), **extras)
    if failed := lenient.count(scaling.get("consecutiveScalingFailures")):
        words.append(f"{failed} scalings in a row failed")
    if scaling.get("isFaultyPodScaleDown") is True:
        words.append("leaves faulty pods behind")
    if target > nodes and (not _has_all_pods(view, target) or any(_obstacles(view.pods))):
        words.insert(0, f"asks for {target} nodes and {_waiting(view, nodes)}")
        return JobStatus(JobState.RUNNING, nodes, "; ".join(words), target, **extras)
    words.insert(0, f"scales from {nodes} to {target} nodes")
    return JobStatus(JobState.SCALING, nodes, "; ".join(words), target, **extras)


def target_nodes(job: Any) -> int | None:
    """Return the nodes that the operator scales a job to, over all its replica specs; None if it names none.

    A spec of fixed size that is not named has its own number.

    Source: HyperPodPyTorchJob, status.elasticScalingStatus.targetReplicas: replica spec to number.
    """
    targets = lenient.mapping(job, "status", "elasticScalingStatus", "targetReplicas")
    named = {name: count for name, count in targets.items() if _is_count(count)}
    if not named:
        return None
    parts = lenient.mappings(lenient.mapping(job, "spec").get("replicaSpecs"))
    fixed = [part for part in parts if part.get("maxReplicas") is None and part.get("name") not in named]
    return sum(named.values()) + sum(lenient.count(part.get("replicas")) for part in fixed)


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _faulty(status: Mapping[str, Any]) -> tuple[str, ...]:
    """Return what failed last: instances, or pods or ranks where no instance is named."""
    faulty = lenient.mapping(status, "latestFaultyPodInstanceList")
    instances, pods = lenient.texts(faulty.get("faultyInstanceIdList")), lenient.texts(faulty.get("faultyPodList"))
    return instances or pods or tuple(f"rank {rank}" for rank in lenient.texts(faulty.get("faultyRankList")))


def _odd(status: Any, held: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    """Yield what a status holds that is not understood, as it is: conditions and values of a wrong type."""
    known = {name for name, _ in STATES}
    for name, condition in held.items():
        if name not in known:
            yield f"condition {name}" + (f" ({said})" if (said := _said(condition)) else "")
    if not isinstance(status, Mapping):
        if status is not None:
            yield _shown("status", status)
        return
    for keys, is_right in _TYPES.items():
        *before, last = keys
        value = lenient.mapping(status, *before).get(last)
        if value is not None and not is_right(value):
            yield _shown(".".join(keys), value)


def _is_conditions(value: Any) -> bool:
    return isinstance(value, list) and all(
        isinstance(each, Mapping) and isinstance(each.get("type"), str) and isinstance(each.get("status"), str)
        for each in value
    )


def _is_targets(value: Any) -> bool:
    return isinstance(value, Mapping) and all(map(_is_count, value.values()))


def _is_mapping(value: Any) -> bool:
    return isinstance(value, Mapping)


_TYPES = {
    ("conditions",): _is_conditions,
    ("restartCount",): _is_count,
    ("latestFaultyPodInstanceList",): _is_mapping,
    ("elasticScalingStatus",): _is_mapping,
    ("elasticScalingStatus", "targetReplicas"): _is_targets,
}
"""Fields of a status that are read here, and whether a value has the right type.

Source: HyperPodPyTorchJob, status.
"""


def _shown(name: str, value: Any) -> str:
    text = json.dumps(value, default=str)
    return f"{name} is {text if len(text) <= _LONGEST_VALUE else f'{text[:_LONGEST_VALUE]}…'}"


def _has_all_pods(view: View, target: int) -> bool:
    return len([pod for pod in view.pods if _phase(pod) in ("Pending", "Running")]) >= target


def _faults(extras: Mapping[str, Any]) -> Iterator[str]:
    if extras["restarts"]:
        yield f"restarted {extras['restarts']} time{'s' if extras['restarts'] > 1 else ''}"
    if extras["faulty_nodes"]:
        yield f"faulty nodes: {', '.join(extras['faulty_nodes'])}"


def _waiting(view: View, nodes: int) -> str:
    """Return what a job waits for: its queue, an image, nodes, or its operator."""
    if obstacle := next(_obstacles(view.pods), None):
        return obstacle
    if queued := _queued(view):
        return queued
    pending = [pod for pod in view.pods if _phase(pod) == "Pending"]
    if pending:
        return f"waits for {len(pending)} pods to start"
    if nodes:
        return f"pods run on {nodes} nodes, and the workers start"
    return "waits for the operator to make its pods"


def _queued(view: View) -> str | None:
    """Return what Kueue reports about a job that it has not admitted."""
    queue = lenient.text(lenient.mapping(view.job, "metadata", "labels").get(QUEUE_LABEL))
    if not queue:
        return "is suspended" if lenient.mapping(view.job, "spec", "runPolicy").get("suspend") is True else None
    waiting = [each for each in view.workloads if "Admitted" not in _held(lenient.mapping(each, "status"))]
    for workload in waiting:
        for condition in lenient.mappings(lenient.mapping(workload, "status").get("conditions")):
            if condition.get("type") == "QuotaReserved" and condition.get("status") == "False":
                message = lenient.text(condition.get("message")).rstrip(".")
                return f"waits for quota in queue {queue}: {message}"
    if waiting or not view.pods:
        return f"waits in queue {queue} to be admitted"
    return None


def _obstacles(pods: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yield what keeps pods from running and will not pass by itself soon, the same words once."""
    waiting: dict[str, int] = {}
    for pod in pods:
        if words := _obstacle(pod):
            waiting[words] = waiting.get(words, 0) + 1
    for words, count in waiting.items():
        yield f"{words} ({count} of {len(pods)} pods)"


def _obstacle(pod: Mapping[str, Any]) -> str | None:
    status = lenient.mapping(pod, "status")
    containers = [each for key in _CONTAINERS for each in lenient.mappings(status.get(key))]
    for container in containers:
        waiting = lenient.mapping(container, "state", "waiting")
        reason = lenient.text(waiting.get("reason"))
        if reason and reason not in _STARTING:
            what = "has pods that cannot start"
            if reason in _IMAGE_REASONS:
                what = f"waits for image {lenient.text(container.get('image'))}"
            return f"{what}: {reason} {lenient.text(waiting.get('message'))}".strip().rstrip(".")
    for condition in lenient.mappings(status.get("conditions")):
        is_unscheduled = condition.get("type") == "PodScheduled" and condition.get("status") == "False"
        if is_unscheduled and _phase(pod) == "Pending":
            why = lenient.text(condition.get("message")) or lenient.text(condition.get("reason"))
            return f"waits for nodes: {why}".rstrip(".")
    return None


def _said(condition: Mapping[str, Any]) -> str:
    return ": ".join(filter(None, (lenient.text(condition.get(key)) for key in ("reason", "message"))))


def _phase(pod: Any) -> str:
    return lenient.text(lenient.mapping(pod, "status").get("phase")) or "Pending"
