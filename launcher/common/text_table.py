"""Values and tables as plain text, for a terminal and for a pipe."""

import json
from collections.abc import Sequence
from typing import Any

import yaml

from launcher.common import yaml_io
from launcher.common.redaction import masked
from launcher.common.secret_names import is_secret

_GAP = 2
"""Blanks between two columns."""
HIDDEN = "…"
"""Stands for a secret."""


def value_text(value: Any, path: str = "") -> str:
    """Return a value in one line, as YAML reads it; that of a secret's `path` is hidden.

    Args:
        value: Any value of a recipe.
        path: Dotted path it lies at.
    """
    if isinstance(value, str):
        if value and is_secret(path):
            return HIDDEN
        value = masked(value)
        return value if _is_plain(value) else json.dumps(value, ensure_ascii=False)
    if isinstance(value, float):
        return repr(value)
    return masked(json.dumps(value, ensure_ascii=False, default=str))


def _is_plain(text: str) -> bool:
    """Tell whether a text needs no quotes: no number, no word of YAML, no sign that a flow mapping would end at."""
    if not text.isprintable() or text != text.strip() or any(sign in text for sign in ": #,[]{}&*!|>'\"%@`"):
        return text.startswith("${") and text.endswith("}")
    try:
        return yaml_io.load(text) == text
    except yaml.YAMLError:  # as of =, which has a meaning of its own in YAML 1.1
        return False


def table(rows: Sequence[Sequence[str]], right: Sequence[int] = ()) -> list[str]:
    """Return rows, all of one length, as lines of aligned columns; those in `right` to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        " "
        + (" " * _GAP)
        .join(c.rjust(w) if i in right else c.ljust(w) for i, (c, w) in enumerate(zip(cells, widths, strict=True)))
        .rstrip()
        for cells in rows
    ]


def clipped(text: str, width: int) -> str:
    """Return a text of at most `width` columns, its end replaced by an ellipsis where it is longer."""
    return text if len(text) <= width else text[: max(0, width - 1)] + "…"
