"""Finds the first error of a job that failed. Pure.

Each log gives at most one candidate of each rank below; over all logs and records the lowest rank counts, then the
earliest time. Benign errors exist, and a program may survive an error: the end of a log outranks its middle. A line
that says how the program goes on is a remark, as is an event after which the workers have written. Secrets are
masked.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from enum import IntEnum

from launcher.causes.table import Role, known, matches
from launcher.common import redaction
from launcher.common.texts import plain
from launcher.model.failure import ErrorLine, Failure
from launcher.model.job_spec import LogLine

_END_LINES = 200
"""Lines at the end of a log in which a known cause ended its process; also the last traceback, if it is longer."""
_LONGEST_TEXT = 300
"""Characters of an error that are kept."""
_MOST_CONSEQUENCES = 3
_LONGEST_LINE = 4096
"""Characters of a line that are searched."""

_PREFIX = re.compile(
    r"(?:\[(?:\w+ ?\d*|\d+,[^\]]*)\](?:<std(?:out|err)>)?:?\s?"  # torchrun, tail_log and c10d; mpirun
    r"|\([\w.]+(?: pid=\d+(?:, ip=[\w.:]+)?)?\)\s"  # Ray: of an actor and its process
    r"|[A-Z]+ \d\d-\d\d \d\d:\d\d:\d\d \[[^\]]+\]\s"  # vLLM
    r"|\[?\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d+)?(?:Z|[+-]\d\d:?\d\d)?\]?\s"  # loggers, containers
    r"|[IWEF]\d{4} \d\d:\d\d:\d\d\.\d+ +\d+ \S+:\d+\] "  # glog and torch
    r"|\[pod/\S+\] "  # kubectl logs --prefix
    r"|(?:[a-z][\w.-]*-)?\d+: )+"  # srun --label; pdsh and DeepSpeed
)
"""What frameworks write before a worker's line."""
_REMARK = re.compile(
    r"(?<!NCCL )\bWARN(?:ING)?\b|\b\w*Warning:|\bDEBUG\b"
    r"|\b(?:retrying|skipp(?:ing|ed)|ignor(?:ing|ed)|continuing|trying)\b"
    r"|\bfall(?:s|ing)? ?back\b|\bwill (?:be )?retr|^(?:If|To avoid|In case|Note|Hint)\b|\bUsing (?:eager|sdpa)\b",
    re.I,
)
"""What a line says that is about an error but not one: a warning, or how the program goes on."""
_ROUTINE = re.compile(
    r"(?:\[[^\]]{1,40}\]:? ?){0,3}"  # of frameworks
    r"[^\[A-SU-Ya-z]{0,40}(?:[\w.]{1,60} - )?"  # a time, and a logger's name
    r"(?:\[?(?:INFO|DEBUG)\b|I\d{4} \d\d:)"
)
"""The beginning of a logger's line about the course of a program."""
_LONG_AFTER_S = 600.0
"""For how long a worker may write after an event that ends it: longer than it is given to end."""
_TRACEBACK = "Traceback (most recent call last)"
_CHAINED = ("During handling of the above exception", "The above exception was the direct cause")
_EXCEPTION = re.compile(r"[A-Za-z_][\w.]*(?:Error|Exception|Interrupt|Exit|Warning|Timeout|[a-z]\w*)(?:: |:?$)")


class _Rank(IntEnum):
    """How likely a line shows the cause."""

    CAUSE = 0
    """A known cause at the end of a log, or in a record."""
    EXCEPTION = 1
    """The exception that ended a process, of no known kind."""
    SYMPTOM = 2
    EARLIER_CAUSE = 3
    """A known cause long before the end of a log."""
    LAST_LINE = 4
    """The last line on standard error without an exception, such as the message of an exit."""
    REMARK = 5
    """A known text in a warning, or in an event that the workers have survived."""
    CONSEQUENCE = 6


