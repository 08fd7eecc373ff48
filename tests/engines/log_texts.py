"""A job's log as commands print it."""

from collections.abc import Iterable, Iterator

from launcher.model.backend import RANK_0, Backend
from launcher.model.job_spec import JobHandle, LogLine, LogSelection


def shown(lines: Iterable[LogLine], selection: LogSelection = RANK_0) -> Iterator[str]:
    """Return lines in words as they come."""
    return (line.shown(with_writer=selection.ranks is None or len(selection.ranks) > 1) for line in lines)


def log_texts(
    backend: Backend, handle: JobHandle, selection: LogSelection = RANK_0, *, follow: bool
) -> Iterator[str]:
    """Return the log of a job in words; what cannot be shown is refused before the first line."""
    return shown(backend.logs(handle, selection, follow=follow), selection)
