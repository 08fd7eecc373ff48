"""The event log of the operator: `run/events.jsonl`."""

import json
import time
from collections.abc import Mapping
from pathlib import Path

from launcher.common import redaction
from launcher.common.names import EVENTS_FILE


class EventWriter:
    """Appends to the event log of a run.

    An incomplete last line, left by a killed operator, is terminated first.

    Args:
        run_dir: Of the job.
    """

    def __init__(self, run_dir: Path):
        self._path = run_dir / EVENTS_FILE
        if self._path.exists() and not self._path.read_bytes().endswith(b"\n"):
            self._write("\n")

    def add(self, kind: str, message: str = "", fields: Mapping[str, object] | None = None) -> None:
        """Append one event with the current time."""
        event = redaction.masked_tree({"time": time.time(), "kind": kind, "message": message, **(fields or {})})
        self._write(json.dumps(event) + "\n")

    def _write(self, text: str) -> None:
        with self._path.open("a", encoding="utf-8") as file:
            file.write(text)
