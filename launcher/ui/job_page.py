"""One job: its state, sizes and restarts over time, curves, events, failure, results, plan, configuration, files."""

import contextlib
import dataclasses
import functools
import json
import threading
import time
from collections import deque
from collections.abc import Hashable, Iterator, Mapping
from pathlib import Path
from typing import Any

from markupsafe import Markup
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from launcher.api import bundles, job_index, rates, reproducing, timelines
from launcher.api.job_index import IndexedJob, JobStatus
from launcher.api.timelines import EVENTS_FILE, METRICS_FILE, RUN_DIR, STARTS_FILE, LaunchReader, Timeline
from launcher.common import os_errors
from launcher.common.problems import Problem, ProblemsFound, fail
from launcher.ui import addresses, charts, job_table
from launcher.ui.later import Answer
from launcher.ui.live import stamp
from launcher.ui.rendering import page, part
from launcher.ui.series import Series
from launcher.ui.state import Ui, indexed_of, opened, ui_of

_MOST_EVENTS = 200
_CURVES = (("loss", "Loss"), ("samples_per_s", "Throughput"))
"""Metrics that are always shown, and their titles."""
_UNITS = {"samples_per_s": "samples per second"}
_MOST_CURVES = 12
_BUILT_S, _BUSY = 5.0, 20.0
"""How often a timeline is built again only because steps were added: every 5 s, and a twentieth of the time."""
_READ_S = 0.25
"""How long one look reads metrics that a page has not seen yet."""
_COMPOSED_S = 10.0
"""How long a page waits until a job's recipe is composed again."""
_FIRST_FILES = ("plan.md", "recipe.yaml")
_LONGEST_FILE = 500_000
"""Characters of a file that are shown."""


