"""The logs of a job: a window into one file, its lines that match, the ends of all ranks' files, or a whole file.

A source is chosen by comparing the query with the log files that a job has: no part of a request is a path.
"""

import functools
import re
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from urllib.parse import urlencode

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response, StreamingResponse

from launcher.api import job_index, log_stream, log_window
from launcher.api.job_index import IndexedJob, JobStatus
from launcher.api.log_window import Line, LogSource
from launcher.common.problems import Problem, ProblemsFound
from launcher.common.texts import counted, size_text
from launcher.ui import addresses, job_table
from launcher.ui.addresses import number
from launcher.ui.log_view import Asked, Block, Choices, Item, Part, View
from launcher.ui.rendering import page, part
from launcher.ui.state import Ui, indexed_of, opened, ui_of

_LINES = 300
"""Of a window, of one answer to a search, and of the log of a cluster."""
_OF_EACH, _LEAST_OF_EACH, _OF_ALL = 40, 5, 2560
"""Lines of each file where all ranks are shown, and of all together."""
_MOST_FILES = 200
_SEARCH_S = 1.0
"""How long one request searches."""
_ASK_S = 30.0
"""How long one request reads the log of a cluster."""
_ASKING = threading.BoundedSemaphore(8)
"""Requests that wait for clusters at the same time: others of the page still need threads."""
_ALL = "all"
_END = 1 << 60

Place = tuple[int | None, int | None]
"""An attempt and a rank, None where unknown."""


def logs(request: Request) -> Response:
    """Show the log that the address selects."""
    row = indexed_of(request)
    asked, choices, view = _shown(ui_of(request), row, Asked.of(request.query_params))
    return page(request, "logs.html", row=row, tab="logs", asked=asked, choices=choices, view=view)


def lines(request: Request) -> Response:
    """Return the part of a page that shows the log; with `after`, only the lines from there on."""
    *_, view = _shown(ui_of(request), indexed_of(request), Asked.of(request.query_params))
    return HTMLResponse(part("log_lines.html", view=view))


def raw(request: Request) -> Response:
    """Return a whole file, with the secrets in it masked."""
    row = indexed_of(request)
    asked = Asked.of(request.query_params)
    every = log_window.sources(opened(row)) if row.record else ()
    chosen = [each for each in every if _selection(each) == (asked.attempt, asked.rank, asked.stream)]
    if not chosen:
        raise HTTPException(404, "The job has no such log on this machine.")
    name = "".join(each if each.isascii() and (each.isalnum() or each in "-_.") else "_" for each in row.name)
    name = f"{name}-attempt-{asked.attempt}-rank-{asked.rank}-{asked.stream}.log"
    headers = {"content-disposition": f'attachment; filename="{name}"', "x-content-type-options": "nosniff"}
    return StreamingResponse(chosen[0].masked(), media_type="text/plain", headers=headers)


def _shown(ui: Ui, row: IndexedJob, asked: Asked) -> tuple[Asked, Choices | None, View]:
    """Return the selection with its defaults, what may be selected, and the selected lines."""
    if row.record is None:
        found = (row.problem,) if row.problem else ()
        return asked, None, View(found=found, note="This bundle was never launched, so it has no log.")
    # In this order: what was written before a job ended, or an attempt began, is in the files that are read later.
    status = job_table.status_of(ui, row)
    try:
        every = log_window.sources(opened(row))
    except ProblemsFound as error:
        return asked, None, View(found=error.problems)
    shown = _Shown(row, asked, every, isinstance(status, JobStatus) and status.state.is_final)
    if asked.after is not None and number(asked.attempt) is not None:
        return asked, None, _refusing(shown.news)
    if not every:
        return asked, Choices(is_here=False), _refusing(shown.of_cluster)
    shown = replace(shown, asked=_with_defaults(asked, every, functools.partial(_first_error, ui, row, status)))
    is_newest = int(shown.asked.attempt) == every[-1].attempt
    choices = Choices(
        is_here=True,
        attempt="" if is_newest and not asked.attempt else shown.asked.attempt,
        attempts=tuple(dict.fromkeys(str(each.attempt) for each in every)),
        ranks=tuple(map(str, sorted({each.rank for each in every}))),
    )
    return shown.asked, choices, _refusing(shown.selected)


def _refusing(view: Callable[[], View]) -> View:
    """Return a view, or one of the problems that it raises: the page keeps its form."""
    try:
        return view()
    except ProblemsFound as error:
        return View(found=error.problems)


