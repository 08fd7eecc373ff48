"""What a job's containers wrote, each line once, whatever restarts or breaks meanwhile.

A log has no position that a reader could come back to, only times, of which the API takes whole seconds. So a reader
that comes back asks for everything since shortly before its last line, and passes over what it has told already.
"""

import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from launcher.backends.kubernetes import api_objects
from launcher.backends.kubernetes.api_errors import ApiError, Unreachable, is_passing
from launcher.backends.kubernetes.connection import Connection, chunks, pause_s
from launcher.backends.kubernetes.job_watch import Observer, follower, lines, read_objects
from launcher.backends.kubernetes.pod_ranks import Filter, Places
from launcher.backends.kubernetes.target import Target
from launcher.common.problems import fail
from launcher.model.job_spec import JobStatus, LogSelection

_READ_TIMEOUT_S = 60.0
"""A followed log that is silent for so long is opened anew, should its connection have died."""

_OVERLAP_S = 2
"""How far back a reader looks: times are cut to seconds, and two streams of a container may be out of order."""

_DRAIN_S = 10.0
"""How long the logs of a job that has ended may be silent before they are taken to be complete."""

_NO_LOG = (400, 404)
"""Statuses of a log that does not exist. Source: Kubernetes, kubelet's getContainerLogs."""

_LOOK_AGAIN_S = 15.0
_BREATH_S = 0.5

_LONGEST_LINE = 1 << 20
"""Bytes of a line; the rest of a longer one is left out, so that memory stays bounded."""


@dataclass(slots=True)
class Window:
    """The lines of the last seconds that were told, by which they are known again."""

    latest: datetime | None = None
    told: deque[tuple[datetime, int]] = field(default_factory=deque)
    again: Counter[int] = field(default_factory=Counter)

    def since(self) -> str | None:
        """Return the time to read from, and expect what was told since; None for the beginning."""
        if self.latest is None:
            return None
        start = self._start()
        self.again = Counter(key for time, key in self.told if time >= start)
        return start.strftime("%Y-%m-%dT%H:%M:%SZ")

    def is_new(self, line: bytes) -> bool:
        """Tell whether a line, with its time, was not told yet; remember it."""
        key = hash(line)
        if self.again[key] > 0:
            self.again[key] -= 1
            return False
        time = _time(line)
        if time is not None:
            self.latest = max(time, self.latest or time)
            self.told.append((time, key))
            start = self._start()
            while self.told and self.told[0][0] < start:
                self.told.popleft()
        return True

    def _start(self) -> datetime:
        return (self.latest or datetime.now(UTC)).replace(microsecond=0) - timedelta(seconds=_OVERLAP_S)


def _time(line: bytes) -> datetime | None:
    """Return when a line was written, to the microsecond."""
    try:
        return datetime.fromisoformat(line.partition(b" ")[0].decode())
    except ValueError:
        return None


@dataclass(frozen=True, slots=True)
class Run:
    """One run of a pod's container: its number among the pod's restarts, and what it does now."""

    number: int
    is_over: bool


def run_of(pod: Mapping[str, Any]) -> Run | None:
    """Return the newest run of a pod's container; None while it never ran."""
    status = _container(pod)
    state, number = status.get("state") or {}, status.get("restartCount") or 0
    if "running" in state:
        return Run(number, is_over=False)
    if "terminated" in state or "terminated" in (status.get("lastState") or {}):
        return Run(number, is_over=True)  # it is over, or waits to be started again
    return None


def _container(pod: Mapping[str, Any] | None) -> Mapping[str, Any]:
    """Return the status of the pod's own container: the first of its spec, whatever is injected behind it."""
    statuses = ((pod or {}).get("status") or {}).get("containerStatuses") or ()
    return next((each for each in statuses if each["name"] == _container_name(pod or {})), {})


def _container_name(pod: Mapping[str, Any]) -> str:
    return pod["spec"]["containers"][0]["name"]


