"""Capacity of a cluster: nodes and their accelerators, quotas, and the workloads in the queues.

Parts that the user may not read are left out, and a notice names the missing permission.
"""

import itertools
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime
from fractions import Fraction
from typing import Any

from launcher.backends.kubernetes import api_objects, lenient
from launcher.backends.kubernetes.api_errors import ApiError
from launcher.backends.kubernetes.connection import Connection
from launcher.backends.kubernetes.job_watch import objects
from launcher.backends.kubernetes.preflight import kueue_version
from launcher.common.problems import Notice
from launcher.common.quantities import UnreadableQuantity
from launcher.governance.quotas import per_pod
from launcher.model.cluster_view import Capacity, Node, QuotaUse, Waiting
from launcher.model.instances import INSTANCE_LABELS

ACCELERATORS = ("nvidia.com/gpu", "aws.amazon.com/neurondevice", "aws.amazon.com/neuron", "amd.com/gpu")
"""Extended resources that are accelerators. Source: device plugins of NVIDIA, AWS Neuron and AMD."""

_HEALTH = (
    "sagemaker.amazonaws.com/node-health-status",
    "sagemaker.amazonaws.com/deep-health-check-status",
    "sagemaker.amazonaws.com/fault-types",
)
"""Source: AWS, SageMaker HyperPod resiliency, Kubernetes labels of nodes."""

_RUNNABLE = "status.phase!=Succeeded,status.phase!=Failed"
_VISIBILITY = "/apis/visibility.kueue.x-k8s.io"
"""Kueue's own API for the order of pending workloads, which not every cluster serves."""


def read(connection: Connection, namespace: str) -> Capacity:
    """Return the capacity of a cluster, as far as it may be read.

    Args:
        namespace: Namespace whose queues are read if those of all may not be listed.

    Raises:
        ApiError: The API refuses for a reason other than a missing permission.
    """
    reader = _Reader(connection)
    nodes = reader.nodes()
    version = kueue_version(connection)
    if version is None:
        return Capacity(nodes, None, None, has_kueue=False, notices=tuple(reader.notices))
    cluster_queues = reader.listed("ClusterQueue", None, version)
    local_queues = reader.everywhere_or_in(namespace, "LocalQueue", version)
    workloads = reader.everywhere_or_in(namespace, "Workload", version)
    quotas = [*_of_cluster_queues(cluster_queues or ()), *_of_local_queues(local_queues or ())]
    waiting = None if workloads is None else _ordered(workloads, local_queues or ())
    if waiting and cluster_queues:
        waiting = reader.placed(waiting, [queue["metadata"]["name"] for queue in cluster_queues])
    is_read = cluster_queues is not None or local_queues is not None
    return Capacity(nodes, tuple(quotas) if is_read else None, waiting, True, tuple(reader.notices))


_LISTS = {
    "Node": "the nodes",
    "Pod": "the number of free accelerators",
    "ClusterQueue": "the quotas of ClusterQueues",
    "LocalQueue": "LocalQueues",
    "Workload": "pending workloads",
}
"""Kind to what cannot be shown without its list."""


@dataclass(slots=True)
class _Reader:
    """Reads lists, and collects a notice for each that may not be read."""

    connection: Connection
    notices: list[Notice] = field(default_factory=list)

    def nodes(self) -> tuple[Node, ...] | None:
        nodes = self.listed("Node")
        if nodes is None:
            return None
        pods = self.listed("Pod", query={"fieldSelector": _RUNNABLE})
        used = None if pods is None else _used(pods)
        return tuple(_node(node, used) for node in sorted(nodes, key=lambda node: node["metadata"]["name"]))

    def listed(
        self, kind: str, namespace: str | None = None, version: str = "", query: Mapping[str, object] | None = None
    ) -> list[Mapping[str, Any]] | None:
        where = api_objects.path(kind, namespace, version=version)
        try:
            return objects(self.connection, where, query)
        except ApiError as error:
            if error.status not in (403, 404):
                raise
        role = "a ClusterRole" if namespace is None else f"a Role in {namespace}"
        message = f"{_LISTS[kind]} cannot be shown: ask for {role} that allows list on {where.rpartition('/')[2]}"
        self.notices.append(Notice("N150", message))
        return None

    def everywhere_or_in(self, namespace: str, kind: str, version: str) -> list[Mapping[str, Any]] | None:
        """Return the list of all namespaces, or if that may not be read, of one."""
        if (found := self.listed(kind, None, version)) is not None:
            return found
        self.notices.pop()  # one notice for the kind, not one for each place
        if (found := self.listed(kind, namespace, version)) is not None:
            self.notices.append(Notice("N150", f"only the {kind}s of {namespace} are shown"))
        return found

    def placed(self, waiting: tuple[Waiting, ...], queues: Iterable[str]) -> tuple[Waiting, ...]:
        """Return waiting workloads in Kueue's own order if it serves that, else unchanged."""
        try:
            version = self.connection.get(_VISIBILITY)["preferredVersion"]["version"]
            lists = {
                queue: self.connection.get(f"{_VISIBILITY}/{version}/clusterqueues/{queue}/pendingworkloads")["items"]
                for queue in queues
            }
        except ApiError:  # not served or not readable: the order by priority and age remains
            return waiting
        places = {
            (item["metadata"]["namespace"], item["metadata"]["name"]): (queue, item["positionInClusterQueue"] + 1)
            for queue, items in lists.items()
            for item in items
        }
        placed = []
        for each in waiting:
            queue, position = places.get((each.namespace, each.workload), (each.queue, each.position))
            placed.append(replace(each, queue=queue, position=position))
        return tuple(sorted(placed, key=lambda each: (each.queue, each.position)))


