"""Identity of a submitted job, and which pods, ranks and events belong to it."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from launcher.backends.kubernetes import api_objects, lenient
from launcher.governance.quotas import ray_cluster

Object = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Places:
    """Which pod runs which ranks. A pod's place is its number, counted over all replica specs in order.

    Args:
        job: The job's name.
        parts: Name, as in the names of pods, and largest size of each replica spec, in order.
        nproc_per_node: Ranks of a pod.
        is_ray: Whether the only ranked pod is the submitter of a Ray job, which prints what its program does.
    """

    job: str
    parts: Sequence[tuple[str, int]]
    nproc_per_node: int
    is_ray: bool = False

    @classmethod
    def of(cls, job: Object, others: Sequence[Object] = ()) -> "Places":
        """Read the places from a job's manifest.

        Args:
            others: Manifests of the job's other programs. The names of all begin with the job's label.
        """
        spec, name = job["spec"], job["metadata"]["name"]
        if ray_cluster(job):
            return cls(name, [("submitter", 1)], 1, is_ray=True)
        start = job["metadata"]["labels"][api_objects.JOB_LABEL] if others else name
        parts = [part for each in (job, *others) for part in _parts(each, start)]
        nproc = str(spec.get("nprocPerNode", "1"))
        return cls(start, parts, int(nproc) if nproc.isdigit() else 1)

    @property
    def num_ranks(self) -> int:
        return sum(count for _, count in self.parts) * self.nproc_per_node

    def place(self, pod: str) -> int | None:
        """Return a pod's place; None if its name is not one of this job's: job, replica spec, number."""
        if self.is_ray:
            return 0 if re.fullmatch(rf"{re.escape(self.job)}-[a-z0-9]{{5}}", pod) else None
        before = 0
        for name, count in self.parts:
            if match := re.match(rf"{re.escape(self.job)}-{re.escape(name)}-(\d+)(?:-|$)", pod):
                return before + int(match[1])
            before += count
        return None


def _parts(body: Object, start: str) -> Iterator[tuple[str, int]]:
    """Yield what is between `start` and the number in the names of each part's pods, and their largest number."""
    fewest = 0 if "replicaSpecs" in body["spec"] else 1  # each operator's default
    for name, part in api_objects.parts(body).items():
        words = (body["metadata"]["name"].removeprefix(start).lstrip("-"), name.lower())
        yield "-".join(filter(None, words)), part.get("maxReplicas", part.get("replicas", fewest))


class Companion(NamedTuple):
    """An object with pods of a job's other program."""

    kind: str
    name: str
    num_pods: int

    @classmethod
    def of(cls, body: Object) -> "Companion":
        """Read it from its manifest."""
        name = body["metadata"]["name"]
        return cls(body["kind"], name, sum(count for _, count in _parts(body, name)))

    def owns(self, pod: Object) -> bool:
        """Return whether it is a pod's controller, by its name."""
        owner = _controller(lenient.mapping(pod, "metadata"))
        return (owner.get("kind"), owner.get("name")) == (self.kind, self.name)


@dataclass(frozen=True, slots=True)
class Target:
    """A submitted job, as the API identifies it.

    Args:
        kind: Kind of the custom resource.
        uid: Its uid, by which it differs from earlier and later jobs of that name; "" if it is not known.
        labels: The labels of its pods.
        places: Its ranks.
        server: The cluster that it was submitted to, as recorded; None if unknown.
        companions: The objects of its other programs.
    """

    kind: str
    namespace: str
    name: str
    uid: str
    labels: Mapping[str, str]
    places: Places
    server: str | None = None
    companions: tuple[Companion, ...] = ()

    @classmethod
    def of(cls, job: Object, uid: str, server: str | None = None, others: Sequence[Object] = ()) -> "Target":
        """Return the job of a custom resource, as it was rendered or as the cluster has it.

        Args:
            others: Manifests of its other programs.
        """
        metadata = job["metadata"]
        own = (job["kind"], metadata["namespace"], metadata["name"], uid)
        return cls(*own, _labels(job), Places.of(job, others), server, tuple(map(Companion.of, others)))

    @property
    def path(self) -> str:
        return api_objects.path(self.kind, self.namespace, self.name)

    @property
    def selector(self) -> str:
        """Label selector of its pods."""
        return ",".join(f"{key}={value}" for key, value in sorted(self.labels.items()))

    @property
    def has_own_label(self) -> bool:
        """Whether its pods have our own label, which users cannot set; those of an adopted job may lack it."""
        return api_objects.JOB_LABEL in self.labels

    def selects(self, metadata: Object) -> bool:
        """Return whether an object has the labels of the job's pods."""
        return self.labels.items() <= lenient.mapping(metadata, "labels").items()

    def matches(self, job: Object) -> bool:
        """Return whether a custom resource of this name is the job, not an earlier or later one."""
        return bool(self.uid) and uid_of(job) == self.uid

    def may_name_pod(self, name: str) -> bool:
        """Return whether a name has the form of this job's pods."""
        return name.startswith(f"{self.name}-") if self.places.is_ray else self.places.place(name) is not None


