"""The catalogue of recipes: searched by words, model, technique, size and hardware."""

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from launcher.api.instance_types import table as instance_table
from launcher.api.listing import Entry
from launcher.common.suggestions import nearest
from launcher.ui import addresses, explorer
from launcher.ui.rendering import page, part
from launcher.ui.state import ui_of

_PAGE = 100
_BILLIONS = re.compile(r"(?<![a-z0-9])(\d{1,4}(?:[.p]\d{1,2})?)b(?![a-z0-9])", re.I)
_SIZES = {"below 4B": (0.0, 4.0), "4B to 10B": (4.0, 10.0), "10B to 40B": (10.0, 40.0), "40B and more": (40.0, 1e9)}


def billions(entry: Entry) -> float | None:
    """Return the parameters of a recipe's model in billions, as its names state them; None if they do not."""
    for text in (entry.model_name_or_path, entry.model, entry.name.rpartition("/")[2].replace("_", "-")):
        if found := _BILLIONS.search(text.replace("_", "-").replace("-dot-", ".")):
            return float(found[1].replace("p", "."))
    return None


def _size(entry: Entry) -> str:
    known = billions(entry)
    return next((name for name, (low, high) in _SIZES.items() if known is not None and low <= known < high), "")


def _hardware(entry: Entry) -> Sequence[str]:
    """Return the accelerators of a recipe's instance types, as `H100 80GB`, and these types."""
    known = [found for name in entry.instance_types if (found := instance_table().get(name)) and found.accelerator]
    devices = dict.fromkeys(each.accelerator.removeprefix("NVIDIA ") for each in known)
    return (*devices, *(name.removeprefix("ml.") for name in entry.instance_types))


_FACETS: Mapping[str, tuple[str, Callable[[Entry], Sequence[str]]]] = {
    "family": ("Family", lambda entry: (entry.family,)),
    "model": ("Model", lambda entry: (entry.model_name_or_path,)),
    "technique": (
        "Technique",
        lambda entry: tuple(dict.fromkeys(filter(None, (entry.technique or "").split("_")))),
    ),
    "size": ("Model size", lambda entry: (_size(entry),)),
    "hardware": ("Hardware", _hardware),
    "elastic": ("Elastic", lambda entry: ("elastic" if entry.is_elastic else "fixed",)),
    "origin": ("Origin", lambda entry: ("published" if entry.is_published else "own",)),
}
"""Filter to its label, and what a recipe has of it."""
FILTERS = ("q", *_FACETS, "page")


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
        return addresses.page_number(self.given["page"])

    def address(self, **changes: str | int) -> str:
        """Return the query of these filters with some changed."""
        return addresses.query({**self.given, **changes})

    def changed(self, **changes: str) -> "Filters":
        """Return these filters with some changed, from the first page."""
        return Filters({**self.given, "page": "", **changes})

    def selects(self, entry: Entry, but: str = "") -> bool:
        """Return whether a recipe meets every filter except `but`."""
        words = f"{entry.name} {entry.display_name} {entry.model} {entry.model_name_or_path}".lower()
        return all(word in words for word in self.given["q"].lower().split()) and all(
            not self.given[name] or self.given[name] in of(entry) for name, (_, of) in _FACETS.items() if name != but
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
        "near": [] if found else _near(every, filters),
    }


def _facets(every: Sequence[Entry], filters: Filters) -> list[tuple[str, str, list[tuple[str, int]]]]:
    """Return each filter with its label and its values, with the number of recipes that each would select."""
    found = []
    for name, (label, of) in _FACETS.items():
        counts = Counter(value for entry in every if filters.selects(entry, but=name) for value in of(entry) if value)
        if filters.given[name]:
            counts.setdefault(filters.given[name], 0)
        order = list(_SIZES) if name == "size" else sorted(counts, key=str.lower)
        found.append((name, label, [(value, counts[value]) for value in order if value in counts]))
    return found


def _near(every: Sequence[Entry], filters: Filters) -> list[tuple[str, Filters, int]]:
    """Return changes of filters that select nothing, with which they select some: what changes, and how many."""
    text = filters.given["q"].lower()
    known = {word for entry in every for word in re.split(r"[^a-z0-9.]+", entry.name.lower()) if len(word) > 2}
    changes: list[tuple[str, Filters]] = []
    for word in text.split()[:5]:
        if not any(word in one for one in known):
            for other in nearest(word, sorted(known), cutoff=0.6):
                spelled = text.replace(word, other)
                changes.append((f"“{other}” for “{word}”", filters.changed(q=spelled)))
                changes.append((f"“{spelled}” alone", Filters.of({"q": spelled})))
    labels = {"q": f"“{text}”", **{name: label.lower() for name, (label, _) in _FACETS.items()}}
    changes += [
        (f"without {label}", filters.changed(**{name: ""})) for name, label in labels.items() if filters.given[name]
    ]
    counts = {other.address(): (said, other, sum(map(other.selects, every))) for said, other in reversed(changes)}
    return [each for each in reversed(counts.values()) if each[2]][:6]
