"""Removes secrets from everything that is printed, logged or recorded.

Known secrets are the values of environment variables with a secret's name, and of those that a recipe refers to as
secrets, if this process has them, and every value given under a secret's name in a file or an override. Tokens and
credentials that are recognizable by their form are removed as well.

Values that are too short or too common are not searched for: `X_KEY=1` must not hide every 1. See `is_distinctive`.
"""

import base64
import contextlib
import functools
import json
import os
import re
import shlex
import sys
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, TextIO
from urllib.parse import quote, quote_plus

from launcher.common import secret_forms, variables
from launcher.common.process import OUTPUT
from launcher.common.secret_forms import is_written
from launcher.common.secret_names import is_secret, names_secret

_LEAST_LENGTH, _LEAST_LETTERS, _LEAST_DISTINCT = 8, 12, 5
"""Minimum characters of a searched value, of one of letters alone (maybe a word), and of distinct characters."""
_LONG = 12
"""Minimum characters of a value that is also found inside a longer word."""


def is_distinctive(value: str) -> bool:
    """Return whether a value is unlikely to occur by chance: long, not a single word or a repeated character."""
    if len(value) < _LEAST_LENGTH or len(set(value)) < _LEAST_DISTINCT or not is_written(value):
        return False
    return not (value.isalpha() and len(value) < _LEAST_LETTERS)


@dataclass(frozen=True, eq=False, slots=True)
class _Known:
    """Known secrets at one time; what is made of them is kept by their identity.

    Args:
        variables: Name and value of environment variables.
        given: Values given or referred to under a secret's name, and random ones that are referred to, to their path.
    """

    variables: tuple[tuple[str, str], ...] = ()
    given: Mapping[str, str] = field(default_factory=dict)

    @property
    def distinctive(self) -> set[str]:
        """The values that are searched for anywhere."""
        return {value for _, value in self.variables} | set(filter(is_distinctive, self.given))


