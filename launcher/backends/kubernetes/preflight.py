"""Why a cluster would refuse a bundle, or leave its job pending for ever: all reasons at once. Creates nothing."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from launcher.backends.kubernetes import lenient
from launcher.backends.kubernetes.api_errors import RequestFailed, problem
from launcher.backends.kubernetes.api_objects import (
    POD_KINDS,
    PRIORITY_LABEL,
    QUEUE_LABEL,
    Manifest,
    path,
    pod_templates,
)
from launcher.backends.kubernetes.connection import METADATA_ONLY, Connection
from launcher.common.problems import Notice, Problem
from launcher.governance.quotas import Demand, Quota, exceeds, limits_growth

_MOST_NAMES = 8
KUEUE = "/apis/kueue.x-k8s.io"
"""Path of Kueue's API group, whose answer lists the versions that the cluster serves."""

_OPERATORS = {
    "HyperPodPyTorchJob": "install the HyperPod training operator, 1.2 or later for elastic jobs",
    "PyTorchJob": "install the Kubeflow training operator",
    "RayJob": "install KubeRay's operator",
}
"""Source: AWS, Using elastic training in Amazon SageMaker HyperPod, Prerequisites."""


@dataclass(frozen=True, slots=True)
class Findings:
    """Result of checking a bundle against a cluster."""

    problems: tuple[Problem, ...]
    notices: tuple[Notice, ...] = ()


def examine(connection: Connection, manifests: Sequence[Manifest]) -> Findings:
    """Return every reason against submitting `manifests`, the last of which is the job."""
    job, programs = manifests[-1], [each for each in reversed(manifests) if each.kind in POD_KINDS]
    if problems := tuple(unusable_cluster(connection, job)):
        return Findings(problems)
    queue_problems, cluster_queue = queue_findings(connection, job)
    quota_problems, notices = quota_findings(connection, programs, cluster_queue)
    found = [
        *names_taken(connection, manifests),
        *missing(connection, manifests),
        *queue_problems,
        *quota_problems,
        *rights_missing(connection, manifests),
        *rejections(connection, manifests),
    ]
    return Findings(tuple(dict.fromkeys(found)), notices)


def unusable_cluster(connection: Connection, job: Manifest) -> Iterator[Problem]:
    """Yield Problems that make further checks pointless: no answer, no access, no namespace, no such kind."""
    try:
        phase = connection.get(path("Namespace", "", job.namespace)).get("status", {}).get("phase")
        if phase == "Terminating":
            yield Problem("E345", "cluster.namespace", "the namespace is being deleted", value=job.namespace)
    except RequestFailed as error:
        if error.status == 404:
            remedy = "recipes governance team=… generates a team's namespace"
            yield Problem("E345", "cluster.namespace", error.message, value=job.namespace, remedy=remedy)
        elif error.status != 403:  # a user of one namespace may lack the right to read the Namespace itself
            yield problem(error, "cluster.namespace", value=job.namespace)
            return
    version = job.body["apiVersion"]
    try:
        served = kinds_served(connection, f"/apis/{version}")
    except RequestFailed as error:
        yield problem(error, "cluster.use_hyperpod_pytorch_job")
        return
    if job.kind not in served:
        remedy = _OPERATORS[job.kind]
        message = f"the cluster has no {job.kind} ({version})"
        yield Problem("E346", "cluster.use_hyperpod_pytorch_job", message, remedy=remedy)


def kinds_served(connection: Connection, where: str) -> tuple[str, ...]:
    """Return the kinds of an API's version; none if the cluster does not serve it."""
    found = connection.find(where, is_sure=False) or {}
    return tuple(resource["kind"] for resource in found.get("resources", ()))


def names_taken(connection: Connection, manifests: Sequence[Manifest]) -> Iterator[Problem]:
    for manifest in manifests:
        found = find(connection, manifest)
        if isinstance(found, Problem):
            yield found
        elif found and found["metadata"].get("deletionTimestamp"):
            message = f"the {manifest.kind} of that name is being deleted"
            yield Problem(
                "E350", "recipes.run.name", message, value=manifest.name, remedy="try again once it is deleted"
            )
        elif found and not manifest.is_origin_of(found):
            message = f"a {manifest.kind} of that name already exists, and does not come from this bundle"
            remedy = "launch again (the name's suffix is random), or remove the old one"
            yield Problem("E350", "recipes.run.name", message, value=manifest.name, remedy=remedy)


def find(connection: Connection, manifest: Manifest, *, is_sure: bool = False) -> Mapping[str, Any] | Problem | None:
    """Return the current object, None if it does not exist, or a Problem if that is unknown.

    Args:
        is_sure: Request it twice before it counts as absent.
    """
    try:
        return connection.find(manifest.path, is_sure=is_sure)
    except RequestFailed as error:
        return problem(error, "cluster.namespace", value=manifest.namespace)


