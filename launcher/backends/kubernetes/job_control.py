"""Changes to a job on the cluster: scaling, cancelling, and clearing what a finished one left."""

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from launcher.backends.kubernetes import api_objects
from launcher.backends.kubernetes.api_errors import ApiError, api_errors_as_problems
from launcher.backends.kubernetes.connection import Connection, pause_s
from launcher.backends.kubernetes.job_watch import current_status, read_objects, read_status
from launcher.backends.kubernetes.target import Target
from launcher.common.problems import fail
from launcher.model.following import Clock, ended, refuse_unplanned_sizes, until

_ATTEMPTS = 8
_MARGIN_S = 300.0
"""Time beyond their grace period that the pods of a cancelled job may take to disappear, for a kubelet that is slow
to kill and report. Our own choice."""


def scale(
    connection: Connection, target: Target, planned: Mapping[str, Any], min_nodes: int | None, num_nodes: int
) -> None:
    """Change the size bounds that a job's operator follows.

    Args:
        planned: The custom resource as it was rendered, with every size of the plan.
        min_nodes: None for the plan's smallest size.

    Raises:
        ProblemsFound: The job does not run, is not elastic, or has no such size.
    """
    sizes = planned_sizes(planned)
    min_nodes = min_nodes or sizes[0]
    refuse_unplanned_sizes(sizes, nodes=num_nodes, min_nodes=min_nodes)
    if min_nodes > num_nodes:
        allowed = f"at most {num_nodes}"
        raise fail("E413", "min_nodes", "is more than nodes", value=min_nodes, allowed=allowed)
    for attempt in range(_ATTEMPTS):
        job = _running(connection, target)
        patch = {
            "metadata": {"resourceVersion": job["metadata"]["resourceVersion"]},
            "spec": _resized(planned["spec"], job["spec"], min_nodes, num_nodes),
        }
        with api_errors_as_problems("nodes", value=num_nodes):
            try:
                connection.merge(target.path, patch, f"{api_objects.MANAGER}-scale")
                return
            except ApiError as error:
                if error.status != 409:
                    raise
        connection.stop.wait(pause_s(attempt))  # the operator has changed the job meanwhile
    raise fail("E351", "nodes", "the job changes too often to be scaled; try again", value=num_nodes)


def planned_sizes(planned: Mapping[str, Any]) -> Sequence[int]:
    """Return every size that a job may have.

    Raises:
        ProblemsFound: Its size is fixed, or it was launched elsewhere and names no sizes (E413).
    """
    policy = planned["spec"].get("elasticPolicy")
    if policy is None:
        raise fail("E413", "nodes", "this job is not elastic, its size is fixed")
    if values := policy.get("replicaDiscreteValues"):
        return sorted(values)
    most = policy.get("maxReplicas") or 0
    sizes = range(policy.get("minReplicas") or 1, most + 1, policy.get("replicaIncrementStep") or 1)
    if not sizes:
        raise fail("E413", "nodes", "the job's elasticPolicy names no sizes")
    return sizes


def _resized(planned: Mapping[str, Any], now: Mapping[str, Any], min_nodes: int, num_nodes: int) -> dict[str, Any]:
    """Return the part of a spec that bounds a job's size, with counts that add up to the new size."""
    policy: dict[str, Any] = {"minReplicas": min_nodes, "maxReplicas": num_nodes}
    if values := planned["elasticPolicy"].get("replicaDiscreteValues"):
        policy["replicaDiscreteValues"] = [value for value in values if min_nodes <= value <= num_nodes]
    least, left, parts = min_nodes, num_nodes, []
    for part in now["replicaSpecs"]:
        if "maxReplicas" in part:
            part = {**part, "maxReplicas": left, "replicas": min(max(part.get("replicas", 0), least), left)}
        left -= part.get("maxReplicas", part.get("replicas", 0))
        least -= part.get("replicas", 0)
        parts.append(part)
    return {"elasticPolicy": policy, "replicaSpecs": parts}


def _running(connection: Connection, target: Target) -> Mapping[str, Any]:
    with api_errors_as_problems(value=target.namespace):
        job, pods = read_objects(connection, target)
        if job is None:
            raise fail("E412", "job", "no longer exists", value=target.name)
        seen = current_status(connection, target, job, pods)
    if seen.state.is_final:
        raise ended(seen, target.name)
    return job


def cancel(connection: Connection, target: Target, others: Sequence[api_objects.Manifest]) -> None:
    """Delete a running job and its other objects; return when none of its pods is left.

    A target without a uid represents the objects of a launch that was killed before it created the job.

    Raises:
        ProblemsFound: The API refuses, or pods do not terminate.
    """
    with api_errors_as_problems(value=target.namespace):
        job, pods = read_objects(connection, target)
        seen = current_status(connection, target, job, pods)
        if target.uid and seen.state.is_final:
            return
        if target.uid:
            connection.delete(target.path, target.uid)
        for manifest in others:
            _remove(connection, manifest)

        def is_gone() -> bool:
            nonlocal seen
            seen = read_status(connection, target)
            return seen.state.is_final and not seen.nodes

        grace_s = max((float(pod["spec"].get("terminationGracePeriodSeconds") or 0) for pod in pods), default=0.0)
        if not _await(connection, is_gone, grace_s + _MARGIN_S):
            raise fail("E353", "job", f"was deleted, but {seen.nodes} of its pods still run", value=target.name)


def clear(connection: Connection, target: Target, manifests: Sequence[api_objects.Manifest]) -> None:
    """Delete the objects of a finished job, and return when none of them exists.

    Args:
        target: The job; without a uid if it is already deleted.
        manifests: All objects of its bundle, the job last.

    Raises:
        ProblemsFound: The API refuses, or an object still exists (E353).
    """
    with api_errors_as_problems(value=target.namespace):
        found = connection.find(target.path)
        if found and found["metadata"]["uid"] != target.uid:  # a later job, which owns the other objects now
            return
        if found:
            connection.delete(target.path, target.uid)
        for manifest in manifests[:-1]:
            _remove(connection, manifest)
        left = list(manifests)

        def are_gone() -> bool:
            while left and not ((there := connection.find(left[0].path)) and left[0].is_origin_of(there)):
                left.pop(0)
            return not left

        if not _await(connection, are_gone, _MARGIN_S):
            raise fail("E353", "job", f"{left[0]} was deleted but still exists", value=left[0].name)


def _await(connection: Connection, is_done: Callable[[], bool], patience_s: float) -> bool:
    """Wait until a condition holds, with growing pauses; return False if it does not in time."""
    return until(is_done, patience_s, map(pause_s, itertools.count(1)), Clock(sleep=connection.stop.wait))


def _remove(connection: Connection, manifest: api_objects.Manifest) -> None:
    """Delete an object of this bundle; the cluster deletes it too once its owner, the job, is deleted."""
    found = connection.find(manifest.path, is_sure=False)
    if found and manifest.is_origin_of(found):
        connection.delete(manifest.path, found["metadata"]["uid"])
