"""Watches of a job and its pods that survive broken connections; the job's status and events as they report them."""

import itertools
import json
import queue
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import partial
from typing import Any

from launcher.backends.kubernetes import api_objects, job_status, lenient, server
from launcher.backends.kubernetes.api_errors import ApiError, RequestFailed, Unreachable, problem
from launcher.backends.kubernetes.connection import Connection, chunks, pause_s
from launcher.backends.kubernetes.preflight import kueue_version
from launcher.backends.kubernetes.target import Holders, Object, Target, is_event_of, own_pods, uid_of
from launcher.common.problems import ProblemsFound
from launcher.model.following import Clock, changes, followed
from launcher.model.job_spec import JobEvent, JobState, JobStatus

PATIENCE_S = 1800.0
"""How long a follower retries when the API does not answer."""

REFUSAL_PATIENCE_S = 60.0
"""How long a follower retries when the API answers 401 or 404: expired credentials, kinds that are not served yet."""

_WATCH_S = 60
"""How long the server keeps a watch open; a connection that broke unnoticed lasts no longer."""

_SHORT_S = 1.0
"""A watch that ends sooner counts as refused, and the next one waits."""

_LIST_CHUNK = 500
_LONGEST_EVENT = 1 << 24
"""Bytes of an event of a watch."""
_GONE, _BOOKMARK = 410, "BOOKMARK"
POLL_S = 15.0
"""How often a pending job is polled without an event: Kueue's own objects are not watched."""

_FIRST_S = 5.0
"""How long to wait for a first answer when the timeout is shorter."""

_KUEUE_PATIENCE_S = 2.0
"""How long a request to Kueue, which only adds an explanation, may delay a follower."""

Objects = Mapping[str, Mapping[str, Any]]


def snapshots(
    connection: Connection,
    where: str,
    query: Mapping[str, object],
    *,
    deleted: dict[str, Object] | None = None,
) -> Iterator[Objects]:
    """Yield the objects of a list by uid, now and after each change, until `connection.stop` is set.

    Args:
        deleted: Receives each deleted object by uid, in its last state.
    """
    items, version = listed(connection, where, query)
    yield dict(items)
    failures = 0
    while not connection.stop.is_set():
        started = time.monotonic()
        try:
            for event in _watched(connection, where, version, query):
                version = event["object"]["metadata"]["resourceVersion"]
                if event["type"] != _BOOKMARK:
                    _take(items, event, deleted)
                    yield dict(items)
        except ApiError as error:
            if error.status != _GONE:
                raise
            connection.stop.wait(error.retry_after_s or 0.0)  # the server has dropped the events since then
            items, version = listed(connection, where, query)
            yield dict(items)
        failures = failures + 1 if time.monotonic() - started < _SHORT_S else 0
        if failures:
            connection.stop.wait(pause_s(failures))


def objects(connection: Connection, where: str, query: Mapping[str, object] | None = None) -> list[Object]:
    """Return the objects of a complete list."""
    return [*listed(connection, where, query or {})[0].values()]


def listed(connection: Connection, where: str, query: Mapping[str, object]) -> tuple[dict[str, Object], str]:
    """Return a complete list by uid, and its version; read page by page, again if a page has expired."""
    while True:
        items: dict[str, Object] = {}
        token = ""
        try:
            while True:
                page = connection.get(where, {"limit": _LIST_CHUNK, "continue": token or None, **query})
                items |= {uid: item for item in lenient.mappings(page.get("items")) if (uid := uid_of(item))}
                token = lenient.text(lenient.mapping(page, "metadata").get("continue"))
                if not token:
                    return items, lenient.text(lenient.mapping(page, "metadata").get("resourceVersion"))
        except ApiError as error:
            if error.status != _GONE or connection.stop.wait(pause_s(1)):
                raise


def _watched(
    connection: Connection, where: str, version: str, query: Mapping[str, object]
) -> Iterator[Mapping[str, Any]]:
    """Yield the events of one watch until it ends or breaks; raise 410 if the list has to be read again."""
    watch = {"watch": True, "allowWatchBookmarks": True, "resourceVersion": version, "timeoutSeconds": _WATCH_S}
    opening = connection.stream(where, read_timeout_s=_WATCH_S + 15.0, query={**watch, **query})
    with opening as answer, suppress(Unreachable):  # one that breaks: the next continues from the last version
        for line in itertools.chain.from_iterable(blocks(chunks(answer), _LONGEST_EVENT)):
            yield _event(line)


def _event(line: bytes) -> Mapping[str, Any]:
    """Parse an event of a watch.

    Raises:
        ApiError: It reports an error, or is not an event: 410, as the watch cannot continue from its last version.
    """
    try:
        event: Mapping[str, Any] = json.loads(line)
    except ValueError as error:
        raise ApiError(_GONE, "not an event of a watch") from error
    kind, metadata = lenient.mapping(event).get("type"), lenient.mapping(event, "object", "metadata")
    has_identity = kind == _BOOKMARK or metadata.get("uid")
    is_complete = isinstance(metadata.get("resourceVersion"), str) and has_identity
    if kind not in ("ADDED", "MODIFIED", "DELETED", _BOOKMARK) or not is_complete:
        asked_s = lenient.count(lenient.mapping(event, "object", "details").get("retryAfterSeconds"))
        raise ApiError(_GONE, "not an event of a watch", asked_s)
    return event


