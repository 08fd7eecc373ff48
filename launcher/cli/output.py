"""What commands share in their output: JSON, refusals, the place of a picture, and times."""

import dataclasses
import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from launcher.common import console, os_errors
from launcher.common.problems import ProblemsFound
from launcher.common.process import USER_ERROR


def print_json(value: Any) -> None:
    """Print a value as JSON: a dataclass as its fields, and what JSON does not know as text."""
    print(json.dumps(value, indent=2, default=_plain))


def _plain(value: Any) -> Any:
    is_record = dataclasses.is_dataclass(value) and not isinstance(value, type)
    return dataclasses.asdict(value) if is_record else str(value)


def refused(error: ProblemsFound | OSError, outcome: str) -> int:
    """Print why a command did nothing, or not everything; return its exit code.

    Args:
        outcome: What exists in spite of the error, unless the error itself has it.

    Raises:
        OSError: It may be a bug in this program.
    """
    if isinstance(error, ProblemsFound):
        console.show_problems(error.problems, error.outcome or outcome)
    elif problem := os_errors.environmental(error):
        console.show_problems((problem,), outcome)
    else:
        raise error
    return USER_ERROR


def say_picture(path: Path | None) -> None:
    """Print where a picture was drawn, if one was."""
    if path is not None:
        console.say(f"picture {console.shown_path(path)}")


def utc(time_s: float) -> str:
    """Return a time in seconds since the epoch as a date and time in UTC."""
    return datetime.fromtimestamp(time_s, UTC).isoformat(timespec="seconds")


def with_created(value: Any) -> dict[str, Any]:
    """Return the fields of a dataclass with `created`, a date and time, in place of `created_s`."""
    fields = dataclasses.asdict(value)
    return fields | {"created": utc(fields.pop("created_s"))}
