"""Changes to a job on the cluster: scaling, cancelling, and clearing what a finished one left."""

from collections.abc import Mapping, Sequence
from typing import Any

from launcher.backends.kubernetes import api_objects
from launcher.backends.kubernetes.api_errors import ApiError, Unreachable, problem
from launcher.backends.kubernetes.connection import Connection, pause_s
from launcher.backends.kubernetes.job_watch import current_status, read_objects, read_status
from launcher.backends.kubernetes.preflight import digest_of
from launcher.backends.kubernetes.target import Target
from launcher.common.problems import Problem, ProblemsFound, fail

_ATTEMPTS = 8
_MARGIN_S = 300.0
"""Time beyond their grace period that the pods of a cancelled job may take to disappear, for a kubelet that is slow
to kill and report. Our own choice."""


def scale(connection: Connection, target: Target, planned: Mapping[str, Any], bounds: tuple[int | None, int]) -> None:
    """Change the size bounds that a job's operator follows.

    Args:
        connection: The cluster.
        target: The job.
        planned: The custom resource as it was rendered, with every size of the plan.
        bounds: Minimum and maximum nodes, sizes of the plan; a minimum of None is the smallest.

    Raises:
        ProblemsFound: The job does not run, is not elastic, or has no such size.
    """
    sizes = planned_sizes(planned)
    min_nodes, num_nodes = bounds[0] or sizes[0], bounds[1]
    _check_sizes(sizes, min_nodes, num_nodes)
    for attempt in range(_ATTEMPTS):
        job = _running(connection, target)
        patch = {
            "metadata": {"resourceVersion": job["metadata"]["resourceVersion"]},
            "spec": _resized(planned["spec"], job["spec"], min_nodes, num_nodes),
        }
        try:
            connection.merge(target.path, patch, f"{api_objects.MANAGER}-scale")
        except ApiError as error:
            if error.status != 409:
                raise ProblemsFound((problem(error, "nodes", value=num_nodes),)) from error
            connection.stop.wait(pause_s(attempt))  # the operator has changed the job meanwhile
        except Unreachable as error:
            raise ProblemsFound((problem(error, "nodes", value=num_nodes),)) from error
        else:
            return
    raise fail("E351", "nodes", "the job changes too often to be scaled; try again", value=num_nodes)


def _check_sizes(sizes: Sequence[int], min_nodes: int, num_nodes: int) -> None:
    allowed = ", ".join(map(str, sizes))
    asked = {"nodes": num_nodes, "min_nodes": min_nodes}
    wrong = [
        Problem("E413", name, "is not a size of this job's plan", value=size, allowed=allowed)
        for name, size in asked.items()
        if size not in sizes
    ]
    if not wrong and min_nodes > num_nodes:
        wrong = [Problem("E413", "min_nodes", "is more than nodes", value=min_nodes, allowed=f"at most {num_nodes}")]
    if wrong:
        raise ProblemsFound(tuple(wrong))


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
    try:
        job, pods = read_objects(connection, target)
        if job is None:
            raise fail("E412", "job", "no longer exists", value=target.name)
        seen = current_status(connection, target, job, pods)
    except ApiError as error:
        raise ProblemsFound((problem(error, "cluster.namespace", value=target.namespace),)) from error
    except Unreachable as error:
        raise ProblemsFound((problem(error, "cluster.kube_context"),)) from error
    if seen.state.is_final:
        raise fail("E412", "job", f"is not running: {seen.message}", value=target.name)
    return job


def cancel(connection: Connection, target: Target, others: Sequence[api_objects.Manifest]) -> None:
    """Delete a running job and its other objects; return when none of its pods is left.

    A target without a uid represents the objects of a launch that was killed before it created the job.

    Raises:
        ProblemsFound: The API refuses, or pods do not terminate.
    """
    try:
        job, pods = read_objects(connection, target)
        if target.uid and current_status(connection, target, job, pods).state.is_final:
            return
        if target.uid:
            connection.delete(target.path, target.uid)
        for manifest in others:
            _remove(connection, manifest)
        _await_end(connection, target, _grace_period_s(pods) + _MARGIN_S)
    except (ApiError, Unreachable) as error:
        raise ProblemsFound((problem(error, "cluster.namespace", value=target.namespace),)) from error


def clear(connection: Connection, target: Target, manifests: Sequence[api_objects.Manifest]) -> None:
    """Delete the objects of a finished job, and return when none of them exists.

    Args:
        connection: The cluster.
        target: The job; without a uid if it is already deleted.
        manifests: All objects of its bundle, the job last.

    Raises:
        ProblemsFound: The API refuses, or an object still exists (E353).
    """
    try:
        found = connection.find(target.path)
        if found and found["metadata"]["uid"] != target.uid:  # a later job, which owns the other objects now
            return
        if found:
            connection.delete(target.path, target.uid)
        for manifest in manifests[:-1]:
            _remove(connection, manifest)
        for manifest in manifests:
            _await_removal(connection, manifest)
    except (ApiError, Unreachable) as error:
        raise ProblemsFound((problem(error, "cluster.namespace", value=target.namespace),)) from error


def _await_removal(connection: Connection, manifest: api_objects.Manifest) -> None:
    waited_s, attempt = 0.0, 0
    while (found := connection.find(manifest.path)) and digest_of(found) == manifest.digest:
        if waited_s > _MARGIN_S:
            raise fail("E353", "job", f"{manifest} was deleted but still exists", value=manifest.name)
        attempt += 1
        pause = pause_s(attempt)
        connection.stop.wait(pause)
        waited_s += pause


def _remove(connection: Connection, manifest: api_objects.Manifest) -> None:
    """Delete an object of this bundle; the cluster deletes it too once its owner, the job, is deleted."""
    try:
        found = connection.get(manifest.path)
    except ApiError as error:
        if error.status == 404:
            return
        raise
    if digest_of(found) == manifest.digest:
        connection.delete(manifest.path, found["metadata"]["uid"])


def _grace_period_s(pods: Sequence[Mapping[str, Any]]) -> float:
    """Return the longest grace period of the pods."""
    return max((float(pod["spec"].get("terminationGracePeriodSeconds") or 0) for pod in pods), default=0.0)


def _await_end(connection: Connection, target: Target, patience_s: float) -> None:
    waited_s, attempt = 0.0, 0
    while (seen := read_status(connection, target)).nodes or not seen.state.is_final:
        if waited_s > patience_s:
            raise fail("E353", "job", f"was deleted, but {seen.nodes} of its pods still run", value=target.name)
        attempt += 1
        pause = pause_s(attempt)
        connection.stop.wait(pause)
        waited_s += pause
