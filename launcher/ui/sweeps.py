"""Sweeps: their trials, the best one, and the objective over each parameter."""

import itertools
import math
import shlex
import statistics
from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple
from urllib.parse import urlencode

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from launcher.api import job_index
from launcher.api.job_index import IndexedJob
from launcher.api.sweeps import sweep as sweep_values
from launcher.api.sweeps.record import (
    PRUNED,
    SUCCEEDED,
    SWEEP_FILE,
    TRIALS_FILE,
    Description,
    SweepFolder,
    Trial,
    short,
)
from launcher.api.sweeps.sweep import Sweep
from launcher.common.problems import Problem, ProblemsFound, fail
from launcher.common.redaction import masked
from launcher.ui import charts
from launcher.ui.charts import Dot, Line
from launcher.ui.live import stamp
from launcher.ui.rendering import page, part
from launcher.ui.state import Ui, ui_of

_LEAST_ENDED = 3
"""Trials whose duration must be known before the others are forecast."""
_TIMED = (SUCCEEDED, PRUNED)
_MOST_PICTURES = 12


class Summary(NamedTuple):
    """A sweep as the list shows it; `problem` is why its records cannot be read.

    Args:
        changed: When a trial of it changed last, in seconds since the epoch.
        best: The overrides of the best trial.
    """

    name: str
    changed: float | None = None
    description: Description | None = None
    counts: Sequence[tuple[str, int]] = ()
    num_ended: int = 0
    best: str = ""
    best_value: float | None = None
    problem: Problem | None = None


class Column(NamedTuple):
    """A column of the table of trials: what `sort` calls it, and the address that sorts by it."""

    key: str
    title: str
    href: str


@dataclass(frozen=True, slots=True)
class Row:
    """A trial as the table shows it.

    Args:
        values: By the labels of the dimensions.
        job: The name of its job's folder; None before it has one.
        indexed: Its job, if the results folder has it.
    """

    trial: Trial
    values: Mapping[str, str | float]
    job: str | None
    indexed: IndexedJob | None
    is_best: bool

    def by(self, key: str) -> Any:
        """Return what a column shows."""
        if key in _FIXED:
            return getattr(self.trial, key)
        return self.values.get(key)


_FIXED = ("number", "state", "value", "step")
"""Columns of every sweep, by the fields of a trial."""


class SweepView:
    """One sweep; pages of it follow its records."""

    def __init__(self, ui: Ui, name: str, sort: str = "", is_falling: bool = False):
        self._ui, self._name, self._sort, self._is_falling = ui, name, sort, is_falling
        _ = self.sweep

    @property
    def sweep(self) -> Sweep:
        """The sweep as its folder has it now.

        Raises:
            HTTPException: The results folder has none of that name (404).
        """
        found = sweep_values.of_folder(self._ui.results, self._name)
        if found is None:
            raise HTTPException(404, "The results folder has no such sweep. It may have been removed.")
        return found

    def version(self) -> Hashable:
        """Return the sizes and times of its records, and the version of the index, to which its jobs are added."""
        folder = self.sweep.folder
        self._ui.index.rows()
        return stamp(folder / SWEEP_FILE), stamp(folder / TRIALS_FILE), self._ui.index.version

    def parts(self) -> Mapping[str, str]:
        """Return everything below the title."""
        return {"live-sweep": part("sweep_body.html", **self.values())}

    def values(self) -> dict[str, Any]:
        """Return what the template takes."""
        try:
            sweep = self.sweep
            job_index.refuse_irregular(sweep.folder)
            description, trials = _records(sweep)
        except ProblemsFound as error:
            return {"name": self._name, "found": error.problems, "description": None}
        best = description.best(trials)
        rows = self._rows(description, trials, best)
        columns = self._columns(description)
        pictures = _pictures(description, rows)
        if self._sort in {each.key for each in columns}:
            rows = _sorted(rows, self._sort, self._is_falling)
        num_ended = sum(trial.is_finished for trial in trials)
        return {
            "name": self._name,
            "found": (),
            "description": description,
            "columns": columns,
            "rows": rows,
            "sort": self._sort,
            "is_falling": self._is_falling,
            "counts": _counts(trials),
            "num_ended": num_ended,
            "num_unlaunched": max(0, description.trials - len(trials)),
            "best": best,
            "best_text": _in_shell(best),
            "pictures": pictures[:_MOST_PICTURES],
            "more_pictures": max(0, len(pictures) - _MOST_PICTURES),
            "forecast_s": _forecast(rows, description.trials - num_ended, description.parallel),
        }

    def _rows(self, description: Description, trials: Sequence[Trial], best: Trial | None) -> list[Row]:
        indexed = {row.name: row for row in self._ui.index.rows()}
        rows = []
        for trial in trials:
            job = trial.folder.name if trial.job else None
            values = sweep_values.values_of(description, trial)
            rows.append(Row(trial, values, job, indexed.get(job) if job else None, trial is best))
        return rows

    def _columns(self, description: Description) -> list[Column]:
        titles = {"number": "trial", "state": "state"}
        if description.objective:
            titles |= {"value": description.objective, "step": "step"}
        labels = [each.label for each in description.dimensions]
        for label, word in zip(labels, short(labels), strict=True):
            titles.setdefault(label, word)
        found = []
        for key, title in titles.items():
            query = {"sort": key} | ({"down": "1"} if key == self._sort and not self._is_falling else {})
            found.append(Column(key, title, f"?{urlencode(query)}"))
        return found


