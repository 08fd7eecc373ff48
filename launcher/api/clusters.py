"""Clusters as they are, whoever uses them: capacity, jobs, and adopting a job that was launched elsewhere."""

from collections.abc import Iterable
from pathlib import Path

from launcher.api.job import Job
from launcher.bundle.store import RESULTS
from launcher.common.problems import Notice
from launcher.job_store import registry
from launcher.job_store.registry import JobRecord
from launcher.model import backend_registry
from launcher.model.capabilities import Cluster
from launcher.model.cluster_view import Capacity, ClusterJob, JobPod, Node

__all__ = ["Capacity", "ClusterJob", "JobPod", "Node", "adopt", "connect", "unknown_instances"]


def connect(context: str | None = None) -> Cluster:
    """Return a cluster by its name; None for the current one.

    Raises:
        ProblemsFound: No such cluster is known.
    """
    return backend_registry.clusters().connect(context)


def unknown_instances(nodes: Iterable[Node]) -> tuple[Notice, ...]:
    """Return a notice if nodes with accelerators are of instance types that the table lacks."""
    from launcher.rules import hardware

    return tuple(hardware.unknown_nodes(node.instance for node in nodes if node.resource))


def adopt(name: str, context: str | None, namespace: str | None, kind: str | None, alias: str | None) -> Job:
    """Return a job that was launched elsewhere; it gets a record below `results`, but no bundle.

    Args:
        name: Its name on the cluster.
        kind: Of its resource, if several have the name.
        alias: Name of its folder; None for its own.

    Raises:
        ProblemsFound: No such job exists, a name or kind is not valid, or the folder is taken (E714).
    """
    backend_registry.clusters().check_adoption(name, kind, alias)
    folder = Path(RESULTS, alias or name)
    found = connect(context).find_job(name, kind, namespace, folder)
    record = JobRecord(found.handle, found.digest, found.created, found.user)
    return Job(folder.absolute(), str(folder), registry.adopt(folder, record, found.outline))
