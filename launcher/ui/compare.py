"""Compares jobs and recipes: their configuration, code, data, image, packages and metrics."""

import difflib
import os
import re
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple
from urllib.parse import quote, urlencode

from starlette.datastructures import QueryParams
from starlette.requests import Request
from starlette.responses import Response

from launcher.api import comparing, reproducing
from launcher.api.job_index import IndexedJob
from launcher.api.plan import compile as compiled
from launcher.api.timelines import METRICS_FILE, RUN_DIR
from launcher.common.problems import Problem, ProblemsFound, fail, gathering
from launcher.ui import charts, explorer
from launcher.ui.charts import Line
from launcher.ui.rendering import page
from launcher.ui.series import Series
from launcher.ui.state import Ui, ui_of

_MOST_JOBS = 20
_MOST_NAMES = 500
"""Names that the fields suggest."""
_MOST_ROWS = 500
_LONGEST_NAME, _LONGEST = 300, 20_000
_READ_S = 1.5
"""How long the metrics of all jobs together are read for one page."""
_SECTIONS = ("configuration", "files", "code", "data", "image", "environment", "metrics")
_TOKEN = re.compile(r"[\w.]+|\s+|[^\w\s]")
_LONG = 24
"""Characters from which words are compared within a value; a shorter one is marked as a whole."""
_MOST_TOKENS = 400
_MOST_PAIRS = 2_000_000
"""Pairs of words that are compared for a page, about a second; further values are marked as a whole."""
_LEAST_ALIKE = 0.3
_KEPT, _MOST_MARKED = 60, 2000
"""Characters that are shown at both ends of a long equal part, and of a part that differs."""


@dataclass(frozen=True, slots=True)
class Side:
    """A job or a recipe that is compared.

    Args:
        title: As it is shown.
        href: Of its page.
        job: None for a recipe.
    """

    title: str
    href: str
    job: IndexedJob | None = None


class Piece(NamedTuple):
    """A part of a value, and whether the other side has another one in its place."""

    text: str
    is_changed: bool


class Cell(NamedTuple):
    """A side's value of a key: its pieces, none if it is absent; `is_base` where it equals the first side's."""

    pieces: tuple[Piece, ...]
    is_base: bool


class Row(NamedTuple):
    """A key whose values differ."""

    key: str
    cells: tuple[Cell, ...]


class Section(NamedTuple):
    """The keys of a section whose values differ, and how many are equal; None if that is unknown."""

    name: str
    rows: Sequence[Row]
    num_rows: int
    num_equal: int | None


@dataclass
class _Compared:
    """What a comparison found: values by section and key, one for each side."""

    changes: dict[str, list[tuple[str, tuple[str | None, ...]]]] = field(default_factory=dict)
    equal: dict[str, int] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    found: list[Problem] = field(default_factory=list)

    def add(self, section: str, sides: Sequence[Mapping[str, str]]) -> None:
        """Compare the values of all sides, by their keys."""
        self.changes[section], self.equal[section] = [], 0
        for key in sorted({key for each in sides for key in each}, key=comparing.in_order):
            values = tuple(each.get(key) for each in sides)
            if len(set(values)) > 1:
                self.changes[section].append((key, values))
            else:
                self.equal[section] += 1


def compare(request: Request) -> Response:
    """Show what differs between the jobs and recipes that the address names; the first is the baseline."""
    ui, query = ui_of(request), request.query_params
    names, further = _names(query), query.get("further", "")[:_LONGEST]
    found: list[Problem] = []
    sides: list[Side] = []
    compared = _Compared()
    if len(names) > _MOST_JOBS:
        found.append(Problem("E801", "compare", "too many jobs", len(names), f"at most {_MOST_JOBS}"))
    elif len(names) > 1:
        for name in names:
            with gathering(found):
                sides.append(_named(ui, name))
        with gathering(found):
            words = _words(further)
        if not found:
            with gathering(found):
                compared = _compared(ui, sides, words)
    if found:
        sides = []
    curves = _Curves.of(sides)
    if len(sides) > 2:
        compared.add("metrics", curves.last)
    sections = _sections(compared)
    return page(
        request,
        "compare.html",
        names=[*names[:_MOST_JOBS], "", ""][: max(2, min(len(names), _MOST_JOBS))],
        sides=sides,
        sections=sections,
        notes=[*compared.notes, *curves.notes],
        is_equal=bool(sides) and not any(each.rows for each in sections),
        found=[*found, *compared.found],
        picture=curves.picture,
        further=further,
        has_recipe=any(side.job is None for side in sides),
        swapped=urlencode({"a": names[1], "b": names[0], **({"further": further} if further else {})})
        if len(names) == 2
        else "",
        suggested=_suggested(ui),
    )


def _names(query: QueryParams) -> list[str]:
    given = (query.get("a", ""), query.get("b", ""), *query.getlist("job"))
    return [each.strip()[:_LONGEST_NAME] for each in given if each.strip()]


def _suggested(ui: Ui) -> list[tuple[str, str]]:
    """Return the names that may be compared, each with what to show of it."""
    jobs = [(row.name, row.title if row.title != row.name else "job") for row in ui.index.rows()[:_MOST_NAMES]]
    return [*jobs, *((name, "recipe") for name in explorer.known(ui))]


