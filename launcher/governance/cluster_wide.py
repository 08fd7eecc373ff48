"""Cluster-scoped objects in the files of several teams, which must be the same in all of them. Pure.

Source: Kubernetes, API reference, PriorityClass; Kueue, WorkloadPriorityClass and ResourceFlavor.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from launcher.common.problems import Problem
from launcher.model.config_tree import get

_FIELDS = {
    "PriorityClass": {
        "value": "priorities",
        "preemptionPolicy": "scheduler_preempts",
        "globalDefault": "priorities",
    },
    "WorkloadPriorityClass": {"value": "priorities"},
    "ResourceFlavor": {
        "spec.nodeLabels": "instance_type",
        "spec.topologyName": "topology",
        "spec.nodeTaints": "instance_type",
        "spec.tolerations": "instance_type",
    },
}
"""Kind to the compared fields, each with the key of `recipes governance` that sets it."""

_DEFAULTS = {"preemptionPolicy": "PreemptLowerPriority", "globalDefault": False}
"""Source: Kubernetes, API reference, PriorityClass."""


@dataclass(frozen=True, slots=True)
class Origin:
    """Objects and their origin.

    Args:
        name: The origin's name in messages, such as `team a`.
        objects: Objects of any kind, ours or the cluster's.
    """

    name: str
    objects: tuple[Mapping[str, Any], ...]


def shared(objects: Iterable[Mapping[str, Any]]) -> tuple[Mapping[str, Any], ...]:
    """Return the cluster-scoped objects that several teams have in common."""
    return tuple(each for each in objects if _value(each, "kind") in _FIELDS and _value(each, "metadata.name"))


def differences(ours: Origin, theirs: Iterable[Origin]) -> Iterator[Problem]:
    """Yield a Problem for each field in which one of our objects differs from one of the same kind and name."""
    own = {_identity(each): each for each in shared(ours.objects)}
    for origin in theirs:
        for other in shared(origin.objects):
            if (mine := own.get(_identity(other))) is not None:
                yield from _differing(mine, other, ours.name, origin.name)


def _identity(body: Mapping[str, Any]) -> tuple[str, str]:
    return body["kind"], body["metadata"]["name"]


def _differing(mine: Mapping[str, Any], other: Mapping[str, Any], own: str, their: str) -> Iterator[Problem]:
    kind, name = _identity(mine)
    for field, key in _FIELDS[kind].items():
        value, theirs = _value(mine, field), _value(other, field)
        if value != theirs:
            key = f"{key}.{name.removesuffix('-priority')}" if field == "value" else key
            message = f"{kind} {name} is cluster-scoped, and its {field} differs between {own} and {their}"
            remedy = f"the same {key} for every team, or an object of another name"
            shown = "unset" if theirs is None else theirs
            yield Problem("E363", key, message, value, f"{shown}, as {their} has it", remedy)


def _value(body: Mapping[str, Any], field: str) -> Any:
    value = get(body, field)
    return _DEFAULTS.get(field) if value in (None, {}, []) else value
