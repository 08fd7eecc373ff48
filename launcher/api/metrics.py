"""The metrics that rank 0 recorded, from the file in a job's run folder."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pydantic_core import from_json

_FURTHER = "further"
"""Key of a line's metrics beyond those of every step."""


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
            try:
                row = from_json(line)  # json.loads takes three times as long
            except ValueError:
                continue
            if isinstance(row, dict):
                further = row.pop(_FURTHER, None)
                yield (
                    {**row, **{k: v for k, v in further.items() if k not in row}}
                    if isinstance(further, dict)
                    else row
                )
