"""A bundle onto the cluster: whole, once, or not at all."""

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
_REMOVING = "still removing what was made; once more leaves the rest there"


@dataclass(frozen=True, slots=True)
class Submitted:
    """A job that the cluster has.

    Args:
        job: The custom resource as it is now.
        server: The cluster.
        is_new: False where it was there already.
        notices: What its user should know.
    """

    job: Mapping[str, Any]
    server: Server
    is_new: bool
    notices: tuple[Notice, ...] = ()


def validate(connection: Connection, bundle: Bundle) -> Findings:
    """Return why the cluster would refuse a bundle; nothing, where it has it already."""
    wanted = manifests(bundle)
    there = find(connection, wanted[-1])
    if isinstance(there, Mapping) and _is_of(there, bundle):
        return Findings(())
    return examine(connection, wanted)


def submit(connection: Connection, bundle: Bundle) -> Submitted:
    """Make a bundle's objects, the job last; one that is there already is left as it is.

    Raises:
        ProblemsFound: Every reason against it; what this call had made is removed again.
    """
    wanted = manifests(bundle)
    try:
        there = _standing(connection, wanted)
        if _is_whole(there, bundle):
            return Submitted(there[-1] or {}, identified(connection), is_new=False)
        findings = examine(connection, wanted)
        if findings.problems:
            raise ProblemsFound(findings.problems)
        reached = identified(connection)
    except KeyboardInterrupt as interrupt:  # before anything was made
        raise Interrupted(signum(interrupt), is_rolled_back=True) from None
    absent = [manifest for manifest, body in zip(wanted, there, strict=True) if body is None]
    # Without its job, what an earlier launch of this bundle left is of no use to anybody.
    own = wanted if there[-1] is None else absent
    try:
        job = _make(connection, wanted, absent, there[-1])
    except (ApiError, Unreachable) as error:
        found = _failed(connection, own, error)
        outcome = "what E352 names may exist" if len(found) > 1 else None
        raise ProblemsFound(found, outcome) from error
    except KeyboardInterrupt as interrupt:
        raise _interrupted(connection, own, interrupt) from None
    except BaseException:
        _take_back(connection, own)
        raise
    return Submitted(job, reached, is_new=True, notices=findings.notices)


def existing(connection: Connection, bundle: Bundle) -> tuple[Manifest, ...]:
    """Return those objects of a bundle that exist.

    Raises:
        ApiError: The API refuses.
        Unreachable: It does not answer.
    """
    found = ((manifest, connection.find(manifest.path)) for manifest in manifests(bundle))
    return tuple(manifest for manifest, body in found if body and digest_of(body) == manifest.digest)


def _is_of(body: Mapping[str, Any], bundle: Bundle) -> bool:
    """Tell whether an object comes from a bundle and is there to stay."""
    return digest_of(body) == bundle.digest and "deletionTimestamp" not in body["metadata"]


def _is_whole(there: Sequence[Mapping[str, Any] | None], bundle: Bundle) -> bool:
    """Tell whether every object of a bundle is there, the job last, and goes when the job goes."""
    *others, job = (body if body and _is_of(body, bundle) else None for body in there)
    if job is None or None in others:
        return False
    owners = [other["metadata"].get("ownerReferences") or () for other in others]
    return all(any(owner["uid"] == job["metadata"]["uid"] for owner in each) for each in owners)


def _failed(connection: Connection, own: Sequence[Manifest], error: ApiError | Unreachable) -> tuple[Problem, ...]:
    """Take back a submission that failed; say why it failed and what became of it."""
    with deferred(_REMOVING):
        _, left = _take_back(connection, own)
    told = problem(error, "cluster.namespace", value=own[-1].namespace)
    if not left:
        told = replace(told, message=f"{told.message}; what this launch had made was removed")
    return (told, *left)


def _standing(connection: Connection, wanted: Sequence[Manifest]) -> list[Mapping[str, Any] | None]:
    """Return each object as it is, None where it is not.

    Raises:
        ProblemsFound: The cluster does not say.
    """
    # A job that is wrongly taken for absent would be removed by the rollback of a launch that fails.
    found = [find(connection, manifest, is_sure=manifest is wanted[-1]) for manifest in wanted]
    if problems := tuple(dict.fromkeys(each for each in found if isinstance(each, Problem))):
        raise ProblemsFound(problems)
    return [each for each in found if not isinstance(each, Problem)]


def _make(
    connection: Connection, wanted: Sequence[Manifest], absent: Sequence[Manifest], job: Mapping[str, Any] | None
) -> Mapping[str, Any]:
    """Make what is absent and let everything go when the job goes; return the job."""
    for manifest in wanted[:-1]:
        if manifest in absent:
            connection.apply(manifest.path, manifest.body, manager(manifest.body))
    made = job or _make_job(connection, wanted[-1])
    for manifest in wanted[:-1]:  # also what an earlier job of this bundle left, which would go with that one
        connection.apply(manifest.path, manifest.owned_by(made).body, manager(manifest.body))
    return made


def _make_job(connection: Connection, wanted: Manifest) -> Mapping[str, Any]:
    """Make the job; one that a request without an answer has made is there, though its operator has changed it."""
    try:
        return connection.apply(wanted.path, wanted.body, manager(wanted.body))
    except ApiError as error:
        there = find(connection, wanted) if error.status == _CONFLICT else None
        if isinstance(there, Mapping) and digest_of(there) == wanted.digest:
            return there
        raise


def _interrupted(connection: Connection, own: Sequence[Manifest], interrupt: KeyboardInterrupt) -> Interrupted:
    """Roll back a submission that a signal ended, and print what became of it."""
    console.say("interrupted; removing what was made …", stderr=True)
    with deferred(_REMOVING):
        removed, left = _take_back(connection, own)
    console.say(f"removed: {', '.join(removed) or 'nothing, as nothing had been made'}", stderr=True)
    if left:
        console.show_problems(left, "the rest could not be removed")
    return Interrupted(signum(interrupt), is_rolled_back=not left)


def _take_back(connection: Connection, own: Sequence[Manifest]) -> tuple[list[str], tuple[Problem, ...]]:
    """Remove what exists of a submission, the job first; return what was removed, and what cannot be.

    Only the cluster knows whether a request that broke has made its object; a second look finds one that came late.
    """
    removed, left = [], []
    for manifest in reversed(own):
        try:
            there = connection.find(manifest.path)
            if there and digest_of(there) == digest_of(manifest.body):
                connection.delete(manifest.path, there["metadata"]["uid"])
                removed.append(str(manifest))
        except (ApiError, Unreachable) as error:
            left.append(_left(manifest, error))
    return removed, tuple(left)


def _left(manifest: Manifest, error: ApiError | Unreachable) -> Problem:
    return Problem(
        "E352",
        manifest.file,
        f"{manifest} may have been made and could not be removed: {error}",
        remedy=f"kubectl -n {manifest.namespace} delete {manifest.kind.lower()} {manifest.name}, or launch it again",
    )
