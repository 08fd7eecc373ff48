"""Examines a cluster by its API before a launch: the checks of a launch, and what it would find out much later.

Reads only, but for dry runs of the job's own objects. What the user may not read is unknown, with the permission that
it needs.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import partial
from typing import Any, ClassVar

from launcher.backends.kubernetes import api_objects, node_fit, preflight
from launcher.backends.kubernetes.api_errors import ApiError, RequestFailed, problem
from launcher.backends.kubernetes.api_objects import POD_KINDS, PRIORITY_LABEL, QUEUE_LABEL, Manifest
from launcher.backends.kubernetes.connection import JSON, METADATA_ONLY, Connection, connect
from launcher.bundle import store
from launcher.common.problems import Problem
from launcher.common.texts import counted, first_of
from launcher.governance import pod_policy
from launcher.governance.quotas import Demand
from launcher.model.finding import Answer, Finding, FindingState, Question, clock, ok, or_ok, unknown, warning
from launcher.model.job_spec import Bundle, JobSpec

_FORBIDDEN, _NOT_FOUND = 403, 404
_PATIENCE_S = 5.0
"""Time for which a question is retried: all of them have a deadline together."""
_MOST_NAMES = 5
_LEVEL = "pod-security.kubernetes.io/enforce"
"""Label of a namespace. Source: Kubernetes, Pod Security Admission: Pod Security Admission labels for namespaces."""
_SINGLE, _OF_ONE_POD = "ReadWriteOnce", "ReadWriteOncePod"
"""Access modes. Source: Kubernetes, Persistent Volumes: Access Modes."""
_DATA = ("f:data", "f:stringData")

_RIGHT = re.compile(r'cannot (\w+) resource "([^"]+)"')
"""Verb and resource of a refusal. Source: Kubernetes, apiserver/pkg/endpoints/handlers/responsewriters, errors.go."""

Ask = Callable[[Connection], Iterable[Answer]]


class KubernetesDoctor:
    """Examines the cluster that a job's context leads to."""

    unanswered: ClassVar[frozenset[str]] = frozenset({"E342"})

    def examine(self, job: JobSpec, bundle: Bundle) -> Iterator[Answer]:
        """Yield whether the cluster runs jobs of this kind in the namespace, and the questions about the rest."""
        connection = connect(store.config_of(bundle)["cluster"].get("kube_context"))
        connection = replace(connection, patience_s=_PATIENCE_S)
        manifests = api_objects.manifests(bundle)
        resource = manifests[-1]
        if faults := tuple(preflight.unusable_cluster(connection, resource)):
            yield from faults
            return
        where = f"{connection.context or 'this cluster'} at {connection.host}, namespace {resource.namespace}"
        yield from _clock(connection, f"{where}: serves {resource.kind}")
        for subject, ask in _questions(job, manifests):
            yield Question(subject, partial(_observed, connection, subject, ask))


def _clock(connection: Connection, message: str) -> Iterator[Answer]:
    """Yield the version of the API server, and how far this machine's clock is from its own."""
    try:
        version, theirs = connection.clock()
    except RequestFailed as error:
        yield ok("cluster", message)
        yield unknown("clock", str(error))
        return
    yield ok("cluster", f"{message}, Kubernetes {version.get('gitVersion', 'of unknown version')}")
    if theirs:
        yield clock("the cluster's API", theirs)


def _questions(job: JobSpec, manifests: Sequence[Manifest]) -> Iterator[tuple[str, Ask]]:
    """Yield the subjects that a job has, each with its question."""
    resource, programs = manifests[-1], [each for each in reversed(manifests) if each.kind in POD_KINDS]
    labels = resource.body["metadata"].get("labels") or {}
    kinds = {kind for each in programs for kind, _, _ in preflight.references(each.body)}
    if "PersistentVolumeClaim" in kinds:
        yield "volumes", lambda connection: _volumes(connection, manifests, programs)
    if kinds & {"Secret", "ConfigMap"}:
        yield "secrets", lambda connection: _secrets(connection, manifests, programs)
    for kind, subject in (("ServiceAccount", "service account"), ("PriorityClass", "priority class")):
        if kind in kinds:
            named = f"exists: {first_of(_names(programs, kind), _MOST_NAMES)}"
            yield subject, partial(_existing, manifests=manifests, kind=kind, subject=subject, message=named)
    if QUEUE_LABEL in labels or PRIORITY_LABEL in labels:
        yield "queue", lambda connection: _queue(connection, resource)
    yield "quota", lambda connection: _quota(connection, programs)
    yield "nodes", lambda connection: node_fit.answers(connection, programs)
    yield "pod security", lambda connection: _pod_security(connection, job, programs)
    may = "you may remove what a launch creates"
    yield "rights", lambda connection: or_ok("rights", preflight.rights_missing(connection, manifests), may)
    yield "job object", lambda connection: _accepted(connection, manifests)


