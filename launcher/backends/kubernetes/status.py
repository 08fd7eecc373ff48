"""What the operator, Kueue and the kubelets say of a job, as one state and a few words. Pure."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from launcher.backends.kubernetes.pods import failures
from launcher.specs import JobState, JobStatus

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
    """Return a job's status."""
    nodes = len([pod for pod in view.pods if _phase(pod) == "Running"])
    if view.job is None:
        return JobStatus(JobState.GONE, nodes, "the cluster does not have it any more")
    status = view.job.get("status") or {}
    held = {each["type"]: each for each in status.get("conditions") or () if each["status"] == "True"}
    name, state = next(((name, state) for name, state in STATES if name in held), ("", JobState.PENDING))
    extras = {
        "restarts": status.get("restartCount") or 0,
        "faulty_nodes": tuple(status.get("latestFaultyPodInstanceList") or ()),
    }
    if view.job["metadata"].get("deletionTimestamp"):
        return JobStatus(JobState.PENDING, nodes, "is being removed", **extras)
    if state.is_final:
        why = failures(view.pods) if state is JobState.FAILED else ()
        return JobStatus(state, nodes, "; ".join((_said(held[name]), *why)), **extras)
    if state is JobState.PENDING:
        return JobStatus(state, nodes, "; ".join((_waiting(view, nodes), *_faults(extras))), **extras)
    return _running(view, nodes, extras)


def _running(view: View, nodes: int, extras: dict[str, Any]) -> JobStatus:
    scaling = (view.job or {}).get("status", {}).get("elasticScalingStatus") or {}
    target = scaling.get("targetReplicas") or nodes
    words = list(_faults(extras))
    if target == nodes:
        return JobStatus(JobState.RUNNING, nodes, "; ".join(words), **extras)
    if failures := scaling.get("consecutiveScalingFailures"):
        words.append(f"{failures} scalings in a row failed")
    if scaling.get("isFaultyPodScaleDown"):
        words.append("leaves faulty pods behind")
    if target > nodes and (not _has_all_pods(view, target) or any(_obstacles(view.pods))):
        words.insert(0, f"asks for {target} nodes and {_waiting(view, nodes)}")
        return JobStatus(JobState.RUNNING, nodes, "; ".join(words), target, **extras)
    words.insert(0, f"scales from {nodes} to {target} nodes")
    return JobStatus(JobState.SCALING, nodes, "; ".join(words), target, **extras)


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
    """Return what Kueue says of a job that it has not admitted."""
    job = view.job or {}
    queue = (job["metadata"].get("labels") or {}).get(QUEUE_LABEL)
    if not queue:
        return "is suspended" if (job["spec"].get("runPolicy") or {}).get("suspend") else None
    waiting = [each for each in view.workloads if not _holds(each, "Admitted")]
    for workload in waiting:
        for condition in (workload.get("status") or {}).get("conditions") or ():
            if condition["type"] == "QuotaReserved" and condition["status"] == "False":
                return f"waits for quota in queue {queue}: {condition.get('message', '').rstrip('.')}"
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
    status = pod.get("status") or {}
    for container in (*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ())):
        waiting = container.get("state", {}).get("waiting")
        if waiting and waiting.get("reason") not in (None, *_STARTING):
            reason, message = waiting["reason"], waiting.get("message") or ""
            is_image = reason in _IMAGE_REASONS
            what = f"waits for image {container['image']}" if is_image else "has pods that cannot start"
            return f"{what}: {reason} {message}".strip().rstrip(".")
    for condition in status.get("conditions") or ():
        if condition["type"] == "PodScheduled" and condition["status"] == "False" and _phase(pod) == "Pending":
            return f"waits for nodes: {condition.get('message') or condition.get('reason')}".rstrip(".")
    return None


def _holds(resource: Mapping[str, Any], kind: str) -> bool:
    conditions = (resource.get("status") or {}).get("conditions") or ()
    return any(each["type"] == kind and each["status"] == "True" for each in conditions)


def _said(condition: Mapping[str, Any]) -> str:
    return ": ".join(filter(None, (condition.get("reason"), condition.get("message"))))


def _phase(pod: Mapping[str, Any]) -> str:
    return (pod.get("status") or {}).get("phase") or "Pending"
