"""What the page of a job's logs is asked for, and what it shows."""

from dataclasses import dataclass
from typing import NamedTuple
from urllib.parse import urlencode

from starlette.datastructures import QueryParams

from launcher.api import log_window
from launcher.common.problems import Problem
from launcher.ui.addresses import number

_MOST_PATTERN = 1000

Part = tuple[str, bool]
"""A part of a line, and whether it matches."""


@dataclass(frozen=True, slots=True)
class Asked:
    """What an address asks for.

    Args:
        attempt: Number of an attempt; "" for the newest one, or all of a cluster.
        rank: A rank, or `all`; "" for the one that matters most.
        stream: `stdout` or `stderr`; "" for the one that has text.
        grep: A regular expression of RE2; "" for none.
        began: When the attempt began that is followed.
        offset: From where on; None for the end.
        at: Around which line.
        before: Before which offset matches are searched.
        after: Whether, and from where, a page continues what it has.
    """

    attempt: str = ""
    rank: str = ""
    stream: str = ""
    grep: str = ""
    began: str = ""
    offset: int | None = None
    at: int | None = None
    before: int | None = None
    after: int | None = None

    @classmethod
    def of(cls, query: QueryParams) -> "Asked":
        """Return what a query asks for; places that are not numbers are ignored."""
        attempt, rank, stream, began = (
            query.get(name, "").strip() for name in ("attempt", "rank", "stream", "began")
        )
        offset, at, before, after = (number(query.get(name, "")) for name in ("offset", "at", "before", "after"))
        return cls(attempt, rank, stream, query.get("grep", "")[:_MOST_PATTERN], began, offset, at, before, after)

    def query(self, **changes: str | int | None) -> str:
        """Return the query of the same selection at another place."""
        same = {name: getattr(self, name) for name in ("attempt", "rank", "stream", "grep")}
        return urlencode({name: value for name, value in (same | changes).items() if value not in ("", None)})


class Item(NamedTuple):
    """A line as it is shown, or one between lines, of the kind `attempt`."""

    parts: tuple[Part, ...]
    kind: str = "line"
    id: str = ""
    href: str = ""
    offset: int = 0
    is_target: bool = False


class Block(NamedTuple):
    """Lines of one file; with a title where there are several."""

    items: tuple[Item, ...]
    title: str = ""
    href: str = ""


@dataclass(frozen=True, slots=True)
class View:
    """What the part of a page shows.

    Args:
        follow: Address of what comes after it; "" if nothing more will.
        has_more: Whether that is known to have lines now.
        refresh: Address of the same part, if all of it may change.
        is_news: Whether only lines are shown, to be added to a page.
        is_end: Whether it has the end of a file, so that the page shows that first.
    """

    blocks: tuple[Block, ...] = ()
    found: tuple[Problem, ...] = ()
    title: str = ""
    modified: float | None = None
    note: str = ""
    links: tuple[tuple[str, str], ...] = ()
    raw: str = ""
    follow: str = ""
    has_more: bool = False
    refresh: str = ""
    is_news: bool = False
    is_end: bool = False


@dataclass(frozen=True, slots=True)
class Choices:
    """What the form offers; numbers as texts.

    Args:
        is_here: Whether the logs are files on this machine, so that attempts and ranks are known.
        attempt: The chosen one; "" for the newest, whichever that will be.
    """

    is_here: bool
    attempt: str = ""
    attempts: tuple[str, ...] = ()
    ranks: tuple[str, ...] = ()
    streams: tuple[str, ...] = ("", *log_window.STREAMS)