def _observed(connection: Connection, subject: str, ask: Ask) -> Iterator[Answer]:
    """Ask a question, and yield what it could not read: for lack of a permission, or of an answer."""
    observed = _Observed(**{each.name: getattr(connection, each.name) for each in fields(connection)})
    answered: list[Answer] = []
    try:
        for answer in ask(observed):
            answered.append(answer)
    except RequestFailed as error:
        if error.status not in {each.status for each in observed.unread}:
            answered.append(problem(error, "cluster.namespace"))
    if observed.unread:  # what was not read is not fine
        answered = [each for each in answered if not (isinstance(each, Finding) and each.state is FindingState.OK)]
    yield from answered
    known = {each.code for each in answered if isinstance(each, Problem)}
    for failed in observed.unread:
        if failed.status == _FORBIDDEN:
            yield _forbidden(subject, failed.message)
        elif (fault := problem(failed, "cluster.namespace")).code not in known:
            known.add(fault.code)
            yield fault


def _forbidden(subject: str, message: str) -> Finding:
    """Return what may not be read, with the permission that it needs."""
    right = _RIGHT.search(message)
    remedy = f"ask for a Role that allows {right[1]} on {right[2]}" if right else "ask for a Role that allows it"
    return unknown(subject, f"may not be read: {message}", remedy)


@dataclass(frozen=True, slots=True)
class _Observed(Connection):
    """A connection that notes which reads failed; an object that does not exist is an answer.

    Args:
        unread: The failures.
    """

    unread: list[RequestFailed] = field(default_factory=list)

    def get(self, path: str, query: Mapping[str, object] | None = None, *, accept: str = JSON) -> dict[str, Any]:
        try:
            return Connection.get(self, path, query, accept=accept)
        except RequestFailed as error:
            if error.status != _NOT_FOUND:
                self.unread.append(error)
            raise


def _specs(programs: Sequence[Manifest]) -> list[Mapping[str, Any]]:
    return [template["spec"] for each in programs for template in api_objects.pod_templates(each.body)]


def _names(programs: Sequence[Manifest], kind: str) -> list[str]:
    found = (each for program in programs for each in preflight.references(program.body))
    return list(dict.fromkeys(name for each, name, _ in found if each == kind))


def _existing(
    connection: Connection, manifests: Sequence[Manifest], kind: str, subject: str, message: str
) -> Iterator[Answer]:
    return or_ok(subject, preflight.missing(connection, manifests, (kind,)), message)


def _volumes(connection: Connection, manifests: Sequence[Manifest], programs: Sequence[Manifest]) -> Iterator[Answer]:
    """Yield whether each claim exists, is bound, and may be mounted on as many nodes as the job has."""
    key, namespace = "cluster.persistent_volume_claims", manifests[-1].namespace
    yield from preflight.missing(connection, manifests, ("PersistentVolumeClaim",))
    demand = Demand.of(*(each.body for each in programs))
    for name in _names(programs, "PersistentVolumeClaim"):
        try:
            claim = connection.get(api_objects.path("PersistentVolumeClaim", namespace, name))
        except ApiError as error:
            if error.status not in (403, 404):  # these have been reported
                raise
            continue
        status = claim.get("status") or {}
        phase, modes = status.get("phase"), status.get("accessModes") or claim["spec"].get("accessModes") or []
        message = f"{name} is bound, {', '.join(modes)}, {(status.get('capacity') or {}).get('storage')}"
        yield from or_ok("volumes", _unmountable(key, name, phase, modes, demand), message)


def _unmountable(
    key: str, name: str, phase: str | None, modes: Sequence[str], demand: Demand
) -> Iterator[Problem | Finding]:
    """Yield why pods of several nodes, or any, could not mount a claim."""
    if phase == "Lost":
        yield Problem("E357", key, "its volume no longer exists", value=name, remedy="create the claim again")
    elif phase != "Bound":
        remedy = f"kubectl describe pvc {name} names the reason; WaitForFirstConsumer binds with the first pod"
        yield warning("volumes", f"{name} is not bound yet ({phase or 'no phase'})", remedy)
    shared = [mode for mode in modes if mode not in (_SINGLE, _OF_ONE_POD)]
    if modes and not shared and demand.most > 1:
        message = (
            f"its access mode {', '.join(modes)} is for one node, and the job has {demand.least} to {demand.most}"
        )
        remedy = "a claim with ReadWriteMany"
        if demand.least > 1:
            yield Problem("E357", key, message, value=name, allowed="ReadWriteMany, ReadOnlyMany", remedy=remedy)
        else:
            yield warning("volumes", f"{name}: {message}: it could not grow", remedy)


