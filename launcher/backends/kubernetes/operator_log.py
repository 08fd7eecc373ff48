"""Lines about a job in the training operator's own log, for users who may read it."""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from launcher.backends.kubernetes import api_objects
from launcher.backends.kubernetes.api_errors import ApiError
from launcher.backends.kubernetes.connection import Connection
from launcher.backends.kubernetes.pod_logs import Reader
from launcher.backends.kubernetes.target import Target
from launcher.common.problems import fail
from launcher.common.redaction import masked
from launcher.common.texts import printable

_OPERATORS = {
    "HyperPodPyTorchJob": ("aws-hyperpod", "hp-training"),
    "PyTorchJob": ("kubeflow", "training-operator"),
    "RayJob": ("ray-system", "kuberay-operator"),
}
"""Namespace of a kind's operator, and a part of its pods' names or labels.

Source: AWS, Installing the training operator; Kubeflow training operator and KubeRay, manifests.
"""

_LABELS = ("app.kubernetes.io/name", "app.kubernetes.io/instance", "control-plane", "app")

_NAMESPACE = re.compile(r'"namespace": *"([^"]+)"')


def lines(connection: Connection, target: Target) -> Iterator[str]:
    """Yield the lines of the operator's pods that mention a job or a pod of it, pod after pod.

    Raises:
        ProblemsFound: There is no operator, or its log may not be read.
    """
    namespace, operator = _OPERATORS[target.kind]
    mention = _mention(target)
    try:
        for metadata in _pods(connection, namespace, operator):
            reader = Reader(connection, namespace, metadata["name"], metadata["uid"])
            for line in (text for _, block in reader.runs() for _, _, text in block):
                named = _NAMESPACE.findall(line)
                # In a line that names only other namespaces, another job has the same name.
                if mention.search(line) and (not named or target.namespace in named):
                    yield masked(printable(line))
    except ApiError as error:
        if error.status != 403:
            raise
        remedy = f"ask for a Role in {namespace} that allows list and get on pods, and get on pods/log"
        raise fail("E344", "--operator", error.message, remedy=remedy) from error


def _pods(connection: Connection, namespace: str, operator: str) -> list[Mapping[str, Any]]:
    """Return the metadata of the operator's pods, oldest first."""

    def names(metadata: Mapping[str, Any]) -> tuple[str, ...]:
        labels = metadata.get("labels") or {}
        return (metadata["name"], *(labels.get(label, "") for label in _LABELS))

    listed = (pod["metadata"] for pod in connection.get(api_objects.path("Pod", namespace))["items"])
    found = [metadata for metadata in listed if any(operator in name for name in names(metadata))]
    if not found:
        message = f"the namespace {namespace} has no pods of the training operator ({operator}…)"
        raise fail("E385", "--operator", message, remedy="recipes events lists the operator's actions")
    return sorted(found, key=lambda metadata: (metadata["creationTimestamp"], metadata["name"]))


def _mention(target: Target) -> re.Pattern[str]:
    """Return a pattern for a line about a job: the name of an object or a pod, or its uid, but not a longer name."""
    objects = "|".join(re.escape(name) for name in (target.name, *(each.name for each in target.companions)))
    pods = "|".join(re.escape(f"{target.places.job}-{name}") for name, _ in target.places.parts)
    before = rf"(?:(?<![\w/.-])|(?<![\w-]){re.escape(target.namespace)}/)"
    name = rf"(?:{objects}|(?:{pods})(?:-\d+)?)(?![\w-])"
    uid = rf"|{re.escape(target.uid)}" if target.uid else ""
    return re.compile(f"{before}{name}{uid}")