def missing(
    connection: Connection, manifests: Sequence[Manifest], kinds: Sequence[str] | None = None
) -> Iterator[Problem]:
    """Yield a Problem for each referenced object that does not exist, of some kinds or of all.

    Never reads a Secret's content.
    """
    namespace, own = manifests[-1].namespace, {(m.kind, m.name) for m in manifests}
    wanted = (each for m in manifests if m.kind in POD_KINDS for each in references(m.body))
    for kind, name, key in dict.fromkeys(wanted):
        if (kind, name) not in own and (kinds is None or kind in kinds):
            yield from absent(connection, path(kind, namespace, name), key, name, "E349")


def absent(
    connection: Connection, where: str, key: str, name: str, code: str, known: str | None = None
) -> Iterator[Problem]:
    """Yield a Problem about `key` if an object does not exist; one that the user may not read may exist.

    Args:
        where: Path of the object.
        known: Path of the list whose names are allowed.
    """
    try:
        connection.get(where, accept=METADATA_ONLY)
    except RequestFailed as error:
        if error.status == 404:
            listed = (_readable(connection, known) or {}).get("items", ()) if known else ()
            names = sorted(item["metadata"]["name"] for item in listed)
            yield Problem(code, key, error.message, value=name, allowed=", ".join(names[:_MOST_NAMES]) or None)
        elif error.status != 403:
            yield problem(error, key, value=name)


