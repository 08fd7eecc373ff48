"""Compares jobs and recipes: their configuration, code, data, image, packages and metrics."""

import difflib
import os
import re
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
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
from launcher.ui import addresses, charts, explorer
from launcher.ui.charts import Line
from launcher.ui.live import stamp
from launcher.ui.rendering import page
from launcher.ui.series import Series
from launcher.ui.state import Ui, ui_of

_MOST_JOBS = 20
_MOST_NAMES = 500
"""Names that the fields suggest."""
_MOST_ROWS = 500
_LONGEST_NAME, _LONGEST = 300, 20_000
_MOST_BYTES = 8 << 20
"""Metrics of a job, about 35 000 steps, that are compared in full; of more, those that a picture shows."""
_READ_S = 1.5
"""How long the metrics of all jobs together are read for one page."""
SECTIONS = ("configuration", "files", "code", "data", "image", "environment", "metrics")
_TOKEN = re.compile(r"\s*(?:[\w.]+|[^\w\s])|\s+")
_SHORT = 24
"""Characters below which a value is marked as a whole."""
_MOST_TOKENS, _MOST_PAIRS = 200, 400_000
"""Words of a value, and pairs of words of a page, that are compared; beyond that, one part of a value is marked."""
_LEAST_ALIKE = 0.3
_KEPT, _MOST_SHOWN = 60, 2000
"""Characters that are shown of each end of a long part that is equal, and of a part that differs."""


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


class _Compared:
    """What a comparison found.

    Attributes:
        changes: By section, the keys with their values, one for each side.
        equal: By section, how many keys are equal.
        found: Problems of the overrides that were given.
        faults: What keeps the recipes from being launched so, as most of them do not name their data.
    """

    def __init__(self) -> None:
        self.changes: dict[str, list[tuple[str, tuple[str | None, ...]]]] = {}
        self.equal: dict[str, int] = {}
        self.notes: list[str] = []
        self.found: list[Problem] = []
        self.faults: list[Problem] = []

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
    elif further.strip() and sides and all(side.job for side in sides):
        compared.notes.append("the overrides were not used: no recipe is compared")
    curves = _Curves.of(ui, sides)
    if "metrics" not in compared.changes and len(curves.last) == len(sides) > 1:
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
        faults=compared.faults,
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


def _suggested(ui: Ui) -> list[str]:
    """Return names of jobs, those that users gave where they are unique, and of recipes."""
    rows = ui.index.rows()[:_MOST_NAMES]
    known = Counter(row.title for row in rows)
    return [*(row.title if known[row.title] == 1 else row.name for row in rows), *explorer.known(ui)]


def _named(ui: Ui, name: str) -> Side:
    """Return the job of the results folder, or the recipe of the collection, that has a name."""
    if job := ui.index.find(name):
        return Side(job.title, addresses.of_job(job.name), job)
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
        key = explorer.key_of(word)
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
        has_metrics = all(_num_bytes(job) <= _MOST_BYTES for job in jobs)
        both = reproducing.of_jobs(jobs[0].folder, jobs[1].folder, has_metrics=has_metrics)
        for name, changes in both.sections.items():
            compared.changes[name] = [(each.key, (each.before, each.after)) for each in changes]
        compared.equal = dict(both.equal)
        compared.notes = [_with_titles(note, jobs) for note in both.notes]
    else:
        first, second = (str(side.job.folder) if side.job else side.title for side in sides)
        pair = comparing.both(first, second, words)
        compared.add("configuration", [each.texts() for each in pair])
        compared.notes = [_with_titles(str(notice), jobs) for each in pair for notice in each.notices]
        every = [problem for side in sides if not side.job for problem in _faults(ui, side.title, words)]
        for problem in dict.fromkeys(every):
            (compared.found if problem.where in words else compared.faults).append(problem)
    return compared


def _num_bytes(job: IndexedJob) -> int:
    """Return the size of a job's metrics."""
    known = stamp(job.folder / RUN_DIR / METRICS_FILE)
    return known[0] if known else 0


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
    names = [name for name in SECTIONS if name in compared.changes]
    names += [name for name in compared.changes if name not in names]
    marker = Marker()
    found = []
    for name in names:
        changes = compared.changes[name]
        rows = [Row(key, marker.cells(values)) for key, values in changes[:_MOST_ROWS]]
        if rows or compared.equal.get(name):
            found.append(Section(name, rows, len(changes), compared.equal.get(name)))
    return found


