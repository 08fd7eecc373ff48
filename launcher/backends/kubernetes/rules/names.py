"""Names and values that Kubernetes would refuse.

Source: Kubernetes, "Object Names and IDs" (RFC 1123 labels and subdomains), "Labels and Selectors",
"Annotations"; the distribution reference grammar for images.
"""

import re
from collections.abc import Iterator, Mapping

from launcher.backends.kubernetes.api_objects import PREFIX
from launcher.backends.kubernetes.job_options import k8s_options
from launcher.backends.kubernetes.rules.bounds import (
    ANNOTATIONS_LIMIT,
    OWN_ANNOTATIONS,
    is_annotation_key,
    is_label_key,
    is_label_value,
)
from launcher.common.problems import Problem
from launcher.common.secret_forms import holds_credentials
from launcher.common.secret_names import names_secret
from launcher.common.suggestions import did_you_mean
from launcher.common.syntax import IMAGE_FORM, is_dns_label, is_dns_subdomain, is_image
from launcher.model.checked_recipe import CheckedRecipe
from launcher.model.instances import SPECS, canonical, table
from launcher.model.job_spec import OPEN
from launcher.rules import MakeProblem, rule

_OBJECT_NAMES = "Kubernetes, Object Names and IDs"
_LABELS = "Kubernetes, Labels and Selectors: Syntax and character set"
_RESERVED = re.compile(r"(^|\.)(kubernetes\.io|k8s\.io|x-k8s\.io)$")


@rule("E302", "cluster.namespace", source=_OBJECT_NAMES)
def namespace_is_dns_label(checked: CheckedRecipe, problem: MakeProblem) -> Iterator[Problem]:
    """A namespace must be a valid DNS label."""
    if not is_dns_label(k8s_options(checked).namespace):
        yield problem(
            "cluster.namespace",
            "is not a valid DNS label",
            value=k8s_options(checked).namespace,
            allowed="1 to 63 lower-case letters, digits and -",
        )


@rule(
    "E303",
    "cluster.custom_labels",
    "cluster.label_selector",
    "cluster.node_selector",
    "cluster.queue_name",
    "cluster.workload_priority_class",
    "cluster.tolerations",
    "cluster.instance_type_label",
    "cluster.cpu_instance_type",
    "instance_type",
    SPECS,
    source=_LABELS,
)
def labels_are_labels(checked: CheckedRecipe, problem: MakeProblem) -> Iterator[Problem]:
    """A label key has a name of at most 63 characters and an optional DNS prefix; a value at most 63 characters.

    A preferred instance type is a label value that some node may have.
    """
    for path, key, values in _labels(checked):
        if key is not None and not is_label_key(key):
            yield problem(
                path, "is not a valid label key", value=key, allowed="[dns-prefix/]name, name of 1 to 63 characters"
            )
        for value in values:
            if not is_label_value(value):
                yield problem(
                    path,
                    "is not a valid label value",
                    value=None if names_secret(key or "") else value,
                    allowed="at most 63 letters, digits, -, _ and ., starting and ending with a letter or digit",
                )
    yield from _reserved_prefixes(k8s_options(checked).custom_labels or {}, problem)
    yield from _unknown_types(checked, problem)


def _unknown_types(checked: CheckedRecipe, problem: MakeProblem) -> Iterator[Problem]:
    """Yield a Problem for each instance type that no node has in its label."""
    path, given = "cluster.cpu_instance_type", k8s_options(checked).cpu_instance_type or ()
    for at, name in [(path, given)] if isinstance(given, str) else [(f"{path}.{i}", n) for i, n in enumerate(given)]:
        if checked.instance_of(name) is None:
            remedy = did_you_mean(canonical(name), list(table()))
            allowed = f"recipes instances lists all; {SPECS} describes others"
            yield problem(at, "is not an instance type of the table", value=name, allowed=allowed, remedy=remedy)


def _reserved_prefixes(labels: Mapping[str, str], problem: MakeProblem) -> Iterator[Problem]:
    """Yield a Problem for each label whose prefix belongs to Kubernetes or to the launcher."""
    for name in labels:
        prefix, slash, _ = name.partition("/")
        if slash and _RESERVED.search(prefix):
            yield problem(
                f"cluster.custom_labels.{name}",
                f"{prefix} is reserved for Kubernetes itself",
                value=name,
                remedy="cluster.queue_name and cluster.workload_priority_class set Kueue's labels",
            )
        if slash and prefix == PREFIX:
            yield problem(
                f"cluster.custom_labels.{name}",
                f"{PREFIX}/ is reserved for the labels by which the launcher finds a job's pods",
                value=name,
                remedy="use another prefix, or none",
            )