def _with_defaults(asked: Asked, every: Sequence[LogSource], first_error: Callable[[], Place]) -> Asked:
    """Return a selection with an attempt, a rank and, unless all ranks are selected, a stream.

    Raises:
        HTTPException: The job has no such attempt, rank or stream here (404).
    """
    for name, value, known in (
        ("attempt", asked.attempt, {str(each.attempt) for each in every}),
        ("rank", asked.rank, {str(each.rank) for each in every} | {_ALL}),
        ("stream", asked.stream, set(log_window.STREAMS)),
    ):
        if value and value not in known:
            raise HTTPException(404, f"The job has no such {name} on this machine.")
    is_error = not (asked.attempt or asked.rank)
    failed_attempt, failed_rank = first_error() if is_error else (None, None)
    attempt = int(asked.attempt) if asked.attempt else every[-1].attempt
    if failed_attempt in {each.attempt for each in every if each.rank == failed_rank}:
        attempt = failed_attempt or 0
    of_attempt = [each for each in every if each.attempt == attempt]
    if asked.rank == _ALL:
        return replace(asked, attempt=str(attempt))
    ranks = {each.rank for each in of_attempt}
    rank = int(asked.rank) if asked.rank else failed_rank if failed_rank in ranks else min(ranks)
    has_failed = failed_rank is not None and rank == failed_rank
    order = log_window.STREAMS[::-1] if has_failed else log_window.STREAMS  # errors are in stderr
    with_text = [each.stream for each in of_attempt if each.rank == rank and each.size]
    stream = asked.stream or next((each for each in order if each in with_text), order[0])
    return replace(asked, attempt=str(attempt), rank=str(rank), stream=stream)


def _first_error(ui: Ui, row: IndexedJob, status: JobStatus | Problem | None) -> Place:
    """Return attempt and rank of a failed job's first error, as far as they are known."""
    answer = job_table.failure_of(ui, row, status)
    line = answer.value.first_error if answer and answer.value else None
    return (line.attempt, line.rank) if line else (None, None)


