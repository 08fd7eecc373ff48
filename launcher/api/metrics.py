"""The metrics that rank 0 recorded, from the file in a job's run folder."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pydantic_core import from_json

OF_A_STEP = ("loss", "samples_per_s", "learning_rate")
"""Metrics that every step has."""
_FURTHER = "further"
"""Key of a line's metrics beyond those of every step."""


def parsed(line: bytes | str) -> tuple[dict[str, Any], dict[str, Any]] | None:
    """Return the fields of a line, and its further metrics but those named like a field; None if it is damaged."""
    try:
        row = from_json(line)  # json.loads takes three times as long
    except ValueError:
        return None
    if not isinstance(row, dict):
        return None
    further = row.pop(_FURTHER, None)
    named = further.items() if isinstance(further, dict) else ()
    return row, {name: value for name, value in named if name not in row}


def rows(file: Path) -> Iterator[Mapping[str, Any]]:
    """Yield the lines of a metrics file, oldest first; a further metric is a column, unless a step has its name.

    A line that is incomplete or damaged is left out, as the timeline leaves it out; so is a missing file.
    """
    try:
        lines = file.open("rb")
    except FileNotFoundError:
        return
    with lines:
        for line in lines:
            if (found := parsed(line)) is not None:
                row, further = found
                yield row | further
