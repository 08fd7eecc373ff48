"""Lines of a job's logs as one stream: searched, and in the order of their times."""

import heapq
import itertools
import pickle
import re
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from typing import IO, cast

from launcher.api.arguments import whole
from launcher.common.problems import fail
from launcher.model.job_spec import LogLine

_RUN = 200_000
"""Lines that are sorted in memory; more are sorted in parts on disk and merged."""
LONGEST = 10_000
"""Characters of a line that are searched and shown on a page."""

_Timed = tuple[float, int, LogLine]
"""A line with its time, or that of the line before it, and its number."""


def selected(ranks: int | Iterable[int] | None) -> tuple[int, ...] | None:
    """Return ranks, or one, in ascending order; None for all.

    Raises:
        ProblemsFound: One is not a whole number (E707).
    """
    if ranks is None:
        return None
    every = tuple(map(whole, ranks if isinstance(ranks, Iterable) else (ranks,)))
    if any(type(each) is not int for each in every):
        raise fail("E707", "ranks", "must be whole numbers", value=ranks, allowed="0, (0, 3), range(8) or None")
    return tuple(sorted(set(every)))


def compiled(pattern: str) -> re.Pattern[str]:
    """Return a regular expression that is searched in time linear in the text; of RE2, which has the methods of `re`.

    Raises:
        ProblemsFound: It is not a regular expression of RE2 (E728).
    """
    import re2  # a log that is not searched does not need it

    if not isinstance(pattern, str):
        raise fail("E728", "grep", "is not a text", value=pattern, allowed="a regular expression of RE2")
    options = re2.Options()
    options.log_errors = False
    try:
        return cast("re.Pattern[str]", re2.compile(pattern, options))
    except (re2.error, UnicodeEncodeError) as error:
        reason = error.args[0] if isinstance(error, re2.error) and error.args else str(error)
        said = reason.decode(errors="replace") if isinstance(reason, bytes) else str(reason)
        allowed = "a regular expression of RE2, which has neither look-around nor back-references"
        raise fail("E728", "grep", f"is not a regular expression: {said}", value=pattern, allowed=allowed) from error


def searched(pattern: str) -> Callable[[LogLine], bool]:
    """Return whether a line of a worker contains a pattern, in time linear in the line, whatever the pattern.

    Raises:
        ProblemsFound: It is not a regular expression of RE2 (E728).
    """
    search = compiled(pattern).search
    return lambda line: line.kind == "line" and search(line.text) is not None


def by_time(lines: Iterable[LogLine]) -> Iterator[LogLine]:
    """Yield lines in the order of their times; those without stay behind the line before them.

    Without any time the order is unchanged. Memory is bounded.
    """
    with ExitStack() as files:
        runs: list[Iterator[_Timed]] = []
        timed = _timed(lines)
        while run := sorted(itertools.islice(timed, _RUN)):
            if len(run) < _RUN:
                runs.append(iter(run))
            else:
                runs.append(_stored(run, files.enter_context(tempfile.TemporaryFile())))
        for _, _, line in heapq.merge(*runs):
            yield line


def _timed(lines: Iterable[LogLine]) -> Iterator[_Timed]:
    last: dict[tuple[str | None, int | None], float] = {}
    newest = 0.0
    for number, line in enumerate(lines):
        writer = (line.host, line.rank)
        time_s = line.time_s if line.time_s is not None else last.get(writer, newest)
        newest = max(newest, time_s)
        if line.kind == "line" and line.time_s is not None:
            last[writer] = time_s
        yield time_s, number, line


def _stored(run: list[_Timed], file: IO[bytes]) -> Iterator[_Timed]:
    for each in run:
        pickle.dump(each, file, pickle.HIGHEST_PROTOCOL)
    file.seek(0)
    return (pickle.load(file) for _ in range(len(run)))
