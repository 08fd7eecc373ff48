"""A job as it goes on: watches that outlive what breaks them, and what they tell."""

import json
import queue
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from launcher.backends.kubernetes import api_objects, job_status, lenient, server
from launcher.backends.kubernetes.api_errors import ApiError, Unreachable, problem
from launcher.backends.kubernetes.connection import Connection, chunks, pause_s
from launcher.backends.kubernetes.preflight import kueue_version
from launcher.backends.kubernetes.target import Object, Target, own_pods, uid_of
from launcher.common.problems import ProblemsFound
from launcher.model.job_spec import JobState, JobStatus

PATIENCE_S = 1800.0
"""How long a follower outlasts an API that does not answer."""

REFUSAL_PATIENCE_S = 60.0
"""How long a follower outlasts an API that answers 401 or 404: expired credentials, kinds that are not served yet."""

_WATCH_S = 60
"""How long the server keeps a watch open; a connection that died unnoticed lasts no longer."""

_SHORT_S = 1.0
"""A watch that ends sooner was refused, so that the next one waits."""

_LIST_CHUNK = 500
_GONE, _MARK = 410, "BOOKMARK"
LOOK_AGAIN_S = 15.0
"""How often a job that waits is looked at without an event: Kueue's own objects are not watched."""

_FIRST_S = 5.0
"""How long a first answer is waited for by those who do not want to wait."""

_ASIDE_PATIENCE_S = 2.0
"""How long Kueue, which only explains what is known, may keep a follower from what it follows."""

Objects = Mapping[str, Mapping[str, Any]]


def snapshots(
    connection: Connection, where: str, *, deleted: dict[str, Object] | None = None, **query: Any
) -> Iterator[Objects]:
    """Yield the objects of a list by uid, now and after each change, until `connection.stop` is set.

    Args:
        connection: The cluster.
        where: Path of the list.
        deleted: Receives each deleted object by uid, as it was at its end.
        **query: Which objects.

    Raises:
        ApiError: The API refuses the list or the watch.
        Unreachable: It did not answer for as long as the connection has patience.
    """
    items, version = listed(connection, where, query)
    yield dict(items)
    failures = 0
    while not connection.stop.is_set():
        started = time.monotonic()
        try:
            for event in _watched(connection, where, version, query):
                version = event["object"]["metadata"]["resourceVersion"]
                if event["type"] != _MARK:
                    _take(items, event, deleted)
                    yield dict(items)
        except _Expired as error:  # what happened since is forgotten
            connection.stop.wait(error.retry_after_s or 0.0)
            items, version = listed(connection, where, query)
            yield dict(items)
        failures = failures + 1 if time.monotonic() - started < _SHORT_S else 0
        if failures:
            connection.stop.wait(pause_s(failures))


def listed(connection: Connection, where: str, query: Mapping[str, Any]) -> tuple[dict[str, Any], str]:
    """Return a whole list by uid, and its version; read in pieces, anew where a piece came too late."""
    while True:
        items, token = {}, ""
        try:
            while True:
                page = connection.get(where, limit=_LIST_CHUNK, **{"continue": token or None}, **query)
                items |= {uid: item for item in lenient.mappings(page.get("items")) if (uid := uid_of(item))}
                token = lenient.text(lenient.mapping(page, "metadata").get("continue"))
                if not token:
                    return items, lenient.text(lenient.mapping(page, "metadata").get("resourceVersion"))
        except ApiError as error:
            if error.status != 410 or connection.stop.wait(pause_s(1)):
                raise


class _Expired(Exception):
    """A watch cannot continue from its last version; the list has to be read again.

    Args:
        retry_after_s: How long the server asks to wait before, in seconds.
    """

    def __init__(self, retry_after_s: float | None = None):
        super().__init__()
        self.retry_after_s = retry_after_s


def _watched(connection: Connection, where: str, version: str, query: Mapping[str, Any]) -> Iterator[Any]:
    """Yield the events of one watch until it ends or breaks.

    Raises:
        ApiError: The API refuses the watch.
        _Expired: The list has to be read again.
    """
    watch = {"watch": True, "allowWatchBookmarks": True, "resourceVersion": version, "timeoutSeconds": _WATCH_S}
    try:
        with connection.stream(where, read_timeout_s=_WATCH_S + 15.0, **watch, **query) as answer:
            try:
                for line in lines(chunks(answer)):
                    yield _event(line)
            except Unreachable:
                return  # the next watch continues from the last version
    except ApiError as error:
        if error.status == _GONE:
            raise _Expired from error
        raise


