"""The environment variables of the current operation: those of the process, unless its session has its own."""

import contextlib
import os
from collections.abc import Iterator, Mapping
from contextvars import ContextVar

_given: ContextVar[Mapping[str, str] | None] = ContextVar("variables", default=None)


def current() -> Mapping[str, str]:
    """Return the variables of the current operation."""
    given = _given.get()
    return os.environ if given is None else given


@contextlib.contextmanager
def using(variables: Mapping[str, str] | None) -> Iterator[None]:
    """Let the block have these variables; None leaves it those of the process. Threads that it starts do not."""
    token = _given.set(variables)
    try:
        yield
    finally:
        _given.reset(token)
