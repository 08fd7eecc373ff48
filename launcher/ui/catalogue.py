"""The catalogue of recipes: searched by words, model, technique, size and hardware."""

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from launcher.api.listing import Entry
from launcher.common.suggestions import nearest
from launcher.ui import explorer
from launcher.ui.rendering import page, part
from launcher.ui.state import ui_of

_PAGE = 100
_BILLIONS = re.compile(r"(?<![a-z0-9])(\d{1,4}(?:[.p]\d{1,2})?)b(?![a-z0-9])", re.I)
_SIZES = {"below 4B": (0.0, 4.0), "4B to 10B": (4.0, 10.0), "10B to 40B": (10.0, 40.0), "40B and more": (40.0, 1e9)}
FILTERS = ("q", "family", "technique", "size", "hardware", "elastic", "origin", "page")


def billions(entry: Entry) -> float | None:
    """Return the parameters of a recipe's model in billions, as its names state them; None if they do not."""
    for text in (entry.model_name_or_path, entry.model, entry.name.rpartition("/")[2].replace("_", "-")):
        if found := _BILLIONS.search(text.replace("_", "-").replace("-dot-", ".")):
            return float(found[1].replace("p", "."))
    return None


def _size(entry: Entry) -> str:
    known = billions(entry)
    return next((name for name, (low, high) in _SIZES.items() if known is not None and low <= known < high), "")


_VALUES: Mapping[str, Callable[[Entry], Sequence[str]]] = {
    "family": lambda entry: (entry.family,),
    "technique": lambda entry: tuple(dict.fromkeys(filter(None, (entry.technique or "").split("_")))),
    "size": lambda entry: (_size(entry),),
    "hardware": lambda entry: tuple(name.removeprefix("ml.") for name in entry.instance_types),
    "elastic": lambda entry: ("elastic" if entry.is_elastic else "fixed",),
    "origin": lambda entry: ("published" if entry.is_published else "own",),
}
"""Filter to what a recipe has of it."""
_LABELS = {
    "family": "Family",
    "technique": "Technique",
    "size": "Model size",
    "hardware": "Hardware",
    "elastic": "Elastic",
    "origin": "Origin",
}


@dataclass(frozen=True, slots=True)
class Filters:
    """What an address selects."""

    given: Mapping[str, str]

    @classmethod
    def of(cls, query: Mapping[str, str]) -> "Filters":
        """Return the filters of a query; what it has no meaning for is ignored."""
        return cls({name: query.get(name, "").strip()[:200] for name in FILTERS})

    @property
    def page(self) -> int:
        """From 1."""
        text = self.given["page"]
        return int(text) if text.isascii() and text.isdigit() and len(text) < 7 and int(text) else 1

    def address(self, **changes: str | int) -> str:
        """Return the query of these filters with some changed."""
        return urlencode({name: value for name, value in {**self.given, **changes}.items() if value not in ("", 1)})

    def selects(self, entry: Entry, but: str = "") -> bool:
        """Return whether a recipe meets every filter except `but`."""
        words = f"{entry.name} {entry.display_name} {entry.model} {entry.model_name_or_path}".lower()
        return all(word in words for word in self.given["q"].lower().split()) and all(
            not self.given[name] or self.given[name] in of(entry) for name, of in _VALUES.items() if name != but
        )


def recipes(request: Request) -> Response:
    """Show the recipes that the address selects."""
    filters = Filters.of(request.query_params)
    every = tuple(explorer.known(ui_of(request)).values())
    return page(request, "recipes.html", filters=filters, facets=_facets(every, filters), **_rows(every, filters))


def rows(request: Request) -> Response:
    """Return the table alone, for a filter that is being typed."""
    filters = Filters.of(request.query_params)
    every = tuple(explorer.known(ui_of(request)).values())
    return HTMLResponse(part("recipe_rows.html", filters=filters, **_rows(every, filters)))


def _rows(every: Sequence[Entry], filters: Filters) -> dict[str, Any]:
    found = [entry for entry in every if filters.selects(entry)]
    first = (filters.page - 1) * _PAGE
    return {
        "rows": [(entry, billions(entry)) for entry in found[first : first + _PAGE]],
        "first": first,
        "total": len(found),
        "has_more": len(found) > first + _PAGE,
        "near": [] if found else _near(every, filters.given["q"]),
    }


def _facets(every: Sequence[Entry], filters: Filters) -> list[tuple[str, str, list[tuple[str, int]]]]:
    """Return each filter with its label and its values, with the number of recipes that each would select."""
    found = []
    for name, of in _VALUES.items():
        counts = Counter(value for entry in every if filters.selects(entry, but=name) for value in of(entry) if value)
        if filters.given[name]:
            counts.setdefault(filters.given[name], 0)
        order = list(_SIZES) if name == "size" else sorted(counts)
        found.append((name, _LABELS[name], [(value, counts[value]) for value in order if value in counts]))
    return found


def _near(every: Sequence[Entry], text: str) -> Sequence[str]:
    """Return words of names that are close to those of a search without results."""
    words = sorted(
        {word for entry in every for word in re.split(r"[^a-z0-9.]+", entry.name.lower()) if len(word) > 2}
    )
    return [each for word in text.lower().split()[:5] for each in nearest(word, words, cutoff=0.6)][:6]
