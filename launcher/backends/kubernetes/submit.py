"""Submits a bundle to the cluster: completely and once, or not at all."""

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from launcher.backends.kubernetes.api_errors import ApiError, RequestFailed, problem
from launcher.backends.kubernetes.api_objects import Manifest, digest_of, manifests
from launcher.backends.kubernetes.connection import Connection
from launcher.backends.kubernetes.preflight import Findings, examine, find
from launcher.backends.kubernetes.server import Server, identified
from launcher.common import console
from launcher.common.interrupts import Interrupted, deferred, signum
from launcher.common.problems import Notice, Problem, ProblemsFound
from launcher.model.following import STAYS_RECORDED
from launcher.model.job_spec import Bundle

_CONFLICT = 409
_OUTCOME_UNKNOWN = (500, 502, 504)
"""Statuses after which a request may have taken effect, or still may. Source: Kubernetes API conventions, HTTP status
codes: 500 and 504; 502 is a load balancer's for a server that broke off."""
_NOT_STORED = re.compile(r"failed calling webhook")
"""Words of a 500 that admission sends before anything is stored. Source: Kubernetes, Dynamic admission control."""
_WAITING = "interrupted; waiting for the cluster's answer to the last request; another signal stops waiting"
_REMOVING = "still removing what was created; another signal leaves the rest"
_OUTCOME = f"the objects that E352 names may exist; {STAYS_RECORDED}"


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


@dataclass(frozen=True, slots=True)
class Requests:
    """Requests of a submission, by the path of their object.

    Args:
        sent: How many were sent.
        answered: How many got an answer that shows their outcome.
    """

    sent: Counter[str] = field(default_factory=Counter)
    answered: Counter[str] = field(default_factory=Counter)

    @contextmanager
    def sending(self, path: str) -> Iterator[None]:
        """Count the request that the block sends. A signal waits for its answer, which a rollback needs to know.

        Raises:
            Interrupted: A signal came meanwhile.
        """
        with deferred(_WAITING) as taken:
            self.sent[path] += 1
            try:
                yield
                self.answered[path] += 1
            except Exception as error:
                self.answered[path] += isinstance(error, ApiError) and is_final(error)
                if not taken:
                    raise
        if taken:
            raise Interrupted(taken[0])

    def may_be_created(self, path: str, *, was_found: bool) -> bool:
        """Return whether the cluster may still create an object after it was found and deleted, or was not found.

        An object that was found is the outcome of its only request, if that one was not answered.
        """
        unanswered = self.sent[path] - self.answered[path]
        return unanswered > 0 and not (was_found and self.sent[path] == 1)


def is_final(error: ApiError) -> bool:
    """Return whether a refusal shows that its request changed nothing and will not."""
    return error.status not in _OUTCOME_UNKNOWN or _NOT_STORED.search(error.message) is not None


@dataclass(frozen=True, slots=True)
class _Launch:
    """A submission under way.

    Args:
        folder: The bundle's.
        wanted: The bundle's objects, the job last.
        absent: Those that did not exist when it began.
        own: Those that it removes again after a failure.
        requests: What it has requested.
    """

    connection: Connection
    folder: Path
    wanted: Sequence[Manifest]
    absent: Sequence[Manifest]
    own: Sequence[Manifest]
    requests: Requests = field(default_factory=Requests)

    def apply(self, manifest: Manifest) -> Mapping[str, Any]:
        sending = partial(self.requests.sending, manifest.path)
        return self.connection.apply(manifest.path, manifest.body, manifest.manager, sending=sending)


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
    job = _created(_Launch(connection, bundle.directory, wanted, absent, own), found[-1])
    return Submitted(job, server, is_new=True, notices=findings.notices)


def _created(launch: _Launch, job: Mapping[str, Any] | None) -> Mapping[str, Any]:
    """Create the absent objects and return the job; remove the launch's own again after any failure."""
    try:
        return _create(launch, job)
    except RequestFailed as error:
        problems = _failed(launch, error)
        raise ProblemsFound(problems, _OUTCOME if len(problems) > 1 else None) from error
    except KeyboardInterrupt as interrupt:
        raise _interrupted(launch, interrupt) from None
    except BaseException:
        _rollback(launch)
        raise


def existing(connection: Connection, bundle: Bundle) -> tuple[Manifest, ...]:
    """Return the objects of a bundle that exist."""
    found = ((manifest, connection.find(manifest.path)) for manifest in manifests(bundle))
    return tuple(manifest for manifest, body in found if body and manifest.is_origin_of(body))


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


def _failed(launch: _Launch, error: RequestFailed) -> tuple[Problem, ...]:
    """Roll back a failed submission; return why it failed and what may be left."""
    with deferred(_REMOVING):
        _, left = _rollback(launch)
    failure = problem(error, "cluster.namespace", value=launch.own[-1].namespace)
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


def _create(launch: _Launch, job: Mapping[str, Any] | None) -> Mapping[str, Any]:
    """Create the absent objects and make the job the owner of all others; return the job."""
    for manifest in launch.wanted[:-1]:
        if manifest in launch.absent:
            launch.apply(manifest)
    owner = job or _create_job(launch)
    for manifest in launch.wanted[:-1]:  # also objects that an earlier job of this bundle owned
        launch.apply(manifest.owned_by(owner))
    return owner


def _create_job(launch: _Launch) -> Mapping[str, Any]:
    """Create the job. A conflict may mean that an unanswered request created it, and its operator has changed it."""
    wanted = launch.wanted[-1]
    try:
        return launch.apply(wanted)
    except ApiError as error:
        found = find(launch.connection, wanted) if error.status == _CONFLICT else None
        if isinstance(found, Mapping) and wanted.is_origin_of(found):
            return found
        raise


def _interrupted(launch: _Launch, interrupt: KeyboardInterrupt) -> Interrupted:
    """Roll back a submission that a signal interrupted, and print the result."""
    console.say("interrupted; removing what was created …", stderr=True)
    with deferred(_REMOVING):
        removed, left = _rollback(launch)
    console.say(f"removed: {', '.join(removed) or 'nothing (nothing was found)'}", stderr=True)
    if left:
        console.show_problems(left, _OUTCOME)
    return Interrupted(signum(interrupt), is_rolled_back=not left)


def _rollback(launch: _Launch) -> tuple[list[str], tuple[Problem, ...]]:
    """Delete the existing objects of a submission, the job first; return the deleted ones, and Problems for the rest.

    An object that does not exist may still be created by a request that was not answered.
    """
    connection, job = launch.connection, launch.folder.name
    removed: list[str] = []
    left: list[Problem] = []
    for manifest in reversed(launch.own):
        try:
            found = connection.find(manifest.path)
            if found and manifest.is_origin_of(found):
                connection.delete(manifest.path, found["metadata"]["uid"])
                removed.append(str(manifest))
            if launch.requests.may_be_created(manifest.path, was_found=found is not None):
                message = f"{manifest} may still be created: the cluster did not answer the request for it"
                looks, removes = f"recipes status {job} looks again", f"recipes cancel {job} removes it"
                remedy = f"{looks}; {removes}; recipes launch {job} keeps it"
                left.append(Problem("E352", manifest.file, message, remedy=remedy))
        except RequestFailed as error:
            message = f"{manifest} may have been created and could not be removed: {error}"
            command = f"kubectl -n {manifest.namespace} delete {manifest.kind.lower()} {manifest.name}"
            left.append(Problem("E352", manifest.file, message, remedy=f"{command}, or launch it again"))
    return removed, tuple(left)
