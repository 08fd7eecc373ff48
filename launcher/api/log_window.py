"""Windows into the logs of a job: a part of a file of any size, in bounded memory and time.

sources(job)     the log files of a job's workers, for a job whose logs are files on this machine
LogSource        the end of one, what is before or after an offset, lines that match, all of it
tail             the last lines of a job whose logs are elsewhere

Offsets are in bytes. A line may be longer than a window: pieces of it are then shown as lines. In every text that is
returned, secrets are masked and control codes removed; `LogSource.masked` keeps the latter.
"""

import contextlib
import os
import re
import stat
import sys
import time
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from launcher.api.log_lines import Limits, Line, Row, cut_near, matcher, shown, spans
from launcher.bundle import store
from launcher.common import redaction
from launcher.common.names import RUN_DIR
from launcher.common.problems import fail
from launcher.model import backend_registry
from launcher.model.following import STREAMS
from launcher.operator.job_request import read_job_request
from launcher.operator.snapshot import Attempt, read_snapshot
from launcher.operator.worker_logs import STDERR, STDOUT, is_of, node_logs

if TYPE_CHECKING:
    from launcher.api.job import Job

__all__ = [
    "STREAMS", "Found", "Limits", "Line", "LogSource", "Tail", "TailLine", "Window", "sources", "spans", "tail",
]  # fmt: skip

_STREAM_OF = dict(zip((STDOUT, STDERR), STREAMS, strict=True))
_ATTEMPT = re.compile(r"attempt_([0-9]{1,9})")
_NUMBER = re.compile(r"[0-9]{1,9}")


class Window(NamedTuple):
    """Successive lines of a file.

    Args:
        first: Offset of the first byte.
        last: Offset behind the last byte.
        size: Of the file when it was read.
    """

    lines: tuple[Line, ...]
    first: int
    last: int
    size: int

    @property
    def is_start(self) -> bool:
        """Whether nothing is before it."""
        return self.first == 0

    @property
    def is_end(self) -> bool:
        """Whether nothing was behind it."""
        return self.last >= self.size

    @property
    def next(self) -> int:
        """Offset from which following continues: that of its last line if it is not complete."""
        if self.is_end and self.lines and not self.lines[-1].is_complete:
            return self.lines[-1].offset
        return self.last


class Found(NamedTuple):
    """Lines that match, in the order of the file.

    Args:
        first: Offset of the first byte that was searched; a search backwards continues from here.
        last: Offset behind the last byte that was searched; a search forwards continues from here.
        size: Of the file when it was searched.
        is_over: Whether the search came to the end of the file; backwards, to its start.
        next: Offset from which following continues: as for a window.
    """

    lines: tuple[Line, ...]
    first: int
    last: int
    size: int
    is_over: bool
    next: int


class TailLine(NamedTuple):
    """A line of a log that is not a file here, with who wrote it; `kind` is that of a `LogLine`."""

    kind: str
    text: str


class Tail(NamedTuple):
    """The last lines of a log.

    Args:
        num_lines: Lines that were read, of which these are the last.
        is_complete: Whether the log was read to its end.
    """

    lines: tuple[TailLine, ...]
    num_lines: int
    is_complete: bool


