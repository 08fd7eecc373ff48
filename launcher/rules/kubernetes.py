"""Names and values that Kubernetes would refuse.

Source: Kubernetes, "Object Names and IDs" (RFC 1123 labels and subdomains), "Labels and Selectors",
"Annotations"; the distribution reference grammar for images.
"""

import re
from collections.abc import Callable, Iterator
from posixpath import isabs, normpath

from launcher.backends.kubernetes.objects import PREFIX
from launcher.check import Draft
from launcher.problems import Problem
from launcher.recipe import Model
from launcher.rules import rule
from launcher.scales import leaves
from launcher.secret_forms import holds_credentials
from launcher.secret_names import names_secret
from launcher.syntax import IMAGE, IMAGE_FORM

_OBJECT_NAMES = "Kubernetes, Object Names and IDs"
_LABELS = "Kubernetes, Labels and Selectors: Syntax and character set"
DNS_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
DNS_SUBDOMAIN = re.compile(r"(?=.{1,253}$)[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_LABEL_NAME = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")
_QUANTITY = re.compile(r"\d+(\.\d+)?(Ki|Mi|Gi|Ti|Pi|Ei|m|k|M|G|T|P|E)?")
_ANNOTATIONS_LIMIT = 256 << 10
"""Bytes of an object's annotations, keys and values. Source: Kubernetes, ValidateAnnotations."""
_RESERVED = re.compile(r"(^|\.)(kubernetes\.io|k8s\.io|x-k8s\.io)$")


@rule("E301", "recipes.run.name", source=_OBJECT_NAMES)
def run_name_is_dns_label(draft: Draft, problem: Callable[..., Problem]) -> Iterator[Problem]:
    """The job's name starts with run.name, and names pods and label values too."""
    name = draft.recipe.run.name
    if not DNS_LABEL.fullmatch(name):
        mended = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:63] or "my-run"
        yield problem(
            "recipes.run.name",
            "is no DNS label",
            value=name,
            remedy=f"recipes.run.name={mended}",
            allowed="1 to 63 lower-case letters, digits and -, starting and ending with a letter or digit",
        )


@rule("E302", "cluster.namespace", source=_OBJECT_NAMES, backend="k8s")
def namespace_is_dns_label(draft: Draft, problem: Callable[..., Problem]) -> Iterator[Problem]:
    """A namespace is a DNS label."""
    if not DNS_LABEL.fullmatch(draft.settings.namespace):
        yield problem(
            "cluster.namespace",
            "is no DNS label",
            value=draft.settings.namespace,
            allowed="1 to 63 lower-case letters, digits and -",
        )


@rule(
    "E303",
    "cluster.custom_labels",
    "cluster.label_selector",
    "cluster.node_selector",
    "cluster.queue_name",
    "cluster.workload_priority_class",
    source=_LABELS,
    backend="k8s",
)
def labels_are_labels(draft: Draft, problem: Callable[..., Problem]) -> Iterator[Problem]:
    """A label key has a name of at most 63 characters and an optional DNS prefix; a value at most 63 characters."""
    for path, key, values in _labels(draft):
        if not _is_qualified_name(key):
            yield problem(path, "is no label key", value=key, allowed="[dns-prefix/]name, name of 1 to 63 characters")
        for value in values:
            if value and not _LABEL_NAME.fullmatch(value):
                yield problem(
                    path,
                    "is no label value",
                    value=None if names_secret(key) else value,
                    allowed="at most 63 letters, digits, -, _ and ., starting and ending with a letter or digit",
                )
    for name in draft.settings.custom_labels or {}:
        prefix = name.partition("/")[0]
        if "/" in name and _RESERVED.search(prefix):
            yield problem(
                f"cluster.custom_labels.{name}",
                f"{prefix} is reserved for Kubernetes itself",
                value=name,
                remedy="cluster.queue_name and cluster.workload_priority_class set Kueue's labels",
            )
        if prefix == PREFIX and "/" in name:
            yield problem(
                f"cluster.custom_labels.{name}",
                f"{PREFIX}/ is reserved for the labels by which the launcher finds a job's pods",
                value=name,
                remedy="use another prefix, or none",
            )


