"""Logs of a job's containers, each line once, across restarts and broken connections.

A log has no position to resume from, only times, which the API takes in whole seconds. A reader that reconnects
therefore requests everything since shortly before its last line, and skips the lines it has already yielded.
"""

import re
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

from launcher.backends.kubernetes import api_objects
from launcher.backends.kubernetes.api_errors import RequestFailed, Unreachable, is_transient
from launcher.backends.kubernetes.connection import Connection, chunks, pause_s
from launcher.backends.kubernetes.job_watch import Observer, blocks, follower, read_objects
from launcher.backends.kubernetes.pod_report import container_of, phase
from launcher.backends.kubernetes.target import Places, Target
from launcher.common.problems import fail
from launcher.model.following import Deadline, refuse_unknown_attempt, refuse_unknown_ranks
from launcher.model.job_spec import LAST_LINES, JobStatus, LogLine, LogSelection

_READ_TIMEOUT_S = 60.0
"""A followed log that is silent for this long is reopened, in case its connection is dead."""

_OVERLAP_S = 2
"""How far back a reader starts: times are cut to seconds, and a container's two streams may be out of order."""

_DRAIN_S = 10.0
"""How long the logs of a finished job may be silent before they count as complete."""

_NO_LOG = (400, 404)
"""Statuses of a log that does not exist. Source: Kubernetes, kubelet's getContainerLogs."""

_POLL_S = 15.0
_DRAIN_POLL_S = 0.5

_TEE = re.compile(r"\[[a-zA-Z_]+(\d+)\]:")
"""Prefix of a worker's line in a node's log. Source: torch.distributed.elastic, tail_log: `[default0]:`."""

_SECOND = len("2026-01-02T03:04:05")
_LONGEST_LINE = 1 << 20
"""Bytes of a line; the rest of a longer one is dropped, which bounds memory."""

Entry = tuple[str, float | None, str]
"""Kind, time and text of a line in a container's log."""


@dataclass(slots=True)
class Window:
    """The lines of the last seconds, by which repeated ones are recognized.

    Args:
        latest: Second of the newest line.
        yielded: Second and hash of each recent line.
        expected: How often each of them will be repeated after reconnecting.
        num_new: How many lines were not repetitions.
        second: The second that the last line was written in, as text, and its time.
    """

    latest: datetime | None = None
    yielded: deque[tuple[datetime, int]] = field(default_factory=deque)
    expected: Counter[int] = field(default_factory=Counter)
    num_new: int = 0
    second: tuple[bytes, datetime | None] = (b"", None)

    def since(self) -> str | None:
        """Return the time to read from, and expect the lines since then again; None for the beginning."""
        if self.latest is None:
            return None
        start = self._start()
        self.expected = Counter(key for time, key in self.yielded if time >= start)
        return start.strftime("%Y-%m-%dT%H:%M:%SZ")

    def is_new(self, line: bytes) -> bool:
        """Return whether a line, with its time, is not a repetition; remember it."""
        key = hash(line)
        if self.expected and self.expected[key] > 0:
            self.expected[key] -= 1
            return False
        self.num_new += 1
        text, time = self.second
        if not text or not line.startswith(text):  # a log has many lines in a second
            time = _second(line)
            self.second = (line[:_SECOND] if time else b"", time)
            if time is not None:
                self.latest = max(time, self.latest or time)
                start = self._start()
                while self.yielded and self.yielded[0][0] < start:
                    self.yielded.popleft()
        if time is not None:
            self.yielded.append((time, key))
        return True

    def _start(self) -> datetime:
        return (self.latest or datetime.now(UTC)).replace(microsecond=0) - timedelta(seconds=_OVERLAP_S)


def _second(line: bytes) -> datetime | None:
    """Return the second that a line was written in."""
    try:
        return datetime.fromisoformat(line.partition(b" ")[0].decode()).replace(microsecond=0)
    except ValueError:
        return None


@dataclass(frozen=True, slots=True)
class Run:
    """One run of a pod's container: its number among the pod's restarts, and whether it has ended."""

    number: int
    is_over: bool