@dataclass(frozen=True)
class LogSource:
    """A log file of one worker in one attempt.

    Args:
        attempt: Number of the start of the workers, from 0.
        node: That the worker ran on.
        stream: `stdout` or `stderr`.
        size: In bytes, when the source was listed.
        modified: When it was written last, in seconds since the epoch.
        began: When the attempt did; different for another launch of the same bundle.
        num_ranks: Of the attempt.
    """

    attempt: int
    node: int
    rank: int
    stream: str
    size: int
    modified: float
    began: float
    num_ranks: int
    path: Path = field(repr=False)
    limits: Limits = field(default=Limits(), repr=False)

    def end(self, most_lines: int) -> Window:
        """Return its last lines."""
        return self.before(sys.maxsize, most_lines)

    def before(self, offset: int, most_lines: int) -> Window:
        """Return the lines that precede an offset."""
        with _opened(self.path) as (file, size):
            first, data = _backwards(file, min(offset, size), most_lines, self.limits)
            return self._window(file, first, data, size)

    def after(self, offset: int, most_lines: int) -> Window:
        """Return the lines from an offset on; none if the file is shorter, as `Window.size` shows."""
        with _opened(self.path) as (file, size):
            first = min(offset, size)
            data = _forwards(file, first, size, most_lines, self.limits)
            return self._window(file, first, data, size)

    def start_before(self, offset: int, most_lines: int) -> int:
        """Return where the window of `before` begins."""
        with _opened(self.path) as (file, size):
            return _backwards(file, min(offset, size), most_lines, self.limits)[0]

    def search(self, pattern: str, offset: int, most_found: int, deadline_s: float, backwards: bool = False) -> Found:
        """Return lines that contain a pattern, from an offset on or, backwards, before it.

        Args:
            pattern: A regular expression of RE2.
            deadline_s: Seconds after which the search stops; one part of the file is searched in any case.

        Raises:
            ProblemsFound: `pattern` is not a regular expression of RE2 (E728).
        """
        matching, deadline = matcher(pattern, self.limits), time.monotonic() + deadline_s
        found: list[Line] = []
        with _opened(self.path) as (file, size):
            first = last = min(offset, size)
            unfinished = None
            while first > 0 if backwards else last < size:
                if backwards:
                    start, data = _block_before(file, first, self.limits)
                else:
                    start, data = last, _block_after(file, last, size, self.limits)
                if not data:  # it was truncated meanwhile
                    break
                rows = _rows(file, start, data, self.limits)
                if start + len(data) == size and not rows[-1].is_complete:
                    unfinished = rows[-1].offset
                hits = matching(rows)
                left = most_found - len(found)
                is_full = len(hits) >= left
                if backwards:
                    hits = hits[-left:]
                    found[:0] = shown(hits, self.limits)
                    first = hits[0].offset if is_full else start
                else:
                    hits = hits[:left]
                    found += shown(hits, self.limits)
                    last = hits[-1].end if is_full else start + len(data)
                if is_full or time.monotonic() >= deadline:
                    break
        is_over = first == 0 if backwards else last >= size
        behind = last if unfinished is None or last < size else unfinished
        return Found(tuple(found), first, last, size, is_over, behind)

    def masked(self) -> Iterator[bytes]:
        """Yield the whole file as it is now, with the secrets in its lines masked."""
        rest = b""
        with _opened(self.path) as (file, size):
            place = 0
            while place < size:
                data = os.pread(file, min(self.limits.searched, size - place), place)
                place = place + len(data) if data else size
                data = rest + data
                end = len(data) if place >= size else data.rfind(b"\n") + 1
                if end:
                    lines = data[:end].decode("utf-8", "surrogateescape").split("\n")
                    yield redaction.masked_lines(lines).encode("utf-8", "surrogateescape")
                elif len(data) >= self.limits.window:  # a line without an end
                    text = data.decode("utf-8", "surrogateescape")
                    cut = cut_near(text, len(text) - self.limits.context, self.limits.context, -1)
                    kept = text[:cut].encode("utf-8", "surrogateescape")
                    end = len(kept)
                    yield redaction.masked(text[:cut]).encode("utf-8", "surrogateescape")
                rest = data[end:]

    def _window(self, file: int, first: int, data: bytes, size: int) -> Window:
        rows = _rows(file, first, data, self.limits)
        return Window(tuple(shown(rows, self.limits)), first, first + len(data), size)


def sources(job: "Job") -> tuple[LogSource, ...]:
    """Return the log files of a job's last launch, attempt after attempt and rank after rank.

    None if the job does not run on this machine, and before its workers were started.

    Raises:
        ProblemsFound: The job's state or plan is damaged.
    """
    record = job.opened or job.record
    if not backend_registry.described(record.handle.backend).runs_here:
        return ()
    run_dir = job.folder / RUN_DIR
    snapshot = read_snapshot(run_dir)
    if snapshot is None or not snapshot.attempts:
        return ()
    store.learn_secrets(job.folder)
    processes = read_job_request(job.folder).nproc_per_node
    attempts = {each.number: each for each in snapshot.attempts}
    newest: dict[tuple[int, int, str], LogSource] = {}
    for node in sorted({node for each in snapshot.attempts for node in each.nodes}):
        for source in _of_node(run_dir, node, attempts, processes):
            key = (source.attempt, source.rank, source.stream)
            known = newest.get(key)
            if known is None or (known.modified, known.path) < (source.modified, source.path):
                newest[key] = source
    return tuple(sorted(newest.values(), key=lambda each: (each.attempt, each.rank, STREAMS.index(each.stream))))


def tail(
    job: "Job",
    ranks: Iterable[int] | None,
    most_lines: int,
    grep: str | None = None,
    *,
    attempt: int | None = None,
    stderr: bool | None = None,
    deadline_s: float = 60.0,
) -> Tail:
    """Return the last lines of a job's logs, which its cluster is asked for.

    Args:
        deadline_s: Seconds after which reading stops, between two lines; the last ones until then are returned.

    Raises:
        ProblemsFound: As `Job.logs`.
    """
    selected = None if ranks is None else tuple(ranks)
    has_writers = selected is None or len(selected) > 1
    limits = Limits()
    kept: deque[TailLine] = deque(maxlen=most_lines)
    deadline, number, is_complete = time.monotonic() + deadline_s, 0, True
    for line in job.logs(selected, attempt=attempt, stderr=stderr, grep=grep):
        short = line._replace(text=line.text[: limits.line + limits.context])
        kept.append(TailLine(line.kind, short.shown(with_writer=has_writers)))
        number += 1
        if time.monotonic() >= deadline:
            is_complete = False
            break
    rows = [Row(0, each.text.replace("\n", " ").encode("utf-8", "replace"), True, b"") for each in kept]
    lines = shown(rows, limits)
    last = (TailLine(each.kind, line.text) for each, line in zip(kept, lines, strict=True))
    return Tail(tuple(last), number, is_complete)


