"""What the page holds while it is served, and the job that an address names."""

import threading
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar, cast

from starlette.exceptions import HTTPException
from starlette.requests import Request

from launcher.api.job import Job
from launcher.api.job_index import IndexedJob, JobIndex
from launcher.api.session import Session
from launcher.ui.later import Answers
from launcher.ui.live import Hub

T = TypeVar("T")
_MOST_KEPT = 16


@dataclass(frozen=True, eq=False)
class Ui:
    """The state of one server.

    Args:
        results: The results folder, absolute.
        may_write: Whether it may launch, scale and cancel.
        session: Where recipes are compiled.
        index: The jobs of the results folder.
        hub: The parts of pages that are followed now.
        answers: What was asked of clusters, and has been answered.
    """

    results: Path
    may_write: bool
    session: Session
    index: JobIndex
    hub: Hub = field(default_factory=Hub)
    answers: Answers = field(default_factory=Answers)
    _kept: dict[Hashable, Any] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @classmethod
    def of(cls, results: Path, *, may_write: bool) -> "Ui":
        """Return the state of a server of a results folder."""
        folder = results.absolute()
        return cls(folder, may_write, Session(), JobIndex(folder))

    def kept(self, key: Hashable, make: Callable[[], T]) -> T:
        """Return what was made for a key, made now if it was not; the values that were used last are kept."""
        with self._lock:
            found = self._kept.pop(key, None)
            if found is None:
                found = make()
            self._kept[key] = found
            while len(self._kept) > _MOST_KEPT:
                del self._kept[next(iter(self._kept))]
            return cast(T, found)

    def job(self, name: str) -> IndexedJob:
        """Return the job or bundle of a name.

        Raises:
            HTTPException: The results folder has none of that name (404).
            ProblemsFound: A file of it is a pipe or a link, which no page reads (E711).
        """
        found = self.index.find(name)
        if found is None:
            raise HTTPException(404, "The results folder has no such job. It may have been removed.")
        return found


def ui_of(request: Request) -> Ui:
    """Return the state of the server that got a request."""
    return cast(Ui, request.app.state.ui)


def indexed_of(request: Request) -> IndexedJob:
    """Return the job or bundle that the path parameter `job` names.

    Only a name that the index knows leads to a folder, so that no path of a request ever opens one.

    Raises:
        HTTPException: The results folder has none of that name (404).
    """
    return ui_of(request).job(request.path_params["job"])


def opened(row: IndexedJob) -> Job:
    """Return a job with what the index knows of it."""
    return Job(row.folder, row.title, row.record)


def job_of(request: Request) -> Job:
    """Return the launched job that the path parameter `job` names.

    Raises:
        HTTPException: There is none (404), or it was never launched (409).
    """
    found = indexed_of(request)
    if found.record is None:
        raise HTTPException(409, "This bundle was never launched, so it has no job.")
    return opened(found)
