"""Checks of a cluster before the objects of `recipes governance` are applied. Creates nothing."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from launcher.backends.kubernetes.api_errors import RequestFailed, Unreachable, problem
from launcher.backends.kubernetes.connection import Connection
from launcher.backends.kubernetes.preflight import absent, kinds_served
from launcher.common.problems import Problem, ProblemsFound
from launcher.governance.cluster_wide import shared

_PLURALS = {
    "PriorityClass": "priorityclasses",
    "WorkloadPriorityClass": "workloadpriorityclasses",
    "ResourceFlavor": "resourceflavors",
    "Topology": "topologies",
}
_KUEUE = "/apis/kueue.x-k8s.io"
_ADMISSION = "/apis/admissionregistration.k8s.io/v1"
_POLICY = "ValidatingAdmissionPolicy"


def kueue_version(connection: Connection, known: Iterable[str], given: str | None) -> str:
    """Return the version of Kueue's API to generate objects for: the given one, or the cluster's preferred one.

    Args:
        known: The versions that this program can generate.
        given: One of them; None to choose.

    Raises:
        ProblemsFound: The cluster has no Kueue, or none of these versions.
    """
    try:
        group = connection.get(_KUEUE)
    except RequestFailed as error:
        if error.status != 404:
            raise ProblemsFound((problem(error, "kueue"),)) from error
        remedy = "install Kueue, or use kueue=false if the task governance add-on will install it"
        raise ProblemsFound((Problem("E347", "kueue", "the cluster has no Kueue", True, remedy=remedy),)) from error
    served = [version["version"] for version in group.get("versions", ())]
    preferred = group.get("preferredVersion", {}).get("version")
    wanted = [given] if given else [preferred, *served]
    for version in wanted:
        if version in served and version in known:
            return version
    message = "is not a Kueue version of the cluster" if given else "the cluster's Kueue is not supported"
    raise ProblemsFound((Problem("E347", "kueue_version", message, given, f"of the cluster: {', '.join(served)}"),))


def problems(connection: Connection, objects: Iterable[Mapping[str, Any]]) -> Iterator[Problem]:
    """Yield a Problem for each prerequisite that the cluster lacks: the policy's kind, a Topology by name."""
    seen = set()
    for each in objects:
        if each["kind"] == _POLICY and _POLICY not in seen:
            seen.add(_POLICY)
            yield from _policy_missing(connection)
        topology = each["spec"].get("topologyName") if each["kind"] == "ResourceFlavor" else None
        if topology and topology not in seen:
            seen.add(topology)
            where = f"/apis/{each['apiVersion']}/topologies/{topology}"
            yield from absent(connection, where, "topology", topology, "E347")


def _policy_missing(connection: Connection) -> Iterator[Problem]:
    """Yield a Problem if the cluster has no admission policies. Source: Kubernetes 1.30, v1 of the API."""
    try:
        served = kinds_served(connection, _ADMISSION)
    except RequestFailed as error:
        yield problem(error, "pod_security")
        return
    if _POLICY not in served:
        message = "the cluster has no ValidatingAdmissionPolicy, so nothing would restrict the team's pods"
        remedy = "Kubernetes 1.30, or pod_security=restricted with non-root images, or pod_security=privileged"
        yield Problem("E346", "pod_security", message, "policy", remedy=remedy)


def existing(connection: Connection, objects: Iterable[Mapping[str, Any]]) -> tuple[Mapping[str, Any], ...]:
    """Return the cluster's objects with the kind and name of a shared one among `objects`.

    Raises:
        ProblemsFound: One cannot be read.
    """
    found, faults = [], []
    for each in shared(objects):
        path = f"/apis/{each['apiVersion']}/{_PLURALS[each['kind']]}/{each['metadata']['name']}"
        try:
            found.append({**connection.get(path), "kind": each["kind"]})
        except Unreachable as error:
            raise ProblemsFound((problem(error, "team"),)) from error
        except RequestFailed as error:
            if error.status != 404:
                faults.append(problem(error, "--cluster", value=f"{each['kind']} {each['metadata']['name']}"))
    if faults:
        raise ProblemsFound(tuple(dict.fromkeys(faults)))
    return tuple(found)
