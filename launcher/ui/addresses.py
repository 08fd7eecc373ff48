"""Queries of addresses that select and turn pages."""

from collections.abc import Mapping
from urllib.parse import urlencode


def page_number(text: str) -> int:
    """Return the number of a page, from 1, which is also that of a text that states none."""
    return max(1, int(text)) if text.isascii() and text.isdigit() and len(text) < 7 else 1


def query(values: Mapping[str, str | int]) -> str:
    """Return values as a query, without those that select nothing: empty ones, and the first page."""
    return urlencode({name: value for name, value in values.items() if value not in ("", 1)})
