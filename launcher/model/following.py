"""Following a submitted job: the loops, limits and refusals that every backend shares.

A backend brings what only it knows: how a status is read, what is new since the last look, which files a start of the
workers writes, how an end is requested. Kubernetes' watch is a pause that a change cuts short, Slurm's shared poll a
status that is read once for all jobs of a user.
"""

import contextlib
import itertools
import re
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import NamedTuple, TypeVar

from launcher.common.lines import LineReader, excerpt
from launcher.common.problems import Problem, ProblemsFound, fail
from launcher.model.job_spec import NEWS, JobEvent, JobStatus, LogLine, LogSelection

Answer = TypeVar("Answer")
Item = TypeVar("Item")
_EVENT, _FAULT, _ = NEWS
STREAMS = ("stdout", "stderr")
_ERROR_FILE = "error.json"
_EXCERPTS = 32 << 20
"""Bytes of all excerpts of a start together; they are searched at 50 MB/s."""
_LEAST_EXCERPT, _LONGEST_EXCERPT = 16 << 10, 256 << 10
"""Bytes of one excerpt."""
_OWN_TIME = re.compile(
    r"[\[(]?(\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d{1,9})?)(?: ?(Z|UTC|[+-]\d\d:?\d\d))?(?![\w:.,])"
)
CLOCK_GRAIN_S = 1.0
"""By how much a time in a log, or that of a file, may differ from those of what wrote it."""
STAYS_RECORDED = "the launch stays recorded, and every command on the job looks again"
"""The outcome of a launch whose job is in doubt."""


class Clock(NamedTuple):
    """Time, in seconds: `now` on a clock that never goes back, `sleep` until a time is over or something happens."""

    now: Callable[[], float] = time.monotonic
    sleep: Callable[[float], object] = time.sleep


CLOCK = Clock()


class Deadline:
    """A time limit that begins now; None for no limit."""

    def __init__(self, timeout_s: float | None, clock: Clock = CLOCK):
        self._clock = clock
        self._end_s = clock.now() + (float("inf") if timeout_s is None else timeout_s)

    @property
    def left_s(self) -> float:
        """Seconds that are left; 0 once it is over."""
        return max(0.0, self._end_s - self._clock.now())


def until(
    is_done: Callable[[], bool], timeout_s: float, pauses_s: float | Iterable[float], clock: Clock = CLOCK
) -> bool:
    """Wait until a condition holds, which is checked at least once; return False if it does not within a time.

    The pauses between two checks are the same each time, or one after another.
    """
    deadline = Deadline(timeout_s, clock)
    for pause_s in itertools.repeat(pauses_s) if isinstance(pauses_s, (int, float)) else pauses_s:
        if is_done():
            return True
        if not deadline.left_s:
            return False
        clock.sleep(pause_s)
    raise AssertionError("the pauses do not end")


def patient(
    question: Callable[[], Answer], patience_s: float, pause_s: float, clock: Clock = CLOCK
) -> Callable[[], Answer]:
    """Return a question, such as a job's status, that is repeated while a cluster does not answer.

    The first question fails at once: what never answered is configured wrongly. Once an answer has come, a failure is
    raised only if none has come since for `patience_s`.
    """
    answered_s: float | None = None

    def ask() -> Answer:
        nonlocal answered_s
        while True:
            try:
                found = question()
            except ProblemsFound:
                if answered_s is None or clock.now() - answered_s > patience_s:
                    raise
                clock.sleep(pause_s)
            else:
                answered_s = clock.now()
                return found

    return ask


def changes(
    read: Callable[[], JobStatus | None],
    timeout_s: float | None,
    poll_s: float,
    *,
    first_s: float = 0.0,
    clock: Clock = CLOCK,
) -> Iterator[JobStatus]:
    """Yield a job's status now and after each change, up to its final one, or until a time is over.

    Args:
        read: Returns the status; None until the first answer has come, which is given at least `first_s`.
        timeout_s: None for no limit.
        poll_s: Longest time between two looks.
    """
    deadline, first, seen = Deadline(timeout_s, clock), Deadline(first_s, clock), None
    while True:
        now = read()
        if now is not None and now != seen:
            yield (seen := now)
        left_s = deadline.left_s if seen else max(deadline.left_s, first.left_s)
        if not left_s or (now and now.state.is_final):
            return
        clock.sleep(min(poll_s, left_s))


def followed(
    new: Callable[[bool], Iterable[Item]], has_ended: Callable[[], bool], pause: Callable[[], object]
) -> Iterator[Item]:
    """Yield lines or events as they arrive, until a job has ended.

    Args:
        new: Returns those since the last call, given whether it is the last one.
        has_ended: Returns whether the job has ended, or is not to be followed further.
    """
    while True:
        is_last = has_ended()  # before the read, so that what is written meanwhile is still read
        yield from new(is_last)
        if is_last:
            return
        pause()


