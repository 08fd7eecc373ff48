"""A job's state and a short message, from what the operator, Kueue and the kubelets report. Pure."""

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from launcher.backends.kubernetes import lenient
from launcher.backends.kubernetes.api_objects import QUEUE_LABEL
from launcher.backends.kubernetes.pod_report import containers, failures, obstacle, phase, unscheduled
from launcher.backends.kubernetes.target import Companion
from launcher.common.texts import counted, start_of
from launcher.governance.quotas import ray_cluster
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

_OF_RAY = {
    "Complete": JobState.SUCCEEDED,
    "Failed": JobState.FAILED,
    "ValidationFailed": JobState.FAILED,
    "Running": JobState.RUNNING,
}
"""Deployment status of a RayJob to its state; others are pending. Source: KubeRay, JobDeploymentStatus."""
_ENDS_OF_RAY = {"FAILED": JobState.FAILED, "STOPPED": JobState.CANCELLED}
"""Status of the program in a RayJob that is complete, where it did not succeed. Source: Ray, JobStatus."""
_OF_WORKER = ("ray.io/node-type", "worker")
"""Label of a Ray job's pods that are its nodes. Source: KubeRay, labels of a RayCluster's pods."""

_FINISHED = {"Succeeded": JobState.SUCCEEDED, "Failed": JobState.FAILED}
"""Reason of a Workload's condition Finished to the state of its job. Source: Kueue, Workload."""

_IMAGE_REASONS = ("ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull", "RegistryUnavailable")
_LONGEST_VALUE = 200
"""Characters of a value that is shown unchanged."""


@dataclass(frozen=True, slots=True)
class View:
    """A job as the cluster has it now.

    Args:
        job: The custom resource; None if it is deleted.
        pods: Its pods.
        workloads: Its Workloads in Kueue, if they can be read.
        companions: The objects of its other programs.
    """

    job: Mapping[str, Any] | None
    pods: Sequence[Mapping[str, Any]] = ()
    workloads: Sequence[Mapping[str, Any]] = ()
    companions: Sequence[Companion] = ()


def read(view: View) -> JobStatus:
    """Return a job's status. Never raises: values that cannot be interpreted are quoted in the message."""
    pods = [pod for pod in view.pods if isinstance(pod, Mapping)]
    if view.job is not None and ray_cluster(view.job) is not None:
        return _of_ray(view, view.job, pods)
    nodes = len(_in_phase(pods, "Running"))
    if view.job is not None:
        return _with_companions(view, _of_existing(view, view.job, pods, nodes))
    for workload in view.workloads:  # of a deleted job that Kueue has a record of
        finished = lenient.conditions(workload).get("Finished", {})
        if state := _FINISHED.get(lenient.text(finished.get("reason"))):
            return JobStatus(state, nodes, _reason(finished))
    return JobStatus(JobState.DELETED, nodes, "the cluster no longer has it")


def _in_phase(pods: Sequence[Mapping[str, Any]], *phases: str) -> list[Mapping[str, Any]]:
    return [pod for pod in pods if phase(pod) in phases]


def _of_existing(view: View, job: Mapping[str, Any], pods: Sequence[Mapping[str, Any]], nodes: int) -> JobStatus:
    status, conditions = lenient.mapping(job, "status"), lenient.conditions(job)
    name, state = next(((name, state) for name, state in STATES if name in conditions), ("", JobState.PENDING))
    restarts, faulty = lenient.count(status.get("restartCount")), _faulty(status)
    unknown = tuple(_uninterpreted(job.get("status"), conditions))

    def seen(state: JobState, *words: str, target: int | None = None) -> JobStatus:
        return JobStatus(state, nodes, "; ".join(filter(None, words)), target, restarts, faulty)

    if state.is_final:  # also during deletion: its end does not change
        why = failures(pods) if state is JobState.FAILED else ()
        return seen(state, _reason(conditions[name]), *why, *unknown)
    if lenient.mapping(job, "metadata").get("deletionTimestamp"):
        return seen(JobState.PENDING, "is being deleted")
    words = (
        f"restarted {counted(restarts, 'time')}" if restarts else "",
        f"faulty nodes: {', '.join(faulty)}" if faulty else "",
        *unknown,
    )
    if state is JobState.PENDING:
        return seen(state, _waiting(view, nodes), *words)
    target = target_nodes(job) or nodes
    if target == nodes:
        return seen(JobState.RUNNING, *words)
    words = (*words, *_scaling(lenient.mapping(status, "elasticScalingStatus")))
    has_all_pods = len(_in_phase(pods, "Pending", "Running")) >= target
    if target > nodes and (not has_all_pods or any(_obstacles(pods))):
        return seen(JobState.RUNNING, f"requests {target} nodes and {_waiting(view, nodes)}", *words, target=target)
    return seen(JobState.SCALING, f"scales from {nodes} to {target} nodes", *words, target=target)


def _with_companions(view: View, seen: JobStatus) -> JobStatus:
    """Return the status of a job that has ended or runs, with what its other programs do meanwhile.

    The state is that of the program that trains: whether it can do without another is not known.
    """
    words = []
    for each in view.companions:
        pods = [pod for pod in view.pods if each.owns(pod)]
        running, failed = _in_phase(pods, "Running"), _in_phase(pods, "Failed")
        absent = each.num_pods - len(_in_phase(pods, "Running", "Succeeded"))
        if seen.state.is_final:
            words += [f"{each.name} still runs, until the job is removed"] if running else []
        elif failed and each.kind != "StatefulSet":  # which replaces its pods
            words.append(f"{each.name} has failed: {'; '.join(failures(failed))}")
        elif absent > 0:
            words.append(f"{each.name} {_waiting(replace(view, pods=pods), len(running))}")
    if seen.state is JobState.PENDING or not words:
        return seen
    return replace(seen, message="; ".join(filter(None, (seen.message, *words))))


