"""The plan explorer: a recipe whose nodes, batch, instance and elastic policy are fields, and its plan."""

import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from launcher.api import listing, offers, values
from launcher.api.knobs import Knob, knobs, literal, only
from launcher.api.plan import Plan
from launcher.api.plan import compile as compiled
from launcher.api.plan_text import plan_report
from launcher.common.problems import ProblemsFound, fail
from launcher.common.redaction import masked
from launcher.common.text_table import value_text
from launcher.ui import charts
from launcher.ui.rendering import page, part
from launcher.ui.state import Ui, ui_of

_LONGEST = 20_000
"""Characters of a field that are read."""
_RESULTS = "base_results_dir"
"""The key that the page sets itself when it launches."""
_MOST_LINES, _MOST_LEAVES = 12, 4
"""Further overrides that are explained, and leaves of a key of theirs."""


@dataclass(frozen=True, slots=True)
class Asked:
    """What an address asks of a recipe.

    Args:
        cluster: As it was given, which may be none that is known; "" for the recipe's own.
        moved: Fields that differ from the recipe, with what was typed.
        lines: Further overrides, in Hydra's grammar.
    """

    recipe: str
    cluster: str
    fields: tuple[Knob, ...]
    moved: Mapping[str, str]
    lines: tuple[str, ...]

    @classmethod
    def of(cls, request: Request) -> "Asked":
        """Return what a request asks.

        Raises:
            HTTPException: The collection has no such recipe (404).
        """
        ui, query = ui_of(request), request.query_params
        name = request.path_params["name"]
        if name not in known(ui):
            raise HTTPException(404, "The collection has no such recipe.")
        cluster = query.get("cluster", "").strip()[:_LONGEST]
        found = knobs(name, cluster if cluster in offers.clusters() else None, ui.session)
        given = {each.name: query.get(each.name, "").strip()[:_LONGEST] for each in found}
        moved = {each.name: given[each.name] for each in found if each.is_moved(given[each.name])}
        lines = [line.strip() for line in query.get("further", "")[:_LONGEST].splitlines()]
        return cls(name, cluster, found, moved, tuple(filter(None, lines)))

    @property
    def moved_fields(self) -> list[tuple[Knob, str]]:
        """The fields that differ from the recipe."""
        return [(each, self.moved[each.name]) for each in self.fields if each.name in self.moved]

    def plan(self, ui: Ui) -> Plan:
        """Return the plan, which may have faults.

        Raises:
            ProblemsFound: A value cannot be given by an override, or a key not here (E801).
        """
        refuse_own(self.lines)
        words = values.words(
            {key: value for each, text in self.moved_fields for key, value in each.settings(text).items()}
        )
        plan = self._compiled(words, ui)
        if "only" in self.moved and not plan.problems and plan.job.elastic:
            further = only([each.nodes for each in plan.job.scales], self.moved["only"])
            return self._compiled([*words, *further], ui)
        return plan

    def _compiled(self, words: list[str], ui: Ui) -> Plan:
        cluster = literal(self.cluster) or None
        return compiled(self.recipe, [*words, *self.lines], cluster=cluster, strict=False, session=ui.session)


def refuse_own(words: Iterable[str]) -> None:
    """Raise a Problem if overrides set what the page itself sets (E801)."""
    for word in words:
        if key_of(word) == _RESULTS:
            said = "cannot be given here: the page launches into its own results folder"
            raise fail("E801", _RESULTS, said, value=word, remedy="show another folder: recipes ui FOLDER")


def key_of(word: str) -> str:
    """Return the key that an override sets."""
    return word.lstrip("+~").partition("=")[0].strip()


def known(ui: Ui) -> Mapping[str, Any]:
    """Return the entries of the catalogue by their names; read once, and again when a file of it has changed."""
    return ui.kept(("catalogue", listing.stamp()), lambda: {each.name: each for each in listing.every()})


def recipe(request: Request) -> Response:
    """Show a recipe with its fields and its plan."""
    asked, ui = Asked.of(request), ui_of(request)
    return page(
        request,
        "recipe.html",
        entry=known(ui)[asked.recipe],
        asked=asked,
        clusters=offers.clusters(),
        further=request.query_params.get("further", "")[:_LONGEST],
        given=dict(request.query_params),
        **_result(ui, asked),
    )


def result(request: Request) -> Response:
    """Return the plan alone, for a field that is being moved."""
    asked, ui = Asked.of(request), ui_of(request)
    return HTMLResponse(part("explorer_result.html", asked=asked, may_write=ui.may_write, **_result(ui, asked)))


def _result(ui: Ui, asked: Asked) -> dict[str, Any]:
    nothing: dict[str, Any] = {
        "plan": None,
        "found": (),
        "command": "",
        "overrides": (),
        "python": "",
        "is_masked": False,
    }
    try:
        plan = asked.plan(ui)
    except ProblemsFound as error:  # a value that no override can state, or a key that none may set here
        return nothing | {"found": error.problems}
    words = [masked(word) for word in plan.overrides]
    shown = nothing | {
        "command": shlex.join(["python", "main.py", *words]),
        "overrides": words[1:],
        "is_masked": words != list(plan.overrides),
        "python": _in_python(asked.recipe, words[1:]),
    }
    if plan.problems:
        return shown | {"found": plan.problems}
    job = plan.job
    try:
        priced = plan.priced()
    except ProblemsFound as error:
        return shown | {"found": error.problems}
    head, rows = plan_report.table(job, in_full=True, costs=priced.columns)
    remarks = [""] * len(rows)
    if head[-1] == plan_report.REMARKS:
        head, remarks, rows = head[:-1], [row[-1] for row in rows], [row[:-1] for row in rows]
    sizes = charts.PlanSize.every(plan.as_json)
    return shown | {
        "plan": plan,
        "kind": plan_report.kind(job),
        "summary": plan_report.summary(job),
        "head": head,
        "rows": list(zip(rows, remarks, strict=True)),
        "picture": charts.plan("Samples of the busiest rank", sizes) if len(sizes) > 1 else "",
        "prices": priced.lines,
        "notices": plan.notices,
        "origins": _origins(plan, asked),
    }


def _origins(plan: Plan, asked: Asked) -> list[tuple[str, list[tuple[str, str, str]]]]:
    """Return for each moved key its values with their sizes and who set them, each once."""
    typed = (key_of(line) for line in asked.lines[:_MOST_LINES])
    fields = (key for each, text in asked.moved_fields for key in each.settings(text))
    found = []
    for key in dict.fromkeys((*fields, *typed)):
        try:
            explained = plan.explain(key)
        except ProblemsFound:  # removed, or not a key
            continue
        if len(explained) > _MOST_LEAVES:  # a section: the table of sizes shows what it led to
            continue
        for path, every in explained.items():
            rows: dict[tuple[str, str], list[str]] = {}
            for value in every:
                by = masked(value.origin.origin) if value.origin else "nothing"
                text = value_text(value.value, path)
                rows.setdefault((text, by), []).append("base" if value.nodes is None else str(value.nodes))
            is_one = len(rows) == 1
            found.append((path, [(text, "all" if is_one else ", ".join(at), by) for (text, by), at in rows.items()]))
    return found


def _in_python(recipe: str, words: list[str]) -> str:
    """Return the same plan as a call of the Python API."""
    lines = "".join(f"\n    {word!r}," for word in words)
    further = f", [{lines}\n]" if words else ""
    return f"import launcher\n\nplan = launcher.compile({recipe!r}{further})"