def _secrets(connection: Connection, manifests: Sequence[Manifest], programs: Sequence[Manifest]) -> Iterator[Answer]:
    """Yield whether each Secret and ConfigMap exists and has the keys; no value is ever read."""
    kinds = ("Secret", "ConfigMap")
    faults: list[Answer] = list(preflight.missing(connection, manifests, kinds))
    namespace, own = manifests[-1].namespace, {(each.kind, each.name) for each in manifests}
    needed = (each for spec in _specs(programs) for each in preflight.keys_of_variables(spec))
    for kind, name, key, variable in dict.fromkeys(needed):
        if (kind, name) in own:
            continue
        try:
            found = connection.get(api_objects.path(kind, namespace, name), accept=METADATA_ONLY)
        except ApiError as error:
            if error.status not in (403, 404):
                raise
            continue
        known = _known_keys(found)
        if known is None:
            faults.append(unknown("secrets", f"{variable}: whether {kind} {name} has the key {key} is not recorded"))
        elif key not in known:
            message = f"{kind} {name} has no key {key}: no container would start"
            listed = ", ".join(sorted(known)) or "it has no key"
            faults.append(Problem("E359", f"env_vars.{variable}", message, allowed=listed, remedy="name another key"))
    others = [f"{kind} {name}" for kind in kinds for name in _names(programs, kind) if (kind, name) not in own]
    message = f"exist with their keys: {first_of(others, _MOST_NAMES)}" if others else "none are needed"
    yield from or_ok("secrets", faults, message)


def _known_keys(found: Mapping[str, Any]) -> set[str] | None:
    """Return the keys of a Secret or ConfigMap by the record of who set them; None without a record.

    Source: Kubernetes, Server-Side Apply: Field management. A record is complete, or there is none.
    """
    managed = found["metadata"].get("managedFields")
    if not managed:
        return None
    owned = [(each.get("fieldsV1") or {}).get(part) or {} for each in managed for part in _DATA]
    return {name.removeprefix("f:") for each in owned for name in each if name.startswith("f:")}


def _queue(connection: Connection, resource: Manifest) -> Iterator[Answer]:
    faults, cluster_queue = preflight.queue_findings(connection, resource)
    labels = resource.body["metadata"]["labels"]
    behind = f" of ClusterQueue {cluster_queue['metadata']['name']}" if cluster_queue else ""
    named = (labels.get(QUEUE_LABEL, "") and f"{labels[QUEUE_LABEL]}{behind}", labels.get(PRIORITY_LABEL))
    return or_ok("queue", faults, f"takes jobs: {', '.join(filter(None, named))}")


def _quota(connection: Connection, programs: Sequence[Manifest]) -> Iterator[Answer]:
    """Yield whether every quota has room for the smallest size, and for the largest."""
    _, cluster_queue = preflight.queue_findings(connection, programs[0])
    faults, notices = preflight.quota_findings(connection, programs, cluster_queue)
    demand = Demand.of(*(each.body for each in programs))
    message = f"every quota has room for {counted(demand.most, 'node')}, others' jobs apart"
    return or_ok("quota", (*faults, *notices), message)


def _pod_security(connection: Connection, job: JobSpec, programs: Sequence[Manifest]) -> Iterator[Answer]:
    """Yield whether the namespace's Pod Security level admits the pods, which it refuses once the job exists."""
    from launcher.backends.kubernetes.security import exceptions

    namespace = connection.get(api_objects.path("Namespace", "", programs[0].namespace))
    level = (namespace["metadata"].get("labels") or {}).get(_LEVEL, "privileged")
    beyond: list[str] = []
    if level == "restricted":
        beyond = list(exceptions(job))
    elif level == "baseline":
        beyond = [each for spec in _specs(programs) for each in pod_policy.beyond_baseline(spec)]
    if beyond:
        message = f"the namespace enforces {level}, and the pods have {'; '.join(dict.fromkeys(beyond))}"
        remedy = "change the settings, or ask for another namespace: recipes governance generates one"
        yield Problem("E355", "cluster.namespace", message, value=programs[0].namespace, remedy=remedy)
    else:
        yield ok("pod security", f"the namespace's level {level} admits the pods")


def _accepted(connection: Connection, manifests: Sequence[Manifest]) -> Iterator[Answer]:
    faults = (*preflight.names_taken(connection, manifests), *preflight.rejections(connection, manifests))
    listed = ", ".join(dict.fromkeys(each.kind for each in manifests))
    return or_ok("job object", faults, f"the cluster accepts {listed} in a dry run")