@dataclass(frozen=True, slots=True)
class Reader:
    """Reads the runs of one pod's container.

    Args:
        connection: Its `stop` ends the reading.
        namespace: The pod's.
        pod: The pod's name.
        uid: The pod's uid.
        is_followed: Whether to wait for what is still to come.
    """

    connection: Connection
    namespace: str
    pod: str
    uid: str
    is_followed: bool

    @property
    def path(self) -> str:
        return api_objects.path("Pod", self.namespace, self.pod)

    def runs(self, changed: Callable[[], bool]) -> Iterator[tuple[int, str]]:
        """Yield the number of a run and each line of it, run after run, until the pod is gone or ends for good.

        Args:
            changed: Waits for a change of the pod; False when none will come.
        """
        read = -1
        while not self.connection.stop.is_set():
            pod = self._pod()
            run = run_of(pod) if pod else None
            if pod is None or (run is None and not self.is_followed):
                return
            if run is not None and run.number > read:
                first = max(read + 1, run.number - 1)  # a node keeps the last two
                for lost in range(read + 1, first):
                    yield lost, _lost(self.pod, lost)
                for number in range(first, run.number + 1):
                    yield from ((number, text) for text in self._run(number))
                read = run.number
            elif _is_finished(pod) or not self.is_followed or not changed():
                return

    def _pod(self) -> Mapping[str, Any] | None:
        pod = self.connection.find(self.path)
        return pod if pod and pod["metadata"]["uid"] == self.uid else None

    def _run(self, number: int) -> Iterator[str]:
        """Yield every line of one run, however often the connection breaks."""
        window, failures, refusals = Window(), 0, 0
        while not self.connection.stop.is_set():
            pod = self._pod()
            now = run_of(pod) if pod else None
            if pod is None or now is None:
                return
            if now.number > number + 1:
                yield _lost(self.pod, number, "what was left of " if window.latest else "")
                return
            before, is_previous = window.latest, now.number > number
            is_over = is_previous or now.is_over
            is_last = is_over or not self.is_followed
            query = {
                "container": _container_name(pod),
                "previous": is_previous or None,
                "follow": not is_last or None,
            }
            try:
                yield from self._pass(window, number, query)
            except ApiError as error:
                if error.status not in _NO_LOG and not is_passing(error):
                    raise
                if error.status in _NO_LOG and (refusals := refusals + 1) > 1:  # its log is gone with its container
                    if window.latest is None:
                        yield _lost(self.pod, number)
                    return
                is_last = False
            except Unreachable:
                is_last = False
            # A whole answer may be cut short between server and node: what is over is read until nothing is new.
            if is_last and (window.latest == before or not is_over):
                return
            failures = failures + 1 if window.latest == before else 0
            self.connection.stop.wait(pause_s(failures))

    def _pass(self, window: Window, number: int, query: Mapping[str, Any]) -> Iterator[str]:
        """Yield what one request brings that is new.

        Raises:
            Unreachable: The connection broke.
        """
        since = {"timestamps": True, "sinceTime": window.since()}
        path = f"{self.path}/log"
        with self.connection.stream(path, read_timeout_s=_READ_TIMEOUT_S, final=_NO_LOG, **since, **query) as answer:
            if not query["previous"] and not self._is_current(number):
                raise Unreachable("the container was started anew meanwhile")
            for line in lines(chunks(answer), _LONGEST_LINE):
                if window.is_new(line):
                    yield _shown(line)

    def _is_current(self, number: int) -> bool:
        """Tell whether the log that was just opened is that of a run, and not of the next one."""
        pod = self._pod()
        return pod is not None and not _is_previous(pod, number)


def _is_previous(pod: Mapping[str, Any] | None, number: int) -> bool:
    """Tell whether the API calls a run the previous one: another one was started after it."""
    return (_container(pod).get("restartCount") or 0) > number


def _is_finished(pod: Mapping[str, Any]) -> bool:
    return (pod.get("status") or {}).get("phase") in ("Succeeded", "Failed")


def _lost(pod: str, number: int, part: str = "") -> str:
    return f"event  {part}the log of {pod}, run {number}, is gone from its node"


def _shown(line: bytes) -> str:
    """Return a line without its time."""
    return line.partition(b" ")[2].decode(errors="replace").rstrip("\r")


def read_logs(
    connection: Connection, target: Target, job: Mapping[str, Any], selection: LogSelection, *, follow: bool
) -> Iterator[str]:
    """Return the selected lines; with `follow`, and the news of the job, until it has ended.

    Raises:
        ProblemsFound: There is no such rank, attempt or stream.
        ApiError: The API refuses.
        Unreachable: It does not answer.
    """
    wanted = Filter(selection, Places.of(job))
    for rank in selection.ranks or ():
        wanted.places.require(rank)
    if selection.is_stderr:
        message = "Kubernetes keeps both streams of a container in one log"
        raise fail("E356", "stderr", message, remedy="leave --stderr out")
    pods = _wanted_pods(connection, target, wanted)
    runs = [run.number for pod in pods if (run := run_of(pod)) is not None]
    if selection.attempt is not None and selection.attempt > max(runs, default=-1):
        allowed = f"0 to {max(runs)}" if runs else "none yet"
        raise fail("E706", "attempt", "there was no such start", value=selection.attempt, allowed=allowed)
    return _followed(connection, target, wanted) if follow else _written(connection, target, wanted, pods)