class Secrets:
    """The secrets that a session, or the process, has seen. Threads may share it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.known = _Known()

    def learn(self, given: Mapping[str, str]) -> None:
        """Remember values, to the path they were given at; the first path is kept."""
        if any(value not in self.known.given for value in given):
            with self._lock:
                self.known = _Known(self.known.variables, {**given, **self.known.given})

    def read(self, variables: Mapping[str, str], *, keep: bool) -> None:
        """Read environment variables; with `keep`, earlier values stay known, too."""
        found = ((name, value) for name, value in variables.items() if names_secret(name) and is_distinctive(value))
        with self._lock:
            read = tuple(dict.fromkeys((*(self.known.variables if keep else ()), *found)))
            if read != self.known.variables:
                self.known = _Known(read, self.known.given)


_process = Secrets()
"""What later output of this process must mask: the secrets of all its sessions."""
_process.read(os.environ, keep=False)
_session: ContextVar[Secrets] = ContextVar("secrets", default=_process)
"""Those of the current operation, which no file that it writes may hold."""


@contextlib.contextmanager
def session(secrets: Secrets) -> Iterator[None]:
    """Let the block remember secrets as those of a session, and read the environment variables of both again."""
    for each in (_process, secrets):
        each.read(variables.current(), keep=each is _process)
    token = _session.set(secrets)
    try:
        yield
    finally:
        _session.reset(token)


def learn(tree: Any, path: str = "") -> None:
    """Remember the secrets in a configuration, and those it refers to, before it is used, refused or printed."""
    found: dict[str, str] = {}
    for where, value in secret_forms.values_of(tree, path):
        for secret in (*secret_forms.secrets_at(where, value), *_referenced(where, value)):
            found.setdefault(secret, where)
    if found:
        for each in {_process, _session.get()}:
            each.learn(found)


def _referenced(path: str, value: Any) -> Iterator[str]:
    """Yield the value of the variable of the environment that a reference names, if it is a secret.

    A reference under another name, as `env_vars.AWS_REGION`, may have a value that many texts have: only one that
    looks random is a secret.
    """
    secret = variables.current().get(value.get("env", "")) if isinstance(value, Mapping) else None
    if secret is not None and (is_secret(path) or _looks_random(path, secret)):
        yield secret


def _looks_random(path: str, value: str) -> bool:
    from launcher.common.random_values import is_plain_name, random_parts  # start-up time: few recipes refer to any

    return not is_plain_name(path) and any(True for _ in random_parts(value))


def masked(text: str) -> str:
    """Return a text without known secrets and those recognizable by their form."""
    anywhere, after_names = _patterns(_process.known)
    if anywhere and _may_be_known(text.lower()):
        text = anywhere.sub("…", text)
    for pattern in after_names:
        text = pattern.sub(r"\1…", text)
    return secret_forms.masked(text)


def masked_lines(lines: Sequence[str]) -> str:
    """Return lines in one text, each masked by itself; much faster than `masked` if most need it not."""
    text = "\n".join(lines)
    if len(lines) == 1:
        return masked(text)
    if _is_clean(text):
        return text
    middle = len(lines) // 2
    return f"{masked_lines(lines[:middle])}\n{masked_lines(lines[middle:])}"


def _is_clean(text: str) -> bool:
    """Return whether `masked` would certainly leave every line of a text unchanged."""
    _, after_names = _patterns(_process.known)
    words = set(text.split())
    if any(pattern.search(text) for pattern in after_names) or _may_be_known("\n".join(words).lower()):
        return False
    return secret_forms.is_clean(text, words)


def _may_be_known(lowered: str) -> bool:
    """Return whether a text in lower case may have a known secret: a part of one of its forms is in it."""
    return any(part in lowered for part in _parts(_process.known))


@functools.lru_cache(maxsize=4)
def _parts(known: _Known) -> tuple[str, ...]:
    """Return the longest word of each form of each distinctive value, in lower case: one is in every text that
    `_patterns` finds."""
    forms = {form for value in known.distinctive for form in (*_spellings(value), *_encoded(value.encode()))}
    return tuple({max(form.split(), key=len).lower() for form in forms})


def masked_tree(value: Any) -> Any:
    """Return plain data with the secrets in its texts masked."""
    if isinstance(value, str):
        return masked(value)
    if isinstance(value, Mapping):
        return {key: masked_tree(each) for key, each in value.items()}
    return [masked_tree(each) for each in value] if isinstance(value, list | tuple) else value


def exposed(text: str) -> Iterator[str]:
    """Yield the origin of every known secret of the session in a text: `$HF_TOKEN`, or the path it was given at."""
    known = _session.get().known
    anywhere, _ = _patterns(known)
    if anywhere and anywhere.search(text):
        for value, where in {**known.given, **{value: f"${name}" for name, value in known.variables}}.items():
            if is_distinctive(value) and re.search(_searched(value), text, re.I):
                yield where


def install() -> None:
    """Mask everything this process prints from now on, tracebacks and logs included; read its variables again."""
    _process.read(os.environ, keep=False)
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is not None and not isinstance(stream, _Masked):
            setattr(sys, name, _Masked(stream))


class _Masked:
    """A text stream that masks what is written to it."""

    def __init__(self, stream: TextIO):
        self._stream = stream

    def write(self, text: str) -> int:
        if not isinstance(text, str):
            raise TypeError(f"write() argument must be str, not {type(text).__name__}")
        with self._named():
            self._stream.write(masked(text))
        return len(text)

    def write_lines(self, lines: Sequence[str]) -> None:
        """Write lines with their ends, each masked by itself."""
        with self._named():
            self._stream.write(masked_lines(lines) + "\n")

    def flush(self) -> None:
        with self._named():
            self._stream.flush()

    @contextlib.contextmanager
    def _named(self) -> Iterator[None]:
        """Mark errors of this stream: errors of writing a file have no file name."""
        try:
            yield
        except OSError as error:
            error.filename = OUTPUT
            raise

    def writelines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@functools.lru_cache(maxsize=4)
def _patterns(known: _Known) -> tuple[re.Pattern[str] | None, tuple[re.Pattern[str], ...]]:
    """Return a pattern for distinctive values anywhere, and patterns for the others directly after their names."""
    distinctive = known.distinctive
    forms = "|".join(map(_searched, sorted(distinctive, key=len, reverse=True)))
    others = (_after_name(where, value) for value, where in known.given.items() if value not in distinctive)
    return re.compile(forms, re.I) if forms else None, tuple(filter(None, others))


def _after_name(path: str, value: str) -> re.Pattern[str] | None:
    """Return a pattern for a value that follows its name, in the syntax of YAML, JSON and shells."""
    name = path.rpartition(".")[2]
    if not value or not names_secret(name):
        return None
    return re.compile(rf"({re.escape(name)}['\"]?\s*[:=]+\s*['\"]?){re.escape(value)}(?![A-Za-z0-9])")


def _searched(value: str) -> str:
    """Return a pattern for a value in plain form, and as files and protocols encode it."""
    found = [_bounded(form) for form in sorted(_spellings(value), key=len, reverse=True)]
    return "|".join([*found, *map(re.escape, _encoded(value.encode()))])


def _bounded(form: str) -> str:
    text = r"\s+".join(map(re.escape, form.split(" ")))
    if len(form) >= _LONG:
        return text
    before = r"(?:(?<![A-Za-z0-9])|(?<=\\[nrt]))" if form[0].isalnum() else ""
    return before + text + (r"(?![A-Za-z0-9])" if form[-1].isalnum() else "")


def _spellings(value: str) -> set[str]:
    """Return a value as it appears in text, JSON, YAML, shells and URLs, and its long lines."""
    lines = {line.strip() for line in value.splitlines() if len(line.strip()) >= _LONG}
    quoted = {quote(value), quote(value, safe=""), quote_plus(value)}
    escaped = {json.dumps(value)[1:-1], json.dumps(value, ensure_ascii=False)[1:-1], repr(value)[1:-1]}
    shell = shlex.quote(value)
    doubled = {value.replace("'", "''"), shell[1:-1] if shell[0] == "'" else shell}
    return {value, *lines, *quoted, *escaped, *doubled}


def _encoded(raw: bytes) -> Iterator[str]:
    """Yield the parts of base64 and hexadecimal texts that encode these bytes at any offset."""
    for before in range(3):
        text = base64.b64encode(bytes(before) + raw).decode()
        part = text[-(-8 * before // 6) : 8 * (before + len(raw)) // 6]
        yield from {part, part.replace("+", "-").replace("/", "_")}
    yield raw.hex()
