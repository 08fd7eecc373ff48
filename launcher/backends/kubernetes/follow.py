"""A job as it goes on: watches that outlive what breaks them, and what they tell."""

import json
import queue
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

from launcher.backends.kubernetes import lenient, objects, status
from launcher.backends.kubernetes.client import (
    ApiError,
    Connection,
    Unreachable,
    chunks,
    is_passing,
    pause_s,
    problem,
)
from launcher.backends.kubernetes.preflight import kueue_version
from launcher.backends.kubernetes.target import Object, Target, is_event_of, own_pods
from launcher.problems import ProblemsFound
from launcher.specs import JobEvent, JobState, JobStatus

PATIENCE_S = 1800.0
"""How long a follower outlasts an API that does not answer."""

_WATCH_S = 60
"""How long the server keeps a watch open; a connection that died unnoticed lasts no longer."""

_SHORT_S = 1.0
"""A watch that ends sooner was refused, so that the next one waits."""

_LIST_CHUNK = 500
_LOOK_AGAIN_S = 15.0
"""How often a job that waits is looked at without an event: Kueue's own objects are not watched."""

_FIRST_S = 5.0
"""How long a first answer is waited for by those who do not want to wait."""

_ASIDE_PATIENCE_S = 2.0
"""How long Kueue, which only explains what is known, may keep a follower from what it follows."""

Objects = Mapping[str, Mapping[str, Any]]


def snapshots(connection: Connection, where: str, **query: Any) -> Iterator[Objects]:
    """Yield the objects of a list by uid, now and after each change, until `connection.stop` is set.

    Raises:
        ApiError: The API refuses the list or the watch.
        Unreachable: It did not answer for as long as the connection has patience.
    """
    items, version = _listed(connection, where, query)
    yield dict(items)
    failures = 0
    while not connection.stop.is_set():
        started = time.monotonic()
        try:
            for event in _watched(connection, where, version, query):
                version = event["object"]["metadata"]["resourceVersion"]
                if event["type"] != "BOOKMARK":
                    _take(items, event)
                    yield dict(items)
        except ApiError as error:
            if error.status == 410:  # what happened since is forgotten
                items, version = _listed(connection, where, query)
                yield dict(items)
            elif not is_passing(error):
                raise
        failures = failures + 1 if time.monotonic() - started < _SHORT_S else 0
        if failures:
            connection.stop.wait(pause_s(failures))


def _listed(connection: Connection, where: str, query: Mapping[str, Any]) -> tuple[dict[str, Any], str]:
    """Return a whole list by uid, and its version; read in pieces, anew where a piece came too late."""
    while True:
        items, token = {}, ""
        try:
            while True:
                page = connection.get(where, limit=_LIST_CHUNK, **{"continue": token or None}, **query)
                items |= {item["metadata"]["uid"]: item for item in page["items"]}
                token = page["metadata"].get("continue")
                if not token:
                    return items, page["metadata"]["resourceVersion"]
        except ApiError as error:
            if error.status != 410 or connection.stop.wait(pause_s(1)):
                raise


def _watched(connection: Connection, where: str, version: str, query: Mapping[str, Any]) -> Iterator[Any]:
    """Yield the events of one watch until it ends or breaks."""
    watch = {"watch": True, "allowWatchBookmarks": True, "resourceVersion": version, "timeoutSeconds": _WATCH_S}
    with connection.stream(where, read_timeout_s=_WATCH_S + 15.0, **watch, **query) as answer:
        try:
            for line in lines(chunks(answer)):
                event = json.loads(line)
                if event["type"] == "ERROR":
                    told = event["object"]
                    raise ApiError(told.get("code", 500), told.get("message", ""))
                yield event
        except (Unreachable, ValueError):
            return  # the next watch goes on from the last version


def lines(pieces: Iterator[bytes], longest: int = 1 << 24) -> Iterator[bytes]:
    """Yield whole lines without their ends, cut to a length; what has no end at the end of the stream is left out."""
    rest = b""
    for piece in pieces:
        *whole, rest = (rest + piece).split(b"\n")
        yield from (line[:longest] for line in whole)
        rest = rest[:longest]


def _take(items: dict[str, Any], event: Mapping[str, Any]) -> None:
    uid = event["object"]["metadata"]["uid"]
    if event["type"] == "DELETED":
        items.pop(uid, None)
    else:
        items[uid] = event["object"]


