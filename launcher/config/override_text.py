"""The text of an override: bounds before Hydra parses it, one spelling of keys after.

Its grammar is not here; see `compose`.
"""

import os
from collections.abc import Mapping
from typing import Any

from hydra.core.override_parser.types import Override, Quote, QuotedString, Sweep

from launcher.common.problems import Problem, shown
from launcher.common.yaml_io import LONGEST_NUMBER, MAX_DEPTH

REMEDY_SYNTAX = "key=value sets a key, ~key removes one; quote values with spaces or commas: key='\"a, b\"'"
"""The remedy where an override is not written as one."""
TOO_LONG_A_NUMBER = f"contains a number of more than {LONGEST_NUMBER} digits"
_LONGEST = 1 << 16
"""Characters of an override. Longer values belong in a recipe's file, which takes 1 MiB."""

_MOST_PARTS = 2000
"""Separators outside quotes: Hydra's parser takes 0.3 s for so many, and the square of it for more."""

_SHORT = MAX_DEPTH
"""An override with at most this many characters cannot exceed any bound."""

_SHOWN = 60
"""Characters of an override that a Problem repeats when it refuses its length."""

_OPENING, _CLOSING, _SEPARATORS = frozenset("[{("), frozenset("]})"), frozenset("[{(,:")


def text_of(override: Override) -> str:
    """Return an override as it may be shown."""
    return shown(override.input_line or "")


def value_of(override: Override) -> Any:
    """Return the value of an override. The grammar allows any; Hydra's type for it lists them all."""
    return override.value()


def folders(override: Override) -> list[str]:
    """Return the folders that an override of the search path names."""
    return [folder(place) for place in value_of(override)]


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


def respelled(override: Override) -> Problem | None:
    """Make every key in an override's value a text, as in a file; return what is wrong with the value, or None."""
    inner = getattr(override._value, "list", ())
    if isinstance(override._value, Sweep) and not any(isinstance(value, Sweep) for value in inner):
        return None
    try:
        override._value = _with_text_keys(override._value)
    except ValueError as error:
        return Problem("E003", override.key_or_group, str(error), where=text_of(override))
    return None


def hydra_fault(override: Override) -> Problem | None:
    """Return the fault of an override of Hydra's own settings, of which only the search path is ours."""
    key, value, text = override.key_or_group, value_of(override), text_of(override)
    if key != "hydra.searchpath" or override.package is not None:
        return Problem("E009", key, "is a Hydra setting that no launch reads", allowed="hydra.searchpath", where=text)
    if not isinstance(value, list) or not all(isinstance(place, str) for place in value):
        return Problem(
            "E009", key, "must be a list of folders", value=value, remedy=f"{key}=[/path/to/folder]", where=text
        )
    absent = [place for place in value if not os.path.isdir(folder(place))]
    return Problem("E009", key, "no such folder", value=", ".join(absent), where=text) if absent else None


def folder(place: str) -> str:
    """Return a folder of the search path without the scheme that Hydra allows before it."""
    return place.removeprefix("file://")


def quoted(text: str) -> str:
    """Return a text as the value of an override, whatever characters it has.

    Source: Hydra, Override grammar, Quoted values: a quote is escaped, and so are backslashes before one.
    """
    return QuotedString(text, Quote.single).with_quotes()


def _with_text_keys(value: Any) -> Any:
    if isinstance(value, Sweep):
        raise ValueError("contains a sweep inside another value")
    if isinstance(value, list):
        return [_with_text_keys(item) for item in value]
    if isinstance(value, Mapping):
        found: dict[str, Any] = {}
        for key, item in value.items():
            name = _key_text(key)
            if name in found:
                raise ValueError(f"gives the key {name!r} twice")
            found[name] = _with_text_keys(item)
        return found
    if isinstance(value, int) and abs(value) >= 10**LONGEST_NUMBER:
        raise ValueError(TOO_LONG_A_NUMBER)
    return value


def _key_text(key: Any) -> str:
    """Return a key as YAML spells it."""
    if isinstance(key, QuotedString):
        return key.text
    if key is None:
        return "null"
    return str(key).lower() if isinstance(key, bool) else str(key)


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
