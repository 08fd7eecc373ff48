"""What compiling and launching take from outside, as a value: folder, variables, user, clock, names, files read."""

import contextlib
import functools
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from launcher.api.arguments import of_type, text_of
from launcher.common import redaction, variables
from launcher.common.problems import Problem, gathering, raise_any
from launcher.config.composed_files import CompositionCache
from launcher.model.context import LaunchContext, checked_suffix, checked_time

__all__ = ["CompositionCache", "Session", "default"]


@dataclass(frozen=True, eq=False, slots=True)
class Session:
    """Give one to `compile` to fix what differs between two compilations of the same recipe. Threads may share it.

    Args:
        folder: Where relative paths start; None for the process's working folder at each call.
        environment: Environment variables: those that `${oc.env:…}` and references to secrets name, whose secrets
            no file may hold, and all those of a job on this machine. None for the process's at each call. A home
            folder (`~`), and the clients of clusters, are the process's.
        user: Who launches; None for the user of the process.
        clock: Returns the time of a launch, ISO 8601 in UTC; None for the system's.
        suffix: Returns the random part of a job's name, 5 lower-case letters and digits; None for random ones.
        cache: Files that earlier compilations have read. One that has changed on disk is read again.
        secrets: Those seen in files and overrides of this session, which no file that it writes may hold.
    """

    folder: str | os.PathLike[str] | None = None
    user: str | None = None
    clock: Callable[[], str] | None = None
    suffix: Callable[[], str] | None = None
    environment: Mapping[str, str] | None = field(default=None, repr=False)  # it may hold secrets
    cache: CompositionCache = field(default_factory=CompositionCache, repr=False)
    secrets: redaction.Secrets = field(default_factory=redaction.Secrets, repr=False)

    def __post_init__(self) -> None:
        problems = list(self._faults())
        with gathering(problems):
            if self.folder is not None:
                text_of(self.folder, "E001", "session.folder")
            if self.user is not None:
                of_type(str, self.user, "E001", "session.user", "a text")
        raise_any(problems)

    def _faults(self) -> Iterator[Problem]:
        variables: object = {} if self.environment is None else self.environment
        if isinstance(variables, Mapping):
            message, allowed = "is not an environment variable", "names without '=', and texts without NUL characters"
            for name, value in variables.items():
                if not _is_variable(name, value):
                    yield Problem("E001", f"environment.{name}", message, allowed=allowed)
        else:  # its value may hold secrets
            yield Problem("E001", "session.environment", "must be a mapping of names to texts")
        for name, example in (("clock", "2026-01-31T12:00:00+00:00"), ("suffix", "ab12c")):
            if (given := getattr(self, name)) is not None and not callable(given):
                yield Problem("E001", f"session.{name}", "is not a function", given, f"lambda: {example!r}")

    def context(self) -> LaunchContext:
        """Return the context of one launch.

        Raises:
            ProblemsFound: The suffix cannot be in the name of a job (E301), or the clock returns no time (E001).
        """
        context = LaunchContext.read()
        return context._replace(
            cwd=self.place("").absolute(),
            suffix=checked_suffix(self.suffix()) if self.suffix else context.suffix,
            created=checked_time(self.clock()) if self.clock else context.created,
            user=self.user or context.user,
        )

    def place(self, path: str | os.PathLike[str]) -> Path:
        """Return where a relative path is."""
        return Path(path) if self.folder is None else Path(self.folder).absolute() / path

    @contextlib.contextmanager
    def active(self) -> Iterator[None]:
        """Let the block have the variables and the secrets of this session; threads that it starts do not."""
        with variables.using(self.environment), redaction.session(self.secrets):
            yield


def _is_variable(name: object, value: object) -> bool:
    """Return whether a process may have a variable."""
    return (
        isinstance(name, str)
        and isinstance(value, str)
        and name != ""
        and "=" not in name
        and "\0" not in name + value
    )


def given(session: Session | None) -> Session:
    """Return the session of a call, also of one that is given none.

    Raises:
        ProblemsFound: It is not a session (E001).
    """
    return default() if session is None else of_type(Session, session, "E001", "session", "a launcher.Session")


@functools.cache
def default() -> Session:
    """Return the session of calls that are given none."""
    return Session()
