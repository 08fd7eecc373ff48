"""Paths of API objects, and a bundle's manifests as objects."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

from launcher.bundle.manifest import MANIFEST
from launcher.common import yaml_io
from launcher.common.problems import fail
from launcher.model.job_spec import Bundle

MANAGER = "recipe-launcher"
"""Our name as a field manager; when creating an object, the bundle's digest follows it."""

PREFIX = "recipe-launcher"
"""Prefix of our labels and annotations; users may not use it (E303, E304)."""

USER = f"{PREFIX}/user"
"""Annotation of a job: who launched its bundle."""

DIGEST = f"{PREFIX}/digest"
"""Annotation: digest of the bundle that an object comes from."""

JOB_LABEL = f"{PREFIX}/job"
"""Label of every object and pod of a job: the job's name. Pods are selected by it."""

_SHORT = 12
"""Characters of a digest in a field manager's name, which holds 128."""

COMPONENT_LABEL = f"{PREFIX}/component"
"""Label of the objects and pods of one program in a job of several: the ending of its objects' names."""

QUEUE_LABEL, PRIORITY_LABEL = "kueue.x-k8s.io/queue-name", "kueue.x-k8s.io/priority-class"
"""Labels of a job: its LocalQueue, and its WorkloadPriorityClass. Source: Kueue, Labels and Annotations."""

_PATHS = {
    "ConfigMap": "/api/v1/namespaces/{}/configmaps",
    "HyperPodPyTorchJob": "/apis/sagemaker.amazonaws.com/v1/namespaces/{}/hyperpodpytorchjobs",
    "PyTorchJob": "/apis/kubeflow.org/v1/namespaces/{}/pytorchjobs",
    "RayJob": "/apis/ray.io/v1/namespaces/{}/rayjobs",
    "StatefulSet": "/apis/apps/v1/namespaces/{}/statefulsets",
    "Service": "/api/v1/namespaces/{}/services",
    "Pod": "/api/v1/namespaces/{}/pods",
    "Event": "/api/v1/namespaces/{}/events",
    "Secret": "/api/v1/namespaces/{}/secrets",
    "PersistentVolumeClaim": "/api/v1/namespaces/{}/persistentvolumeclaims",
    "ServiceAccount": "/api/v1/namespaces/{}/serviceaccounts",
    "ResourceQuota": "/api/v1/namespaces/{}/resourcequotas",
    "LimitRange": "/api/v1/namespaces/{}/limitranges",
    "LocalQueue": "/apis/kueue.x-k8s.io/{version}/namespaces/{}/localqueues",
    "Workload": "/apis/kueue.x-k8s.io/{version}/namespaces/{}/workloads",
    "Node": "/api/v1/nodes",
    "Namespace": "/api/v1/namespaces",
    "PriorityClass": "/apis/scheduling.k8s.io/v1/priorityclasses",
    "ClusterQueue": "/apis/kueue.x-k8s.io/{version}/clusterqueues",
    "ResourceFlavor": "/apis/kueue.x-k8s.io/{version}/resourceflavors",
    "Topology": "/apis/kueue.x-k8s.io/{version}/topologies",
    "WorkloadPriorityClass": "/apis/kueue.x-k8s.io/{version}/workloadpriorityclasses",
}
JOB_KINDS = ("HyperPodPyTorchJob", "PyTorchJob", "RayJob")
POD_KINDS = (*JOB_KINDS, "StatefulSet")
"""Kinds of a bundle's objects that have pods."""
JOB_FILE = "manifests/job.yaml"
"""The job in a bundle, which owns all other objects: of several programs, the one that trains."""


def path(kind: str, namespace: str | None, name: str = "", *, version: str = "v1beta1") -> str:
    """Return the API's path of an object, or of its kind's list.

    Args:
        namespace: Its namespace; None for those of all. Ignored for a kind without namespaces.
        name: Its name; "" for the list.
        version: Version of Kueue's API.
    """
    base = _PATHS[kind] if namespace is not None else _PATHS[kind].replace("/namespaces/{}", "")
    base = base.format(quote(namespace or "", safe=""), version=version)
    return f"{base}/{quote(name, safe='')}" if name else base


