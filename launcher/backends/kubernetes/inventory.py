"""All training jobs of a cluster, regardless of who submitted them and from where."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from launcher.backends.kubernetes import api_objects, job_status, job_watch, lenient
from launcher.backends.kubernetes.api_errors import ApiError, problem
from launcher.backends.kubernetes.connection import METADATA_ONLY, Connection
from launcher.backends.kubernetes.target import Target, own_pods
from launcher.common.problems import ProblemsFound, fail
from launcher.common.redaction import masked
from launcher.common.syntax import is_dns_label, is_dns_subdomain
from launcher.model.cluster_view import ClusterJob

_INVALID_NAME = "is not a valid Kubernetes name"
ACCELERATORS = ("nvidia.com/gpu", "aws.amazon.com/neurondevice", "aws.amazon.com/neuron", "amd.com/gpu")
"""Extended resources that are accelerators. Source: device plugins of NVIDIA, AWS Neuron and AMD."""


def listed(connection: Connection, where: str, query: Mapping[str, object] | None = None) -> list[Mapping[str, Any]]:
    """Return the objects of a list."""
    items, _ = job_watch.listed(connection, where, query or {})
    return list(items.values())


def jobs(connection: Connection, namespace: str | None) -> tuple[ClusterJob, ...]:
    """Return the jobs of a namespace, or (None) of all, oldest first.

    Raises:
        ProblemsFound: No kind of job may be listed, or the cluster has none.
    """
    found = [each for kind in _kinds(connection, namespace) for each in kind]
    pods: list[Mapping[str, Any]] | None = None
    try:
        pods = listed(connection, api_objects.path("Pod", namespace)) if found else []
    except ApiError as error:
        if error.status != 403:  # without them the jobs are listed, but not their nodes
            raise
    seen = [_read(job, pods) for job in found]
    return tuple(sorted(seen, key=lambda job: (job.created_s, job.namespace, job.name)))


def require_namespace(connection: Connection, namespace: str) -> None:
    """Raise a Problem if a namespace does not exist: its lists are empty. One that may not be read may exist.

    Raises:
        ProblemsFound: It does not exist (E345).
    """
    try:
        connection.get(api_objects.path("Namespace", "", namespace), accept=METADATA_ONLY)
    except ApiError as error:
        if error.status == 404:
            raise fail("E345", "--namespace", error.message, value=namespace) from error


def _kinds(connection: Connection, namespace: str | None) -> list[list[Mapping[str, Any]]]:
    """Return the custom resources of each kind that the cluster has and that may be listed."""
    lists: list[list[Mapping[str, Any]]] = []
    refusals, num_absent = [], 0
    for kind in api_objects.JOB_KINDS:
        try:
            items = listed(connection, api_objects.path(kind, namespace))
            lists.append([{**item, "kind": kind} for item in items])
        except ApiError as error:
            if error.status == 404:
                num_absent += 1
            elif error.status == 403:
                refusals.append(problem(error, "--namespace", value=namespace))
            else:
                raise
    if num_absent == len(api_objects.JOB_KINDS):
        kinds = " nor ".join(api_objects.JOB_KINDS)
        raise fail("E346", "--context", f"the cluster has neither {kinds}", value=connection.context)
    if not lists:
        raise ProblemsFound(tuple(refusals))
    return lists


def _read(job: Mapping[str, Any], pods: list[Mapping[str, Any]] | None) -> ClusterJob:
    """Return a job for the list; an unreadable status does not make the list fail."""
    metadata = job["metadata"]
    annotations = metadata.get("annotations") or {}
    state, nodes, message = None, None, ""
    try:
        target = Target.of(job, metadata["uid"])
        near = [pod for pod in pods or () if pod["metadata"]["namespace"] == target.namespace]
        seen = job_status.read(job_status.View(job, own_pods(near, target, job)))
        state, nodes, message = seen.state, seen.nodes if pods is not None else None, seen.message
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        message = f"its status cannot be read: {error!r}"
    return ClusterJob(
        metadata["namespace"],
        metadata["name"],
        job["kind"],
        lenient.text(annotations.get(api_objects.USER)) or None,
        state,
        nodes,
        datetime.fromisoformat(metadata["creationTimestamp"]).timestamp(),
        masked(message),
    )


def find(connection: Connection, namespace: str, name: str, kind: str | None) -> Mapping[str, Any]:
    """Return the custom resource of a job; `kind` is None if only one kind has that name.

    Raises:
        ProblemsFound: No such job exists, or one of each kind does.
    """
    check_job_name(name)
    found, refusals = [], []
    for each in (kind,) if kind else api_objects.JOB_KINDS:
        try:
            found.append({**connection.get(api_objects.path(each, namespace, name)), "kind": each})
        except ApiError as error:
            if error.status != 404:
                refusals.append(problem(error, "--namespace", value=namespace))
    if len(found) == 1:
        return found[0]
    if found:
        allowed = ", ".join(api_objects.JOB_KINDS)
        raise fail(
            "E386", "JOB", "there is a job of each kind with this name", value=name, allowed=allowed, remedy="--kind"
        )
    if refusals:
        raise ProblemsFound(tuple(dict.fromkeys(refusals)))
    remedy = "recipes jobs --cluster --all-namespaces lists them"
    raise fail("E386", "JOB", f"the namespace {namespace} has no such job", value=name, remedy=remedy)


def check_name(name: str, what: str) -> None:
    """Raise a Problem if a name from the command line is not valid in the API.

    Raises:
        ProblemsFound: It is not a DNS label.
    """
    if not is_dns_label(name):
        allowed = "lower-case letters, digits and -, at most 63"
        raise fail("E386", what, _INVALID_NAME, value=name, allowed=allowed)


def check_job_name(name: str) -> None:
    """Raise a Problem if no job can have a name; other programs' jobs may have dots in theirs.

    Raises:
        ProblemsFound: It is not a DNS subdomain.
    """
    if not is_dns_subdomain(name):
        allowed = "lower-case letters, digits, - and ., at most 253"
        raise fail("E386", "JOB", _INVALID_NAME, value=name, allowed=allowed)


def outline(job: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parts of a job that later commands need: its sizes and its pods' labels, not what the pods run."""
    spec, metadata = job["spec"], job["metadata"]
    kept = {key: spec[key] for key in ("elasticPolicy",) if key in spec}
    if "pytorchReplicaSpecs" in spec:
        kept["pytorchReplicaSpecs"] = {name: _part(part) for name, part in spec["pytorchReplicaSpecs"].items()}
    else:
        kept["replicaSpecs"] = [{"name": part["name"], **_part(part)} for part in spec["replicaSpecs"]]
    kept["nprocPerNode"] = _processes(spec)
    names = {key: metadata[key] for key in ("name", "namespace", "uid")}
    return {"apiVersion": job["apiVersion"], "kind": job["kind"], "metadata": names, "spec": kept}


def _part(part: Mapping[str, Any]) -> dict[str, Any]:
    labels = (part["template"].get("metadata") or {}).get("labels") or {}
    counts = {key: part[key] for key in ("replicas", "maxReplicas") if key in part}
    return {**counts, "template": {"metadata": {"labels": dict(labels)}}}


def _processes(spec: Mapping[str, Any]) -> str:
    """Return a pod's number of processes; `auto` and `gpu` mean one for each accelerator."""
    given = str(spec.get("nprocPerNode", "auto"))
    if given.isdigit():
        return given
    template = next(iter(api_objects.pod_templates({"spec": spec})), None)
    container = next(iter(lenient.mappings(lenient.mapping(template, "spec").get("containers"))), None)
    limits = lenient.mapping(container, "resources", "limits")
    return next((str(limits[name]) for name in ACCELERATORS if name in limits), "1")
