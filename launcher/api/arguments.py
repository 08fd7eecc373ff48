"""Arguments of programs, which may be of any type: one that a function does not take is a Problem."""

import contextlib
import operator
import os
from typing import Any, TypeVar

from launcher.common.problems import fail
from launcher.common.texts import object_text

_Kind = TypeVar("_Kind")


def of_type(kind: type[_Kind], given: object, code: str, key: str, allowed: str) -> _Kind:
    """Return an argument that must be of a type, which `allowed` names for people.

    Raises:
        ProblemsFound: It is not.
    """
    if not isinstance(given, kind):
        raise fail(code, key, f"must be {allowed}", value=object_text(given))
    return given


def text_of(given: object, code: str, key: str, remedy: str | None = None) -> str:
    """Return a name or a file, which may be a text or a path, as text.

    Raises:
        ProblemsFound: It is neither, or no file has the name: it contains a NUL character.
    """
    with contextlib.suppress(Exception):  # whatever another program's path does
        given = os.fspath(given) if isinstance(given, os.PathLike) else given
    if not isinstance(given, str):
        raise fail(code, key, "must be a text or a path", value=object_text(given), remedy=remedy)
    if "\0" in given:
        raise fail(code, key, "contains a NUL character", value=object_text(given), remedy=remedy)
    return given


def whole(value: Any) -> Any:
    """Return a whole number, also one of NumPy, as Python's; anything else as it is."""
    with contextlib.suppress(TypeError):
        return value if isinstance(value, bool) else operator.index(value)
    return value


def number_of(given: object, code: str, key: str) -> int:
    """Return a whole number of 1 or more.

    Raises:
        ProblemsFound: It is not.
    """
    number = whole(given)
    if type(number) is not int or number < 1:
        raise fail(code, key, "must be a whole number of 1 or more", value=object_text(given))
    return number