@dataclass(frozen=True)
class _Shown:
    """The lines of a job that a query selects.

    Args:
        every: The job's log files on this machine.
        is_over: Whether the job has ended.
    """

    row: IndexedJob
    asked: Asked
    every: tuple[LogSource, ...]
    is_over: bool

    @property
    def _page(self) -> str:
        return addresses.of_job(self.row.name)

    @property
    def _nothing(self) -> str:
        return "Nothing was written." if self.is_over else "Nothing was written yet."

    def _address(self, **changes: str | int | None) -> str:
        return f"{self._page}/logs?{self.asked.query(**changes)}"

    def _part(self, **changes: str | int | None) -> str:
        return f"/parts{self._page}/logs?{self.asked.query(**changes)}"

    def selected(self) -> View:
        """Return the lines of one file, or of all ranks."""
        if self.asked.rank == _ALL:
            return self._of_all()
        source = self._source(int(self.asked.attempt), int(self.asked.rank), self.asked.stream)
        if source is None:
            return View(
                note=f"Attempt {self.asked.attempt} has no {self.asked.stream} of rank {self.asked.rank} here."
            )
        return self._matches(source) if self.asked.grep else self._window(source)

    def _source(self, attempt: int, rank: int, stream: str) -> LogSource | None:
        wanted = (attempt, rank, stream)
        return next((each for each in self.every if (each.attempt, each.rank, each.stream) == wanted), None)

    def _window(self, source: LogSource) -> View:
        asked, around = self.asked, tuple[Line, ...]()
        if asked.at is not None:
            around = source.before(asked.at, _LINES // 2).lines
            window = source.after(asked.at, _LINES // 2)
            first = around[0].offset if around else window.first
        else:
            window = source.end(_LINES) if asked.offset is None else source.after(asked.offset, _LINES)
            first = window.first
        links = []
        if first:
            links = [("start", self._address(offset=0))]
            links += [("earlier", self._address(offset=source.start_before(first, _LINES)))]
        if not window.is_end:
            links += [("later", self._address(offset=window.last)), ("end", self._address())]
        return replace(
            self._of_file(source),
            blocks=self._blocks(self._items(source, (*around, *window.lines))),
            note="" if window.size else self._nothing,
            links=tuple(links),
            follow=self._follow(source, window.next) if window.is_end else "",
            is_end=window.is_end and asked.at is None,
        )

    def _matches(self, source: LogSource) -> View:
        asked, is_back = self.asked, self.asked.offset is None
        start = asked.offset if asked.offset is not None else _END if asked.before is None else asked.before
        found = source.search(asked.grep, start, _LINES, _SEARCH_S, backwards=is_back)
        links = []
        if found.first:
            links = [("first matches", self._address(offset=0)), ("earlier", self._address(before=found.first))]
        if found.last < found.size:
            links += [("later", self._address(offset=found.last)), ("last matches", self._address())]
        is_all, num_lines = (found.first, found.last) == (0, found.size), len(found.lines)
        where = "the file" if is_all else f"bytes {found.first:,} to {found.last:,} of {found.size:,}"
        note = f"{counted(num_lines, 'line')} of {where} {'matches' if num_lines == 1 else 'match'}."
        if not found.is_over and num_lines < _LINES:
            note += f" The search goes on with “{'earlier' if is_back else 'later'}”."
        is_end = found.last >= found.size
        return replace(
            self._of_file(source),
            blocks=self._blocks(self._items(source, found.lines)),
            note=note,
            links=tuple(links),
            follow=self._follow(source, found.next) if is_end else "",
            is_end=is_end,
        )

    def news(self) -> View:
        """Return the lines from `after` on, and where following continues: in a newer attempt after the last one."""
        asked, items = self.asked, list[Item]()
        if not self.every:  # the job is being launched again
            again = self._part(after=asked.after, began=asked.began)
            return View(follow="" if self.is_over else again, is_news=True)
        rank, start = number(asked.rank) or 0, asked.after or 0
        source = self._source(number(asked.attempt) or 0, rank, asked.stream)
        if source is None or _moment(source) != asked.began:
            first = self.every[0].attempt
            source, start = self._source(first, rank, asked.stream) or self.every[0], 0
            items.append(_heading(f"The job was launched again. {_begins(source, rank)}"))
        lines, following, is_end = self._from(source, start)
        if start > following:
            items.append(_heading("The file is shorter than before: it follows from its start."))
            lines, following, is_end = self._from(source, 0)
        items += self._items(source, lines)
        follow = self._part_of(source, following)
        if is_end and (later := self._next(source)):
            items.append(_heading(_begins(later, source.rank)))
            follow, is_end = self._part_of(later, 0), False
        elif is_end and self.is_over:
            follow = ""
        return View(blocks=self._blocks(items), follow=follow, has_more=not is_end, is_news=True)

    def _from(self, source: LogSource, start: int) -> tuple[tuple[Line, ...], int, bool]:
        """Return lines from an offset on, where following continues, and whether they have the end of the file."""
        if self.asked.grep:
            found = source.search(self.asked.grep, start, _LINES, _SEARCH_S)
            return found.lines, found.next, found.is_over
        window = source.after(start, _LINES)
        return window.lines, window.next, window.is_end

    def _next(self, source: LogSource) -> LogSource | None:
        """Return what follows a file in a newer attempt: the same rank or, where the attempt has none, rank 0."""
        for later in sorted({each.attempt for each in self.every if each.attempt > source.attempt}):
            if same := self._source(later, source.rank, source.stream):
                return same
            first = self._source(later, 0, source.stream)
            if first and source.rank >= first.num_ranks:
                return first
        return None

    def _of_all(self) -> View:
        """Return the ends of the files of all ranks, or what matches there."""
        asked, attempt = self.asked, int(self.asked.attempt)
        files = [each for each in self.every if each.attempt == attempt and asked.stream in ("", each.stream)]
        files = [each for each in files if each.size]
        shown = files[:_MOST_FILES]
        most = max(_LEAST_OF_EACH, min(_OF_EACH, _OF_ALL // max(1, len(shown))))
        deadline, blocks, num_cut = time.monotonic() + _SEARCH_S, [], 0
        for each in shown:
            if asked.grep:
                left_s = max(0.0, deadline - time.monotonic())
                found = each.search(asked.grep, _END, most, left_s, backwards=True)
                num_cut += not found.is_over
                lines = found.lines
            else:
                lines = each.end(most).lines
            if lines:
                href = self._address(rank=each.rank, stream=each.stream)
                title = f"rank {each.rank} on node {each.node}, {each.stream}"
                blocks.append(Block(self._items(each, lines), title, href))
        notes = [f"{counted(len(blocks), 'file')} of {len(files)} with a match."] if asked.grep else []
        if num_cut:
            notes.append(f"Of {counted(num_cut, 'file')} only the end was searched: choose a rank to search it all.")
        if len(files) > len(shown):
            notes.append(f"The files of {len(files) - len(shown)} further ranks are not shown: choose one.")
        if not files:
            notes.append(self._nothing)
        is_newest = attempt == self.every[-1].attempt
        return View(
            blocks=tuple(blocks),
            title=f"attempt {attempt}: the last lines of {counted(len(files), 'file')} with text",
            note=" ".join(notes),
            refresh="" if self.is_over or not is_newest else self._part(),
        )

    def of_cluster(self) -> View:
        """Return the last lines of a job whose logs are not files here.

        Raises:
            HTTPException: The address names no attempt, rank or stream (404).
            ProblemsFound: The cluster does not answer, or has no such log.
        """
        asked = self.asked
        attempt, rank = number(asked.attempt), number(asked.rank)
        if (asked.attempt and attempt is None) or (asked.rank not in ("", _ALL) and rank is None):
            raise HTTPException(404, "Attempts and ranks are numbers.")
        if asked.stream not in ("", *log_window.STREAMS):
            raise HTTPException(404, "No such stream.")
        stderr = {"stdout": False, "stderr": True}.get(asked.stream)
        ranks = None if asked.rank == _ALL else (rank or 0,)
        if not _ASKING.acquire(blocking=False):
            raise HTTPException(503, "Too many pages wait for the logs of clusters. Try again in a minute.")
        try:
            found = log_window.tail(
                opened(self.row), ranks, _LINES, asked.grep or None, attempt=attempt, stderr=stderr, deadline_s=_ASK_S
            )
        finally:
            _ASKING.release()
        pattern = log_stream.compiled(asked.grep) if asked.grep else None
        items = tuple(
            Item(_parts(each.text, pattern)) if each.kind == "line" else _heading(each.text) for each in found.lines
        )
        notes = [f"The last {len(items)} of {found.num_lines:,} lines."] if found.num_lines > len(items) else []
        if not found.is_complete:
            notes.append(f"The log was not read to its end, which takes more than {_ASK_S:.0f} s: use recipes logs.")
        if not items:
            notes.append("No line matches." if asked.grep else "There is no line yet.")
        is_here = job_index.is_here(self.row)
        return View(
            blocks=self._blocks(items),
            note=" ".join(notes),
            refresh=self._part() if is_here and not self.is_over else "",
            is_end=True,
        )

    def _of_file(self, source: LogSource) -> View:
        title = f"rank {source.rank} on node {source.node}, attempt {source.attempt}, {source.stream}: "
        query = urlencode(dict(zip(("attempt", "rank", "stream"), _selection(source), strict=True)))
        return View(title=title + size_text(source.size), modified=source.modified, raw=f"{self._page}/raw?{query}")

    def _follow(self, source: LogSource, offset: int) -> str:
        is_newest = source.attempt == self.every[-1].attempt
        return self._part_of(source, offset) if is_newest and not self.is_over else ""

    def _part_of(self, source: LogSource, offset: int) -> str:
        attempt, rank, stream = _selection(source)
        return self._part(attempt=attempt, rank=rank, stream=stream, after=offset, began=_moment(source))

    def _blocks(self, items: Sequence[Item]) -> tuple[Block, ...]:
        return (Block(tuple(items)),) if items else ()

    def _items(self, source: LogSource, lines: Sequence[Line]) -> tuple[Item, ...]:
        pattern = log_stream.compiled(self.asked.grep) if self.asked.grep else None
        attempt, rank, stream = _selection(source)
        found = []
        for line in lines:
            name = f"b{attempt}-{rank}-{stream}-{line.offset}"
            place = self._address(attempt=attempt, rank=rank, stream=stream, grep="", at=line.offset)
            is_target = line.offset == self.asked.at
            parts = ((line.text, True),) if is_target else _parts(line.text, pattern)
            found.append(Item(parts, "line", name, f"{place}#{name}", line.offset, is_target))
        return tuple(found)


def _selection(source: LogSource) -> tuple[str, str, str]:
    return str(source.attempt), str(source.rank), source.stream


def _moment(source: LogSource) -> str:
    return f"{source.began:.3f}"


def _heading(text: str) -> Item:
    return Item(((text, False),), "attempt")


def _begins(source: LogSource, rank: int) -> str:
    text = f"Attempt {source.attempt} begins, with {counted(source.num_ranks, 'rank')}."
    return text if source.rank == rank else f"{text} It has no such log of rank {rank}: rank {source.rank} follows."


def _parts(text: str, pattern: re.Pattern[str] | None) -> tuple[Part, ...]:
    """Return a line in parts, those that match marked."""
    found, place = list[Part](), 0
    for begin, end in log_window.spans(pattern, text) if pattern else ():
        found += [(text[place:begin], False), (text[begin:end], True)]
        place = end
    return tuple(each for each in (*found, (text[place:], False)) if each[0])
