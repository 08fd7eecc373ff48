"""Sweeps: their trials, the best one, and the objective over each parameter."""

import statistics
from collections import Counter
from collections.abc import Hashable, Mapping
from typing import Any, NamedTuple

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from launcher.api import job_index
from launcher.api.sweeps import sweep as sweep_values
from launcher.api.sweeps.sweep import Sweep
from launcher.common.problems import Problem, ProblemsFound
from launcher.ui import charts
from launcher.ui.charts import Dot, Line
from launcher.ui.rendering import page, part
from launcher.ui.state import Ui, ui_of

_LEAST_ENDED = 3
"""Trials that must have ended before the others are forecast."""
_DONE = ("succeeded", "pruned")


class Summary(NamedTuple):
    """A sweep as the list shows it; `problem` is why its records cannot be read."""

    name: str
    objective: str | None = None
    counts: Mapping[str, int] = {}
    trials: int = 0
    best: str = ""
    best_value: float | None = None
    problem: Problem | None = None


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
        found = next((each for each in sweep_values.in_folder(self._ui.results) if each.name == self._name), None)
        if found is None:
            raise HTTPException(404, "The results folder has no such sweep. It may have been removed.")
        return found

    def version(self) -> Hashable:
        """Return the sizes and times of its records."""
        found = []
        for path in sorted(self.sweep.folder.glob("*.json*")):
            known = path.stat()
            found.append((path.name, known.st_size, known.st_mtime_ns))
        return tuple(found)

    def parts(self) -> Mapping[str, str]:
        """Return everything below the title."""
        return {"live-sweep": part("sweep_body.html", **self.values())}

    def values(self) -> dict[str, Any]:
        """Return what the template takes."""
        sweep = self.sweep
        try:
            rows, description, best = list(sweep.trials), sweep.description, sweep.best
        except ProblemsFound as error:
            return {"name": self._name, "found": error.problems, "description": None}
        objective = description.objective
        labels = [each.label for each in description.dimensions]
        logs = {each.label for each in description.dimensions if getattr(each, "is_log", False)}
        head = ["trial", "state", *([objective] if objective else []), *labels]
        if self._sort in head:
            rows.sort(key=lambda row: _order(row.get(self._sort)), reverse=self._is_falling)
        return {
            "name": self._name,
            "found": (),
            "description": description,
            "objective": objective,
            "head": head,
            "rows": rows,
            "sort": self._sort,
            "is_falling": self._is_falling,
            "counts": _counts(rows),
            "best": best,
            "jobs": {row["job"] for row in rows if row["job"] and self._ui.index.find(row["job"])},
            "pictures": _pictures(rows, objective, labels, logs, best.number if best else None),
            "forecast_s": self._forecast(rows, description.trials, description.parallel),
        }

    def _forecast(self, rows: list[Mapping[str, Any]], trials: int, parallel: int) -> float | None:
        """Return about how long the other trials will take: the median of those that have ended, side by side."""
        took = [self._took(row["job"]) for row in rows if row["state"] in _DONE and row["job"]]
        known = [each for each in took if each]
        left = trials - sum(row["state"] not in ("waiting", "running") for row in rows)
        return statistics.median(known) * left / parallel if len(known) >= _LEAST_ENDED and left > 0 else None

    def _took(self, job: str) -> float | None:
        row = self._ui.index.find(job)
        return job_index.recorded_s(row.folder) if row else None


def sweeps(request: Request) -> Response:
    """Show every sweep of the results folder."""
    return page(
        request, "sweeps.html", every=[_summary(each) for each in sweep_values.in_folder(ui_of(request).results)]
    )


def sweep(request: Request) -> Response:
    """Show a sweep, its trials in the order that the address asks for."""
    return page(request, "sweep.html", **view(request).values())


def view(request: Request) -> SweepView:
    """Return what an address shows of a sweep."""
    query = request.query_params
    return SweepView(ui_of(request), request.path_params["sweep"], query.get("sort", ""), query.get("down") == "1")


def _summary(each: Sweep) -> Summary:
    try:
        rows, description, best = each.trials, each.description, each.best
    except ProblemsFound as error:
        return Summary(each.name, problem=error.problems[0])
    text = best.text if best else ""
    value = best.value if best else None
    return Summary(each.name, description.objective, dict(_counts(list(rows))), description.trials, text, value)


def _counts(rows: list[Mapping[str, Any]]) -> list[tuple[str, int]]:
    return sorted(Counter(str(row["state"]) for row in rows).items())


def _order(value: Any) -> tuple[int, float, str]:
    if value is None:
        return (2, 0.0, "")
    is_number = isinstance(value, int | float)
    return (0, float(value), "") if is_number else (1, 0.0, str(value))


def _pictures(
    rows: list[Mapping[str, Any]], objective: str | None, labels: list[str], logs: set[str], best: int | None
) -> list[Any]:
    """Return the objective by trial, and over each parameter that is a number."""
    done = [row for row in rows if objective and isinstance(row.get(objective), int | float)]
    if not objective or not done:
        return []
    by_number = sorted(done, key=lambda row: row["trial"])
    course = Line(objective, [(row["trial"], row[objective]) for row in by_number])
    found = [charts.lines(f"{objective} by trial", [course], x="trial", y=objective)]
    for label in labels:
        dots = [
            Dot(float(row[label]), row[objective], f"trial {row['trial']}", row["trial"] == best)
            for row in done
            if isinstance(row[label], int | float) and not isinstance(row[label], bool)
        ]
        if len({dot.x for dot in dots}) > 1:
            is_log = label in logs and all(dot.x > 0 for dot in dots)
            found.append(charts.scatter(f"{objective} over {label}", dots, x=label, y=objective, is_log_x=is_log))
    return found