class JobView:
    """What the overview of one job shows; pages of the same job share it."""

    def __init__(self, ui: Ui, row: IndexedJob):
        self._ui, self._name = ui, row.name
        self._series = Series(row.folder / RUN_DIR / METRICS_FILE)
        self._records = LaunchReader(row.folder / RUN_DIR)
        self._course: Timeline | None = None
        self._course_of: Hashable = None
        self._steps_of: Hashable = None
        self._built, self._cost_s = 0.0, 0.0
        self._lock = threading.Lock()

    @classmethod
    def shared(cls, ui: Ui, row: IndexedJob) -> "JobView":
        """Return the view of a job that other pages have, too."""
        return ui.kept(("job", row.name, row.folder), lambda: cls(ui, row))

    @property
    def row(self) -> IndexedJob:
        """The job as its folder has it now.

        Raises:
            HTTPException: It was removed (404).
        """
        return self._ui.job(self._name)

    def version(self) -> Hashable:
        """Return the job's record and status, the sizes of its files, and the answers of its cluster."""
        row = self.row
        run_dir = row.folder / RUN_DIR
        files = tuple(stamp(run_dir / name) for name in (METRICS_FILE, EVENTS_FILE, STARTS_FILE))
        status = job_table.status_of(self._ui, row)
        answers = tuple(answer.number for answer in self._answers(row, status).values())
        # the picture of a running job grows with time
        return row, status, files, answers, int(time.time() / 2) if row.is_open else 0

    def parts(self) -> Mapping[str, str]:
        """Return each part of the overview."""
        values = {"may_write": self._ui.may_write, **self.values()}
        names = ("head", "failure", "actions", "course", "curves", "events", "results")
        return {f"live-{name}": part(f"job_{name}.html", **values) for name in names}

    def values(self) -> dict[str, Any]:
        """Return what the templates take."""
        with self._lock:
            row = self.row
            status = job_table.status_of(self._ui, row)
            answers = self._answers(row, status)
            course, faults = None, list[Problem]()
            with self._tolerant(faults, METRICS_FILE):
                self._series.read_until(time.monotonic() + _READ_S)
            pictures: dict[str, Any] = {"course_picture": "", "restarts_picture": "", "cost": [], "curves": []}
            with self._tolerant(faults, EVENTS_FILE):
                course = self._timeline(row)
                if course:
                    pictures["course_picture"] = _picture(course)
                    pictures["restarts_picture"] = charts.restarts("Parts of each change of size", course.transitions)
            known = status if isinstance(status, JobStatus) else None
            with self._tolerant(faults, METRICS_FILE):
                pictures["curves"] = [(title, self._curve(name, title)) for name, title in self._shown()]
                pictures["cost"] = _cost(row, known, course)
            events, failure, results = map(answers.get, ("events", "failure", "results"))
            return pictures | {
                "row": row,
                "base": addresses.of_job(row.name),
                "status": known,
                "reason": job_index.in_one_line(known.message, failure.value if failure else None) if known else "",
                "state": known.state.value if known else row.state,
                "status_problems": [*([status] if isinstance(status, Problem) else []), *faults],
                "course": course,
                "last": {name: self._series.last(name) for name, _ in _CURVES},
                "failure": failure.value if failure else None,
                "events": list(events.value or ())[::-1] if events else [],
                "event_problems": events.problems if events else (),
                "are_events_pending": events is not None and not events.number,
                "results": list(results.value or ()) if results else [],
            }

    @contextlib.contextmanager
    def _tolerant(self, faults: list[Problem], file: str) -> Iterator[None]:
        """Note why the block cannot read a file of the run folder, however it is damaged; other parts are shown."""
        try:
            yield
        except ProblemsFound as error:
            faults += error.problems
        except Exception as error:
            path = self._ui.results / self._name / RUN_DIR / file
            remedy = "restore it from a copy, or remove it: the page shows the rest"
            faults += _damaged(path, error, remedy).problems

    def _answers(self, row: IndexedJob, status: JobStatus | Problem | None) -> dict[str, Answer[Any]]:
        if row.record is None:
            return {}
        job, get = opened(row), self._ui.answers.get
        events_s = job_table.ENDED_S if row.ended else 1.0 if job_index.is_here(row) else 15.0
        results_s = 300.0 if row.ended else 30.0
        found: dict[str, Answer[Any]] = {
            "events": get(
                (job_index.place(row), "page"),
                (row.name, "events", row.ended),
                lambda: tuple(deque(job.events(), maxlen=_MOST_EVENTS)),
                age_s=events_s,
                wait_s=0.5,
            ),
            "results": get(
                ("results", row.name),
                (row.name, "results", row.ended),
                lambda: tuple(job.results),
                age_s=results_s,
                wait_s=0.5,
            ),
        }
        if failure := job_table.failure_of(self._ui, row, status):
            found["failure"] = failure
        return found

    def _timeline(self, row: IndexedJob) -> Timeline | None:
        """Return the timeline, built anew when an event or a start was added, and now and then for the steps."""
        run_dir = row.folder / RUN_DIR
        if not (run_dir / EVENTS_FILE).exists():
            return None
        seen = (row.record, stamp(run_dir / EVENTS_FILE), stamp(run_dir / STARTS_FILE))
        steps = stamp(run_dir / METRICS_FILE)
        began = time.monotonic()
        is_due = began - self._built >= max(_BUILT_S, _BUSY * self._cost_s)
        if self._course is None or seen != self._course_of or (is_due and steps != self._steps_of):
            self._course = timelines.read(run_dir, self._records)
            self._course_of, self._steps_of = seen, steps
            self._built = time.monotonic()
            self._cost_s = self._built - began
        return self._course

    def _shown(self) -> list[tuple[str, str]]:
        always = [each for each in _CURVES if each[0] in self._series.names()]
        others = [(name, name) for name in self._series.names() if name not in dict(_CURVES)]
        return (always + others)[:_MOST_CURVES]

    def _curve(self, name: str, title: str) -> Markup:
        # the colour of an attempt tells where a job went on after a restart
        return charts.lines(title, self._series.lines(name, True), x="step", y=_UNITS.get(name, name))