def blocks(pieces: Iterator[bytes], longest: int) -> Iterator[list[bytes]]:
    """Yield the complete lines that have arrived together, without their ends and cut to a length.

    An unfinished line at the end is dropped.
    """
    rest = b""
    for piece in pieces:
        *complete, rest = (rest + piece).split(b"\n")
        if complete:
            yield [line[:longest] for line in complete]
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
    """Watches a job and its pods in the background, for the duration of its block.

    Args:
        connection: Its `stop` ends the watches.
        inbox: Receives None after each change, the exception of a watch that gave up, and what `put` is given.
        job: The current custom resource; None once it is deleted.
        neighbours: The pods of the job's namespace.
        last: The custom resource as it was last seen, also once it is deleted.
        known: The lists that have arrived: job, pods.
    """

    connection: Connection
    target: Target
    inbox: queue.Queue[object] = field(default_factory=lambda: queue.Queue(maxsize=100))
    job: Object | None = None
    neighbours: tuple[Object, ...] = ()
    last: Object | None = None
    known: set[str] = field(default_factory=set)

    def __enter__(self) -> "Observer":
        self.spawn(self._observe_job, api_objects.path(self.target.kind, self.target.namespace))
        self.spawn(self._observe_pods, api_objects.path("Pod", self.target.namespace))
        return self

    def __exit__(self, *_exception: object) -> None:
        self.connection.stop.set()

    def spawn(self, work: Callable[..., None], *arguments: object) -> threading.Thread:
        """Run `work` in the background; its exception is raised where the inbox is read."""

        def run() -> None:
            fault: Exception | None = RuntimeError("a follower's thread failed; see its own traceback")
            try:
                work(*arguments)
                fault = None
            except (RequestFailed, ProblemsFound) as error:
                fault = error
            finally:
                if fault:
                    self.put(fault)

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        return thread

    def put(self, item: object) -> None:
        """Put an item into the inbox; wait while it is full."""
        while not self.connection.stop.is_set():
            try:
                self.inbox.put(item, timeout=0.5)
            except queue.Full:
                continue
            return

    def next(self, timeout_s: float) -> object:
        """Return the next item; None after a timeout or a change.

        Raises:
            ProblemsFound: A watch gave up.
        """
        try:
            item = self.inbox.get(timeout=max(0.0, timeout_s))
        except queue.Empty:
            return None
        if isinstance(item, RequestFailed):
            raise ProblemsFound((problem(item, "cluster.namespace", value=self.target.namespace),))
        if isinstance(item, (RuntimeError, ProblemsFound)):
            raise item
        return item

    @property
    def is_informed(self) -> bool:
        """Whether both lists have arrived."""
        return self.known == {"job", "pods"}

    @property
    def pods(self) -> tuple[Object, ...]:
        """The job's own pods as last seen."""
        return own_pods(self.neighbours, self.target, self.job)

    def status(self) -> JobStatus | None:
        """Return the job's status as last seen; None until both lists have arrived."""
        if not self.is_informed:
            return None
        return current_status(self.connection, self.target, self.job, self.pods, self.last)

    def _observe_job(self, where: str) -> None:
        deleted: dict[str, Object] = {}
        query = {"fieldSelector": f"metadata.name={self.target.name}"}
        for found in snapshots(self.connection, where, query, deleted=deleted):
            uid = self.target.uid
            # A list may lack the job by mistake; the event of its deletion holds its last state.
            job = found.get(uid) or (None if uid in deleted else _read_job(self.connection, self.target))
            self.last = job or deleted.get(uid) or self.last
            self.job = job
            self.known.add("job")
            self.put(None)

    def _observe_pods(self, where: str) -> None:
        for found in snapshots(self.connection, where, {}):  # whose labels are no proof
            self.neighbours = tuple(found.values())
            self.known.add("pods")
            self.put(None)


def read_status(connection: Connection, target: Target) -> JobStatus:
    """Request a job's current status."""
    return current_status(connection, target, *read_objects(connection, target))


def read_objects(connection: Connection, target: Target) -> tuple[Object | None, tuple[Object, ...]]:
    """Return a job's custom resource, None once it is deleted, and its own pods."""
    job = _read_job(connection, target)
    # Before the status names StatefulSets, only labels can tell a job's pods apart.
    query = {} if Holders.of(job).are_known else {"labelSelector": target.selector}
    pods = objects(connection, api_objects.path("Pod", target.namespace), query)
    return job, own_pods(pods, target, job)