def _of_ray(view: View, job: Mapping[str, Any], pods: Sequence[Mapping[str, Any]]) -> JobStatus:
    """Return a Ray job's status, from that of its deployment and, once this is complete, that of its program.

    A program that has failed may be tried again, on a new cluster.
    """
    status, (label, worker) = lenient.mapping(job, "status"), _OF_WORKER
    at_work = [pod for pod in pods if lenient.mapping(pod, "metadata", "labels").get(label) == worker]
    nodes, restarts = len(_in_phase(at_work, "Running")), lenient.count(status.get("failed"))
    deployment, program = lenient.text(status.get("jobDeploymentStatus")), lenient.text(status.get("jobStatus"))
    state = _OF_RAY.get(deployment, JobState.PENDING)
    if state is JobState.SUCCEEDED:
        state = _ENDS_OF_RAY.get(program, state)
    why = ": ".join(filter(None, (lenient.text(status.get("reason")), lenient.text(status.get("message")))))
    if state.is_final:
        words = (why, *(failures(pods) if state is JobState.FAILED else ()))
    elif lenient.mapping(job, "metadata").get("deletionTimestamp"):
        state, words = JobState.PENDING, ("is being deleted",)
    else:
        again = f"failed {counted(restarts, 'time')}, and is tried again" if restarts else ""
        waits = "is suspended" if deployment == "Suspended" else _waiting(view, nodes)
        words = ("" if state is JobState.RUNNING else waits, again, why)
    return JobStatus(state, nodes, "; ".join(filter(None, words)), None, restarts)


def _scaling(status: Mapping[str, Any]) -> Iterator[str]:
    if failed := lenient.count(status.get("consecutiveScalingFailures")):
        yield f"{failed} scale events in a row failed"
    if status.get("isFaultyPodScaleDown") is True:
        yield "scales down without the faulty pods"


def target_nodes(job: object) -> int | None:
    """Return the nodes that the operator scales a job to, over all replica specs; None if it has no target.

    A spec of fixed size without a target counts with its own number.

    Source: HyperPodPyTorchJob, status.elasticScalingStatus.targetReplicas: replica spec to number.
    """
    targets = lenient.mapping(job, "status", "elasticScalingStatus", "targetReplicas")
    named: dict[str, int] = {name: count for name, count in targets.items() if lenient.is_count(count)}
    if not named:
        return None
    parts = lenient.mappings(lenient.mapping(job, "spec").get("replicaSpecs"))
    fixed = [part for part in parts if part.get("maxReplicas") is None and part.get("name") not in named]
    return sum(named.values()) + sum(lenient.count(part.get("replicas")) for part in fixed)


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
        yield f"{name} is {start_of(json.dumps(value, default=str), _LONGEST_VALUE)}"


def _is_conditions(value: object) -> bool:
    return isinstance(value, list) and all(
        isinstance(each, Mapping) and isinstance(each.get("type"), str) and isinstance(each.get("status"), str)
        for each in value
    )


def _is_mapping(value: object) -> bool:
    return isinstance(value, Mapping)


_TYPES: dict[tuple[str, ...], Callable[[object], bool]] = {
    ("conditions",): _is_conditions,
    ("restartCount",): lenient.is_count,
    ("latestFaultyPodInstanceList",): _is_mapping,
    ("elasticScalingStatus",): _is_mapping,
    ("elasticScalingStatus", "targetReplicas"): lambda value: (
        isinstance(value, Mapping) and all(map(lenient.is_count, value.values()))
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
    if pending := _in_phase(view.pods, "Pending"):
        return f"waits for {len(pending)} pods to start"
    if nodes:
        return f"pods run on {nodes} nodes; the workers are starting"
    return "waits for the operator to create its pods"


def _queued(view: View) -> str | None:
    """Return Kueue's message about a job that it has not admitted."""
    queue = lenient.text(lenient.mapping(view.job, "metadata", "labels").get(QUEUE_LABEL))
    if not queue:
        return "is suspended" if lenient.mapping(view.job, "spec", "runPolicy").get("suspend") is True else None
    waiting = [each for each in view.workloads if "Admitted" not in lenient.conditions(each)]
    for workload in waiting:
        if condition := lenient.conditions(workload, "False").get("QuotaReserved"):
            return f"waits for quota in queue {queue}: {lenient.text(condition.get('message')).rstrip('.')}"
    return f"waits in queue {queue} for admission" if waiting or not view.pods else None


def _obstacles(pods: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yield the lasting reasons why pods do not run, each once."""
    for words, count in Counter(filter(None, map(_obstacle, pods))).items():
        yield f"{words} ({count} of {len(pods)} pods)"


def _obstacle(pod: Mapping[str, Any]) -> str | None:
    for container in containers(pod):
        if found := obstacle(container):
            what = "has pods that cannot start"
            if found[0] in _IMAGE_REASONS:
                what = f"waits for image {lenient.text(container.get('image'))}"
            return f"{what}: {' '.join(found)}".strip().rstrip(".")
    if phase(pod) == "Pending" and (condition := unscheduled(pod)):
        why = lenient.text(condition.get("message")) or lenient.text(condition.get("reason"))
        return f"waits for nodes: {why}".rstrip(".")
    return None


def _reason(condition: Mapping[str, Any]) -> str:
    return ": ".join(filter(None, (lenient.text(condition.get(key)) for key in ("reason", "message"))))