def _event(line: bytes) -> dict[str, Any]:
    """Return an event of a watch.

    Raises:
        _Expired: It reports an error, or is not an event.
    """
    try:
        event = json.loads(line)
    except ValueError as error:
        raise _Expired from error
    metadata = lenient.mapping(event, "object", "metadata")
    is_whole = isinstance(metadata.get("resourceVersion"), str) and (
        metadata.get("uid") or event.get("type") == _MARK
    )
    if lenient.mapping(event).get("type") not in ("ADDED", "MODIFIED", "DELETED", _MARK) or not is_whole:
        raise _Expired(lenient.count(lenient.mapping(event, "object", "details").get("retryAfterSeconds")))
    return event


def lines(pieces: Iterator[bytes], longest: int = 1 << 24) -> Iterator[bytes]:
    """Yield whole lines without their ends, cut to a length; what has no end at the end of the stream is left out."""
    rest = b""
    for piece in pieces:
        *whole, rest = (rest + piece).split(b"\n")
        yield from (line[:longest] for line in whole)
        rest = rest[:longest]


def _take(items: dict[str, Any], event: Object, deleted: dict[str, Object] | None) -> None:
    uid = event["object"]["metadata"]["uid"]
    if event["type"] == "DELETED":
        items.pop(uid, None)
        if deleted is not None:
            deleted[uid] = event["object"]
    else:
        items[uid] = event["object"]


@dataclass(slots=True)
class Observer:
    """Watches a job and its pods in the background, for as long as its block lasts.

    Args:
        connection: Its `stop` ends the watches.
        target: The job.
        last: The custom resource as it was last seen, also once it is deleted.
        inbox: Receives None whenever something changed, an exception where a watch gave up, and what others put.
    """

    connection: Connection
    target: Target
    inbox: queue.Queue[Any] = field(default_factory=lambda: queue.Queue(maxsize=1000))
    job: Object | None = None
    selected: tuple[Object, ...] = ()
    last: Object | None = None
    known: set[str] = field(default_factory=set)

    def __enter__(self) -> "Observer":
        self.spawn(self._observe_job, api_objects.path(self.target.kind, self.target.namespace))
        self.spawn(self._observe_pods, api_objects.path("Pod", self.target.namespace))
        return self

    def __exit__(self, *_exception: object) -> None:
        self.connection.stop.set()

    def spawn(self, work: Any, *arguments: Any) -> threading.Thread:
        """Run `work` in the background; what it raises comes out where the inbox is read."""

        def run() -> None:
            fault: Exception | None = RuntimeError("a follower's thread broke; its own traceback says where")
            try:
                work(*arguments)
                fault = None
            except (ApiError, Unreachable, ProblemsFound) as error:
                fault = error
            finally:
                if fault:
                    self.tell(fault)

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        return thread

    def tell(self, item: Any) -> None:
        """Put something into the inbox; wait while it is full."""
        while not self.connection.stop.is_set():
            try:
                self.inbox.put(item, timeout=0.5)
            except queue.Full:
                continue
            return

    def next(self, timeout_s: float) -> Any:
        """Return what came next, None where nothing came in time or something changed.

        Raises:
            ProblemsFound: A watch gave up.
        """
        try:
            item = self.inbox.get(timeout=max(0.0, timeout_s))
        except queue.Empty:
            return None
        if isinstance(item, (ApiError, Unreachable)):
            raise ProblemsFound((problem(item, "cluster.namespace", value=self.target.namespace),))
        if isinstance(item, (RuntimeError, ProblemsFound)):
            raise item
        return item

    @property
    def is_informed(self) -> bool:
        """Whether both lists have come."""
        return self.known == {"job", "pods"}

    @property
    def pods(self) -> tuple[Object, ...]:
        """The job's own pods as the watches have them."""
        return own_pods(self.selected, self.target, self.job)

    def status(self) -> JobStatus:
        """Return the job's status as the watches have it."""
        return current_status(self.connection, self.target, self.job, self.pods, self.last)

    def _observe_job(self, where: str) -> None:
        deleted: dict[str, Object] = {}
        query = {"fieldSelector": f"metadata.name={self.target.name}"}
        for found in snapshots(self.connection, where, deleted=deleted, **query):
            uid = self.target.uid
            # A list may lack it by mistake; an event of its deletion has it as it ended.
            job = found.get(uid) or (None if uid in deleted else _read_job(self.connection, self.target))
            self.last = job or deleted.get(uid) or self.last
            self.job = job
            self.known.add("job")
            self.tell(None)

    def _observe_pods(self, where: str) -> None:
        for found in snapshots(self.connection, where, labelSelector=self.target.selector):
            self.selected = tuple(found.values())
            self.known.add("pods")
            self.tell(None)


