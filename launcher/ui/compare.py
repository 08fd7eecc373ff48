"""Compares jobs and recipes: their configuration, code, data, image, packages and metrics."""

import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from starlette.requests import Request
from starlette.responses import Response

from launcher.api import comparing, reproducing
from launcher.api.job_index import IndexedJob
from launcher.api.timelines import METRICS_FILE, RUN_DIR
from launcher.common.problems import Problem, fail, gathering
from launcher.ui import charts, explorer
from launcher.ui.charts import Line
from launcher.ui.rendering import page
from launcher.ui.series import Series
from launcher.ui.state import Ui, ui_of

_MOST_JOBS = 20
_MOST_NAMES = 500
"""Names that the fields suggest."""
_READ_S = 0.5


class Row(NamedTuple):
    """A key whose values differ: one for each side, None where it has none."""

    section: str
    key: str
    values: tuple[str | None, ...]


def compare(request: Request) -> Response:
    """Show what differs between the jobs and recipes that the address names; the first is the baseline."""
    ui, query = ui_of(request), request.query_params
    names = [
        each.strip()[:300] for each in (query.get("a", ""), query.get("b", ""), *query.getlist("job")) if each.strip()
    ]
    found: list[Problem] = []
    rows: Sequence[Row] = ()
    notes: Sequence[str] = ()
    sides: list[IndexedJob | str] = []
    words = [line.strip() for line in query.get("further", "")[:20_000].splitlines() if line.strip()]
    if len(names) > _MOST_JOBS:
        found.append(Problem("E801", "compare", "too many jobs", len(names), f"at most {_MOST_JOBS}"))
    elif len(names) > 1:
        for name in names:
            with gathering(found):
                sides.append(_named(ui, name))
        if not found:
            with gathering(found):
                rows, notes = _compared(sides, words)
    titles = [each if isinstance(each, str) else each.title for each in sides]
    return page(
        request,
        "compare.html",
        names=[*names, "", ""][: max(2, len(names))],
        titles=titles,
        sections=_by_section(rows),
        notes=notes,
        is_equal=len(sides) > 1 and not found and not rows,
        found=found,
        picture=_losses([each for each in sides if not isinstance(each, str)]),
        further=query.get("further", "")[:20_000],
        has_recipe=any(isinstance(each, str) for each in sides),
        suggested=[*(row.name for row in ui.index.rows()[:_MOST_NAMES]), *explorer.known(ui)],
    )


def _named(ui: Ui, name: str) -> IndexedJob | str:
    """Return the job of the results folder, or the recipe of the collection, that has a name."""
    if job := ui.index.find(name):
        return job
    known = explorer.known(ui)
    if name in known:
        return name
    last = [each for each in known if each.rpartition("/")[2] == name]
    if len(last) == 1:
        return last[0]
    raise fail("E703", name, "is neither a job of the results folder nor a recipe", remedy="choose one of the list")


def _compared(sides: Sequence[IndexedJob | str], words: Sequence[str]) -> tuple[list[Row], Sequence[str]]:
    """Return what differs, and what could not be compared.

    Raises:
        ProblemsFound: A recipe does not compose, or a job has no bundle.
    """
    jobs = [each for each in sides if not isinstance(each, str)]
    if len(jobs) == 2 == len(sides):
        both = reproducing.of_jobs(jobs[0].folder, jobs[1].folder)
        return [Row(name, each.key, (each.before, each.after)) for name, each in both.changes], both.notes
    if len(jobs) == len(sides):
        return _rows([reproducing.own_configuration(each.folder) for each in jobs]), ()
    if len(sides) > 2:
        raise fail("E801", "compare", "recipes are compared two at a time", value=len(sides), allowed="2")
    first, second = (each if isinstance(each, str) else str(each.folder) for each in sides)
    pair = comparing.both(first, second, words)
    return _rows([each.texts() for each in pair]), [str(notice) for each in pair for notice in each.notices]


def _rows(sides: Sequence[Mapping[str, str]]) -> list[Row]:
    found = []
    for key in sorted({key for each in sides for key in each}, key=comparing.in_order):
        values = tuple(each.get(key) for each in sides)
        if len(set(values)) > 1:
            found.append(Row("configuration", key, values))
    return found


def _by_section(rows: Sequence[Row]) -> dict[str, list[Row]]:
    found: dict[str, list[Row]] = {}
    for row in rows:
        found.setdefault(row.section, []).append(row)
    return found


def _losses(jobs: Sequence[IndexedJob]) -> Any:
    """Return the losses of jobs in one picture; "" if fewer than two are recorded here."""
    lines: list[Line] = []
    for job in jobs:
        series = Series(job.folder / RUN_DIR / METRICS_FILE)
        deadline = time.monotonic() + _READ_S
        while series.read() and time.monotonic() < deadline:
            pass
        points = [point for line in series.lines("loss", False) for point in line.points]
        if points:
            lines.append(Line(job.title, points))
    return charts.lines("Loss", lines, x="step", y="loss") if len(lines) > 1 else ""
