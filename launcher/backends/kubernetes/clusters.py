"""Clusters apart from the jobs that were submitted from here: capacity, all jobs, and what a team's objects need."""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from launcher.backends.kubernetes import api_objects, capacity, job_status, lenient, preflight, server
from launcher.backends.kubernetes.api_errors import (
    ApiError,
    RequestFailed,
    Unreachable,
    api_errors_as_problems,
    problem,
)
from launcher.backends.kubernetes.capacity import ACCELERATORS
from launcher.backends.kubernetes.connection import METADATA_ONLY, Connection, connect
from launcher.backends.kubernetes.job_watch import objects
from launcher.backends.kubernetes.target import Target, own_pods
from launcher.common import console
from launcher.common.problems import Problem, ProblemsFound, fail
from launcher.common.redaction import masked
from launcher.common.syntax import is_dns_label, is_dns_subdomain
from launcher.governance.cluster_wide import shared
from launcher.governance.quotas import ray_cluster
from launcher.model.cluster_view import AdoptedJob, Capacity, ClusterJob
from launcher.model.job_spec import JobHandle

_POLICY = "ValidatingAdmissionPolicy"


class KubernetesCluster:
    """A cluster behind a context of the kubeconfig."""

    def __init__(self, connection: Connection, backend: str) -> None:
        self._connection, self._backend = connection, backend

    @property
    def context(self) -> str | None:
        """The context's name; None inside the cluster."""
        return self._connection.context

    def capacity(self, namespace: str | None) -> Capacity:
        """Return nodes and their accelerators, quotas, and the workloads in the queues."""
        with self._reading():
            return capacity.read(self._connection, self._namespace(namespace))

    def jobs(self, namespace: str | None, *, is_everywhere: bool) -> tuple[str | None, tuple[ClusterJob, ...]]:
        """Return the training jobs of one namespace or of all; without any, the namespace must exist."""
        with self._reading():
            where = None if is_everywhere else self._namespace(namespace)
            found = jobs(self._connection, where)
            if not found and where:
                require_namespace(self._connection, where)
            return where, found

    def find_job(self, name: str, kind: str | None, namespace: str | None, folder: Path) -> AdoptedJob:
        """Return a job by its custom resource; values that only its bundle has stay empty."""
        with self._reading():
            found = find(self._connection, self._namespace(namespace), name, kind)
            kept, cluster_id = outline(found), str(server.identified(self._connection))
        metadata = found["metadata"]
        annotations = metadata.get("annotations") or {}
        own = (metadata["name"], found["kind"], metadata["namespace"], self.context, metadata["uid"])
        created = datetime.fromisoformat(metadata["creationTimestamp"]).astimezone(UTC)
        return AdoptedJob(
            JobHandle(self._backend, folder.name, folder.absolute(), *own, server=cluster_id),
            annotations.get(api_objects.DIGEST, ""),
            created.isoformat(timespec="seconds"),
            lenient.text(annotations.get(api_objects.USER)) or "unknown",
            kept,
        )

    def kueue_version(self, known: Iterable[str], given: str | None) -> str:
        """Return the version of Kueue's API that the cluster and this program have in common.

        Args:
            known: The versions that this program can generate.
            given: One of them; None for the cluster's preferred one, if this program knows that.

        Raises:
            ProblemsFound: The cluster has no Kueue, or none of these versions.
        """
        with api_errors_as_problems("kueue"):
            group = self._connection.find(preflight.KUEUE, is_sure=False)
        if group is None:
            remedy = "install Kueue, or use kueue=false if the task governance add-on will install it"
            raise fail("E347", "kueue", "the cluster has no Kueue", value=True, remedy=remedy)
        served = [version["version"] for version in group.get("versions", ())]
        preferred = group.get("preferredVersion", {}).get("version")
        for version in [given] if given else [preferred, *served]:
            if version in served and version in known:
                return version
        message = "is not a Kueue version of the cluster" if given else "the cluster's Kueue is not supported"
        allowed = f"of the cluster: {', '.join(served)}"
        raise fail("E347", "kueue_version", message, value=given, allowed=allowed)

    def lacks(self, objects: Iterable[Mapping[str, Any]]) -> Iterator[Problem]:
        """Yield a Problem for a missing kind of admission policy, and for each missing Topology."""
        seen = set()
        for each in objects:
            if each["kind"] == _POLICY and _POLICY not in seen:
                seen.add(_POLICY)
                yield from self._lacks_policies()
            topology = each["spec"].get("topologyName") if each["kind"] == "ResourceFlavor" else None
            if topology and topology not in seen:
                seen.add(topology)
                where = _path("Topology", topology, each["apiVersion"])
                yield from preflight.absent(self._connection, where, "topology", topology, "E347")

    def _lacks_policies(self) -> Iterator[Problem]:
        """Yield a Problem if the cluster has no admission policies. Source: Kubernetes 1.30, v1 of the API."""
        try:
            served = preflight.kinds_served(self._connection, "/apis/admissionregistration.k8s.io/v1")
        except RequestFailed as error:
            yield problem(error, "pod_security")
            return
        if _POLICY not in served:
            message = f"the cluster has no {_POLICY}, so nothing would restrict the team's pods"
            remedy = "Kubernetes 1.30, or pod_security=restricted with non-root images, or pod_security=privileged"
            yield Problem("E346", "pod_security", message, "policy", remedy=remedy)

    def existing(self, objects: Iterable[Mapping[str, Any]]) -> tuple[Mapping[str, Any], ...]:
        """Return priority classes, flavors and topologies with the names of a team's own.

        Raises:
            ProblemsFound: One cannot be read.
        """
        found, faults = [], []
        for each in shared(objects):
            kind, name = each["kind"], each["metadata"]["name"]
            try:
                if body := self._connection.find(_path(kind, name, each["apiVersion"]), is_sure=False):
                    found.append({**body, "kind": kind})
            except Unreachable as error:
                raise ProblemsFound((problem(error, "team"),)) from error
            except RequestFailed as error:
                faults.append(problem(error, "--cluster", value=f"{kind} {name}"))
        if faults:
            raise ProblemsFound(tuple(dict.fromkeys(faults)))
        return tuple(found)

    def _namespace(self, namespace: str | None) -> str:
        name = self._connection.namespace if namespace is None else namespace
        check_name(name, "--namespace")
        return name

    @contextmanager
    def _reading(self) -> Iterator[None]:
        waiting = console.while_waiting(f"reading from {self._connection.host} …")
        with api_errors_as_problems("--namespace"), waiting:
            yield


