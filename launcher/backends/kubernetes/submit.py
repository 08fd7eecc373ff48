"""Submits a bundle to the cluster: completely and once, or not at all."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from launcher.backends.kubernetes.api_errors import ApiError, Unreachable, problem
from launcher.backends.kubernetes.api_objects import Manifest, manager, manifests
from launcher.backends.kubernetes.connection import Connection
from launcher.backends.kubernetes.preflight import Findings, digest_of, examine, find
from launcher.backends.kubernetes.server import Server, identified
from launcher.common import console
from launcher.common.interrupts import Interrupted, deferred, signum
from launcher.common.problems import Notice, Problem, ProblemsFound
from launcher.model.job_spec import Bundle

_CONFLICT = 409
_REMOVING = "still removing what was created; another signal leaves the rest"


@dataclass(frozen=True, slots=True)
class Submitted:
    """A job on the cluster.

    Args:
        job: The current custom resource.
        server: The cluster.
        is_new: Whether this call created it.
        notices: What the user should know about it.
    """

    job: Mapping[str, Any]
    server: Server
    is_new: bool
    notices: tuple[Notice, ...] = ()


def validate(connection: Connection, bundle: Bundle) -> Findings:
    """Return why the cluster would refuse a bundle; nothing if it has the bundle's job already."""
    wanted = manifests(bundle)
    found = find(connection, wanted[-1])
    if isinstance(found, Mapping) and _is_of(found, bundle):
        return Findings(())
    return examine(connection, wanted)


def submit(connection: Connection, bundle: Bundle) -> Submitted:
    """Create a bundle's objects, the job last; a job that exists already is left unchanged.

    Raises:
        ProblemsFound: Every reason against it; what this call had created is removed again.
    """
    wanted = manifests(bundle)
    try:
        found = _existing(connection, wanted)
        if _is_complete(found, bundle):
            return Submitted(found[-1] or {}, identified(connection), is_new=False)
        findings = examine(connection, wanted)
        if findings.problems:
            raise ProblemsFound(findings.problems)
        server = identified(connection)
    except KeyboardInterrupt as interrupt:  # nothing has been created yet
        raise Interrupted(signum(interrupt), is_rolled_back=True) from None
    absent = [manifest for manifest, body in zip(wanted, found, strict=True) if body is None]
    # Without their job, the objects of an earlier launch of this bundle serve no purpose: they are rolled back too.
    own = wanted if found[-1] is None else absent
    job = _created(connection, wanted, absent, found[-1], own)
    return Submitted(job, server, is_new=True, notices=findings.notices)


def _created(
    connection: Connection,
    wanted: Sequence[Manifest],
    absent: Sequence[Manifest],
    job: Mapping[str, Any] | None,
    own: Sequence[Manifest],
) -> Mapping[str, Any]:
    """Create the absent objects and return the job; remove `own` again after any failure."""
    try:
        return _create(connection, wanted, absent, job)
    except (ApiError, Unreachable) as error:
        problems = _failed(connection, own, error)
        outcome = "the objects that E352 names may exist" if len(problems) > 1 else None
        raise ProblemsFound(problems, outcome) from error
    except KeyboardInterrupt as interrupt:
        raise _interrupted(connection, own, interrupt) from None
    except BaseException:
        _rollback(connection, own)
        raise


def existing(connection: Connection, bundle: Bundle) -> tuple[Manifest, ...]:
    """Return the objects of a bundle that exist.

    Raises:
        ApiError: The API refuses.
        Unreachable: It does not answer.
    """
    found = ((manifest, connection.find(manifest.path)) for manifest in manifests(bundle))
    return tuple(manifest for manifest, body in found if body and digest_of(body) == manifest.digest)


def _is_of(body: Mapping[str, Any], bundle: Bundle) -> bool:
    """Return whether an object comes from a bundle and is not being deleted."""
    return digest_of(body) == bundle.digest and "deletionTimestamp" not in body["metadata"]


def _is_complete(found: Sequence[Mapping[str, Any] | None], bundle: Bundle) -> bool:
    """Return whether every object of a bundle exists, and the job, the last of them, owns the others."""
    *others, job = (body if body and _is_of(body, bundle) else None for body in found)
    return job is not None and all(other is not None and _is_owned(other, job) for other in others)


