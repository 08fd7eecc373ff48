"""Errors in a user's input, with everything needed to fix them, and notices."""

import os
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from launcher.common.paths import HOME
from launcher.common.redaction import masked
from launcher.common.secret_forms import without_detected
from launcher.common.secret_names import NAME, NOTIFY, is_secret, names_secret
from launcher.common.texts import start_of

_REFERENCE = re.compile(r"\{\s*(?:env|secretKeyRef)\s*:[^{}]*(?:\{[^{}]*\})?\s*\}|\bnull\b")
_REFERENCE_KEYS = re.compile(r"(?:\.(?:secretKeyRef|name|key|env|\d+)\b)*=?")
"""Suffixes of a secret's name in an override that are not part of its value."""
_SHOWN = 300
"""Characters of a path, a value or an origin that are printed; a Problem has all of them."""


@dataclass(frozen=True, slots=True)
class Problem:
    """One error in the user's input. Problems are collected and shown together.

    Args:
        code: Stable code, `E` and three digits.
        path: Dotted path of the faulty key, or the override itself if it names no key.
        message: What is wrong, in one sentence.
        value: The value found; None if there is none to show (or it is a secret).
        allowed: The accepted values.
        remedy: How to fix it, e.g. what to type instead.
        where: Origin of the value: `file:line` or the override.
    """

    code: str
    path: str
    message: str
    value: object = None
    allowed: str | None = None
    remedy: str | None = None
    where: str | None = None

    def __post_init__(self) -> None:
        if self.value is not None and is_secret(self.path):
            object.__setattr__(self, "value", None)
        for name in ("path", "message", "value", "allowed", "remedy", "where"):
            text = getattr(self, name)
            if text is not None and (hidden := without_detected(masked(str(text)))) != str(text):
                object.__setattr__(self, name, hidden)

    def __str__(self) -> str:
        lines = [f"{self.code} {start_of(self.path, _SHOWN)}", f"     {self.message}"]
        if self.value is not None:
            lines.append(f"     value: {start_of(repr(self.value), _SHOWN)}")
        for name in ("allowed", "remedy"):
            if text := getattr(self, name):
                lines.append(f"     {name}: {text}")
        if self.where:
            lines.append(f"     set by {start_of(self.where, _SHOWN)}")
        return "\n".join(lines)


def shown(override: str) -> str:
    """Return an override that is safe to print: without the text after a secret's name."""
    key, equals, value = override.partition("=")
    if key.lstrip("+").partition(".")[0] == NOTIFY and re.search("[A-Za-z]", _REFERENCE.sub("", value)):
        return f"{key}=…"
    found = next((match for match in NAME.finditer(override) if names_secret(match[0])), None)
    if found is None:
        return masked(override)
    suffix = _REFERENCE_KEYS.match(override, found.end())
    end = suffix.end() if suffix else found.end()
    if found.start() > len(key) and equals:
        return f"{key}=…"
    return f"{override[:end]}…" if override[end:] else override


@dataclass(frozen=True, slots=True)
class Notice:
    """Something the user should know about a valid job.

    Args:
        code: Stable code, `N` and three digits.
        message: One line.
    """

    code: str
    message: str

    def __str__(self) -> str:
        return f"note  {self.code} {self.message}"


class ReadableError(Exception):
    """An exception whose text says all: a notebook shows it with the line that raised it, without a traceback."""

    def __reduce__(self) -> tuple[Any, ...]:
        """Copy what it has, not what made it: other processes, such as those of a pool, receive it as it was."""
        return type(self).__new__, (type(self), *self.args), self.__dict__

    def _render_traceback_(self) -> list[str]:
        """Return the lines that IPython shows in place of a traceback."""
        import traceback  # for this alone

        frames = traceback.extract_tb(self.__traceback__)
        own = [frame for frame in frames if not frame.filename.startswith(os.path.join(HOME, "launcher", ""))]
        place = [f"  line {own[-1].lineno}: {own[-1].line}"] if own else []
        return [f"{type(self).__name__}:", *place, *str(self).splitlines()]

    def _repr_html_(self) -> str:
        import html  # for notebooks alone

        return f"<pre>{html.escape(str(self))}</pre>"


class ProblemsFound(ReadableError):
    """Raised by a stage that cannot return its value.

    Args:
        problems: Every error found, in the order to show them.
        outcome: What exists in spite of them, such as a submitted job; None if nothing was done.
    """

    def __init__(self, problems: tuple[Problem, ...], outcome: str | None = None):
        super().__init__("\n".join(map(str, problems)))
        self.problems = problems
        self.outcome = outcome


def fail(
    code: str,
    path: str,
    message: str,
    *,
    value: object = None,
    allowed: str | None = None,
    remedy: str | None = None,
    where: str | None = None,
) -> ProblemsFound:
    """Return the exception for a single Problem; the arguments are its fields."""
    return ProblemsFound((Problem(code, path, message, value, allowed, remedy, where),))


def raise_any(problems: Iterable[Problem]) -> None:
    """Raise Problems if there are any."""
    if found := tuple(problems):
        raise ProblemsFound(found)


@contextmanager
def gathering(problems: list[Problem]) -> Iterator[None]:
    """Add the Problems that the block raises to a list, so that all of them can be raised at once."""
    try:
        yield
    except ProblemsFound as error:
        problems += error.problems


def first_line(error: Exception) -> str:
    """Return the first non-empty line of an exception's message, or the exception's name."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__
