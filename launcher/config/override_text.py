"""The text of an override: its bounds, and quotes around a value. Its grammar is not here; see `overrides`."""

import re

from launcher.common.problems import Problem, shown
from launcher.common.yaml_io import MAX_DEPTH

REMEDY_SYNTAX = "key=value sets a key, ~key removes one; quote values with spaces or commas: key='\"a, b\"'"
"""The remedy where an override is not written as one."""
_LONGEST = 1 << 16
"""Characters of an override. Longer values belong in a recipe's file, which takes 1 MiB."""

_MOST_PARTS = 2000
"""Separators outside quotes: Hydra's parser takes 0.3 s for so many, and the square of it for more."""

_SHORT = MAX_DEPTH
"""An override with at most this many characters cannot exceed any bound."""

_SHOWN = 60
"""Characters of an override that a Problem repeats when it refuses its length."""

_BEFORE_QUOTE = re.compile(r"(\\*)('|\Z)")
"""A quote of the text, or the one that closes it, with the backslashes before it."""
_OPENING, _CLOSING, _SEPARATORS = frozenset("[{("), frozenset("]})"), frozenset("[{(,:")


def unreadable(text: str) -> Problem | None:
    """Return why an override must not reach Hydra's parser; None if it may."""
    if not _is_unicode(text):
        readable = text.encode("utf-8", "backslashreplace").decode()
        return Problem("E001", _start(readable), "is not valid UTF-8", allowed="text in UTF-8")
    if len(text) <= _SHORT:
        return None
    if len(text) > _LONGEST:
        return _refused(text, f"has {len(text)} characters", f"at most {_LONGEST}; a recipe file takes more")
    depth, parts = _measured(text)
    if depth > MAX_DEPTH:
        return _refused(text, f"is nested {depth} levels deep", f"at most {MAX_DEPTH} levels")
    if parts > _MOST_PARTS:
        return _refused(text, f"has {parts} parts", f"at most {_MOST_PARTS}; a recipe file takes more")
    return None


def quoted(text: str) -> str:
    """Return a text as the value of an override, whatever characters it has.

    Source: Hydra, Override grammar, Quoted values: a quote is escaped, and so are backslashes before one.
    """
    escaped = _BEFORE_QUOTE.sub(lambda found: found[1] * 2 + (r"\'" if found[2] else ""), text)
    return f"'{escaped}'"


def _measured(text: str) -> tuple[int, int]:
    """Return how deep an override nests and how many separators it has, both outside quotes."""
    depth = deepest = parts = 0
    quote, is_escaped = "", False
    for character in text:
        if is_escaped:
            is_escaped = False
        elif character == "\\":
            is_escaped = True
        elif quote:
            quote = "" if character == quote else quote
        elif character in "'\"":
            quote = character
        else:
            depth += (character in _OPENING) - (character in _CLOSING)
            deepest, parts = max(deepest, depth), parts + (character in _SEPARATORS)
    return deepest, parts


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _refused(text: str, message: str, allowed: str) -> Problem:
    return Problem("E001", _start(shown(text)), message, allowed=allowed)


def _start(text: str) -> str:
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"