def read_status(connection: Connection, target: Target) -> JobStatus:
    """Return a job's status, asked for now.

    Raises:
        ApiError: The API refuses.
        Unreachable: It does not answer.
    """
    return current_status(connection, target, *read_objects(connection, target))


def read_objects(connection: Connection, target: Target) -> tuple[Object | None, tuple[Object, ...]]:
    """Return a job's custom resource, None once it is deleted, and its own pods.

    Raises:
        ApiError: The API refuses.
        Unreachable: It does not answer.
    """
    job = _read_job(connection, target)
    pods, _ = listed(connection, api_objects.path("Pod", target.namespace), {"labelSelector": target.selector})
    return job, own_pods(pods.values(), target, job)


def _read_job(connection: Connection, target: Target) -> Object | None:
    """Return a job's custom resource; None only if the cluster that it was submitted to does not have it.

    Raises:
        ProblemsFound: Another cluster answers (E348).
    """
    job = connection.find(target.path)
    if job is not None and target.is_met_by(job):
        return job
    server.require(connection, target.server, is_strict=True)
    return None


def current_status(
    connection: Connection, target: Target, job: Object | None, pods: Any, last: Object | None = None
) -> JobStatus:
    """Return a job's status. Kueue is asked only about one that waits in a queue, or was deleted unseen.

    Args:
        connection: The cluster.
        target: The job.
        job: The custom resource as it is now; None once it is deleted.
        pods: The job's own pods.
        last: The custom resource as it was last seen.
    """
    if job is None:
        return _deleted_status(connection, target, pods, last)
    view = job_status.View(job, pods)
    seen = job_status.read(view)
    is_queued = job_status.QUEUE_LABEL in lenient.mapping(job, "metadata", "labels")
    if not is_queued or (seen.state is not JobState.PENDING and seen.target_nodes is None):
        return seen
    return job_status.read(replace(view, workloads=_workloads(connection, target)))


def _deleted_status(connection: Connection, target: Target, pods: Any, last: Object | None) -> JobStatus:
    """Return how a job ended that is deleted, by its last conditions or Kueue's record of it; else DELETED."""
    ended = job_status.read(job_status.View(last, pods)) if last else None
    if ended and ended.state.is_final:
        return ended
    view = job_status.View(None, pods, _workloads(connection, target) if target.uid else ())
    return job_status.read(view)


def _workloads(connection: Connection, target: Target) -> tuple[Mapping[str, Any], ...]:
    """Return the job's Workloads. Source: Kueue, label kueue.x-k8s.io/job-uid."""
    connection = replace(connection, patience_s=min(connection.patience_s, _ASIDE_PATIENCE_S), refusal_patience_s=0.0)
    version = kueue_version(connection)
    if version is None:
        return ()
    where = api_objects.path("Workload", target.namespace, version=version)
    try:
        found = connection.get(where, labelSelector=f"kueue.x-k8s.io/job-uid={target.uid}")
        return tuple(lenient.mappings(found.get("items")))
    except (ApiError, Unreachable):
        return ()  # a user of the namespace need not be allowed to read them


def wait(connection: Connection, target: Target, timeout_s: float | None) -> Iterator[JobStatus]:
    """Yield a job's status now and after each change, the last time as it ended; nothing, where no answer comes."""
    limit_s = float("inf") if timeout_s is None else timeout_s
    began, told = time.monotonic(), None
    with Observer(follower(connection), target) as observer:
        while (left_s := (limit_s if told else max(limit_s, _FIRST_S)) - (time.monotonic() - began)) > 0:
            observer.next(min(LOOK_AGAIN_S, max(left_s, 0.1)))
            if not observer.is_informed:
                continue
            seen = observer.status()
            if seen != told:
                yield seen
                told = seen
            if seen.state.is_final:
                return


def follower(connection: Connection) -> Connection:
    """Return the same connection for one follower: more patient, and ended by its own event."""
    patience_s = max(PATIENCE_S, connection.patience_s)
    return replace(connection, patience_s=patience_s, refusal_patience_s=REFUSAL_PATIENCE_S, stop=threading.Event())
