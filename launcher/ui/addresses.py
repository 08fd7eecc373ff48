"""Addresses of the page: of a job, and queries that select and turn pages."""

from collections.abc import Mapping
from urllib.parse import quote, urlencode

from starlette.requests import Request


def of_job(name: str) -> str:
    """Return the address of a job, by the name of its folder."""
    return f"/jobs/{quote(name, safe='')}"


def path_of(request: Request) -> str:
    """Return the path that a request asks for, encoded: `url.path` is so only in part."""
    return quote(request.scope["path"])


def number(text: str, most_digits: int = 15) -> int | None:
    """Return the number of a text of digits; None for another text."""
    return int(text) if text.isascii() and text.isdigit() and len(text) <= most_digits else None


def page_number(text: str) -> int:
    """Return the number of a page, from 1, which is also that of a text that states none."""
    return number(text, 6) or 1


def query(values: Mapping[str, str | int]) -> str:
    """Return values as a query, without those that select nothing: empty ones, and the first page."""
    return urlencode({name: value for name, value in values.items() if value not in ("", 1)})
