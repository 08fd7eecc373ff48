"""Clusters apart from the jobs that were submitted from here: capacity, all jobs, and what a team's objects need."""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from launcher.backends.kubernetes import api_objects, capacity, governance_preflight, inventory, lenient, server
from launcher.backends.kubernetes.api_errors import api_errors_as_problems
from launcher.backends.kubernetes.connection import Connection, connect
from launcher.common import console
from launcher.common.problems import Problem, fail
from launcher.model.cluster_view import AdoptedJob, Capacity, ClusterJob
from launcher.model.job_spec import JobHandle


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
        """Return the version of Kueue's API that the cluster and this program have in common."""
        return governance_preflight.kueue_version(self._connection, known, given)

    def lacks(self, objects: Iterable[Mapping[str, Any]]) -> Iterator[Problem]:
        """Yield a Problem for a missing kind of admission policy, and for each missing Topology."""
        return governance_preflight.problems(self._connection, objects)

    def existing(self, objects: Iterable[Mapping[str, Any]]) -> tuple[Mapping[str, Any], ...]:
        """Return priority classes, flavors and topologies with the names of a team's own."""
        return governance_preflight.existing(self._connection, objects)

    def _namespace(self, namespace: str | None) -> str:
        if namespace is None:
            return inventory.default_namespace(self.context)
        inventory.check_name(namespace, "--namespace")
        return namespace

    @contextmanager
    def _reading(self) -> Iterator[None]:
        waiting = console.while_waiting(f"reading from {self._connection.host} …")
        with api_errors_as_problems("--namespace"), waiting:
            yield


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