class Marker:
    """Marks the words that differ within values, as long as its budget lasts."""

    def __init__(self) -> None:
        self._left = _MOST_PAIRS

    def cells(self, values: Sequence[str | None]) -> tuple[Cell, ...]:
        """Return the values of a key: two of them with their words compared."""
        base = values[0]
        if len(values) == 2 and base is not None and values[1] is not None:
            return tuple(Cell(tuple(map(_shortened, each)), False) for each in self._marked(base, values[1]))
        cells = []
        for index, value in enumerate(values):
            pieces = () if value is None else (Piece(_bounded(value), index > 0 or len(values) == 2),)
            cells.append(Cell(pieces, index > 0 and value == base))
        return tuple(cells)

    def _marked(self, before: str, after: str) -> tuple[list[Piece], list[Piece]]:
        whole = [Piece(before, True)], [Piece(after, True)]
        longest = max(len(before), len(after))
        if self._left <= 0 or min(len(before), len(after)) < _SHORT or longest > _LONGEST:
            return whole
        old, new = _TOKEN.findall(before), _TOKEN.findall(after)
        self._left -= len(old) + len(new)
        head = _num_common(old, new)
        tail = _num_common(old[head:][::-1], new[head:][::-1])
        middle_old, middle_new = old[head : len(old) - tail], new[head : len(new) - tail]
        pairs = len(middle_old) * len(middle_new)
        codes: Sequence[tuple[str, int, int, int, int]] = [("replace", 0, len(middle_old), 0, len(middle_new))]
        if max(len(middle_old), len(middle_new)) <= _MOST_TOKENS and pairs <= self._left:
            self._left -= pairs
            codes = difflib.SequenceMatcher(None, middle_old, middle_new, autojunk=False).get_opcodes()
        equal = [("equal", 0, head, 0, head)]
        shifted = [(tag, i + head, j + head, k + head, m + head) for tag, i, j, k, m in codes]
        rest = [("equal", len(old) - tail, len(old), len(new) - tail, len(new))]
        sides: tuple[list[Piece], list[Piece]] = ([], [])
        for tag, i, j, k, m in (*equal, *shifted, *rest):
            for side, tokens in zip(sides, (old[i:j], new[k:m]), strict=True):
                if tokens:
                    side.append(Piece("".join(tokens), tag != "equal"))
        alike = sum(len(piece.text) for piece in sides[0] if not piece.is_changed)
        return sides if alike >= _LEAST_ALIKE * longest else whole


def _num_common(old: Sequence[str], new: Sequence[str]) -> int:
    """Return with how many equal words two texts begin."""
    return next((i for i, (a, b) in enumerate(zip(old, new, strict=False)) if a != b), min(len(old), len(new)))


def _shortened(piece: Piece) -> Piece:
    if piece.is_changed or len(piece.text) <= 3 * _KEPT:
        return piece._replace(text=_bounded(piece.text))
    return piece._replace(text=f"{piece.text[:_KEPT]} … {piece.text[-_KEPT:]}")


def _bounded(text: str) -> str:
    more = len(text) - _MOST_SHOWN
    return f"{text[:_MOST_SHOWN]} … and {more} more characters" if more > 0 else text


@dataclass(frozen=True)
class _Curves:
    """The metrics of jobs.

    Args:
        picture: Their losses; "" if fewer than two are recorded here.
        last: The last value of each metric, for each side.
    """

    picture: Any
    last: Sequence[Mapping[str, str]]
    notes: Sequence[str]

    @classmethod
    def of(cls, ui: Ui, sides: Sequence[Side]) -> "_Curves":
        """Read the metrics of the jobs among the sides; another look reads on."""
        jobs = [side.job for side in sides if side.job]
        key = ("compared", *(job.folder for job in jobs))
        every = ui.kept(key, lambda: [Series(job.folder / RUN_DIR / METRICS_FILE) for job in jobs])
        deadline, notes = time.monotonic() + _READ_S, []
        for job, series in zip(jobs, every, strict=True):
            try:
                is_more = series.read_until(deadline)
            except OSError as error:
                notes.append(f"{job.title}: its metrics cannot be read: {error.strerror}")
                continue
            if is_more:
                notes.append(f"{job.title}: its metrics are long, and only their start was read; reload to read on")
        lines = [
            Line(job.title, line.points)
            for job, series in zip(jobs, every, strict=True)
            for line in series.lines("loss", False)
        ]
        picture = charts.lines("Loss", lines, x="step", y="loss") if len(lines) > 1 else ""
        last = [{f"{name}.last": f"{series.last(name):.6g}" for name in series.names()} for series in every]
        return cls(picture, last, notes)