def _path(kind: str, name: str, api_version: str) -> str:
    return api_objects.path(kind, None, name, version=api_version.rpartition("/")[2])


class KubernetesClusters:
    """The clusters that a kubeconfig knows, or the one around this pod.

    Args:
        backend: Name of the backend that follows their jobs.
    """

    def __init__(self, backend: str) -> None:
        self._backend = backend

    def connect(self, context: str | None) -> KubernetesCluster:
        """Return the cluster of a context; None for the current one."""
        return KubernetesCluster(connect(context), self._backend)

    def check_adoption(self, name: str, kind: str | None, alias: str | None) -> None:
        """Raise a Problem about a kind that is not one of jobs, and about names that the API would refuse."""
        if kind not in (None, *api_objects.JOB_KINDS):
            raise fail("E386", "--kind", "is not a kind of job", value=kind, allowed=", ".join(api_objects.JOB_KINDS))
        check_name(name, "JOB", is_job=True)
        if alias:
            check_name(alias, "--as")


def jobs(connection: Connection, namespace: str | None) -> tuple[ClusterJob, ...]:
    """Return the jobs of a namespace, or (None) of all, oldest first.

    Raises:
        ProblemsFound: No kind of job may be listed, or the cluster has none.
    """
    found = [each for kind in _kinds(connection, namespace) for each in kind]
    pods: list[Mapping[str, Any]] | None = None
    try:
        pods = objects(connection, api_objects.path("Pod", namespace)) if found else []
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
            items = objects(connection, api_objects.path(kind, namespace))
            lists.append([{**item, "kind": kind} for item in items])
        except ApiError as error:
            if error.status == 404:
                num_absent += 1
            elif error.status == 403:
                refusals.append(problem(error, "--namespace", value=namespace))
            else:
                raise
    if num_absent == len(api_objects.JOB_KINDS):
        kinds = ", ".join(api_objects.JOB_KINDS)
        raise fail("E346", "--context", f"the cluster has none of {kinds}", value=connection.context)
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
    check_name(name, "JOB", is_job=True)
    found, refusals = [], []
    for each in (kind,) if kind else api_objects.JOB_KINDS:
        try:
            if body := connection.find(api_objects.path(each, namespace, name), is_sure=False):
                found.append({**body, "kind": each})
        except ApiError as error:
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


def outline(job: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parts of a job that later commands need: its sizes and its pods' labels, not what the pods run."""
    spec, metadata = job["spec"], job["metadata"]
    kept = {key: spec[key] for key in ("elasticPolicy",) if key in spec}
    if cluster := ray_cluster(job):
        kept["submitterPodTemplate"] = _part({"template": spec["submitterPodTemplate"]})["template"]
        named = [{"groupName": group["groupName"], **_part(group)} for group in cluster["workerGroupSpecs"]]
        kept["rayClusterSpec"] = {"headGroupSpec": _part(cluster["headGroupSpec"]), "workerGroupSpecs": named}
    elif "pytorchReplicaSpecs" in spec:
        kept["pytorchReplicaSpecs"] = {name: _part(part) for name, part in spec["pytorchReplicaSpecs"].items()}
    else:
        kept["replicaSpecs"] = [{"name": part["name"], **_part(part)} for part in spec["replicaSpecs"]]
    if cluster is None:
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


def check_name(name: str, what: str, *, is_job: bool = False) -> None:
    """Raise a Problem if a name from the command line is not valid in the API.

    Args:
        is_job: Whether it is that of a job, which may have dots: those of other programs do.

    Raises:
        ProblemsFound: It is not a DNS label, or for a job not a DNS subdomain.
    """
    if not (is_dns_subdomain if is_job else is_dns_label)(name):
        allowed = "lower-case letters, digits" + (", - and ., at most 253" if is_job else " and -, at most 63")
        raise fail("E386", what, "is not a valid Kubernetes name", value=name, allowed=allowed)
