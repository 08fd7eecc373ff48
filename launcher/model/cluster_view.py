"""What a cluster has, regardless of who submitted it: nodes, quotas, waiting workloads, and jobs."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from launcher.common.problems import Notice
from launcher.model.job_spec import JobHandle, JobState


@dataclass(frozen=True, slots=True)
class Node:
    """A node of a cluster.

    Args:
        instance: Its instance type; None if no label has it.
        state: Ready or NotReady, and whether it is cordoned.
        resource: Extended resource of its accelerators; None if it has none.
        accelerators: How many are allocatable.
        free: How many no pod uses; None if the cluster's pods may not be listed.
        health: HyperPod's health labels, without their prefix, to their values.
    """

    name: str
    instance: str | None
    state: str
    resource: str | None
    accelerators: int
    free: int | None
    health: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class QuotaUse:
    """Usage of a quota.

    Args:
        queue: The ClusterQueue, or the LocalQueue as namespace/name.
        flavor: The ResourceFlavor.
        used: Amount in use, as Kueue writes it.
        nominal: The quota; None for a LocalQueue, whose quota is its ClusterQueue's.
        borrowed: The part of `used` that exceeds the quota.
    """

    queue: str
    flavor: str
    resource: str
    used: str
    nominal: str | None
    borrowed: str


@dataclass(frozen=True, slots=True)
class Waiting:
    """A workload that waits for quota.

    Args:
        queue: The ClusterQueue, or the LocalQueue where that cannot be read.
        position: Its position in the queue, from 1.
        workload: Its own name.
        job: The job it belongs to.
        local_queue: The LocalQueue it was submitted to.
        priority: Its priority; higher ones come first.
        created_s: Seconds since the epoch.
        why: Why it was not admitted, as Kueue reports it.
    """

    queue: str
    position: int
    namespace: str
    workload: str
    job: str
    local_queue: str
    priority: int
    created_s: float
    why: str


@dataclass(frozen=True, slots=True)
class Capacity:
    """Capacity of a cluster; None for a part that may not be read or does not exist."""

    nodes: tuple[Node, ...] | None
    quotas: tuple[QuotaUse, ...] | None
    waiting: tuple[Waiting, ...] | None
    has_kueue: bool
    notices: tuple[Notice, ...] = ()


@dataclass(frozen=True, slots=True)
class ClusterJob:
    """A training job of a cluster.

    Args:
        kind: HyperPodPyTorchJob or PyTorchJob.
        user: Who launched it, if this launcher did; else None.
        state: None if its status cannot be read.
        nodes: Nodes it runs on now; None if its pods cannot be listed.
        created_s: Seconds since the epoch.
        message: Why it is pending, or why it ended.
    """

    namespace: str
    name: str
    kind: str
    user: str | None
    state: JobState | None
    nodes: int | None
    created_s: float
    message: str


@dataclass(frozen=True, slots=True)
class AdoptedJob:
    """A job that was launched elsewhere, as far as its cluster knows it.

    Args:
        handle: Its folder is for the caller to choose.
        digest: Digest of the bundle it comes from; "" if it has none of this launcher's.
        created: Time of its creation, ISO 8601 in UTC.
        user: Who launched it; `unknown` if not by this launcher.
        outline: The parts that later commands need, without its containers' commands and variables.
    """

    handle: JobHandle
    digest: str
    created: str
    user: str
    outline: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class JobPod:
    """A pod of a job.

    Args:
        ranks: First and last rank it runs; None if its name does not show them.
        node: None until it has one.
        phase: Pending, Running, Succeeded, Failed or Unknown.
        is_ready: Whether all its containers are.
        restarts: Of its containers.
        created_s: Seconds since the epoch.
        reason: Why it waits, restarts or failed; "" if nothing is wrong with it.
    """

    name: str
    ranks: tuple[int, int] | None
    node: str | None
    phase: str
    is_ready: bool
    restarts: int
    created_s: float
    reason: str = ""