@dataclass(slots=True)
class Observer:
    """Watches a job and its pods in the background, for as long as its block lasts.

    Args:
        connection: Its `stop` ends the watches.
        target: The job.
        inbox: Receives None whenever something changed, an exception where a watch gave up, and what others put.
    """

    connection: Connection
    target: Target
    inbox: queue.Queue[Any] = field(default_factory=lambda: queue.Queue(maxsize=1000))
    job: Object | None = None
    selected: tuple[Object, ...] = ()
    known: set[str] = field(default_factory=set)

    def __enter__(self) -> "Observer":
        job = objects.path(self.target.kind, self.target.namespace)
        self.spawn(self._observe, "job", job, {"fieldSelector": f"metadata.name={self.target.name}"})
        pods = objects.path("Pod", self.target.namespace)
        self.spawn(self._observe, "pods", pods, {"labelSelector": self.target.selector})
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
            except (ApiError, Unreachable) as error:
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
        if isinstance(item, RuntimeError):
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
        return current_status(self.connection, self.target, self.job, self.pods)

    def _observe(self, what: str, where: str, query: Mapping[str, Any]) -> None:
        for found in snapshots(self.connection, where, **query):
            if what == "job":
                self.job = found.get(self.target.uid)
            else:
                self.selected = tuple(found.values())
            self.known.add(what)
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
    pods, _ = _listed(connection, objects.path("Pod", target.namespace), {"labelSelector": target.selector})
    return job, own_pods(pods.values(), target, job)


def _read_job(connection: Connection, target: Target) -> Object | None:
    try:
        job = connection.get(target.path)
    except ApiError as error:
        if error.status != 404:
            raise
        return None
    return job if job["metadata"]["uid"] == target.uid else None  # else another job of that name


def current_status(connection: Connection, target: Target, job: Any, pods: Any) -> JobStatus:
    """Return a job's status; Kueue is asked only for one that waits in a queue."""
    view = status.View(job, pods)
    seen = status.read(view)
    is_queued = job is not None and status.QUEUE_LABEL in lenient.mapping(job, "metadata", "labels")
    if not is_queued or (seen.state is not JobState.PENDING and seen.target_nodes is None):
        return seen
    aside = replace(connection, patience_s=min(connection.patience_s, _ASIDE_PATIENCE_S))
    return status.read(replace(view, workloads=_workloads(aside, target)))


def _workloads(connection: Connection, target: Target) -> tuple[Mapping[str, Any], ...]:
    """Return the job's Workloads. Source: Kueue, label kueue.x-k8s.io/job-uid."""
    version = kueue_version(connection)
    if version is None:
        return ()
    where = objects.path("Workload", target.namespace, version=version)
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
            observer.next(min(_LOOK_AGAIN_S, max(left_s, 0.1)))
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
    return replace(connection, patience_s=max(PATIENCE_S, connection.patience_s), stop=threading.Event())


def events(connection: Connection, target: Target, *, follow: bool) -> Iterator[JobEvent]:
    """Yield the events of a job and its pods, oldest first; with `follow`, until it has ended."""
    where, told = objects.path("Event", target.namespace), {}
    if not follow:
        job, pods = read_objects(connection, target)
        found, _ = _listed(connection, where, {})
        yield from _new_events(found, lambda event: is_event_of(event, target, job, pods), target, told)
        return
    with Observer(follower(connection), target) as observer:

        def observe() -> None:
            for found in snapshots(observer.connection, where):
                observer.tell(found)

        def is_own(event: Object) -> bool:
            return is_event_of(event, target, observer.job, observer.pods)

        observer.spawn(observe)
        while True:
            found = observer.next(_LOOK_AGAIN_S)
            if found is not None:
                yield from _new_events(found, is_own, target, told)
            if observer.is_informed and observer.inbox.empty() and observer.status().state.is_final:
                latest, _ = _listed(observer.connection, where, {})
                yield from _new_events(latest, is_own, target, told)
                return


def _new_events(
    found: Objects, is_own: Callable[[Object], bool], target: Target, told: dict[str, int]
) -> list[JobEvent]:
    """Return what is new among events; one whose count has grown is returned again."""
    new = []
    for uid, event in found.items():
        about, count = event["involvedObject"], event.get("count") or 1
        if told.get(uid, 0) < count and is_own(event):
            told[uid] = count
            label = "" if about.get("uid") == target.uid else f"{about.get('kind')}/{about.get('name')}"
            is_warning = event.get("type") == "Warning"
            new.append(JobEvent(_time_s(event), event.get("reason", ""), event.get("message", ""), label, is_warning))
    return sorted(new, key=lambda event: event.time_s)


def _time_s(event: Mapping[str, Any]) -> float:
    stamp = event.get("lastTimestamp") or event.get("eventTime") or event["metadata"]["creationTimestamp"]
    return datetime.fromisoformat(stamp).timestamp()