def _labels(draft: Draft) -> Iterator[tuple[str, str, list[str]]]:
    settings = draft.settings
    for name in ("custom_labels", "node_selector"):
        for key, value in (getattr(settings, name) or {}).items():
            yield f"cluster.{name}.{key}", key, [value]
    for kind in ("required", "preferred"):
        for key, values in (getattr(settings.label_selector, kind, None) or {}).items():
            yield f"cluster.label_selector.{kind}.{key}", key, values
    for name in ("queue_name", "workload_priority_class"):
        if value := getattr(settings, name):
            yield f"cluster.{name}", name, [value]


def _is_qualified_name(key: str) -> bool:
    prefix, slash, name = key.rpartition("/")
    return bool(_LABEL_NAME.fullmatch(name)) and (not slash or bool(DNS_SUBDOMAIN.fullmatch(prefix)))


@rule("E304", "cluster.annotations", source="Kubernetes, Annotations: Syntax and character set", backend="k8s")
def annotations_are_annotations(draft: Draft, problem: Callable[..., Problem]) -> Iterator[Problem]:
    """An annotation's key is written like a label's, and all hold 256 KiB; Kueue's elastic-job is of other jobs.

    The launcher's own prefix is reserved.
    """
    size = sum(len(text.encode()) for item in (draft.settings.annotations or {}).items() for text in item)
    if size > _ANNOTATIONS_LIMIT:
        yield problem("cluster.annotations", f"are {size} bytes", allowed=f"at most {_ANNOTATIONS_LIMIT}")
    for key in draft.settings.annotations or {}:
        path = f"cluster.annotations.{key}"
        if not _is_qualified_name(key):
            yield problem(
                path,
                "is no annotation key",
                value=key,
                allowed="[dns-prefix/]name, name of 1 to 63 characters",
            )
        if key.startswith(f"{PREFIX}/"):
            message = f"{PREFIX}/ is reserved for the launcher's own annotations"
            yield problem(path, message, value=key, remedy="use another prefix, or none")
        if key == "kueue.x-k8s.io/elastic-job":
            yield problem(path, "is for other kinds of job than HyperPodPyTorchJob", value=key, remedy="leave it out")


@rule("E305", "container", source="Distribution, reference grammar", backend="k8s")
def image_is_a_reference(draft: Draft, problem: Callable[..., Problem]) -> Iterator[Problem]:
    """A pod needs an image, written as a registry reads it."""
    image = draft.launch.container
    if not image:
        yield problem("container", "the recipe has no image of its own", remedy="container=<registry>/<name>:<tag>")
    elif not IMAGE.fullmatch(image):
        shown = {"where": "container"} if holds_credentials(image) else {"value": image}
        yield problem("container", "is no image reference", allowed=IMAGE_FORM, **shown)


@rule("E306", "cluster.volumes", "cluster.persistent_volume_claims", source="Kubernetes, Volumes", backend="k8s")
def volumes_are_named(draft: Draft, problem: Callable[..., Problem]) -> Iterator[Problem]:
    """A volume's name is a DNS label of its own; a claim's is a DNS name."""
    for i, volume in enumerate(volumes := draft.settings.volumes or []):
        claims = range(len(draft.settings.persistent_volume_claims or []))
        taken = {"config", "shm", *(f"claim-{n}" for n in claims), *(other.volumeName for other in volumes[:i])}
        if not DNS_LABEL.fullmatch(volume.volumeName) or volume.volumeName in taken:
            yield problem(
                f"cluster.volumes.{i}.volumeName",
                "is no free DNS label",
                value=volume.volumeName,
                allowed=f"1 to 63 lower-case letters, digits and -; not {', '.join(sorted(taken))}",
            )
    for i, claim in enumerate(draft.settings.persistent_volume_claims or []):
        if not DNS_SUBDOMAIN.fullmatch(claim.claimName):
            path = f"cluster.persistent_volume_claims.{i}.claimName"
            yield problem(
                path, "is no DNS name", value=claim.claimName, allowed="lower-case letters, digits, - and ."
            )


@rule("E313", "cluster.volumes", "cluster.persistent_volume_claims", source="Kubernetes, Volumes", backend="k8s")
def mounts_are_paths(draft: Draft, problem: Callable[..., Problem]) -> Iterator[Problem]:
    """Paths are absolute, and nothing is mounted over something else."""
    taken = {"/config", "/dev/shm"}
    for path, mount in _mounts(draft.settings.volumes or [], draft.settings.persistent_volume_claims or []):
        if not isabs(mount):
            yield problem(path, "is no absolute path", value=mount, remedy=f"/{mount}")
        if path.endswith("mountPath"):
            mount = normpath(mount)
            if mount in taken:
                yield problem(path, "is mounted twice", value=mount, allowed=f"not {', '.join(sorted(taken))}")
            taken.add(mount)