def references(job: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    """Yield kind, name and the recipe's key of each object that a job's pods need in order to start."""
    for spec in (template["spec"] for template in pod_templates(job)):
        if name := spec.get("serviceAccountName"):
            yield "ServiceAccount", name, "cluster.service_account_name"
        if name := spec.get("priorityClassName"):
            yield "PriorityClass", name, "cluster.priority_class_name"
        for secret in spec.get("imagePullSecrets") or ():
            yield "Secret", secret["name"], "cluster"
        for volume in spec.get("volumes") or ():
            if claim := volume.get("persistentVolumeClaim"):
                yield "PersistentVolumeClaim", claim["claimName"], "cluster.persistent_volume_claims"
            for source, kind, field in (("secret", "Secret", "secretName"), ("configMap", "ConfigMap", "name")):
                if (found := volume.get(source)) and not found.get("optional"):
                    yield kind, found[field], "cluster"
        for kind, name, _, variable in keys_of_variables(spec):
            yield kind, name, f"env_vars.{variable}"


def keys_of_variables(spec: Mapping[str, Any]) -> Iterator[tuple[str, str, str, str]]:
    """Yield kind, name and key of each object that a variable of a pod refers to, and the variable."""
    kinds = {"secretKeyRef": "Secret", "configMapKeyRef": "ConfigMap"}
    containers = (*(spec.get("initContainers") or ()), *spec["containers"])
    for variable in (variable for container in containers for variable in container.get("env") or ()):
        for source, given in (variable.get("valueFrom") or {}).items():
            if source in kinds and not given.get("optional"):
                yield kinds[source], given["name"], given["key"], variable["name"]


def queue_findings(connection: Connection, job: Manifest) -> tuple[list[Problem], Mapping[str, Any] | None]:
    """Return why Kueue would never admit a job, and the job's ClusterQueue if it can be read.

    Kueue or what the job's labels name is missing, or the queue is stopped.
    """
    labels = job.body["metadata"].get("labels") or {}
    queue, priority = labels.get(QUEUE_LABEL), labels.get(PRIORITY_LABEL)
    if not queue and not priority:
        return [], None
    key, value = ("queue_name", queue) if queue else ("workload_priority_class", priority)
    try:
        kueue = connection.find(KUEUE, is_sure=False)
    except RequestFailed as error:
        return [problem(error, f"cluster.{key}", value=value)], None
    if kueue is None:
        return [Problem("E347", f"cluster.{key}", "the cluster has no Kueue", value=value)], None
    version = _preferred(kueue)

    def lacking(key: str, kind: str, name: str, namespace: str = "") -> Iterator[Problem]:
        where, known = (path(kind, namespace, each, version=version) for each in (name, ""))
        return absent(connection, where, f"cluster.{key}", name, "E347", known)

    found: list[Problem] = []
    cluster_queue = inactive = None
    if queue:
        found += lacking("queue_name", "LocalQueue", queue, job.namespace)
        if local := _readable(connection, path("LocalQueue", job.namespace, queue, version=version)):
            if (stop := local["spec"].get("stopPolicy", "None")) != "None":
                message = f"the queue is stopped (stopPolicy {stop})"
                found.append(Problem("E347", "cluster.queue_name", message, value=queue))
            if inactive := lenient.conditions(local, "False").get("Active"):
                message = f"the queue accepts no jobs: {inactive.get('message')}"
                found.append(Problem("E347", "cluster.queue_name", message, value=queue))
            name = local["spec"].get("clusterQueue", "")
            found += lacking("queue_name", "ClusterQueue", name)
            cluster_queue = _readable(connection, path("ClusterQueue", "", name, version=version))
            if not inactive and (stopped := lenient.conditions(cluster_queue, "False").get("Active")):
                message = f"its ClusterQueue {name} accepts no jobs: {stopped.get('message')}"
                found.append(Problem("E347", "cluster.queue_name", message, value=queue))
    if priority:
        found += lacking("workload_priority_class", "WorkloadPriorityClass", priority)
    return found, cluster_queue


def kueue_version(connection: Connection) -> str | None:
    """Return the preferred API version of the cluster's Kueue; None without Kueue, or if that is not known."""
    found = _readable(connection, KUEUE)
    return _preferred(found) if found else None


def _preferred(group: Mapping[str, Any]) -> str:
    return str(group["preferredVersion"]["version"])


def quota_findings(
    connection: Connection, programs: Sequence[Manifest], cluster_queue: Mapping[str, Any] | None
) -> tuple[list[Problem], tuple[Notice, ...]]:
    """Return a Problem for each readable quota that the job exceeds, and a notice for each that limits its growth.

    Args:
        programs: The job, and the objects of its other programs.
    """
    job, demand = programs[0], Demand.of(*(each.body for each in programs))
    limit_ranges, listed = (
        (_readable(connection, path(kind, job.namespace)) or {}).get("items")
        for kind in ("LimitRange", "ResourceQuota")
    )
    limit_ranges = limit_ranges or ()
    quotas = [Quota.of_namespace(quota, limit_ranges) for quota in listed or ()]
    is_unbounded = listed is not None and not any(quota.hard for quota in quotas)
    unbounded = tuple(_unbounded(job)) if is_unbounded else ()
    if cluster_queue is not None:
        quotas.append(Quota.of_queue(cluster_queue, limit_ranges))
    problems = [problem for quota in quotas for problem in exceeds(demand, quota)]
    notices = tuple(notice for quota in quotas for notice in limits_growth(demand, quota))
    return problems, notices + unbounded


def _unbounded(job: Manifest) -> Iterator[Notice]:
    """Yield a notice if neither a queue nor a quota bounds an elastic job.

    Source: AWS, Using elastic training in Amazon SageMaker HyperPod, Auto-scaling.
    """
    policy, labels = job.body["spec"].get("elasticPolicy"), job.body["metadata"].get("labels") or {}
    if policy and QUEUE_LABEL not in labels:
        message = f"{job.namespace} has no ResourceQuota and the job no queue: it requests"
        others = "at once, even if others need them; recipes governance generates both"
        yield Notice("N129", f"{message} {policy['maxReplicas']} nodes {others}")


def rights_missing(connection: Connection, manifests: Sequence[Manifest]) -> Iterator[Problem]:
    """Yield a Problem if the user may not delete what a launch creates; missing rights to create show in a dry run.

    Source: Kubernetes, Authorization overview: SelfSubjectAccessReview.
    """
    for manifest in manifests:
        group, _, plural = manifest.path.removeprefix("/apis/").partition("/")
        attributes = {
            "namespace": manifest.namespace,
            "verb": "delete",
            "group": "" if manifest.path.startswith("/api/") else group,
            "resource": plural.split("/")[-2],
        }
        review = {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SelfSubjectAccessReview",
            "spec": {"resourceAttributes": attributes},
        }
        try:
            answer = connection.ask("/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", review)
        except RequestFailed as error:
            yield problem(error, "cluster.namespace", value=manifest.namespace)
            return
        if not answer["status"].get("allowed"):
            message = f"you may not delete {attributes['resource']} there, so a launch could not be rolled back"
            remedy = "ask for a Role that allows it; recipes governance generates one"
            yield Problem("E344", "cluster.namespace", message, value=manifest.namespace, remedy=remedy)


def rejections(connection: Connection, manifests: Sequence[Manifest]) -> Iterator[Problem]:
    """Yield the API's objections to each object in a dry run, and the fields that it would silently drop."""
    for manifest in manifests:
        try:
            answer = connection.apply(manifest.path, manifest.body, manifest.manager, dry_run=True)
        except RequestFailed as error:
            if error.status != 409:  # a taken name has its own Problem already
                yield problem(error, manifest.file)
            continue
        if lost := list(_lost(manifest.body, answer, "")):
            message = f"the cluster's {manifest.kind} does not know {', '.join(lost[:_MOST_NAMES])} and would drop it"
            remedy = _OPERATORS.get(manifest.kind)
            yield Problem("E346", manifest.file, message, remedy=remedy)


def _lost(sent: object, kept: object, where: str) -> Iterator[str]:
    """Yield the dotted paths of fields that were sent and are not in the answer; only the topmost ones."""
    if isinstance(sent, Mapping):
        known = kept if isinstance(kept, Mapping) else {}
        for key, value in sent.items():
            if key in known:
                yield from _lost(value, known[key], f"{where}.{key}")
            elif value not in ({}, [], None):
                yield f"{where}.{key}".lstrip(".")
    elif isinstance(sent, list) and isinstance(kept, list):
        for index, (value, other) in enumerate(zip(sent, kept, strict=False)):
            yield from _lost(value, other, f"{where}[{index}]")


def _readable(connection: Connection, where: str) -> Mapping[str, Any] | None:
    """Return an object or a list; None if it does not exist or cannot be read."""
    try:
        return connection.get(where)
    except RequestFailed:
        return None
