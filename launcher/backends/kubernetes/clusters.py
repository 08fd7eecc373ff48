"""Clusters apart from the jobs that were submitted from here: capacity, all jobs, and what a team's objects need."""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from launcher.backends.kubernetes import api_objects, capacity, inventory, lenient, preflight, server
from launcher.backends.kubernetes.api_errors import RequestFailed, Unreachable, api_errors_as_problems, problem
from launcher.backends.kubernetes.connection import Connection, connect
from launcher.common import console
from launcher.common.problems import Problem, ProblemsFound, fail
from launcher.governance.cluster_wide import shared
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
            found = inventory.jobs(self._connection, where)
            if not found and where:
                inventory.require_namespace(self._connection, where)
            return where, found

    def find_job(self, name: str, kind: str | None, namespace: str | None, folder: Path) -> AdoptedJob:
        """Return a job by its custom resource; values that only its bundle has stay empty."""
        with self._reading():
            found = inventory.find(self._connection, self._namespace(namespace), name, kind)
            outline, cluster_id = inventory.outline(found), str(server.identified(self._connection))
        metadata = found["metadata"]
        annotations = metadata.get("annotations") or {}
        own = (metadata["name"], found["kind"], metadata["namespace"], self.context, metadata["uid"])
        created = datetime.fromisoformat(metadata["creationTimestamp"]).astimezone(UTC)
        return AdoptedJob(
            JobHandle(self._backend, folder.name, folder.absolute(), *own, server=cluster_id),
            annotations.get(api_objects.DIGEST, ""),
            created.isoformat(timespec="seconds"),
            lenient.text(annotations.get(api_objects.USER)) or "unknown",
            outline,
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
        inventory.check_name(name, "--namespace")
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
        inventory.check_job_name(name)
        if alias:
            inventory.check_name(alias, "--as")