def overview(request: Request) -> Response:
    """Show a job."""
    row = indexed_of(request)
    return page(request, "job.html", tab="overview", **JobView.shared(ui_of(request), row).values())


def plan(request: Request) -> Response:
    """Show the sizes that a job may take."""
    row = indexed_of(request)
    file = row.folder / "plan.json"
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
        sizes = charts.PlanSize.every(found)
        picture = charts.plan("Samples of the busiest rank", sizes) if sizes else ""
        return page(request, "job_plan.html", row=row, plan=found, picture=picture, tab="plan")
    except FileNotFoundError as error:
        raise HTTPException(404, "The plan of this job is not on this machine.") from error
    except Exception as error:  # of any damage
        raise _damaged(file, error, "restore it from a copy, or launch the recipe as a new job") from error


def _damaged(file: Path, error: Exception, remedy: str) -> ProblemsFound:
    """Return the Problem of a file that cannot be shown (E711); the remedy is for one that can be read."""
    if isinstance(error, OSError):
        return os_errors.refused("E711", str(file), error)
    said = f"is not valid JSON: {error}" if isinstance(error, json.JSONDecodeError) else f"is damaged: {error!r}"
    return fail("E711", str(file), said, remedy=remedy)


def configuration(request: Request) -> Response:
    """Show what each key became and who set it."""
    row, ui = indexed_of(request), ui_of(request)
    ask = functools.partial(reproducing.origins, row.folder, ui.session)
    answer = ui.answers.get(("origins", row.name), row.time, ask, age_s=60.0, wait_s=_COMPOSED_S)
    words = request.query_params.get("q", "").lower().split()[:10]
    values, notes = answer.value or ((), ())
    shown = [
        each for each in values if all(word in f"{each.key} {each.value} {each.set_by}".lower() for word in words)
    ]
    return page(
        request,
        "job_configuration.html",
        row=row,
        tab="configuration",
        shown=shown,
        total=len(values),
        is_pending=not answer.number,
        notes=notes,
        found=answer.problems,
        q=request.query_params.get("q", ""),
    )


def files(request: Request) -> Response:
    """Show the names of a bundle's files, and the content of one. Only what its manifest names is opened."""
    row = indexed_of(request)
    found: tuple[Problem, ...] = ()
    texts: dict[str, str] = {}
    try:
        texts = bundles.bundle_files(row.folder)
    except ProblemsFound as error:
        found = error.problems
    name = request.query_params.get("name") or next((each for each in _FIRST_FILES if each in texts), "")
    text = texts.get(name, "")
    if len(text) > _LONGEST_FILE:
        text = f"{text[:_LONGEST_FILE]}\n… {len(text) - _LONGEST_FILE:,} characters more"
    return page(
        request,
        "job_files.html",
        code=200 if name in texts or not name else 404,
        row=row,
        tab="files",
        names=list(texts),
        name=name if name in texts else "",
        text=text,
        found=found,
    )


def _picture(course: Timeline) -> Markup:
    until_s = max(course.wall_s, time.time() - course.launched) if course.is_running else course.wall_s
    attempts = course.attempts
    if course.is_running and attempts:  # the last one still runs
        last = attempts[-1]
        attempts = (*attempts[:-1], dataclasses.replace(last, ended_s=max(last.ended_s, until_s)))
    return charts.sizes("Nodes over time", attempts, course.events, until_s, course.sizes)


def _cost(row: IndexedJob, status: JobStatus | None, course: Timeline | None) -> list[tuple[str, str]]:
    """Return what a job costs, for people: per hour while it runs, and so far where its sizes are recorded."""
    paid = rates.rate(row)
    if paid is None:
        return []
    found = []
    if status and not status.state.is_final:
        found.append(("cost per hour", paid.text(status.nodes)))
    if course:
        hours = sum(each.nodes * (each.ended_s - each.started_s) for each in course.attempts) / 3600
        found.append(("cost so far", paid.text(hours)))
    return found
