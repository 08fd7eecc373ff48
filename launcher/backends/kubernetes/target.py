"""Identity of a submitted job, and which pods and events belong to it."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from launcher.backends.kubernetes import api_objects, lenient

Object = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Target:
    """A submitted job, as the API identifies it.

    Args:
        kind: Kind of the custom resource.
        namespace: Its namespace.
        name: Its name.
        uid: Its uid, by which it differs from earlier and later jobs of that name.
        selector: Label selector of its pods.
        parts: Names of its replica specs.
        server: The cluster that it was submitted to, as recorded; None in records of earlier versions.
    """

    kind: str
    namespace: str
    name: str
    uid: str
    selector: str
    parts: tuple[str, ...] = ()
    server: str | None = None

    @property
    def path(self) -> str:
        return api_objects.path(self.kind, self.namespace, self.name)

    @property
    def has_own_label(self) -> bool:
        """Whether the selector is our own label, which users cannot set; jobs of earlier versions lack it."""
        return self.selector.startswith(f"{api_objects.JOB_LABEL}=")

    def matches(self, job: Object) -> bool:
        """Return whether a custom resource of this name is the job, not an earlier or later one."""
        return bool(self.uid) and uid_of(job) == self.uid

    def may_name_pod(self, name: str) -> bool:
        """Return whether a name has the form of this job's pods: job name, replica spec, number."""
        parts = "|".join(re.escape(part) for part in self.parts)
        return re.match(rf"{re.escape(self.name)}-({parts})-\d+(-|$)", name, re.IGNORECASE) is not None


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

    def own(self, uid: str, name: str) -> bool | None:
        """Return whether a StatefulSet is among them; None if the status names none."""
        if self.uids:
            return uid in self.uids
        return name in self.names if self.names else None


def uid_of(body: Object) -> str:
    """Return the uid of an object; empty if it has none."""
    return lenient.text(lenient.mapping(body, "metadata").get("uid"))


def own_pods(pods: Iterable[Object], target: Target, job: Object | None) -> tuple[Object, ...]:
    """Return the selected pods that belong to the job.

    Args:
        pods: The pods that `target.selector` selects.
        target: The job.
        job: The current custom resource; None once it is deleted.
    """
    holders = Holders.of(job)
    return tuple(pod for pod in pods if _is_own(pod, target, holders))


def _is_own(pod: Object, target: Target, holders: Holders) -> bool:
    metadata = lenient.mapping(pod, "metadata")
    for owner in lenient.mappings(metadata.get("ownerReferences")):
        uid, name = lenient.text(owner.get("uid")), lenient.text(owner.get("name"))
        if owner.get("kind") in api_objects.JOB_KINDS:
            return uid == target.uid
        if owner.get("kind") == "StatefulSet" and (is_own := holders.own(uid, name)) is not None:
            return is_own
    return target.has_own_label or target.may_name_pod(lenient.text(metadata.get("name")))


def is_event_of(event: Object, target: Target, job: Object | None, pods: Iterable[Object]) -> bool:
    """Return whether an event is about a job, its StatefulSets or its pods, also those that are deleted.

    Args:
        event: The event.
        target: The job.
        job: The current custom resource; None once it is deleted.
        pods: The job's own pods.
    """
    about = lenient.mapping(event, "involvedObject")
    uid, name = lenient.text(about.get("uid")), lenient.text(about.get("name"))
    if uid and uid in {target.uid, *map(uid_of, pods)}:
        return True
    holders = Holders.of(job)
    if about.get("kind") == "StatefulSet":
        return holders.own(uid, name) is True
    if about.get("kind") != "Pod":
        return False
    stem = re.match(r"(.+)-\d+$", name)
    return target.may_name_pod(name) or bool(stem and stem[1] in holders.names)
