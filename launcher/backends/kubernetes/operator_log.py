"""Lines about a job in the training operator's own log, for users who may read it."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from launcher.backends.kubernetes import api_objects
from launcher.backends.kubernetes.api_errors import ApiError
from launcher.backends.kubernetes.connection import Connection
from launcher.backends.kubernetes.pod_logs import Reader
from launcher.backends.kubernetes.pod_report import Places
from launcher.backends.kubernetes.target import Target
from launcher.common.problems import fail
from launcher.common.redaction import masked
from launcher.common.texts import printable


@dataclass(frozen=True, slots=True)
class _Operator:
    """Location of an operator: its namespace, and a part of its pods' names or labels."""

    namespace: str
    name: str


_OPERATORS = {
    "HyperPodPyTorchJob": _Operator("aws-hyperpod", "hp-training"),
    "PyTorchJob": _Operator("kubeflow", "training-operator"),
}
"""Source: AWS, Installing the training operator; Kubeflow training operator, manifests."""

_LABELS = ("app.kubernetes.io/name", "app.kubernetes.io/instance", "control-plane", "app")

_NAMESPACE = re.compile(r'"namespace": *"([^"]+)"')


def lines(connection: Connection, target: Target, places: Places) -> Iterator[str]:
    """Yield the lines of the operator's pods that mention a job or a pod of it, pod after pod.

    Args:
        places: The job's replica specs, whose names its pods have.

    Raises:
        ProblemsFound: There is no operator, or its log may not be read.
    """
    operator = _OPERATORS[target.kind]
    mention = _mention(target, places)
    try:
        for pod in _pods(connection, operator):
            name, uid = pod["metadata"]["name"], pod["metadata"]["uid"]
            reader = Reader(connection, operator.namespace, name, uid, is_followed=False)
            lines = (line for _, block in reader.runs(lambda: False) for line in block)
            for line in lines:
                if mention.search(line) and not _is_elsewhere(line, target):
                    yield masked(printable(line))
    except ApiError as error:
        if error.status != 403:
            raise
        remedy = f"ask for a Role in {operator.namespace} that allows list and get on pods, and get on pods/log"
        raise fail("E344", "--operator", error.message, remedy=remedy) from error


def _pods(connection: Connection, operator: _Operator) -> list[Mapping[str, Any]]:
    listed = connection.get(api_objects.path("Pod", operator.namespace))["items"]
    found = [pod for pod in listed if _belongs_to(operator, pod["metadata"])]
    if not found:
        message = f"the namespace {operator.namespace} has no pods of the training operator ({operator.name}…)"
        raise fail("E385", "--operator", message, remedy="recipes events lists the operator's actions")
    return sorted(found, key=lambda pod: (pod["metadata"]["creationTimestamp"], pod["metadata"]["name"]))


def _belongs_to(operator: _Operator, metadata: Mapping[str, Any]) -> bool:
    labels = metadata.get("labels") or {}
    return any(operator.name in name for name in (metadata["name"], *(labels.get(label, "") for label in _LABELS)))


def _mention(target: Target, places: Places) -> re.Pattern[str]:
    """Return a pattern for a line about a job: its name, a pod's name or its uid, but not a longer name."""
    parts = "|".join(re.escape(name) for name, _ in places.parts)
    before = rf"(?:(?<![\w/.-])|(?<![\w-]){re.escape(target.namespace)}/)"
    name = rf"{re.escape(target.name)}(?:-(?:{parts})(?:-\d+)?)?(?![\w-])"
    uid = rf"|{re.escape(target.uid)}" if target.uid else ""
    return re.compile(f"{before}{name}{uid}")


def _is_elsewhere(line: str, target: Target) -> bool:
    """Return whether a line names only other namespaces, where another job may have the same name."""
    named = _NAMESPACE.findall(line)
    return bool(named) and target.namespace not in named