def _mounts(volumes: list[Model], claims: list[Model]) -> Iterator[tuple[str, str]]:
    for i, volume in enumerate(volumes):
        yield f"cluster.volumes.{i}.mountPath", volume.mountPath
        yield f"cluster.volumes.{i}.hostPath", volume.hostPath
    for i, claim in enumerate(claims):
        yield f"cluster.persistent_volume_claims.{i}.mountPath", claim.mountPath


@rule(
    "E307",
    "cluster.service_account_name",
    "cluster.priority_class_name",
    "cluster.queue_name",
    "cluster.workload_priority_class",
    "recipes.elastic_policy.preemption",
    source=_OBJECT_NAMES,
    backend="k8s",
)
def names_are_dns_names(draft: Draft, problem: Callable[..., Problem]) -> Iterator[Problem]:
    """Objects the job refers to have DNS names."""
    keys = ("service_account_name", "priority_class_name", "queue_name", "workload_priority_class")
    names = {f"cluster.{key}": getattr(draft.settings, key) for key in keys}
    preemption = draft.recipe.elastic_policy and draft.recipe.elastic_policy.preemption
    for key in ("base_priority_class", "elastic_priority_class"):
        names[f"recipes.elastic_policy.preemption.{key}"] = getattr(preemption, key, None)
    for path, name in names.items():
        if name is not None and not DNS_SUBDOMAIN.fullmatch(name):
            yield problem(path, "is no DNS name", value=name, allowed="lower-case letters, digits, - and .")


@rule(
    "E308",
    "cluster.label_selector",
    source="Kubernetes, Assigning Pods to Nodes: Node affinity weight",
    backend="k8s",
)
def weights_match_preferences(draft: Draft, problem: Callable[..., Problem]) -> Iterator[Problem]:
    """Each preferred label has one weight; left out, each counts 100."""
    selector = getattr(draft.settings, "label_selector", None)
    if selector and selector.weights is not None and len(selector.weights) != len(selector.preferred or {}):
        yield problem(
            "cluster.label_selector.weights",
            f"{len(selector.weights)} weights for {len(selector.preferred or {})} preferred labels",
            value=selector.weights,
            allowed="one each",
        )


@rule(
    "E309",
    "recipes.resources",
    source="Kubernetes, Resource Management for Pods and Containers: quantities",
    backend="k8s",
)
def quantities_are_quantities(draft: Draft, problem: Callable[..., Problem]) -> Iterator[Problem]:
    """Processors, memory and huge pages are quantities; a pod with huge pages names its memory too."""
    resources = draft.recipe.resources
    if resources and resources.hugepages is not None and resources.memory is None:
        message = "huge pages need memory beside them"
        yield problem(
            "recipes.resources.hugepages", message, value=resources.hugepages, remedy="recipes.resources.memory=…"
        )
    for key in ("cpu", "hugepages", "memory"):
        value = getattr(draft.recipe.resources, key, None)
        if value is not None and not _QUANTITY.fullmatch(str(value)):
            yield problem(f"recipes.resources.{key}", "is no Kubernetes quantity", value=value, allowed="e.g. 5120Mi")


@rule("E310", "cluster.security_context", source="docs/decisions.md, Rendering", backend="k8s")
def privilege_is_explicit(draft: Draft, problem: Callable[..., Problem]) -> Iterator[Problem]:
    """A security context holds the API's own fields."""
    known = {
        "allowPrivilegeEscalation",
        "appArmorProfile",
        "capabilities",
        "privileged",
        "procMount",
        "readOnlyRootFilesystem",
        "runAsGroup",
        "runAsNonRoot",
        "runAsUser",
        "seLinuxOptions",
        "seccompProfile",
    }
    for key, value in leaves(draft.settings.security_context or {}):
        if key and value in (None, "", [], {}):
            yield problem(f"cluster.security_context.{key}", "is empty", remedy="leave it out")
    for key in draft.settings.security_context or {}:
        if key not in known:
            yield problem(
                f"cluster.security_context.{key}",
                "is no field of a securityContext",
                value=key,
                allowed=", ".join(sorted(known)),
            )
