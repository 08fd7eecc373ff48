"""A job's state and a short message, from what the operator, Kueue and the kubelets report. Pure."""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from launcher.backends.kubernetes import lenient
from launcher.backends.kubernetes.pod_report import STARTING, failures
from launcher.common.texts import counted
from launcher.model.job_spec import JobState, JobStatus

STATES = (
    ("Failed", JobState.FAILED),
    ("Completed", JobState.SUCCEEDED),
    ("Succeeded", JobState.SUCCEEDED),
    ("Running", JobState.RUNNING),
    ("PodsRunning", JobState.PENDING),
    ("Created", JobState.PENDING),
)
"""Condition of a job to its state; the first true one counts. Succeeded is a Kubeflow job's Completed.

Source: HyperPod training operator, status.conditions; Kubeflow training operator, JobConditionType.
"""

_FINISHED = {"Succeeded": JobState.SUCCEEDED, "Failed": JobState.FAILED}
"""Reason of a Workload's condition Finished to the state of its job. Source: Kueue, Workload."""

QUEUE_LABEL = "kueue.x-k8s.io/queue-name"

_IMAGE_REASONS = ("ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull", "RegistryUnavailable")
_CONTAINERS = ("initContainerStatuses", "containerStatuses")
_LONGEST_VALUE = 200
"""Characters of a value that is shown unchanged."""


@dataclass(frozen=True, slots=True)
class View:
    """A job as the cluster has it now.

    Args:
        job: The custom resource; None if it is deleted.
        pods: Its pods.
        workloads: Its Workloads in Kueue, if they can be read.
    """

    job: Mapping[str, Any] | None
    pods: Sequence[Mapping[str, Any]] = ()
    workloads: Sequence[Mapping[str, Any]] = ()


@dataclass(frozen=True, slots=True)
class _Faults:
    """The faults that a job's status reports."""

    restarts: int
    nodes: tuple[str, ...]

    def status(self, state: JobState, nodes: int, words: Iterable[str], target: int | None = None) -> JobStatus:
        return JobStatus(state, nodes, "; ".join(filter(None, words)), target, self.restarts, self.nodes)

    def words(self) -> Iterator[str]:
        if self.restarts:
            yield f"restarted {counted(self.restarts, 'time')}"
        if self.nodes:
            yield f"faulty nodes: {', '.join(self.nodes)}"


def read(view: View) -> JobStatus:
    """Return a job's status. Never raises: values that cannot be interpreted are quoted in the message."""
    pods = [pod for pod in view.pods if isinstance(pod, Mapping)]
    nodes = len([pod for pod in pods if _phase(pod) == "Running"])
    if view.job is None:
        for workload in view.workloads:  # of a deleted job that Kueue has a record of
            finished = _true_conditions(lenient.mapping(workload, "status")).get("Finished", {})
            if state := _FINISHED.get(lenient.text(finished.get("reason"))):
                return JobStatus(state, nodes, _reason(finished))
        return JobStatus(JobState.DELETED, nodes, "the cluster no longer has it")
    return _of_existing(view, view.job, pods, nodes)


def _of_existing(view: View, job: Mapping[str, Any], pods: Sequence[Mapping[str, Any]], nodes: int) -> JobStatus:
    """Return the status of a job that the cluster still has."""
    status = lenient.mapping(job, "status")
    conditions = _true_conditions(status)
    name, state = next(((name, state) for name, state in STATES if name in conditions), ("", JobState.PENDING))
    faults = _Faults(lenient.count(status.get("restartCount")), _faulty(status))
    unknown = tuple(_uninterpreted(job.get("status"), conditions))
    if state.is_final:  # also during deletion: its end does not change
        why = failures(pods) if state is JobState.FAILED else ()
        return faults.status(state, nodes, (_reason(conditions[name]), *why, *unknown))
    if lenient.mapping(job, "metadata").get("deletionTimestamp"):
        return faults.status(JobState.PENDING, nodes, ["is being deleted"])
    if state is JobState.PENDING:
        return faults.status(state, nodes, (_waiting(view, nodes), *faults.words(), *unknown))
    return _running(view, nodes, faults, unknown)