@dataclass(frozen=True, slots=True)
class Manifest:
    """One object of a bundle, as it should be created.

    Args:
        file: Its file, relative to the bundle.
        body: The object that is sent.
    """

    file: str
    body: Mapping[str, Any] = field(repr=False)

    @property
    def kind(self) -> str:
        return str(self.body["kind"])

    @property
    def name(self) -> str:
        return str(self.body["metadata"]["name"])

    @property
    def namespace(self) -> str:
        return str(self.body["metadata"]["namespace"])

    @property
    def path(self) -> str:
        return path(self.kind, self.namespace, self.name)

    @property
    def digest(self) -> str:
        """Digest of the bundle it comes from."""
        return digest_of(self.body) or ""

    def __str__(self) -> str:
        return f"{self.kind} {self.name}"

    def is_origin_of(self, found: Mapping[str, Any]) -> bool:
        """Return whether an object of this name on the cluster comes from the same bundle."""
        return digest_of(found) == self.digest

    @property
    def manager(self) -> str:
        """The field manager that creates the object.

        It differs between bundles, so that the API itself refuses a second bundle of the same name (409): the two set
        DIGEST to different values.
        """
        return f"{MANAGER}-{self.digest[:_SHORT]}"

    def owned_by(self, owner: Mapping[str, Any]) -> "Manifest":
        """Return the same object with an owner: it is deleted with `owner`."""
        reference = {
            "apiVersion": owner["apiVersion"],
            "kind": owner["kind"],
            "name": owner["metadata"]["name"],
            "uid": owner["metadata"]["uid"],
        }
        metadata = {**self.body["metadata"], "ownerReferences": [reference]}
        return Manifest(self.file, {**self.body, "metadata": metadata})


def digest_of(body: Mapping[str, Any]) -> str | None:
    """Return the digest of the bundle that an object comes from; None if it is not ours."""
    digest = (body["metadata"].get("annotations") or {}).get(DIGEST)
    return None if digest is None else str(digest)


def manifests(bundle: Bundle) -> tuple[Manifest, ...]:
    """Return a bundle's objects in the order of creation, the job last.

    Raises:
        ProblemsFound: A file is not an object that we submit.
    """
    found = []
    launched_by = json.loads(bundle.files.get(MANIFEST, "{}")).get("user")
    user = {USER: launched_by} if launched_by else {}
    for file, text in bundle.files.items():
        if not file.startswith("manifests/"):
            continue
        body = yaml_io.load(text)
        if body.get("kind") not in ("ConfigMap", "Service", *POD_KINDS):
            raise fail("E703", str(bundle.directory / file), f"a {body.get('kind')} cannot be submitted")
        annotations = {**(body["metadata"].get("annotations") or {}), DIGEST: bundle.digest, **user}
        metadata = {**body["metadata"], "annotations": annotations}
        found.append(Manifest(file, {**body, "metadata": metadata}))
    found.sort(key=lambda manifest: (manifest.kind in JOB_KINDS, manifest.file == JOB_FILE))
    if not found or found[-1].kind not in JOB_KINDS:
        raise fail("E703", str(bundle.directory), "has no job to submit")
    return tuple(found)


def job_manifest(bundle: Bundle) -> Manifest:
    """Return the job among a bundle's objects."""
    return manifests(bundle)[-1]


def parts(job: Mapping[str, Any]) -> Mapping[str, Mapping[str, Any]]:
    """Return the replica specs of a job of any kind by their names, in order; a Ray job's submitter is one, too.

    The only one of a StatefulSet has no name.
    """
    spec = job["spec"]
    if "serviceName" in spec:
        return {"": spec}
    from launcher.governance.quotas import ray_cluster  # rendering needs only the names of labels here

    if cluster := ray_cluster(job):
        workers = {group["groupName"]: group for group in cluster["workerGroupSpecs"]}
        return {"submitter": {"template": spec["submitterPodTemplate"]}, "head": cluster["headGroupSpec"], **workers}
    named: Mapping[str, Mapping[str, Any]] | None = spec.get("pytorchReplicaSpecs")
    return named or {part["name"]: part for part in spec["replicaSpecs"]}


def pod_templates(job: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the pod templates of a job, one for each of its replica specs."""
    return [part["template"] for part in parts(job).values()]