@dataclass(frozen=True, slots=True)
class _Candidate:
    rank: _Rank
    line: ErrorLine
    row: int | None = None


class _Log:
    """What is kept of one log: its last traceback, and the first and last line of each row of the table."""

    def __init__(self, *, is_record: bool = False):
        self.is_record = is_record
        self.count = 0
        self.last: LogLine | None = None
        self.chain_start: int | None = None
        self.exception: tuple[int, LogLine] | None = None
        self.hits: dict[int, tuple[tuple[int, LogLine], tuple[int, LogLine]]] = {}
        self._is_in_traceback = self._is_chained = False

    def add(self, line: LogLine) -> None:
        text = _stripped(line.text)
        if text:
            is_routine = _ROUTINE.match(line.text)
            if text != line.text:
                line = line._replace(text=text)
            self._follow_traceback(line, text)
            self.last = None if is_routine else line
            rows = () if self._is_in_traceback else matches()(text)  # the code of a frame is no error
            for row in rows[:1]:
                first, _ = self.hits.get(row, ((self.count, line), None))
                self.hits[row] = first, (self.count, line)
        self.count += 1

    def _follow_traceback(self, line: LogLine, text: str) -> None:
        if text.startswith(_TRACEBACK):
            if not self._is_chained:
                self.chain_start = self.count
            self._is_in_traceback, self._is_chained = True, False
        elif self._is_in_traceback and not text[0].isspace():
            self._is_in_traceback = False
            if _EXCEPTION.match(text):
                self.exception = self.count, line
        elif text.startswith(_CHAINED):
            self._is_chained = True

    def candidates(self) -> Iterator[_Candidate]:
        """Yield the best candidate of each rank."""
        end = max(0, self.count - _END_LINES)
        chain = self.chain_start if self.exception and self.exception[0] >= end else None
        region = end if chain is None else min(end, chain)
        found: dict[_Rank, tuple[tuple[bool, int], LogLine, int]] = {}
        for row, (first, last) in self.hits.items():
            position, line = first if first[0] >= (region if chain is None else chain) else last
            rank = self._rank(row, line, is_at_end=position >= region)
            key = (chain is not None and position < chain, position)
            if rank not in found or key < found[rank][0]:
                found[rank] = key, line, row
        for rank, (_, line, row) in found.items():
            yield _Candidate(rank, _error(line), row)
        if self.is_record:
            return
        if chain is not None and self.exception and not self._is_known(self.exception[0]):
            yield _Candidate(_Rank.EXCEPTION, _error(self.exception[1]))
        elif chain is None and self.last and self._ends_with_message and found.keys() <= {_Rank.REMARK}:
            yield _Candidate(_Rank.LAST_LINE, _error(self.last))

    @property
    def _ends_with_message(self) -> bool:
        is_known = any(line is self.last for _, (_, line) in self.hits.values())
        return self.last is not None and self.last.stream == "stderr" and not is_known

    def _is_known(self, position: int) -> bool:
        return any(position in (first[0], last[0]) for first, last in self.hits.values())

    def _rank(self, row: int, line: LogLine, *, is_at_end: bool) -> _Rank:
        is_exception = self.exception is not None and line is self.exception[1]
        if not self.is_record and not is_exception and _REMARK.search(line.text):
            return _Rank.REMARK
        match known()[row].role:
            case Role.CAUSE:
                return _Rank.CAUSE if is_at_end or self.is_record else _Rank.EARLIER_CAUSE
            case Role.SYMPTOM:
                return _Rank.SYMPTOM
            case Role.CONSEQUENCE:
                return _Rank.CONSEQUENCE