def _true_conditions(status: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """Return the conditions whose status is True, by type."""
    conditions = lenient.mappings(status.get("conditions"))
    return {lenient.text(each.get("type")): each for each in conditions if each.get("status") == "True"}


def _running(view: View, nodes: int, faults: _Faults, unknown: tuple[str, ...]) -> JobStatus:
    scaling = lenient.mapping(view.job, "status", "elasticScalingStatus")
    target = target_nodes(view.job) or nodes
    words = [*faults.words(), *unknown]
    if target == nodes:
        return faults.status(JobState.RUNNING, nodes, words)
    if failed := lenient.count(scaling.get("consecutiveScalingFailures")):
        words.append(f"{failed} scale events in a row failed")
    if scaling.get("isFaultyPodScaleDown") is True:
        words.append("scales down without the faulty pods")
    has_all_pods = len([pod for pod in view.pods if _phase(pod) in ("Pending", "Running")]) >= target
    if target > nodes and (not has_all_pods or any(_obstacles(view.pods))):
        return faults.status(
            JobState.RUNNING, nodes, (f"requests {target} nodes and {_waiting(view, nodes)}", *words), target
        )
    return faults.status(JobState.SCALING, nodes, (f"scales from {nodes} to {target} nodes", *words), target)


def target_nodes(job: object) -> int | None:
    """Return the nodes that the operator scales a job to, over all replica specs; None if it has no target.

    A spec of fixed size without a target counts with its own number.

    Source: HyperPodPyTorchJob, status.elasticScalingStatus.targetReplicas: replica spec to number.
    """
    targets = lenient.mapping(job, "status", "elasticScalingStatus", "targetReplicas")
    named: dict[str, int] = {name: count for name, count in targets.items() if _is_count(count)}
    if not named:
        return None
    parts = lenient.mappings(lenient.mapping(job, "spec").get("replicaSpecs"))
    fixed = [part for part in parts if part.get("maxReplicas") is None and part.get("name") not in named]
    return sum(named.values()) + sum(lenient.count(part.get("replicas")) for part in fixed)


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _faulty(status: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the instances that failed last; pods or ranks if no instance is named."""
    faulty = lenient.mapping(status, "latestFaultyPodInstanceList")
    instances, pods = lenient.texts(faulty.get("faultyInstanceIdList")), lenient.texts(faulty.get("faultyPodList"))
    return instances or pods or tuple(f"rank {rank}" for rank in lenient.texts(faulty.get("faultyRankList")))


def _uninterpreted(status: object, conditions: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    """Yield the parts of a status that are not understood: unknown conditions, values of a wrong type."""
    known = {name for name, _ in STATES}
    for name, condition in conditions.items():
        if name not in known:
            yield f"condition {name}" + (f" ({reason})" if (reason := _reason(condition)) else "")
    values: dict[str, object] = {}
    if isinstance(status, Mapping):
        for (*before, last), is_right in _TYPES.items():
            value = lenient.mapping(status, *before).get(last)
            if value is not None and not is_right(value):
                values[".".join((*before, last))] = value
    elif status is not None:
        values["status"] = status
    for name, value in values.items():
        text = json.dumps(value, default=str)
        yield f"{name} is {text if len(text) <= _LONGEST_VALUE else f'{text[:_LONGEST_VALUE]}…'}"


def _is_conditions(value: object) -> bool:
    return isinstance(value, list) and all(
        isinstance(each, Mapping) and isinstance(each.get("type"), str) and isinstance(each.get("status"), str)
        for each in value
    )


def _is_mapping(value: object) -> bool:
    return isinstance(value, Mapping)


_TYPES: dict[tuple[str, ...], Callable[[object], bool]] = {
    ("conditions",): _is_conditions,
    ("restartCount",): _is_count,
    ("latestFaultyPodInstanceList",): _is_mapping,
    ("elasticScalingStatus",): _is_mapping,
    ("elasticScalingStatus", "targetReplicas"): lambda value: (
        isinstance(value, Mapping) and all(map(_is_count, value.values()))
    ),
}
"""Fields of a status that are read here, and the check of their type.

Source: HyperPodPyTorchJob, status.
"""


def _waiting(view: View, nodes: int) -> str:
    """Return why a job is pending: its queue, an image, nodes, or its operator."""
    if obstacle := next(_obstacles(view.pods), None):
        return obstacle
    if queued := _queued(view):
        return queued
    pending = [pod for pod in view.pods if _phase(pod) == "Pending"]
    if pending:
        return f"waits for {len(pending)} pods to start"
    if nodes:
        return f"pods run on {nodes} nodes; the workers are starting"
    return "waits for the operator to create its pods"


def _queued(view: View) -> str | None:
    """Return Kueue's message about a job that it has not admitted."""
    queue = lenient.text(lenient.mapping(view.job, "metadata", "labels").get(QUEUE_LABEL))
    if not queue:
        return "is suspended" if lenient.mapping(view.job, "spec", "runPolicy").get("suspend") is True else None
    statuses = [lenient.mapping(each, "status") for each in view.workloads]
    waiting = [each for each in statuses if "Admitted" not in _true_conditions(each)]
    for condition in (each for status in waiting for each in lenient.mappings(status.get("conditions"))):
        if condition.get("type") == "QuotaReserved" and condition.get("status") == "False":
            return f"waits for quota in queue {queue}: {lenient.text(condition.get('message')).rstrip('.')}"
    return f"waits in queue {queue} for admission" if waiting or not view.pods else None


def _obstacles(pods: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yield the lasting reasons why pods do not run, each once."""
    waiting: dict[str, int] = {}
    for pod in pods:
        if words := _obstacle(pod):
            waiting[words] = waiting.get(words, 0) + 1
    for words, count in waiting.items():
        yield f"{words} ({count} of {len(pods)} pods)"


def _obstacle(pod: Mapping[str, Any]) -> str | None:
    status = lenient.mapping(pod, "status")
    for container in (each for key in _CONTAINERS for each in lenient.mappings(status.get(key))):
        waiting = lenient.mapping(container, "state", "waiting")
        reason = lenient.text(waiting.get("reason"))
        if reason and reason not in STARTING:
            what = "has pods that cannot start"
            if reason in _IMAGE_REASONS:
                what = f"waits for image {lenient.text(container.get('image'))}"
            return f"{what}: {reason} {lenient.text(waiting.get('message'))}".strip().rstrip(".")
    for condition in lenient.mappings(status.get("conditions")) if _phase(pod) == "Pending" else ():
        if condition.get("type") == "PodScheduled" and condition.get("status") == "False":
            why = lenient.text(condition.get("message")) or lenient.text(condition.get("reason"))
            return f"waits for nodes: {why}".rstrip(".")
    return None


def _reason(condition: Mapping[str, Any]) -> str:
    return ": ".join(filter(None, (lenient.text(condition.get(key)) for key in ("reason", "message"))))


def _phase(pod: object) -> str:
    return lenient.text(lenient.mapping(pod, "status").get("phase")) or "Pending"
