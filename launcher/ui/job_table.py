"""The jobs of the results folder: filtered by the address, a hundred at a time, with their states as they are now."""

import functools
from collections import Counter
from collections.abc import Hashable, Iterator, Mapping
from dataclasses import asdict, dataclass, fields, replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from launcher.api import job_index, rates
from launcher.api.job_index import IndexedJob, JobState, JobStatus
from launcher.common.problems import Problem
from launcher.ui import addresses
from launcher.ui.later import Answer
from launcher.ui.rendering import page, part
from launcher.ui.state import Ui, opened, ui_of

if TYPE_CHECKING:
    from launcher import Failure

_PAGE = 100
_ASKED_S = {True: 0.5, False: 10.0}
"""How old a status may be: of jobs on this machine, and of those whose cluster must be asked."""
_FIRST_S = 0.4
"""How long a page waits for the first answer of a cluster."""
ENDED_S = 3600.0
"""How long what is known of a job that has ended is not asked for again."""
_AGES = {"1h": timedelta(hours=1), "1d": timedelta(days=1), "7d": timedelta(days=7), "30d": timedelta(days=30)}

Statuses = dict[str, JobStatus | Problem]
"""The status of each job by the name of its folder, or why it is unknown."""


@dataclass(frozen=True, slots=True)
class Row:
    """A job as the table shows it.

    Args:
        state: One of the states of `recipes jobs`.
        message: Why it waits, or how it ended.
        goodput: 0 to 1, from the report of its end; None without one.
        per_hour: Price of its nodes; None if nothing is paid now, or that is unknown.
    """

    job: IndexedJob
    state: str
    message: str
    nodes: int | None
    target: int | None
    restarts: int
    goodput: float | None = None
    per_hour: str | None = None


@dataclass(frozen=True, slots=True)
class Filters:
    """What an address selects; "" selects all."""

    q: str = ""
    state: str = ""
    cluster: str = ""
    recipe: str = ""
    user: str = ""
    newer: str = ""
    page: int = 1

    @classmethod
    def of(cls, query: Mapping[str, str]) -> "Filters":
        """Return the filters of a query; what it has no meaning for is ignored."""
        names = (each.name for each in fields(cls) if each.name != "page")
        found = {name: query.get(name, "").strip()[:200] for name in names}
        return cls(**found, page=addresses.page_number(query.get("page", "")))

    def address(self, **changes: str | int) -> str:
        """Return the query of these filters with some changed."""
        return addresses.query(asdict(self) | changes)

    @property
    def is_empty(self) -> bool:
        """Whether all jobs are selected that were launched."""
        return replace(self, page=1) == Filters()

    def selects(self, row: IndexedJob, now: datetime) -> bool:
        """Return whether a job meets every filter but that of its state."""
        words = f"{row.name} {row.title} {row.recipe} {row.user}".lower()
        if not all(word in words for word in self.q.lower().split()):
            return False
        if self.newer in _AGES and row.time < (now - _AGES[self.newer]).isoformat(timespec="seconds"):
            return False
        return self.cluster in ("", row.cluster) and self.recipe in ("", row.recipe) and self.user in ("", row.user)