def _of_node(run_dir: Path, node: int, attempts: dict[int, Attempt], processes: int) -> Iterator[LogSource]:
    """Yield the log files of the workers of a node, without links and pipes."""
    for launch in _folders(node_logs(run_dir, node)):
        for start in _folders(launch):
            number = _ATTEMPT.fullmatch(start.name)
            attempt = attempts.get(int(number[1])) if number else None
            if attempt is None or node not in attempt.nodes:
                continue
            first = attempt.nodes.index(node) * processes
            for place in _folders(start):
                local_rank = int(place.name) if _NUMBER.fullmatch(place.name) else processes
                for name, stream in _STREAM_OF.items() if local_rank < processes else ():
                    with contextlib.suppress(OSError):
                        found = os.lstat(place / name)
                        if stat.S_ISREG(found.st_mode) and is_of(attempt, found.st_mtime):
                            yield LogSource(
                                attempt.number,
                                node,
                                first + local_rank,
                                stream,
                                found.st_size,
                                found.st_mtime,
                                attempt.started,
                                len(attempt.nodes) * processes,
                                place / name,
                            )


def _folders(folder: Path) -> list[Path]:
    if folder.is_symlink():
        return []
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        return [folder / entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
    return []


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[tuple[int, int]]:
    """Open a file; yield its descriptor and its size.

    Raises:
        ProblemsFound: It was removed, or cannot be read (E711).
    """
    try:
        # neither a link nor a pipe, which would block, that took its place since it was listed
        file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise fail("E711", "log", f"cannot be read: {error.strerror}", value=str(path)) from error
    try:
        found = os.fstat(file)
        yield file, found.st_size if stat.S_ISREG(found.st_mode) else 0
    finally:
        os.close(file)


def _backwards(file: int, offset: int, most_lines: int, limits: Limits) -> tuple[int, bytes]:
    """Return where the last lines before an offset begin, and their bytes."""
    first, data, step = offset, b"", limits.block
    while first > 0 and offset - first < limits.window:
        start = max(0, first - step, offset - limits.window)
        data = os.pread(file, first - start, start) + data
        first, step = start, 2 * step
        if data.count(b"\n", 0, -1) >= most_lines:
            break
    place = len(data) - data.endswith(b"\n")
    for _ in range(most_lines):
        place = data.rfind(b"\n", 0, place)
        if place < 0:
            break
    else:
        return first + place + 1, data[place + 1 :]
    return _from_a_begin(file, first, data)


def _from_a_begin(file: int, first: int, data: bytes) -> tuple[int, bytes]:
    """Return bytes without a line that they do not have the begin of, unless that is all."""
    if first == 0 or os.pread(file, 1, first - 1) == b"\n":
        return first, data
    begin = data.find(b"\n", 0, -1) + 1
    return first + begin, data[begin:]


def _forwards(file: int, offset: int, size: int, most_lines: int, limits: Limits) -> bytes:
    """Return the bytes of the first lines from an offset on."""
    data, step = b"", limits.block
    while len(data) < limits.window and offset + len(data) < size:
        wanted = min(step, limits.window - len(data), size - offset - len(data))
        part = os.pread(file, wanted, offset + len(data))
        if not part:
            return data
        data, step = data + part, 2 * step
        if data.count(b"\n") >= most_lines:
            break
    end = 0
    for _ in range(most_lines):
        place = data.find(b"\n", end)
        if place < 0:
            is_all = offset + len(data) >= size
            return data if is_all or not end else data[:end]
        end = place + 1
    return data[:end]


def _block_after(file: int, offset: int, size: int, limits: Limits) -> bytes:
    """Return the bytes of lines from an offset on, to be searched."""
    data = os.pread(file, min(limits.searched, size - offset), offset)
    if b"\n" not in data and offset + len(data) < size:
        data = os.pread(file, min(limits.window, size - offset), offset)
    if offset + len(data) < size and (end := data.rfind(b"\n") + 1):
        return data[:end]
    return data


def _block_before(file: int, offset: int, limits: Limits) -> tuple[int, bytes]:
    """Return where lines before an offset begin, and their bytes, to be searched."""
    first = max(0, offset - limits.searched)
    data = os.pread(file, offset - first, first)
    if first and b"\n" not in data[:-1]:
        first = max(0, offset - limits.window)
        data = os.pread(file, offset - first, first)
    return _from_a_begin(file, first, data)


def _rows(file: int, first: int, data: bytes, limits: Limits) -> list[Row]:
    """Return the lines in the bytes from an offset on."""
    if not data:
        return []
    before = os.pread(file, min(first, limits.context), max(0, first - limits.context)).rpartition(b"\n")[2]
    *complete, rest = data.split(b"\n")
    rows, place = [], first
    for raw in complete:
        rows.append(Row(place, raw, True, b""))
        place += len(raw) + 1
    if rest:
        rows.append(Row(place, rest, False, b""))
    if before:
        rows[0] = rows[0]._replace(before=before)
    return rows