def _named(ui: Ui, name: str) -> Side:
    """Return the job of the results folder, or the recipe of the collection, that has a name."""
    if job := ui.index.find(name):
        return Side(job.title, f"/jobs/{quote(job.name, safe='')}", job)
    known = explorer.known(ui)
    matching = [name] if name in known else [each for each in known if each.rpartition("/")[2] == name]
    if len(matching) == 1:
        return Side(matching[0], f"/recipes/{quote(matching[0])}")
    if matching:
        raise fail("E802", name, "several recipes have this name", allowed=", ".join(matching))
    raise fail("E703", name, "is neither a job of the results folder nor a recipe", remedy="choose one of the list")


def _words(further: str) -> list[str]:
    """Return the overrides of both sides.

    Raises:
        ProblemsFound: One chooses another recipe or another folder (E801).
    """
    words = [line.strip() for line in further.splitlines() if line.strip()]
    for word in words:
        key = word.lstrip("+~").partition("=")[0].strip()
        if word.startswith("-") or key.partition("@")[0] == "recipes" or key.partition(".")[0] == "hydra":
            message = "cannot be given here: it does not set a value of the recipe"
            raise fail("E801", key, message, value=word, remedy="choose the recipe by its name")
    return words


def _compared(ui: Ui, sides: Sequence[Side], words: Sequence[str]) -> _Compared:
    """Compare sides.

    Raises:
        ProblemsFound: A recipe does not compose, or a job has no bundle.
    """
    jobs, compared = [side.job for side in sides if side.job], _Compared()
    if len(jobs) == len(sides) > 2:
        compared.add("configuration", [reproducing.own_configuration(job.folder) for job in jobs])
    elif len(sides) > 2:
        raise fail("E801", "compare", "recipes are compared two at a time", value=len(sides), allowed="2")
    elif len(jobs) == 2:
        both = reproducing.of_jobs(jobs[0].folder, jobs[1].folder)
        for name, changes in both.sections.items():
            compared.changes[name] = [(each.key, (each.before, each.after)) for each in changes]
        compared.equal = dict(both.equal)
        compared.notes = [_with_titles(note, jobs) for note in both.notes]
    else:
        first, second = (str(side.job.folder) if side.job else side.title for side in sides)
        pair = comparing.both(first, second, words)
        compared.add("configuration", [each.texts() for each in pair])
        compared.notes = [_with_titles(str(notice), jobs) for each in pair for notice in each.notices]
        compared.found = [problem for side in sides if not side.job for problem in _faults(ui, side.title, words)]
        compared.found = list(dict.fromkeys(compared.found))
    return compared


def _with_titles(text: str, jobs: Sequence[IndexedJob]) -> str:
    for job in jobs:
        text = text.replace(os.fspath(job.folder), job.title)
    return text


def _faults(ui: Ui, recipe: str, words: Sequence[str]) -> tuple[Problem, ...]:
    """Return why a recipe does not compile, although it composes."""
    try:
        return compiled(recipe, list(words), strict=False, session=ui.session).problems
    except ProblemsFound as error:
        return error.problems


def _sections(compared: _Compared) -> list[Section]:
    names = [name for name in _SECTIONS if name in compared.changes]
    names += [name for name in compared.changes if name not in names]
    marker = _Marker()
    found = []
    for name in names:
        changes = compared.changes[name]
        rows = [Row(key, marker.cells(values)) for key, values in changes[:_MOST_ROWS]]
        found.append(Section(name, rows, len(changes), compared.equal.get(name)))
    return found


class _Marker:
    """Marks the words that differ within values, as long as its time allows."""

    def __init__(self) -> None:
        self._left = _MOST_PAIRS

    def cells(self, values: Sequence[str | None]) -> tuple[Cell, ...]:
        """Return the values of a key: two of them with their words compared."""
        base = values[0]
        if len(values) == 2 and base is not None and values[1] is not None:
            return tuple(Cell(tuple(_bounded(each)), False) for each in self._compared(base, values[1]))
        whole = [() if value is None else tuple(_bounded([Piece(value, True)])) for value in values]
        return tuple(Cell(pieces, index > 0 and values[index] == base) for index, pieces in enumerate(whole))

    def _compared(self, before: str, after: str) -> tuple[list[Piece], list[Piece]]:
        whole = [Piece(before, True)], [Piece(after, True)]
        if min(len(before), len(after)) < _LONG:
            return whole
        head = len(os.path.commonprefix([before, after]))
        head -= len(before[:head]) - len(before[:head].rstrip("abcdefghijklmnopqrstuvwxyz0123456789_"))
        tail = len(os.path.commonprefix([before[head:][::-1], after[head:][::-1]]))
        old, new = (_TOKEN.findall(each[head : len(each) - tail]) for each in (before, after))
        return whole if False else self._words(before, after, old, new, head, tail)

    def _words(
        self, before: str, after: str, old: list[str], new: list[str], head: int, tail: int
    ) -> tuple[list[Piece], list[Piece]]:
        raise NotImplementedError
