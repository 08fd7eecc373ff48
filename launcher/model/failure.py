"""A failure as a value: its first error, its cause, and what followed from it."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any


@dataclass(frozen=True, slots=True)
class ErrorLine:
    """An error that a worker wrote, or that the cluster or the operator recorded.

    Args:
        rank: Who wrote it; None if that is unknown, and for a record about the job.
        host: As the cluster names it; None if unknown.
        time_s: When it was written, in seconds since the epoch; None if unknown.
        attempt: Number of the start of the workers, from 0; None for a record.
        until_s: When it had been written, if its time is unknown: that of the last write to its log.
    """

    text: str
    rank: int | None = None
    host: str | None = None
    time_s: float | None = None
    attempt: int | None = None
    until_s: float | None = None

    @property
    def place(self) -> str:
        """Who wrote it, where and when, as far as known: `rank 3 on algo-1, 12:03:04 UTC`, or `by 12:03:04 UTC`."""
        who = "" if self.rank is None else f"rank {self.rank}"
        where = " on ".join(filter(None, (who, self.host)))
        found_s = self.until_s if self.time_s is None else self.time_s
        when = "" if found_s is None else f"{datetime.fromtimestamp(found_s, UTC):%H:%M:%S} UTC"
        if when and self.time_s is None:
            when = f"by {when}"
        return ", ".join(filter(None, (where, when)))

    def __str__(self) -> str:
        return f"{self.place}: {self.text}" if self.place else self.text


@dataclass(frozen=True, slots=True)
class Cause:
    """A known cause.

    Args:
        id: Of its row in the table.
        category: memory, storage, data, access, numerics, quota, preemption and others.
    """

    id: str
    category: str
    explanation: str
    remedy: str
    source: str


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a job failed.

    Args:
        cause: None if the table has none for the first error.
        consequences: Errors of other ranks, one for each, the earliest first; at most three.
    """

    first_error: ErrorLine
    cause: Cause | None = None
    consequences: tuple[ErrorLine, ...] = ()

    def lines(self) -> tuple[tuple[str, str], ...]:
        """Return the failure for people: pairs of a heading and its text."""
        found = [("first error", str(self.first_error))]
        if self.cause:
            found += [
                ("cause", f"{self.cause.explanation} ({self.cause.category}: {self.cause.id})"),
                ("remedy", self.cause.remedy),
            ]
        return tuple(found)

    def __str__(self) -> str:
        return "\n".join(f"{heading}: {text}" for heading, text in self.lines())


def to_data(failure: Failure | None) -> dict[str, Any] | None:
    """Return a failure as plain data."""
    return asdict(failure) if failure else None


def failure_from(data: Mapping[str, Any] | None) -> Failure | None:
    """Return the failure that `to_data` was given.

    Raises:
        KeyError, TypeError: The data is damaged.
    """
    if data is None:
        return None
    cause = Cause(**data["cause"]) if data["cause"] else None
    return Failure(ErrorLine(**data["first_error"]), cause, tuple(ErrorLine(**each) for each in data["consequences"]))


def in_one_line(message: str, failure: Failure | None) -> str:
    """Return why a job ended, without the lines of output that follow, with the first error if it is known."""
    head = message.partition("\n")[0]
    if not head.endswith(":"):
        return head
    return f"{head} {failure.first_error.text}" if failure else head[:-1]
