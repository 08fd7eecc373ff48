"""Renders the templates of `templates/ui/`, which escape what they are given, and the responses that have them."""

import hashlib
import math
from datetime import UTC, datetime
from functools import cache
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from launcher import VERSION
from launcher.common.paths import TEMPLATES
from launcher.common.redaction import masked
from launcher.common.templating import bytecode_cache
from launcher.common.texts import plain
from launcher.ui.chart_parts import span
from launcher.ui.state import ui_of

_PLACE = TEMPLATES / "ui"


def page(request: Request, template: str, /, code: int = 200, **values: Any) -> Response:
    """Return a whole page, with the HTTP status `code`.

    Raises:
        ValueError: A value has the name of one that every page has.
    """
    ui = ui_of(request)
    shared: dict[str, Any] = {
        "may_write": ui.may_write,
        "query": request.url.query,
        "version": VERSION,
        "results_folder": str(ui.results),
        "has_results_folder": ui.results.is_dir(),
    }
    if taken := shared.keys() & values.keys():
        raise ValueError(f"{template}: every page has its own {', '.join(sorted(taken))}")
    return HTMLResponse(part(template, **shared, **values), code)


def part(template: str, /, **values: Any) -> str:
    """Render a template.

    Raises:
        jinja2.UndefinedError: The template uses a value that is not given.
    """
    return _environment().get_template(template).render(**values)


@cache
def asset(name: str) -> tuple[bytes, str]:
    """Return a file that pages load, and its tag, by which a browser knows that it has it already."""
    content = (_PLACE / name).read_bytes()
    return content, f'"{hashlib.sha256(content).hexdigest()[:12]}"'


def clean(value: Any) -> Any:
    """Return a text without secrets and control characters; other values are unchanged."""
    return masked(harmless(value)) if isinstance(value, str) and not isinstance(value, Markup) else value


def harmless(text: str) -> str:
    """Return a text without control characters and without what UTF-8 does not have."""
    return plain(text).encode("utf-8", "replace").decode()


def own(value: str) -> Markup:
    """Return what the reader typed, for the field it was typed into: nothing in it is masked."""
    return escape(harmless(value))


def brief(text: str, most: int) -> str:
    """Return a text of at most so many characters; its secrets are masked first, since half of one is not known."""
    shown = str(clean(text))
    return shown if len(shown) <= most else f"{shown[: most - 1]}…"


def duration(seconds: float | None) -> str:
    """Return seconds as people say them: `0.4 s`, `12 s`, `3 min 20 s`, `2 h 5 min`, `3 d 4 h`; `–` for None."""
    if seconds is None or not math.isfinite(seconds):
        return "–"
    if seconds < 10:
        return f"{max(0.0, seconds):.1f} s"
    return span(round(seconds))


def moment(when: float | str | datetime | None, *, has_seconds: bool = False) -> Markup:
    """Return a time, ISO 8601 or seconds since the epoch, as an element that the script shows in local time."""
    if when is None or when == "":
        return Markup("–")
    try:
        is_number = isinstance(when, int | float)
        time = (datetime.fromtimestamp(when, UTC) if is_number else datetime.fromisoformat(str(when))).astimezone(UTC)  # type: ignore[arg-type]
    except (ValueError, OverflowError, OSError):
        return escape(clean(str(when)))
    said = f"{time:%Y-%m-%d %H:%M:%S} UTC" if has_seconds else f"{time:%Y-%m-%d %H:%M} UTC"
    element = Markup('<time datetime="{}" data-seconds>{}</time>' if has_seconds else '<time datetime="{}">{}</time>')
    return element.format(f"{time:%Y-%m-%dT%H:%M:%SZ}", said)


def clock(when: float) -> Markup:
    """Return a time of seconds since the epoch to the second, as an element that the script shows in local time."""
    return moment(when, has_seconds=True)


def percent(share: float | None) -> str:
    """Return a share of 0 to 1 in percent; `–` for None."""
    return "–" if share is None or not math.isfinite(share) else f"{100 * share:.0f} %"


def number(value: float | None) -> str:
    """Return a number with thousands separated and three significant digits after a point; `–` for None."""
    if value is None:
        return "–"
    if isinstance(value, int):
        return f"{value:,}"
    if not math.isfinite(value):
        return str(value)
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(_PLACE),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=clean,
        trim_blocks=True,
        lstrip_blocks=True,
        bytecode_cache=bytecode_cache(),
        auto_reload=False,
    )
    environment.filters |= {each.__name__: each for each in (duration, moment, clock, own, brief, percent, number)}
    return environment