def _is_owned(body: Mapping[str, Any], job: Mapping[str, Any]) -> bool:
    owners = body["metadata"].get("ownerReferences") or ()
    return any(owner["uid"] == job["metadata"]["uid"] for owner in owners)


def _failed(connection: Connection, own: Sequence[Manifest], error: ApiError | Unreachable) -> tuple[Problem, ...]:
    """Roll back a failed submission; return why it failed and what could not be removed."""
    with deferred(_REMOVING):
        _, left = _rollback(connection, own)
    failure = problem(error, "cluster.namespace", value=own[-1].namespace)
    if not left:
        failure = replace(failure, message=f"{failure.message}; everything this launch created was removed")
    return (failure, *left)


def _existing(connection: Connection, wanted: Sequence[Manifest]) -> list[Mapping[str, Any] | None]:
    """Return each current object; None if it does not exist.

    Raises:
        ProblemsFound: The cluster does not answer that.
    """
    # A job wrongly considered absent would be deleted by the rollback of a launch that fails.
    found = [find(connection, manifest, is_sure=manifest is wanted[-1]) for manifest in wanted]
    if problems := tuple(dict.fromkeys(each for each in found if isinstance(each, Problem))):
        raise ProblemsFound(problems)
    return [each for each in found if not isinstance(each, Problem)]


def _create(
    connection: Connection, wanted: Sequence[Manifest], absent: Sequence[Manifest], job: Mapping[str, Any] | None
) -> Mapping[str, Any]:
    """Create the absent objects and make the job the owner of all others; return the job."""
    for manifest in wanted[:-1]:
        if manifest in absent:
            connection.apply(manifest.path, manifest.body, manager(manifest.body))
    owner = job or _create_job(connection, wanted[-1])
    for manifest in wanted[:-1]:  # also objects that an earlier job of this bundle owned
        connection.apply(manifest.path, manifest.owned_by(owner).body, manager(manifest.body))
    return owner


def _create_job(connection: Connection, wanted: Manifest) -> Mapping[str, Any]:
    """Create the job. A conflict may mean that an unanswered request created it, and its operator has changed it."""
    try:
        return connection.apply(wanted.path, wanted.body, manager(wanted.body))
    except ApiError as error:
        found = find(connection, wanted) if error.status == _CONFLICT else None
        if isinstance(found, Mapping) and digest_of(found) == wanted.digest:
            return found
        raise


def _interrupted(connection: Connection, own: Sequence[Manifest], interrupt: KeyboardInterrupt) -> Interrupted:
    """Roll back a submission that a signal interrupted, and print the result."""
    console.say("interrupted; removing what was created …", stderr=True)
    with deferred(_REMOVING):
        removed, left = _rollback(connection, own)
    console.say(f"removed: {', '.join(removed) or 'nothing (nothing had been created)'}", stderr=True)
    if left:
        console.show_problems(left, "the rest could not be removed")
    return Interrupted(signum(interrupt), is_rolled_back=not left)


def _rollback(connection: Connection, own: Sequence[Manifest]) -> tuple[list[str], tuple[Problem, ...]]:
    """Delete the existing objects of a submission, the job first; return the deleted ones, and Problems for the rest.

    Only the cluster knows whether an unanswered request created its object; `find` requests it twice.
    """
    removed, left = [], []
    for manifest in reversed(own):
        try:
            found = connection.find(manifest.path)
            if found and digest_of(found) == digest_of(manifest.body):
                connection.delete(manifest.path, found["metadata"]["uid"])
                removed.append(str(manifest))
        except (ApiError, Unreachable) as error:
            left.append(_left(manifest, error))
    return removed, tuple(left)


def _left(manifest: Manifest, error: ApiError | Unreachable) -> Problem:
    return Problem(
        "E352",
        manifest.file,
        f"{manifest} may have been created and could not be removed: {error}",
        remedy=f"kubectl -n {manifest.namespace} delete {manifest.kind.lower()} {manifest.name}, or launch it again",
    )