def _wanted_pods(connection: Connection, target: Target, wanted: Filter) -> list[Mapping[str, Any]]:
    """Return the pods of wanted ranks that are there, in their places' order."""
    _, own = read_objects(connection, target)
    pods = [pod for pod in own if wanted.wants(_name(pod))]
    return sorted(pods, key=lambda pod: (wanted.places.place(_name(pod)) or 0, _name(pod)))


def _written(
    connection: Connection, target: Target, wanted: Filter, pods: Sequence[Mapping[str, Any]]
) -> Iterator[str]:
    """Yield what pods have written so far, pod after pod."""
    for pod in pods:
        reader = Reader(connection, target.namespace, _name(pod), pod["metadata"]["uid"], is_followed=False)
        yield from _selected(reader, wanted, lambda: False)


def _selected(reader: Reader, wanted: Filter, changed: Callable[[], bool]) -> Iterator[str]:
    """Yield the selected lines of one pod, with a heading where each run begins."""
    attempt, began = wanted.selection.attempt, -1
    for number, text in reader.runs(changed):
        if attempt not in (None, number):
            continue
        if wanted.selection.has_headings and number != began:
            began = number
            yield f"== attempt {number}   {reader.pod}"
        shown = wanted.shown(reader.pod, text)
        if shown is not None:
            yield shown


def _followed(connection: Connection, target: Target, wanted: Filter) -> Iterator[str]:
    """Yield lines and news as they come, and after the job's end what its containers had still to tell."""
    with Observer(follower(connection), target) as observer:
        threads: dict[str, Any] = {}
        told: JobStatus | None = None
        while told is None or not told.state.is_final:
            item = observer.next(_LOOK_AGAIN_S)
            if isinstance(item, str):
                yield item
            elif observer.is_informed:
                _spawn_readers(observer, wanted, threads, observer.pods)
                seen = observer.status()
                if not seen.state.is_final:
                    yield from _told_news(wanted, told, seen)
                told, before = seen, told
        # The watch of the pods may be behind that of the job.
        _spawn_readers(observer, wanted, threads, _wanted_pods(observer.connection, target, wanted))
        quiet_since = time.monotonic()
        while time.monotonic() - quiet_since < _DRAIN_S:
            is_last = _all_ended(threads)
            item = observer.next(0 if is_last else _BREATH_S)
            if isinstance(item, str):
                quiet_since = time.monotonic()
                yield item
            elif is_last and observer.inbox.empty():
                break
        yield from _told_news(wanted, before, told)


def _told_news(wanted: Filter, told: JobStatus | None, seen: JobStatus) -> Iterator[str]:
    """Yield the news, unless one attempt alone is wanted."""
    if wanted.selection.attempt is None:
        yield from _news(told, seen)


def _spawn_readers(
    observer: Observer, wanted: Filter, threads: dict[str, Any], pods: Sequence[Mapping[str, Any]]
) -> None:
    """Start a reader for each wanted pod that has none."""
    for pod in pods:
        uid, name = pod["metadata"]["uid"], _name(pod)
        if uid not in threads and wanted.wants(name) and run_of(pod) is not None:
            reader = Reader(observer.connection, observer.target.namespace, name, uid, is_followed=True)
            threads[uid] = observer.spawn(_tell_all, observer, reader, wanted)


def _tell_all(observer: Observer, reader: Reader, wanted: Filter) -> None:
    for line in _selected(reader, wanted, lambda: _changed(observer, reader.uid)):
        observer.tell(line)
    observer.tell(None)


def _changed(observer: Observer, uid: str) -> bool:
    """Wait a moment; tell whether the pod is still there."""
    observer.connection.stop.wait(1.0)
    is_there = any(pod["metadata"]["uid"] == uid for pod in observer.pods)
    return is_there and (observer.job is not None or not observer.is_informed)


def _all_ended(threads: Mapping[str, Any]) -> bool:
    return not any(thread.is_alive() for thread in threads.values())


def _news(told: JobStatus | None, seen: JobStatus) -> Iterator[str]:
    """Yield what has changed, in the words that a follower shows as news."""
    if told is not None and seen.faulty_nodes != told.faulty_nodes and seen.faulty_nodes:
        yield f"fault  {', '.join(seen.faulty_nodes)}"
    if told is not None and told.nodes and seen.nodes and seen.nodes != told.nodes:
        yield f"scale  {told.nodes} → {seen.nodes} nodes"
    if told is None or (seen.state, seen.message) != (told.state, told.message):
        yield f"event  {seen.state}" + (f": {seen.message}" if seen.message else "")


def _name(pod: Mapping[str, Any]) -> str:
    return pod["metadata"]["name"]
