"""What an examination of a job before its launch finds: one value for each subject, and how questions are asked."""

import contextvars
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from queue import Empty, SimpleQueue
from typing import NamedTuple

from launcher.common.problems import Notice, Problem, ProblemsFound, first_line
from launcher.common.redaction import masked
from launcher.common.texts import bounded

_POLL_S = 0.1
_SKEW_S = 30.0
"""Difference of clocks from which order and durations mislead. Our own choice; signatures of AWS allow 300 s."""


class FindingState(StrEnum):
    """What a finding means for the job."""

    OK = "ok"
    WARNING = "warning"
    """The job may wait, or runs differently from what its user may expect."""
    FAILURE = "failure"
    """The job would be refused, would never start, or would fail."""
    UNKNOWN = "unknown"
    """The question has no answer: no permission, no connection, or only the job's containers know it."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of an examination.

    Args:
        subject: What was examined, such as `volumes`.
        message: One line.
        remedy: How to fix it, or how to get an answer.
        code: That of the Problem or the notice; None for others.
    """

    subject: str
    state: FindingState
    message: str
    remedy: str | None = None
    code: str | None = None

    def __post_init__(self) -> None:
        for name in ("message", "remedy"):
            if (text := getattr(self, name)) is not None:
                object.__setattr__(self, name, " ".join(bounded(masked(text)).split()))


class Question(NamedTuple):
    """A question about one subject.

    Args:
        ask: Returns findings; a Problem is a failure, and a notice a warning. ProblemsFound counts as its Problems.
            Questions that arise are asked next, all at the same time.
    """

    subject: str
    ask: "Callable[[], Iterable[Answer]]"


Answer = Finding | Problem | Notice | Question


def ok(subject: str, message: str) -> Finding:
    """Return a finding without a fault."""
    return Finding(subject, FindingState.OK, message)


def unknown(subject: str, message: str, remedy: str | None = None) -> Finding:
    """Return a finding of a question that has no answer."""
    return Finding(subject, FindingState.UNKNOWN, message, remedy)


def warning(subject: str, message: str, remedy: str | None = None) -> Finding:
    """Return a finding that does not keep the job from running."""
    return Finding(subject, FindingState.WARNING, message, remedy)


def or_ok(subject: str, faults: "Iterable[Answer]", message: str) -> "Iterator[Answer]":
    """Yield the faults of a subject; if there are none, that it is without fault."""
    found = list(faults)
    yield from found or (ok(subject, message),)


def clock(whose: str, theirs: datetime) -> Finding:
    """Return how far this machine's clock is from another's, whose time was read just now, in whole seconds."""
    skew_s = (datetime.now(UTC) - theirs).total_seconds()
    if abs(skew_s) < _SKEW_S:
        return ok("clock", f"within {_SKEW_S:.0f} s of {whose}")
    way = "ahead of" if skew_s > 0 else "behind"
    return warning(
        "clock", f"{abs(skew_s):.0f} s {way} {whose}", "set this machine's clock: timedatectl set-ntp true"
    )


def http_time(date: str | None) -> datetime | None:
    """Return the time of an HTTP date, such as a Date header; None if it is not one."""
    from email.utils import parsedate_to_datetime  # it imports sockets and calendars, which a dry run does without

    try:
        found = parsedate_to_datetime(date or "")
    except (TypeError, ValueError, IndexError):
        return None
    return found if found.tzinfo else found.replace(tzinfo=UTC)


def found(subject: str, answer: Finding | Problem | Notice, unanswered: frozenset[str] = frozenset()) -> Finding:
    """Return an answer as a finding.

    Args:
        unanswered: Codes of Problems by which a server does not answer.
    """
    if isinstance(answer, Finding):
        return answer
    if isinstance(answer, Notice):
        return Finding(subject, FindingState.WARNING, answer.message, code=answer.code)
    state = FindingState.UNKNOWN if answer.code in unanswered else FindingState.FAILURE
    value = "" if answer.value is None else f"={answer.value}"
    allowed = f" (allowed: {answer.allowed})" if answer.allowed else ""
    return Finding(subject, state, f"{answer.path}{value}: {answer.message}{allowed}", answer.remedy, answer.code)


class _Asked:
    """A question that a thread asks, which ends with the process."""

    def __init__(self, question: Question, unanswered: frozenset[str]):
        self.subject = question.subject
        self.answer: SimpleQueue[list[Finding | Question]] = SimpleQueue()
        context = contextvars.copy_context()  # the variables and the secrets of the session that asks

        def ask() -> None:
            self.answer.put(context.run(_answer, question, unanswered))

        threading.Thread(target=ask, daemon=True).start()


def answers(
    questions: Sequence[Question],
    deadline_s: float,
    unanswered: frozenset[str] = frozenset(),
    show: Callable[[int, int], None] = lambda done, total: None,
) -> Iterator[Finding]:
    """Ask every question at the same time, and yield what is found, in the order of the questions.

    One that is not answered in time, or fails, is `unknown`.

    Args:
        deadline_s: Time limit of all questions together, in seconds.
        unanswered: Codes of Problems by which a server does not answer.
        show: Called with the number of answered questions, and of all, while it waits.
    """
    until_s = time.monotonic() + deadline_s
    asked = [_Asked(question, unanswered) for question in questions]
    done = 0
    while done < len(asked):
        show(done + sum(not each.answer.empty() for each in asked[done:]), len(asked))
        left_s = until_s - time.monotonic()
        each = asked[done]
        try:
            given = each.answer.get(timeout=max(0.0, min(_POLL_S, left_s)))
        except Empty:
            if left_s > 0:
                continue
            given = [unknown(each.subject, f"no answer within {deadline_s:g} s", "try again later, or --timeout")]
        yield from (one for one in given if isinstance(one, Finding))
        done += 1
        asked[done:done] = [_Asked(one, unanswered) for one in given if isinstance(one, Question)]


def _answer(question: Question, unanswered: frozenset[str]) -> list[Finding | Question]:
    """Return the answer to a question; one that fails has none."""
    given: list[Answer] = []
    try:
        for each in question.ask():  # what is found before a failure counts
            given.append(each)
    except ProblemsFound as error:
        given += error.problems
    except Exception as error:  # such as an object that is not what its server documents
        given.append(unknown(question.subject, f"the question failed: {type(error).__name__}: {first_line(error)}"))
    told = [each if isinstance(each, Question) else found(question.subject, each, unanswered) for each in given]
    return list(dict.fromkeys(told))
