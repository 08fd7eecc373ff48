"""Arguments of programs, which may be of any type: one that a function does not take is a Problem."""

import contextlib
import functools
import operator
import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from numbers import Real
from types import FunctionType
from typing import Any, TypeVar, cast

from launcher.common.problems import Problem, ProblemsFound, fail, raise_any
from launcher.common.texts import object_text

_Kind = TypeVar("_Kind")
_Checked = TypeVar("_Checked", bound=Callable[..., Any])
_FLAGS: dict[Any, str] = {bool: "True or False", bool | None: "True, False or None"}
_TEXTS: dict[Any, str] = {str: "a text", str | None: "a text or None"}
"""Declared types whose arguments `checked` checks, for people."""


def checked(code: str = "E001", *, has_texts: bool = False) -> Callable[[_Checked], _Checked]:
    """Let a function, or each public method of a class, refuse truth values and durations of another type.

    Durations are those named `timeout`, and those whose names end with `_s`: seconds.

    Args:
        code: Of the Problems.
        has_texts: Whether the texts are checked, too.
    """

    def decorate(target: _Checked) -> _Checked:
        if not isinstance(target, type):
            return cast(_Checked, _checking(target, code, has_texts=has_texts))
        for name, each in list(vars(target).items()):
            if isinstance(each, FunctionType) and not name.startswith("_"):
                setattr(target, name, _checking(each, code, has_texts=has_texts))
        return target

    return decorate


def _checking(function: Any, code: str, *, has_texts: bool) -> Any:
    """Return a function with checks of its arguments before it; without such arguments, the function itself."""
    known = _FLAGS | _TEXTS if has_texts else _FLAGS
    names = function.__code__.co_varnames[: function.__code__.co_argcount]
    kinds = {
        name: kind
        for name, kind in function.__annotations__.items()
        if name != "return" and (kind in known or _is_duration(name))
    }

    def faults(given: dict[str, Any]) -> Iterator[Problem]:
        for name, kind in kinds.items():
            value = given.get(name)
            if name not in given or (value is None and isinstance(None, kind)):
                continue
            if not _is_duration(name):
                if not isinstance(value, kind):
                    yield Problem(code, name, f"must be {known[kind]}", object_text(value))
            elif not _is_time(value):
                or_none = ", or None" if isinstance(None, kind) else ""
                allowed = f"a number of seconds, 0 or more{or_none}"
                yield Problem(code, name, "is not a duration", object_text(value), allowed)

    @functools.wraps(function)
    def call(*args: Any, **named: Any) -> Any:
        raise_any(faults({**dict(zip(names, args, strict=False)), **named}))
        return function(*args, **named)

    return call if kinds else function


def _is_duration(name: str) -> bool:
    return name == "timeout" or name.endswith("_s")


def _is_time(value: object) -> bool:
    """Return whether a value is a number of seconds, 0 or more; those of NumPy are."""
    with contextlib.suppress(OverflowError):
        return not isinstance(value, bool) and isinstance(value, Real) and float(value) >= 0
    return False


@contextlib.contextmanager
def as_arguments() -> Iterator[None]:
    """Name in the Problems of the block arguments in place of the options of a command line that they are there."""
    try:
        yield
    except ProblemsFound as error:
        own = (
            replace(each, path=each.path[2:].replace("-", "_")) if each.path.startswith("--") else each
            for each in error.problems
        )
        raise ProblemsFound(tuple(own), error.outcome) from error


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
