"""Values and tables as plain text, for terminals and pipes."""

import json
from collections.abc import Iterator, Sequence

from launcher.common.redaction import masked
from launcher.common.secret_names import is_secret

_GAP = 2
"""Blanks between two columns."""
HIDDEN = "…"
"""Replaces a secret."""


def value_text(value: object, path: str = "") -> str:
    """Return a value in one line of YAML; that of a secret, which its dotted path names, is hidden."""
    if isinstance(value, str):
        if value and is_secret(path):
            return HIDDEN
        value = masked(value)
        return value if _is_plain(value) else json.dumps(value, ensure_ascii=False)
    if isinstance(value, float):
        return repr(value)
    return masked(json.dumps(value, ensure_ascii=False, default=str))


def _is_plain(text: str) -> bool:
    """Return whether a text needs no quotes: it is neither a number nor a keyword, and has no YAML punctuation."""
    if not text.isprintable() or text != text.strip() or any(sign in text for sign in ": #,[]{}&*!|>'\"%@`"):
        return text.startswith("${") and text.endswith("}")
    import yaml  # tables need none, and a timeline's operator starts without

    from launcher.common import yaml_io

    try:
        return bool(yaml_io.load(text) == text)
    except yaml.YAMLError:  # such as =, which is special in YAML 1.1
        return False


def table(rows: Sequence[Sequence[str]], right: Sequence[int] = ()) -> list[str]:
    """Return rows of equal length as lines of aligned columns; columns in `right` are right-aligned."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        " "
        + (" " * _GAP)
        .join(c.rjust(w) if i in right else c.ljust(w) for i, (c, w) in enumerate(zip(cells, widths, strict=True)))
        .rstrip()
        for cells in rows
    ]


def with_head(rows: Sequence[Sequence[str]], right: Sequence[int] = ()) -> Iterator[tuple[str, str]]:
    """Yield the lines of `table`, each with its style; the first row is the head."""
    yield from ((line, "" if i else "dim") for i, line in enumerate(table(rows, right)))


def clipped(text: str, width: int) -> str:
    """Return a text cut to `width` columns, with an ellipsis at the cut."""
    return text if len(text) <= width else text[: max(0, width - 1)] + "…"