def _labels(checked: CheckedRecipe) -> Iterator[tuple[str, str | None, list[str]]]:
    """Yield path, key and values of every label or taint, and of every selector of them."""
    settings = k8s_options(checked)
    if checked.instance:  # an unknown one is reported separately
        yield "instance_type", settings.instance_type_label, [canonical(checked.launch.instance_type)]
    for i, each in enumerate(settings.tolerations or ()):
        yield f"cluster.tolerations.{i}.key", each.key or None, []
        yield f"cluster.tolerations.{i}.value", None, [each.value or ""]
    for name in ("custom_labels", "node_selector"):
        for key, value in (getattr(settings, name) or {}).items():
            yield f"cluster.{name}.{key}", key, [value]
    for kind in ("required", "preferred"):
        for key, values in (getattr(settings.label_selector, kind, None) or {}).items():
            yield f"cluster.label_selector.{kind}.{key}", key, values
    for name in ("queue_name", "workload_priority_class"):
        if value := getattr(settings, name):
            yield f"cluster.{name}", name, [value]


@rule("E304", "cluster.annotations", source="Kubernetes, Annotations: Syntax and character set")
def annotations_are_annotations(checked: CheckedRecipe, problem: MakeProblem) -> Iterator[Problem]:
    """An annotation's key has a label's form, all hold 256 KiB together; Kueue's elastic-job is for other jobs.

    The launcher's own prefix is reserved.
    """
    size = sum(len(text.encode()) for item in (k8s_options(checked).annotations or {}).items() for text in item)
    if size > (most := ANNOTATIONS_LIMIT - OWN_ANNOTATIONS):
        allowed = f"at most {most} bytes, as an object holds {ANNOTATIONS_LIMIT}, including the launcher's own"
        yield problem("cluster.annotations", f"are {size} bytes", allowed=allowed)
    for key in k8s_options(checked).annotations or {}:
        path = f"cluster.annotations.{key}"
        if not is_annotation_key(key):
            yield problem(
                path,
                "is not a valid annotation key",
                value=key,
                allowed="[dns-prefix/]name, name of 1 to 63 characters",
            )
        if key.startswith(f"{PREFIX}/"):
            message = f"{PREFIX}/ is reserved for the launcher's own annotations"
            yield problem(path, message, value=key, remedy="use another prefix, or none")
        if key == "kueue.x-k8s.io/elastic-job":
            yield problem(path, "is for other kinds of job than HyperPodPyTorchJob", value=key, remedy="leave it out")


@rule("E305", "container", source="Distribution, reference grammar")
def image_is_a_reference(checked: CheckedRecipe, problem: MakeProblem) -> Iterator[Problem]:
    """A pod needs a valid image reference."""
    image = checked.launch.container
    if not image and checked.hides_image and checked.trainer != OPEN:
        yield problem("container", "is null or empty, but a pod needs an image", value=image, remedy="leave it out")
    elif not image and checked.trainer != OPEN:
        yield problem("container", "the recipe has no default image", remedy="container=<registry>/<name>:<tag>")
    elif image and not is_image(image):
        shown = {"where": "container"} if holds_credentials(image) else {"value": image}
        yield problem("container", "is not a valid image reference", allowed=IMAGE_FORM, **shown)


@rule(
    "E307",
    "cluster.service_account_name",
    "cluster.priority_class_name",
    "cluster.queue_name",
    "cluster.workload_priority_class",
    "recipes.elastic_policy.preemption",
    source=_OBJECT_NAMES,
)
def names_are_dns_names(checked: CheckedRecipe, problem: MakeProblem) -> Iterator[Problem]:
    """Names of objects that the job refers to must be valid DNS names."""
    keys = ("service_account_name", "priority_class_name", "queue_name", "workload_priority_class")
    names = {f"cluster.{key}": getattr(k8s_options(checked), key) for key in keys}
    preemption = checked.recipe.elastic_policy and checked.recipe.elastic_policy.preemption
    for key in ("base_priority_class", "elastic_priority_class"):
        names[f"recipes.elastic_policy.preemption.{key}"] = getattr(preemption, key, None)
    for path, name in names.items():
        if name is not None and not is_dns_subdomain(name):
            yield problem(path, "is not a valid DNS name", value=name, allowed="lower-case letters, digits, - and .")


@rule(
    "E308",
    "cluster.label_selector",
    source="Kubernetes, Assigning Pods to Nodes: Node affinity weight",
)
def weights_match_preferences(checked: CheckedRecipe, problem: MakeProblem) -> Iterator[Problem]:
    """Each preferred label has one weight; the default is 100 for each."""
    selector = k8s_options(checked).label_selector
    if selector and selector.weights is not None and len(selector.weights) != len(selector.preferred or {}):
        yield problem(
            "cluster.label_selector.weights",
            f"{len(selector.weights)} weights for {len(selector.preferred or {})} preferred labels",
            value=selector.weights,
            allowed="one each",
        )