_RAY_OWNERS = ("Job", "RayCluster")
"""What a RayJob's pods belong to: the submitter's batch Job, and the cluster. Source: KubeRay, RayJob, K8sJobMode."""


def _labels(job: Object) -> dict[str, str]:
    """Return the labels by which a job's pods are found: our own; without it, as in adopted jobs, all common ones."""
    templates = api_objects.pod_templates(job)
    labels = [set(((template.get("metadata") or {}).get("labels") or {}).items()) for template in templates]
    common = dict(set.intersection(*labels)) if labels else {}
    return {api_objects.JOB_LABEL: common[api_objects.JOB_LABEL]} if api_objects.JOB_LABEL in common else common


@dataclass(frozen=True, slots=True)
class Holders:
    """The objects that hold a job's pods, as its status names them.

    Source: HyperPodPyTorchJob, status.jobPods: a list of object references, each to a StatefulSet.
    """

    uids: frozenset[str]
    names: frozenset[str]

    @classmethod
    def of(cls, job: Object | None) -> "Holders":
        """Return the holders of a job's pods; none if it is deleted or its status names none."""
        references = lenient.mappings(lenient.mapping(job, "status").get("jobPods"))
        sets = [each for each in references if each.get("kind") in (None, "", "StatefulSet")]
        uids = {lenient.text(each.get("uid")) for each in sets}
        names = {lenient.text(each.get("name")) for each in sets}
        return cls(frozenset(uids - {""}), frozenset(names - {""}))

    @property
    def are_known(self) -> bool:
        """Whether the job's status names any."""
        return bool(self.uids or self.names)

    def own(self, uid: str, name: str) -> bool | None:
        """Return whether a StatefulSet is among them; None if the status names none."""
        if self.uids:
            return uid in self.uids
        return name in self.names if self.names else None


def uid_of(body: Object) -> str:
    """Return the uid of an object; empty if it has none."""
    return lenient.text(lenient.mapping(body, "metadata").get("uid"))


def own_pods(pods: Iterable[Object], target: Target, job: Object | None) -> tuple[Object, ...]:
    """Return the pods that belong to the job: their owners decide, and labels only where an owner does not.

    Args:
        pods: Pods of its namespace.
        job: The current custom resource; None once it is deleted.
    """
    holders = Holders.of(job)
    return tuple(pod for pod in pods if _is_own(pod, target, holders))


def _is_own(pod: Object, target: Target, holders: Holders) -> bool:
    """Return whether a pod's controller is the job, an object of its other programs, or a StatefulSet of it.

    A StatefulSet that the job's status does not name yet counts by its name and the pod's labels.
    """
    metadata = lenient.mapping(pod, "metadata")
    owner = _controller(metadata)
    uid, name = lenient.text(owner.get("uid")), lenient.text(owner.get("name"))
    if any(companion.owns(pod) for companion in target.companions):
        return target.selects(metadata)
    if owner.get("kind") in api_objects.JOB_KINDS:
        return uid == target.uid
    if target.places.is_ray:
        return owner.get("kind") in _RAY_OWNERS and target.may_name_pod(name + "-") and target.selects(metadata)
    if owner.get("kind") != "StatefulSet":
        return False
    if (is_own := holders.own(uid, name)) is not None:
        return is_own
    if not name.startswith(f"{target.name}-") or not target.selects(metadata):
        return False
    return target.has_own_label or target.may_name_pod(lenient.text(metadata.get("name")))


def _controller(metadata: Object) -> Object:
    """Return the reference to an object's controller; the first reference if none is marked, {} if there is none.

    Source: Kubernetes API reference, OwnerReference, controller.
    """
    owners = lenient.mappings(metadata.get("ownerReferences"))
    return next((each for each in owners if each.get("controller") is True), owners[0] if owners else {})


def is_event_of(event: Object, target: Target, job: Object | None, pods: Iterable[Object]) -> bool:
    """Return whether an event is about a job, its StatefulSets or its pods, also those that are deleted.

    Args:
        job: The current custom resource; None once it is deleted.
        pods: The job's own pods.
    """
    about = lenient.mapping(event, "involvedObject")
    uid, name = lenient.text(about.get("uid")), lenient.text(about.get("name"))
    if uid and uid in {target.uid, *map(uid_of, pods)}:
        return True
    if any((about.get("kind"), name) == (each.kind, each.name) for each in target.companions):
        return True
    holders = Holders.of(job)
    if about.get("kind") == "StatefulSet":
        return holders.own(uid, name) is True
    if about.get("kind") != "Pod":
        return False
    stem = re.match(r"(.+)-\d+$", name)
    return target.may_name_pod(name) or bool(stem and stem[1] in holders.names)