def sweeps(request: Request) -> Response:
    """Show every sweep of the results folder, the latest first."""
    every = [_summary(each) for each in sweep_values.in_folder(ui_of(request).results)]
    every.sort(key=lambda each: each.changed or 0.0, reverse=True)
    return page(request, "sweeps.html", every=every)


def sweep(request: Request) -> Response:
    """Show a sweep, its trials in the order that the address asks for."""
    return page(request, "sweep.html", **view(request).values())


def view(request: Request) -> SweepView:
    """Return what an address shows of a sweep."""
    query = request.query_params
    return SweepView(ui_of(request), request.path_params["sweep"], query.get("sort", ""), query.get("down") == "1")


def _records(each: Sweep) -> tuple[Description, list[Trial]]:
    """Return the description of a sweep, and its trials by their numbers.

    Raises:
        ProblemsFound: They are damaged, or cannot be read (E721).
    """
    files = SweepFolder(each.folder)
    description = files.description
    try:
        trials = files.trials()
    except OSError as error:
        raise fail("E721", str(files.path), f"its trials cannot be read: {error.strerror}") from error
    num_values = len(description.dimensions)
    return description, [trial for trial in trials.values() if len(trial.values) == num_values]


def _summary(each: Sweep) -> Summary:
    stamps = (stamp(each.folder / name) for name in (SWEEP_FILE, TRIALS_FILE))
    changed = max((each[1] / 1e9 for each in stamps if each), default=None)
    try:
        job_index.refuse_irregular(each.folder)
        description, trials = _records(each)
    except ProblemsFound as error:
        return Summary(each.name, changed, problem=error.problems[0])
    except Exception as error:  # of any damage: one sweep hides no other
        return Summary(each.name, changed, problem=Problem("E721", each.name, f"is damaged: {error!r}"))
    best = description.best(trials)
    return Summary(
        each.name,
        changed,
        description,
        _counts(trials),
        sum(trial.is_finished for trial in trials),
        _in_shell(best),
        best.value if best else None,
    )


def _in_shell(best: Trial | None) -> str:
    """Return the overrides of a trial, quoted for a shell."""
    return masked(shlex.join(best.overrides)) if best else ""


def _counts(trials: Sequence[Trial]) -> list[tuple[str, int]]:
    return sorted(Counter(trial.state for trial in trials).items())


def _forecast(rows: Sequence[Row], left: int, parallel: int) -> float | None:
    """Return about how long the trials that are left take: the median of those that have ended, side by side."""
    if left < 1:
        return None
    ended = [row.indexed for row in rows if row.indexed and row.trial.state in _TIMED]
    took = [known for job in ended if (known := job_index.recorded(job.folder, "wall_s"))]
    return statistics.median(took) * math.ceil(left / parallel) if len(took) >= _LEAST_ENDED else None


def _sorted(rows: Sequence[Row], key: str, is_falling: bool) -> list[Row]:
    """Return rows by a column: numbers, then texts, then those without a value."""
    known = [row for row in rows if row.by(key) is not None]
    known.sort(key=lambda row: _order(row.by(key)), reverse=is_falling)
    return [*known, *(row for row in rows if row.by(key) is None)]


def _order(value: Any) -> tuple[int, float, str]:
    if isinstance(value, int | float):
        return (1, 0.0, "") if math.isnan(value) else (0, float(value), "")
    return (2, 0.0, str(value))


def _pictures(description: Description, rows: Sequence[Row]) -> list[Any]:
    """Return the objective by trial, and over each parameter that is a number."""
    objective = description.objective
    done = [(row, row.trial.value) for row in rows if row.trial.value is not None]
    if not objective or not done:
        return []
    course = Line(objective, [(row.trial.number, value) for row, value in done])
    counted = [(row.trial.number, value) for row, value in done if row.trial.state == SUCCEEDED]
    better = min if description.sign > 0 else max
    best = itertools.accumulate((value for _, value in counted), better)
    so_far = Line("best so far", [(number, value) for (number, _), value in zip(counted, best, strict=True)])
    found = [charts.lines(f"{objective} by trial", [course, so_far], x="trial", y=objective)]
    for each in description.dimensions:
        dots = []
        for row, value in done:
            x = row.values[each.label]
            if isinstance(x, int | float) and not isinstance(x, bool):
                dots.append(Dot(float(x), value, f"trial {row.trial.number}", row.is_best))
        if len({dot.x for dot in dots}) > 1:
            xs = [dot.x for dot in dots]
            is_wide = max(xs) > 50 * min(xs)  # a linear axis would hide the small choices
            is_log = all(x > 0 for x in xs) and (each.is_log or is_wide)
            title = f"{objective} over {each.label}"
            found.append(charts.scatter(title, dots, x=each.label, y=objective, is_log_x=is_log))
    return found