def _read_job(connection: Connection, target: Target) -> Object | None:
    """Return a job's custom resource; None only if the cluster it was submitted to does not have it.

    Raises:
        ProblemsFound: Another cluster answers (E348).
    """
    job = connection.find(target.path)
    if job is not None and target.matches(job):
        return job
    server.require(connection, target.server, is_strict=True)
    return None


def current_status(
    connection: Connection,
    target: Target,
    job: Object | None,
    pods: Iterable[Object],
    last: Object | None = None,
) -> JobStatus:
    """Return a job's status. Kueue is queried only for a queued job, or one whose end was not observed.

    Args:
        job: The current custom resource; None once it is deleted.
        pods: The job's own pods.
        last: The custom resource as it was last seen.
    """
    pods = tuple(pods)
    if job is None:  # it ended as its last conditions or Kueue's record have it; DELETED if neither is known
        ended = job_status.read(job_status.View(last, pods, (), target.companions)) if last else None
        if ended and ended.state.is_final:
            return ended
        return job_status.read(job_status.View(None, pods, _workloads(connection, target) if target.uid else ()))
    view = job_status.View(job, pods, (), target.companions)
    seen = job_status.read(view)
    is_queued = api_objects.QUEUE_LABEL in lenient.mapping(job, "metadata", "labels")
    if not is_queued or (seen.state is not JobState.PENDING and seen.target_nodes is None):
        return seen
    return job_status.read(replace(view, workloads=_workloads(connection, target)))


def _workloads(connection: Connection, target: Target) -> tuple[Mapping[str, Any], ...]:
    """Return the job's Workloads. Source: Kueue, label kueue.x-k8s.io/job-uid."""
    connection = replace(connection, patience_s=min(connection.patience_s, _KUEUE_PATIENCE_S), refusal_patience_s=0.0)
    version = kueue_version(connection)
    if version is None:
        return ()
    where = api_objects.path("Workload", target.namespace, version=version)
    try:
        found = connection.get(where, {"labelSelector": f"kueue.x-k8s.io/job-uid={target.uid}"})
        return tuple(lenient.mappings(found.get("items")))
    except RequestFailed:
        return ()  # users of the namespace may lack the permission to read them


def wait(connection: Connection, target: Target, timeout_s: float | None) -> Iterator[JobStatus]:
    """Yield a job's status now and after each change, the last one final; nothing if no answer comes."""
    with Observer(follower(connection), target) as observer:
        clock = Clock(sleep=observer.next)
        yield from changes(observer.status, timeout_s, POLL_S, first_s=_FIRST_S, clock=clock)


def events(connection: Connection, target: Target, *, follow: bool) -> Iterator[JobEvent]:
    """Yield the events of a job, its StatefulSets and its pods, oldest first; with `follow`, until it has ended."""
    where = api_objects.path("Event", target.namespace)
    reported: dict[str, int] = {}
    if not follow:
        job, pods = read_objects(connection, target)
        every, _ = listed(connection, where, {})
        yield from _new_events(every, lambda event: is_event_of(event, target, job, pods), target, reported)
        return
    with Observer(follower(connection), target) as observer:
        found: Objects = {}

        def observe() -> None:
            for each in snapshots(observer.connection, where, {}):
                observer.put(each)

        def pause() -> None:
            nonlocal found
            if isinstance(item := observer.next(POLL_S), Mapping):
                found = item

        def has_ended() -> bool:
            seen = observer.status() if observer.inbox.empty() else None
            return seen is not None and seen.state.is_final

        def new(is_last: bool) -> Iterable[JobEvent]:
            latest = listed(observer.connection, where, {})[0] if is_last else found
            is_own = partial(is_event_of, target=target, job=observer.job, pods=observer.pods)
            return _new_events(latest, is_own, target, reported)

        observer.spawn(observe)
        yield from followed(new, has_ended, pause)


def _new_events(
    found: Objects, is_own: Callable[[Object], bool], target: Target, reported: dict[str, int]
) -> list[JobEvent]:
    """Return the new events; one whose count has grown is returned again."""
    new = []
    for uid, event in found.items():
        about, count = event["involvedObject"], event.get("count") or 1
        if reported.get(uid, 0) < count and is_own(event):
            reported[uid] = count
            label = "" if about.get("uid") == target.uid else f"{about.get('kind')}/{about.get('name')}"
            is_warning = event.get("type") == "Warning"
            kind, message = lenient.text(event.get("reason")), lenient.text(event.get("message"))
            new.append(JobEvent(_time_s(event), kind, message, label, is_warning))
    return sorted(new, key=lambda event: event.time_s)


def _time_s(event: Mapping[str, Any]) -> float:
    stamp = event.get("lastTimestamp") or event.get("eventTime") or event["metadata"]["creationTimestamp"]
    return datetime.fromisoformat(stamp).timestamp()


def follower(connection: Connection) -> Connection:
    """Return the same connection for one follower: more patient, with a stop event of its own."""
    patience_s = max(PATIENCE_S, connection.patience_s)
    return replace(connection, patience_s=patience_s, refusal_patience_s=REFUSAL_PATIENCE_S, stop=threading.Event())