def _used(pods: Iterable[Mapping[str, Any]]) -> dict[str, dict[str, Fraction]]:
    """Return the accelerators that running and starting pods use, by node and resource."""
    used: dict[str, dict[str, Fraction]] = {}
    for pod in pods:
        if node := pod["spec"].get("nodeName"):
            of_node = used.setdefault(node, {})
            with suppress(UnreadableQuantity):  # one object hides no other
                of_pod = per_pod(pod["spec"], {})
                for name in ACCELERATORS:
                    of_node[name] = of_node.get(name, Fraction()) + of_pod.get(f"requests.{name}", Fraction())
    return used


def _node(node: Mapping[str, Any], used: Mapping[str, Mapping[str, Fraction]] | None) -> Node:
    metadata, status = node["metadata"], node.get("status") or {}
    labels, allocatable = metadata.get("labels") or {}, status.get("allocatable") or {}
    resource, total = next(
        ((name, total) for name in ACCELERATORS if (total := int(lenient.quantity(allocatable.get(name, 0)))) > 0),
        (None, 0),
    )
    free: int | None = total
    if resource:
        free = None if used is None else total - int(used.get(metadata["name"], {}).get(resource, 0))
    is_cordoned = (node.get("spec") or {}).get("unschedulable")
    return Node(
        metadata["name"],
        next((labels[name] for name in reversed(INSTANCE_LABELS) if name in labels), None),
        ("Ready" if "Ready" in lenient.conditions(node) else "NotReady") + (", cordoned" if is_cordoned else ""),
        resource,
        total,
        free,
        {name.partition("/")[2]: labels[name] for name in _HEALTH if name in labels},
    )


def _of_cluster_queues(queues: Iterable[Mapping[str, Any]]) -> Iterator[QuotaUse]:
    for queue in sorted(queues, key=lambda queue: queue["metadata"]["name"]):
        used = _usage(queue)
        for group in (queue.get("spec") or {}).get("resourceGroups") or ():
            for flavor in group.get("flavors") or ():
                for resource in flavor.get("resources") or ():
                    now = used.get((flavor["name"], resource["name"]), {})
                    yield QuotaUse(
                        queue["metadata"]["name"],
                        flavor["name"],
                        resource["name"],
                        str(now.get("total", 0)),
                        str(resource["nominalQuota"]),
                        str(now.get("borrowed", 0)),
                    )


def _of_local_queues(queues: Iterable[Mapping[str, Any]]) -> Iterator[QuotaUse]:
    """Yield the usage of LocalQueues, which is a part of their ClusterQueue's."""
    for queue in sorted(queues, key=lambda queue: (queue["metadata"]["namespace"], queue["metadata"]["name"])):
        name = f"{queue['metadata']['namespace']}/{queue['metadata']['name']}"
        for (flavor, resource), now in _usage(queue).items():
            yield QuotaUse(name, flavor, resource, str(now.get("total", 0)), None, "0")


def _usage(queue: Mapping[str, Any]) -> dict[tuple[str, str], Mapping[str, Any]]:
    """Return a queue's usage by flavor and resource; in a LocalQueue of v1beta1 the field has another name."""
    status = queue.get("status") or {}
    flavors = status.get("flavorsUsage") or status.get("flavorUsage") or ()
    return {(flavor["name"], each["name"]): each for flavor in flavors for each in flavor.get("resources") or ()}


def _ordered(
    workloads: Iterable[Mapping[str, Any]], local_queues: Iterable[Mapping[str, Any]]
) -> tuple[Waiting, ...]:
    """Return the waiting workloads, in each queue by priority, then by age.

    Source: Kueue, ClusterQueue, Queueing strategy: by priority, then creation time, or that of the last eviction.
    """
    behind = {
        (queue["metadata"]["namespace"], queue["metadata"]["name"]): (queue.get("spec") or {}).get("clusterQueue")
        for queue in local_queues
    }
    found = [each for workload in workloads if (each := _waiting(workload, behind))]
    found.sort(key=lambda each: (each.queue, -each.priority, each.created_s, each.namespace, each.job))
    return tuple(
        replace(each, position=position)
        for _, of_queue in itertools.groupby(found, key=lambda each: each.queue)
        for position, each in enumerate(of_queue, 1)
    )


def _waiting(workload: Mapping[str, Any], behind: Mapping[tuple[str, str], str | None]) -> Waiting | None:
    """Return a workload as it waits; None if it has its quota, has ended, or is not active."""
    metadata, spec = workload["metadata"], workload.get("spec") or {}
    held, missing = lenient.conditions(workload), lenient.conditions(workload, "False")
    if not spec.get("active", True) or held.keys() & {"QuotaReserved", "Admitted", "Finished"}:
        return None
    local, namespace = spec.get("queueName") or "-", metadata["namespace"]
    owners = metadata.get("ownerReferences") or ()
    since = held.get("Evicted", {}).get("lastTransitionTime")
    return Waiting(
        behind.get((namespace, local)) or f"{namespace}/{local}",
        0,
        namespace,
        metadata["name"],
        owners[0]["name"] if owners else metadata["name"],
        local,
        spec.get("priority") or 0,
        datetime.fromisoformat(since or metadata["creationTimestamp"]).timestamp(),
        lenient.text(missing.get("QuotaReserved", {}).get("message")).rstrip("."),
    )