def find(lines: Iterable[LogLine], records: Iterable[LogLine] = ()) -> Failure | None:
    """Return why a job failed; None if nothing that was written shows an error.

    Of each host only its last start of the workers counts: the job has recovered from the failures before.

    Args:
        lines: What workers wrote. Those of one rank, attempt and stream are in order. Memory does not grow with them.
        records: What the cluster or the operator recorded: faults, exit codes, reasons.
    """
    logs: dict[tuple[object, ...], _Log] = {}
    newest: dict[str | None, int] = {}
    for line in lines:
        if line.kind != "line":
            continue
        attempt = line.attempt or 0
        if attempt < newest.get(line.host, 0):
            continue
        newest[line.host] = attempt
        key = (line.host, attempt, line.rank, line.writer, line.stream)
        if (log := logs.get(key)) is None:
            log = logs[key] = _Log()
        log.add(line)
    kept = [log for (host, attempt, *_), log in logs.items() if attempt == newest[host]]  # type: ignore[index]
    written = _last_written(kept)
    for record in records:
        log = _Log(is_record=True)
        for text in record.text.splitlines():
            log.add(record._replace(text=text))
        kept.append(log)
    every = [_unless_survived(each, log, written) for log in kept for each in log.candidates()]
    return _failure(every) if every else None


def _last_written(logs: Iterable[_Log]) -> dict[str | None, float]:
    """Return when each host wrote its last line, and under None when any did; inf if its lines have no time."""
    found: dict[str | None, float] = {}
    for log in logs:
        if log.last is not None:
            time_s = _time_s(log.last)
            for host in (log.last.host, None):
                found[host] = max(time_s, found.get(host, 0.0))
    return found


def _unless_survived(each: _Candidate, log: _Log, written: Mapping[str | None, float]) -> _Candidate:
    """Return what an event shows; a remark if its host, or for one of the job any host, has written after it."""
    if not log.is_record or each.row is None or each.line.time_s is None or each.line.attempt is not None:
        return each
    host = each.line.host.rpartition("/")[2] if each.line.host else None
    is_of_start = known()[each.row].is_of_start
    is_of_pod = each.line.host is not None and each.line.host.startswith("Pod/")
    last_s = written.get(host, 0.0) if host in written or is_of_pod else written.get(None, 0.0)
    if not is_of_start and last_s == float("inf"):  # its time is unknown
        return each
    is_over = last_s > each.line.time_s + (0.0 if is_of_start else _LONG_AFTER_S)
    return replace(each, rank=_Rank.REMARK) if is_over else each


def _failure(every: list[_Candidate]) -> Failure:
    ordered = sorted(every, key=lambda each: (each.rank, _time_s(each.line)))
    first = ordered[0]
    others: dict[object, ErrorLine] = {}
    for each in sorted(ordered[1:], key=lambda each: _time_s(each.line)):
        if each.line.rank is not None and each.line.rank != first.line.rank and each.rank is not _Rank.LAST_LINE:
            others.setdefault(each.line.rank, each.line)
    cause = None if first.row is None else known()[first.row].cause
    return Failure(first.line, cause, tuple(others.values())[:_MOST_CONSEQUENCES])


def _time_s(line: ErrorLine | LogLine) -> float:
    """Return when a line was written or, if that is unknown, had been written; inf if that is unknown too."""
    return next((each for each in (line.time_s, line.until_s) if each is not None), float("inf"))


def _stripped(text: str) -> str:
    """Return a line without what frameworks write before it, and without control sequences."""
    if "\r" in text:  # the last state of a progress bar is at the end of a long line
        text = text.rstrip("\r").rpartition("\r")[2]
    text = plain(text[:_LONGEST_LINE])
    if found := _PREFIX.match(text):
        text = text[found.end() :]
    start = text.find(_TRACEBACK)  # behind a progress bar that had not ended its line
    return text[start:].rstrip() if start > 0 and not text[start - 1].isspace() else text.rstrip()


def _error(line: LogLine) -> ErrorLine:
    text = redaction.masked(line.text.strip())
    if len(text) > _LONGEST_TEXT:
        text = text[: _LONGEST_TEXT - 1] + "…"
    return ErrorLine(text, line.rank, line.host, line.time_s, line.attempt, line.until_s)