def run_of(pod: Mapping[str, Any]) -> Run | None:
    """Return the newest run of a pod's container; None if it never ran."""
    status = _container(pod)
    state, number = status.get("state") or {}, status.get("restartCount") or 0
    if "running" in state:
        return Run(number, is_over=False)
    if "terminated" in state or "terminated" in (status.get("lastState") or {}):
        return Run(number, is_over=True)  # ended, or waiting for a restart
    return None


def _container(pod: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the status of the pod's training container."""
    statuses = (pod.get("status") or {}).get("containerStatuses") or ()
    return next((each for each in statuses if each["name"] == container_of(pod)), {})


@dataclass(frozen=True, slots=True)
class Reader:
    """Reads the runs of one pod's container, until the connection's `stop`.

    Args:
        changed: Waits for a change of the pod, and returns False if none will come; None reads what exists so far.
        is_excerpt: Whether only the last lines are read.
    """

    connection: Connection
    namespace: str
    pod: str
    uid: str
    changed: Callable[[], bool] | None = None
    is_excerpt: bool = False

    @property
    def path(self) -> str:
        return api_objects.path("Pod", self.namespace, self.pod)

    def runs(self) -> Iterator[tuple[int, list[Entry]]]:
        """Yield the number of a run and lines of it, run after run, until the pod ends or is deleted."""
        read = -1
        while not self.connection.stop.is_set():
            pod = self._pod()
            run = run_of(pod) if pod else None
            if pod is None or (run is None and not self.changed):
                return
            if run is not None and run.number > read:
                yield from self._runs_up_to(read + 1, run.number)
                read = run.number
            elif not self.changed or phase(pod) in ("Succeeded", "Failed") or not self.changed():
                return

    def _runs_up_to(self, first: int, newest: int) -> Iterator[tuple[int, list[Entry]]]:
        kept = max(first, newest - 1)  # a node keeps the logs of the last two runs
        for lost in range(first, kept):
            yield lost, [_lost(self.pod, lost)]
        for number in range(kept, newest + 1):
            yield from ((number, block) for block in self._run(number))

    def _pod(self) -> Mapping[str, Any] | None:
        pod = self.connection.find(self.path)
        return pod if pod and pod["metadata"]["uid"] == self.uid else None

    def _run(self, number: int) -> Iterator[list[Entry]]:
        """Yield the lines of one run as they arrive, each once, however often the connection breaks."""
        window, failures, num_missing = Window(), 0, 0
        while not self.connection.stop.is_set():
            pod = self._pod()
            now = run_of(pod) if pod else None
            if pod is None or now is None:
                return
            if now.number > number + 1:
                yield [_lost(self.pod, number, "the rest of " if window.latest else "")]
                return
            is_previous, before = now.number > number, window.num_new
            is_over, is_complete = is_previous or now.is_over, False
            query = {
                "container": container_of(pod),
                "previous": is_previous or None,
                "follow": True if self.changed and not is_over else None,
            }
            try:
                yield from self._pass(window, number, query)
                is_complete = True
            except RequestFailed as error:
                is_missing = error.status in _NO_LOG
                if not is_missing and not is_transient(error):
                    raise
                num_missing += is_missing
            if num_missing > 1:  # the log was deleted with its container
                if window.latest is None:
                    yield [_lost(self.pod, number)]
                return
            is_silent = window.num_new == before
            # An answer may be cut short between server and node: a run that has ended is read until nothing is new.
            if is_complete and (is_silent if is_over else not self.changed):
                return
            failures = failures + 1 if is_silent else 0
            self.connection.stop.wait(pause_s(failures))

    def _pass(self, window: Window, number: int, query: Mapping[str, object]) -> Iterator[list[Entry]]:
        """Yield the new lines of one request."""
        lines = LAST_LINES if self.is_excerpt and window.latest is None else None
        query = {"timestamps": True, "sinceTime": window.since(), "tailLines": lines, **query}
        path = f"{self.path}/log"
        with self.connection.stream(path, read_timeout_s=_READ_TIMEOUT_S, final=_NO_LOG, query=query) as answer:
            pod = None if query["previous"] else self._pod()
            if not query["previous"] and (pod is None or int(_container(pod).get("restartCount") or 0) > number):
                raise Unreachable("the container has restarted meanwhile")
            for block in blocks(chunks(answer), _LONGEST_LINE):
                new = (line.partition(b" ") for line in block if window.is_new(line))
                if entries := [_entry(time, text) for time, _, text in new]:
                    yield entries


def _entry(time: bytes, text: bytes) -> Entry:
    try:
        time_s = datetime.fromisoformat(time.decode()).timestamp()
    except ValueError:
        time_s = None
    return "line", time_s, text.decode(errors="replace").rstrip("\r")


def _lost(pod: str, number: int, part: str = "") -> Entry:
    return "event", None, f"{part}the log of {pod}, run {number}, is no longer on its node"


@dataclass(frozen=True, slots=True)
class Filter:
    """Which lines of a pod are selected, and who wrote them."""

    selection: LogSelection
    places: Places

    def wants(self, pod: str) -> bool:
        """Return whether a pod runs a selected rank."""
        place, ranks = self.places.place(pod), self.selection.ranks
        if place is None:
            return ranks is None
        nproc = self.places.nproc_per_node
        return ranks is None or any(place * nproc <= rank < (place + 1) * nproc for rank in ranks)

    def reader(self, pod: str) -> Callable[[Entry, int], LogLine | None]:
        """Return a function that returns an entry of a pod's log as a line; None if it belongs to another rank."""
        nproc, place, ranks = self.places.nproc_per_node, self.places.place(pod), self.selection.ranks
        first = (place or 0) * nproc
        whole = pod if place is None else f"rank {first}-{first + nproc - 1}" if nproc > 1 else f"rank {first}"
        # Without a mark, a line counts for the only rank of its pod, or the only one selected.
        only = first if nproc == 1 else ranks[0] if ranks and len(ranks) == 1 else None

        def line(entry: Entry, attempt: int) -> LogLine | None:
            kind, time_s, text = entry
            if kind != "line" or place is None:
                return LogLine(kind, None, text, attempt, pod, time_s, None, whole)
            if (mark := _TEE.match(text)) is None:
                return LogLine(kind, only, text, attempt, pod, time_s, None, whole)
            rank = first + int(mark[1])
            is_selected = ranks is None or rank in ranks
            return LogLine(kind, rank, text, attempt, pod, time_s) if is_selected else None

        return line


def read_logs(connection: Connection, target: Target, selection: LogSelection, *, follow: bool) -> Iterator[LogLine]:
    """Return the selected lines; with `follow`, and with the job's news, until it has ended.

    Raises:
        ProblemsFound: No such rank, attempt or stream exists.
    """
    wanted = Filter(selection, target.places)
    refuse_unknown_ranks(selection.ranks, wanted.places.num_ranks)
    if selection.is_stderr:
        message = "Kubernetes keeps both streams of a container in one log"
        raise fail("E356", "stderr", message, remedy="omit --stderr")
    pods = _wanted_pods(connection, target, wanted)
    runs = [run.number for pod in pods if (run := run_of(pod)) is not None]
    refuse_unknown_attempt(selection.attempt, range(max(runs, default=-1) + 1))
    return _followed(connection, target, wanted) if follow else _so_far(connection, target, wanted, pods)


def _wanted_pods(connection: Connection, target: Target, wanted: Filter) -> list[Mapping[str, Any]]:
    """Return the existing pods of the selected ranks, in the order of their ranks."""
    _, own = read_objects(connection, target)
    pods = [pod for pod in own if wanted.wants(_name(pod))]
    return sorted(pods, key=lambda pod: (wanted.places.place(_name(pod)) or 0, _name(pod)))


def _so_far(
    connection: Connection, target: Target, wanted: Filter, pods: Sequence[Mapping[str, Any]]
) -> Iterator[LogLine]:
    """Yield the lines that pods have written so far, pod after pod."""
    for pod in pods:
        uid, is_excerpt = pod["metadata"]["uid"], wanted.selection.is_excerpt
        reader = Reader(connection, target.namespace, _name(pod), uid, is_excerpt=is_excerpt)
        for block in _selected(reader, wanted):
            yield from block


def _selected(reader: Reader, wanted: Filter) -> Iterator[list[LogLine]]:
    """Yield the selected lines of one pod as they arrive, with a heading at the start of each run."""
    attempt, began, line_of = wanted.selection.attempt, -1, wanted.reader(reader.pod)
    for number, block in reader.runs():
        if attempt not in (None, number):
            continue
        if wanted.selection.has_headings and number != began:
            began = number
            yield [LogLine("attempt", None, f"attempt {number}   {reader.pod}", number, reader.pod)]
        yield [line for entry in block if (line := line_of(entry, number)) is not None]


def _followed(connection: Connection, target: Target, wanted: Filter) -> Iterator[LogLine]:
    """Yield lines and news as they arrive, and after the job's end the rest of its logs.

    Not by `following.followed`: each pod has a thread that reads, and whatever arrives first comes first.
    """
    with Observer(follower(connection), target) as observer:
        readers: dict[str, threading.Thread] = {}
        before: JobStatus | None = None
        seen: JobStatus | None = None
        has_news = wanted.selection.attempt is None
        while seen is None or not seen.state.is_final:
            item = observer.next(_POLL_S)
            if isinstance(item, list):
                yield from item
            elif now := observer.status():
                _spawn_readers(observer, wanted, readers, observer.pods)
                before, seen = seen, now
                if has_news and not seen.state.is_final:
                    yield from _news(before, seen)
        # The watch of the pods may lag behind that of the job.
        _spawn_readers(observer, wanted, readers, _wanted_pods(observer.connection, target, wanted))
        quiet = Deadline(_DRAIN_S)
        while quiet.left_s:  # until all readers have ended, or none has read a line for a while
            is_last = not any(reader.is_alive() for reader in readers.values())
            item = observer.next(0 if is_last else _DRAIN_POLL_S)
            if isinstance(item, list):
                yield from item
                quiet = Deadline(_DRAIN_S)
            elif is_last and observer.inbox.empty():
                break
        if has_news:
            yield from _news(before, seen)


def _spawn_readers(
    observer: Observer, wanted: Filter, readers: dict[str, threading.Thread], pods: Sequence[Mapping[str, Any]]
) -> None:
    """Start a reader for each selected pod that has none."""

    def changed(uid: str) -> bool:
        """Wait a moment; return whether the pod still exists."""
        observer.connection.stop.wait(1.0)
        exists = any(pod["metadata"]["uid"] == uid for pod in observer.pods)
        return exists and (observer.job is not None or not observer.is_informed)

    def read(reader: Reader) -> None:
        for block in _selected(reader, wanted):
            observer.put(block)
        observer.put(None)

    for pod in pods:
        uid, name = pod["metadata"]["uid"], _name(pod)
        if uid not in readers and wanted.wants(name) and run_of(pod) is not None:
            reader = Reader(observer.connection, observer.target.namespace, name, uid, partial(changed, uid))
            readers[uid] = observer.spawn(read, reader)


def _news(before: JobStatus | None, seen: JobStatus) -> Iterator[LogLine]:
    """Yield what has changed, as news for a follower."""
    if before is not None and seen.faulty_nodes != before.faulty_nodes and seen.faulty_nodes:
        yield LogLine("fault", None, ", ".join(seen.faulty_nodes))
    if before is not None and before.nodes and seen.nodes and seen.nodes != before.nodes:
        yield LogLine("scale", None, f"{before.nodes} → {seen.nodes} nodes")
    if before is None or (seen.state, seen.message) != (before.state, before.message):
        yield LogLine("event", None, f"{seen.state}: {seen.message}" if seen.message else f"{seen.state}")


def _name(pod: Mapping[str, Any]) -> str:
    return str(pod["metadata"]["name"])