class LateEnd:
    """The end of a job whose last lines arrive late: a call returns True only some looks after it.

    Args:
        looks: How many looks follow its end.
        is_complete: Returns whether everything that is expected has arrived.
        patience_s: Returns how long after the end to wait for that, in seconds.
    """

    def __init__(
        self,
        has_ended: Callable[[], bool],
        looks: int,
        is_complete: Callable[[], bool] = lambda: True,
        patience_s: Callable[[], float] = lambda: 0.0,
        clock: Clock = CLOCK,
    ):
        self._has_ended, self._looks_left, self._clock = has_ended, looks, clock
        self._is_complete, self._patience_s = is_complete, patience_s
        self.deadline: Deadline | None = None

    def __call__(self) -> bool:
        if not self._has_ended():
            return False
        self._looks_left -= 1
        self.deadline = self.deadline or Deadline(self._patience_s(), self._clock)
        return self._looks_left < 0 and (self._is_complete() or not self.deadline.left_s)


class Start(NamedTuple):
    """One start of a job's workers, and the files that they write."""

    number: int
    """Its attempt."""
    ranks: Sequence[int]
    heading: Callable[[], str]
    """Returns what describes it, after `attempt <n>`."""
    file: Callable[[int, str], Path | None]
    """Returns the file of a rank and of a stream, `stdout` or `stderr`; None until it exists."""
    began_s: float | None = None
    """Seconds since the epoch; None if unknown."""


class Tail:
    """Reads the selected lines of a job start by start, each file from where the last read ended.

    Args:
        events_until: Yields the job's events up to a time as lines, to be shown before the start of that time.
        is_shared: Whether files are on a shared file system, which shows the last lines of an earlier start late.
    """

    def __init__(
        self,
        selection: LogSelection,
        events_until: Callable[[float], Iterator[LogLine]] = lambda _time_s: iter(()),
        *,
        is_shared: bool = False,
    ):
        self._selection, self._events_until, self._is_shared = selection, events_until, is_shared
        self._open: dict[tuple[int, int, str], LineReader] = {}
        self._begun, self._over = set[int](), set[int]()

    def new_lines(self, starts: Sequence[Start], *, is_last: bool) -> Iterator[LogLine]:
        """Yield new lines; an unfinished one only of a start that is over, or if no further read follows."""
        for place, start in enumerate(starts):
            is_over = is_last or place + 1 < len(starts)
            if start.number in self._over:
                continue
            if start.number not in self._begun:
                self._begun.add(start.number)
                if place and start.began_s is not None:
                    yield from self._events_until(start.began_s)
                if self._selection.has_headings and self._selects(start):
                    yield LogLine("attempt", None, f"attempt {start.number}: {start.heading()}", start.number)
            if self._selects(start):
                yield from self._of_start(start, complete_only=not is_over)
            if is_over and not self._is_shared:
                self._over.add(start.number)

    def has_files(self, start: Start) -> bool:
        """Return whether the file of each selected rank of a start is found."""
        return all(key in self._open for key in self._keys(start))

    def _selects(self, start: Start) -> bool:
        return self._selection.attempt in (None, start.number)

    def _of_start(self, start: Start, *, complete_only: bool) -> Iterator[LogLine]:
        for key in (keys := self._keys(start)):
            _, rank, stream = key
            if key not in self._open:
                if (path := start.file(rank, stream)) is None:
                    continue
                self._open[key] = LineReader(path)
                if self._selection.is_excerpt:
                    began_s = None if self._is_shared else start.began_s or 0.0
                    yield from _excerpt(path, key, len(keys), began_s)
            if self._selection.is_excerpt:
                continue
            for text in self._open[key].new_lines(complete_only=complete_only):
                # As LogLine(…), which takes twice as long: a log has millions of lines.
                yield tuple.__new__(LogLine, ("line", rank, text, start.number, None, None, stream, "", None))

    def _keys(self, start: Start) -> list[tuple[int, int, str]]:
        ranks = selected_ranks(start.ranks, self._selection)
        return [(start.number, rank, stream) for rank in ranks for stream in streams(self._selection)]