class JobsView:
    """The table for one address."""

    def __init__(self, ui: Ui, filters: Filters):
        self._ui, self._filters = ui, filters

    def version(self) -> Hashable:
        """Return the version of the folder, and what its clusters have answered."""
        self._ui.index.rows()
        return self._ui.index.version, tuple(tuple((answer.value or {}).items()) for answer in _asked(self._ui))

    def parts(self) -> Mapping[str, str]:
        """Return the table and its summary."""
        return {"live-jobs": part("job_rows.html", **self.values())}

    def values(self) -> dict[str, Any]:
        """Return what the template takes."""
        filters, ui = self._filters, self._ui
        every = ui.index.rows()
        seen = _statuses(ui)
        now = datetime.now(UTC)
        meant = [row for row in every if filters.selects(row, now)]
        counts = Counter(_state(row, seen) for row in meant)
        hidden = counts.pop(job_index.RENDERED, 0) if filters.state != job_index.RENDERED else 0
        if filters.state:
            meant = [row for row in meant if _state(row, seen) == filters.state]
        else:
            meant = [row for row in meant if row.record is not None or row.problem is not None]
        filters = replace(filters, page=min(filters.page, max(1, -(-len(meant) // _PAGE))))
        first = (filters.page - 1) * _PAGE
        return {
            "filters": filters,
            "is_there": ui.results.is_dir(),
            "rows": [_row(row, seen) for row in meant[first : first + _PAGE]],
            "first": first,
            "total": len(meant),
            "every": len(every),
            "has_more": len(meant) > first + _PAGE,
            "counts": sorted(counts.items(), key=lambda each: (-each[1], each[0])),
            "hidden": hidden,
            "silent": _silent(seen),
        }


def jobs(request: Request) -> Response:
    """Show the jobs that the address selects."""
    ui, filters = ui_of(request), Filters.of(request.query_params)
    every = ui.index.rows()
    choices = {
        "clusters": sorted({row.cluster for row in every if row.cluster}),
        "users": sorted({row.user for row in every if row.user})[:100],
        "recipes": sorted({row.recipe for row in every if row.recipe})[:500],
        "states": job_index.STATES,
    }
    return page(request, "jobs.html", choices=choices, ages=tuple(_AGES), **JobsView(ui, filters).values())


def rows(request: Request) -> Response:
    """Return the table alone, for a filter that is being typed."""
    return HTMLResponse(part("job_rows.html", **JobsView(ui_of(request), Filters.of(request.query_params)).values()))


def status_of(ui: Ui, row: IndexedJob) -> JobStatus | Problem | None:
    """Return the last known status of a job, or why it is unknown; None if its cluster has not answered yet."""
    return row.ended or _statuses(ui).get(row.name)


def failure_of(ui: Ui, row: IndexedJob, status: JobStatus | Problem | None) -> "Answer[Failure | None] | None":
    """Return what is known of why a job failed; None for one that has not."""
    if row.record is None or not isinstance(status, JobStatus) or status.state is not JobState.FAILED:
        return None
    key, ask = (row.name, "failure", row.record.submitted), functools.partial(opened(row).why, status)
    return ui.answers.get((job_index.place(row), "page"), key, ask, age_s=ENDED_S, wait_s=0.5)


def _asked(ui: Ui) -> Iterator[Answer[Statuses]]:
    """Yield what each server has answered about its jobs that have not ended."""
    places: dict[Hashable, list[IndexedJob]] = {}
    for row in ui.index.open:
        places.setdefault(job_index.place(row), []).append(row)
    for place, open_jobs in places.items():
        age_s = _ASKED_S[job_index.is_here(open_jobs[0])]
        names = tuple(row.name for row in open_jobs)
        ask = functools.partial(job_index.statuses, open_jobs)
        yield ui.answers.get(place, names, ask, age_s=age_s, wait_s=_FIRST_S)


def _statuses(ui: Ui) -> Statuses:
    found: Statuses = {}
    for answer in _asked(ui):
        found |= answer.value or {}
    return found


def _silent(seen: Statuses) -> list[Problem]:
    """Return why clusters do not answer, each once."""
    found = [each for each in seen.values() if isinstance(each, Problem)]
    return list({(each.code, each.path, each.message): each for each in found}.values())[:5]


def _state(row: IndexedJob, seen: Statuses) -> str:
    known = seen.get(row.name)
    return known.state.value if isinstance(known, JobStatus) else row.state


def _row(row: IndexedJob, seen: Statuses) -> Row:
    known = row.ended or seen.get(row.name)
    if not isinstance(known, JobStatus):
        problem = known or row.problem
        return Row(row, row.state, problem.message if problem else "", None, None, 0)
    paid = None if known.state.is_final else rates.rate(row)
    return Row(
        row,
        known.state.value,
        job_index.in_one_line(known.message, row.record.failure if row.record else None),
        None if known.state.is_final else known.nodes,
        known.target_nodes,
        known.restarts,
        job_index.recorded(row.folder, "goodput") if known.state.is_final else None,
        paid.text(known.nodes) if paid and known.nodes else None,
    )
