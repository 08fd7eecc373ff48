"""Custom resource definitions for the test's API server."""

import copy
import functools
from pathlib import Path
from typing import Any

from launcher.common import yaml_io

HOME = Path(__file__).resolve().parent.parent / "kubernetes"
KUEUE_VERSION = "v1beta1"
_INT_OR_STRING = {"x-kubernetes-int-or-string": True}
_QUANTITY = "io.k8s.apimachinery.pkg.api.resource.Quantity"
_OBJECT_META = {
    "type": "object",
    "properties": {
        name: {"type": "object", "additionalProperties": {"type": "string"}} for name in ("labels", "annotations")
    },
}
"""What a pod template's metadata may hold."""


def training_job(definitions: dict[str, Any]) -> dict[str, Any]:
    """Return the CRD of HyperPodPyTorchJob.

    Args:
        definitions: Those of the API server's own OpenAPI document.
    """

    def inlined(name: str) -> dict[str, Any]:
        return _inlined({"$ref": f"#/definitions/io.k8s.api.core.v1.{name}"}, definitions)

    template = {"type": "object", "properties": {"metadata": _OBJECT_META, "spec": inlined("PodSpec")}}
    parts = {"podTemplate": template, "objectReference": inlined("ObjectReference")}
    crd = _filled(yaml_io.load((HOME / "crd.yaml").read_text()), parts)
    _allow_zeros(schema(crd))
    return crd


def _filled(part: Any, parts: dict[str, Any]) -> Any:
    """Return a value with each name of a part replaced by a copy of that part."""
    if isinstance(part, dict):
        return {key: _filled(value, parts) for key, value in part.items()}
    if isinstance(part, list):
        return [_filled(value, parts) for value in part]
    return copy.deepcopy(parts[part]) if isinstance(part, str) and part in parts else part


def _allow_zeros(part: Any) -> None:
    """Mark scalars as nullable: built by Go 1.19, the server's validator takes "", 0 and false for null.

    Source: go-openapi/validate, type.go, as Kubernetes 1.20 vendors it: a comparison with reflect.Zero.
    """
    if isinstance(part, dict):
        if part.get("type") in ("string", "integer", "boolean", "number"):
            part["nullable"] = True
        for value in part.values():
            _allow_zeros(value)
    elif isinstance(part, list):
        for value in part:
            _allow_zeros(value)


def schema(crd: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of a CRD's only version."""
    (version,) = crd["spec"]["versions"]
    return version["schema"]["openAPIV3Schema"]


def kueue() -> list[dict[str, Any]]:
    """Return the CRDs of Kueue that tests need."""
    return [_open_definition(**names) for names in yaml_io.load((HOME / "kueue.yaml").read_text())]


RAY_JOBS = Path(__file__).resolve().parents[3] / "shared/facts/families/kuberay-crds/ray.io_rayjobs.yaml"


def ray_jobs() -> dict[str, Any]:
    """Return KubeRay's CRD of RayJob as a server of this age takes it."""
    crd: dict[str, Any] = _of_1_20(yaml_io.load(RAY_JOBS.read_text()))
    parts = schema(crd)["properties"]
    groups = parts["spec"]["properties"]["rayClusterSpec"]["properties"]["workerGroupSpecs"]["items"]
    for part in (parts["spec"], parts["status"], groups):
        for value in part["properties"].values():
            if value.get("type") in ("string", "integer", "boolean"):
                value["nullable"] = True  # see _allow_zeros; other parts have keys of lists, which may not be
    return crd


@functools.cache
def closed_ray_jobs() -> Any:
    """Return the schema of a RayJob's spec that refuses fields which it does not name."""
    return closed(schema(ray_jobs())["properties"]["spec"])


def closed(part: Any) -> Any:
    """Return a schema that refuses what it does not name; a word in a schema's place stands for any value."""
    if not isinstance(part, dict) or part.get("x-kubernetes-preserve-unknown-fields"):
        return {}
    if part.get("x-kubernetes-int-or-string"):
        return {}
    kept = {key: value for key, value in part.items() if key not in ("properties", "items", "format")}
    if "items" in part:
        kept["items"] = closed(part["items"])
    if "properties" in part:
        kept["properties"] = {name: closed(value) for name, value in part["properties"].items()}
        kept["additionalProperties"] = False
    return kept


def _of_1_20(part: Any) -> Any:
    """Return a schema without rules in CEL, and without empty defaults, which count as null there."""
    if isinstance(part, list):
        return [_of_1_20(value) for value in part]
    if not isinstance(part, dict):
        return part
    is_new = {"x-kubernetes-validations", *(("default",) if part.get("default") == "" else ())}
    return {key: _of_1_20(value) for key, value in part.items() if key not in is_new}


def _open_definition(kind: str, plural: str, scope: str) -> dict[str, Any]:
    anything = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    version = {"name": KUEUE_VERSION, "served": True, "storage": True, "schema": {"openAPIV3Schema": anything}}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {
            "name": f"{plural}.kueue.x-k8s.io",
            "annotations": {"api-approved.kubernetes.io": "unapproved, a stand-in"},
        },
        "spec": {
            "group": "kueue.x-k8s.io",
            "scope": scope,
            "names": {"kind": kind, "plural": plural, "singular": kind.lower()},
            "versions": [version],
        },
    }


def _inlined(part: Any, definitions: dict[str, Any]) -> Any:
    """Return a schema of OpenAPI 2 as a structural one, without references."""
    if reference := part.get("$ref"):
        name = reference.rpartition("/")[2]
        return dict(_INT_OR_STRING) if name == _QUANTITY else _inlined(definitions[name], definitions)
    if part.get("format") == "int-or-string":
        return dict(_INT_OR_STRING)
    kept = {key: part[key] for key in ("type", "format", "required", "enum") if key in part}
    if "properties" in part:
        kept["properties"] = {name: _inlined(value, definitions) for name, value in part["properties"].items()}
    for key in ("items", "additionalProperties"):
        if key in part:
            kept[key] = _inlined(part[key], definitions)
    return kept if "type" in kept else {"type": "object", **kept}