def _excerpt(path: Path, key: tuple[int, int, str], num_logs: int, began_s: float | None) -> Iterator[LogLine]:
    number, rank, stream = key
    written_s, until_s = _ends_s(path)
    for text in excerpt(path, max(_LEAST_EXCERPT, min(_LONGEST_EXCERPT, _EXCERPTS // num_logs))):
        time_s = own_time_s(text, began_s, written_s)
        yield LogLine("line", rank, text, number, None, time_s, stream, until_s=until_s if time_s is None else None)


def own_time_s(text: str, began_s: float | None, until_s: float | None) -> float | None:
    """Return the time with which a line of a log begins, in seconds since the epoch; None if it has none.

    A date and a time (ISO 8601, as Python's loggers write them) have that of their time zone. Without one they are
    taken as local time, and only if the line can be of that time: a program may log in another zone.

    Args:
        began_s: When the log began; None if another machine, whose local time may differ, wrote it.
        until_s: When the log was written last; None if unknown.
    """
    found = _OWN_TIME.match(text)
    if found is None:
        return None
    when, zone = found.groups()
    try:
        time_s = datetime.fromisoformat(when + (zone or "").replace("UTC", "Z")).timestamp()
    except (ValueError, OverflowError):  # not a date
        return None
    if zone is not None:
        return time_s
    if began_s is None or until_s is None:
        return None
    return time_s if began_s - CLOCK_GRAIN_S <= time_s <= until_s + CLOCK_GRAIN_S else None


def _ends_s(path: Path) -> tuple[float | None, float | None]:
    """Return when a worker wrote its log's last line, and that or, if it is earlier, when the worker failed.

    Both in seconds since the epoch.

    Source: torch.distributed.elastic.multiprocessing.errors, ErrorHandler: error.json is written by the exception.
    """
    times = []
    for file in (path, path.with_name(_ERROR_FILE)):
        with contextlib.suppress(OSError):
            times.append(file.stat().st_mtime)
    return (times[0], min(times)) if times else (None, None)


def streams(selection: LogSelection) -> tuple[str, ...]:
    """Return the selected streams, of logs that separate them."""
    if selection.is_stderr is None:
        return STREAMS
    return STREAMS[selection.is_stderr : selection.is_stderr + 1]


def selected_ranks(ranks: Iterable[int], selection: LogSelection) -> tuple[int, ...]:
    """Return those of some ranks that are selected."""
    return tuple(rank for rank in ranks if selection.ranks is None or rank in selection.ranks)


def event_line(event: JobEvent) -> LogLine:
    """Return the line of an event in a job's log."""
    kind = _FAULT if event.is_warning else _EVENT
    return LogLine(kind, None, f"{event.kind}: {event.message}", time_s=event.time_s or None)


def refuse_unknown_ranks(ranks: Sequence[int] | None, num_ranks: int) -> None:
    """Raise a Problem for the first selected rank that a job does not have (E707)."""
    for rank in ranks or ():
        if not 0 <= rank < num_ranks:
            allowed = f"0 to {num_ranks - 1}" if num_ranks else "none: the job has no ranks"
            raise fail("E707", "--rank", "no such rank exists", value=rank, allowed=allowed)


def refuse_unknown_attempt(attempt: int | None, started: Sequence[int]) -> None:
    """Raise a Problem if a selected attempt has not started (E706)."""
    if attempt is not None and attempt not in started:
        is_range = [*started] == [*range(len(started))]
        known = f"0 to {started[-1]}" if is_range and started else ", ".join(map(str, started))
        allowed = known or "none: the workers were never started"
        raise fail("E706", "--attempt", "no such attempt exists", value=attempt, allowed=allowed)


def refuse_unknown_launch(number: int, num_launches: int) -> None:
    """Raise a Problem if a selected launch has no records here (E706)."""
    if type(number) is not int or not 0 <= number < num_launches:
        none = "none: no log of its launches is on this machine"
        allowed = f"0 to {num_launches - 1}" if num_launches else none
        raise fail("E706", "--launch", "no such launch exists", value=number, allowed=allowed)


def in_doubt(folder: Path, message: str, job: str) -> Problem:
    """Return the Problem that the request for a bundle's job was not answered, so that the job may exist (E352)."""
    name = folder.name
    remedy = f"recipes status {name} looks again; recipes cancel {name} stops it; recipes launch {name} keeps it"
    return Problem("E352", "job", message, value=job, remedy=remedy)


def ended(status: JobStatus, job: str) -> ProblemsFound:
    """Return the Problem that a job which has ended cannot be scaled (E412)."""
    return fail("E412", "job", f"is not running: {status.message or status.state.value}", value=job)


def refuse_scaling(status: JobStatus, job: str, num_nodes: int, nodes: int) -> None:
    """Raise the Problem that a job does not run (E412), or has one size only (E413)."""
    if status.state.is_final:
        raise ended(status, job)
    raise fail("E413", "nodes", "the size of this job is fixed", value=num_nodes, allowed=str(nodes))


def refuse_unplanned_sizes(sizes: Sequence[int], **requested: int) -> None:
    """Raise a Problem for each size, by the name of its argument, that a plan does not have (E413)."""
    allowed, message = ", ".join(map(str, sizes)), "is not a size of this job's plan"
    wrong = [(name, size) for name, size in requested.items() if type(size) is not int or size not in sizes]
    if wrong:
        raise ProblemsFound(
            tuple(Problem("E413", name, message, value=size, allowed=allowed) for name, size in wrong)
        )
