"""Reads the steps that the workers of a job record."""

import contextlib
import json
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from launcher.common.line_reader import LineReader
from launcher.common.names import METRICS_FILE

RECENT_STEPS = 50
"""Steps whose longest one is read."""


@dataclass(frozen=True, slots=True)
class DoneStep:
    """The last optimizer step.

    Args:
        step: Its number; 0 if none was done.
        samples: Samples consumed since the start of training.
        attempt: The start of the workers it belongs to; -1 for none.
        longest_s: Seconds of the longest of the last RECENT_STEPS steps, by the clock of the workers: without saves
            and other work between steps.
        longest_ever_s: Of the longest step of the launch.
    """

    step: int = 0
    samples: int = 0
    attempt: int = -1
    longest_s: float = 0.0
    longest_ever_s: float = 0.0


class StepReader:
    """Follows the metrics file of a run.

    Args:
        run_dir: Of the job.
        since: Seconds since the epoch; older steps belong to an earlier launch.
    """

    def __init__(self, run_dir: Path, since: float):
        self._lines = LineReader(run_dir / METRICS_FILE)
        self._since = since
        self._last = DoneStep()
        self._last_time = 0.0
        self._recent_s: deque[float] = deque(maxlen=RECENT_STEPS)

    def last(self) -> DoneStep:
        """Return the last step that is recorded completely."""
        for line in self._lines.new_lines(complete_only=True):
            self._take(line)
        return self._last

    def _take(self, line: str) -> None:
        # A script may write this file; its mistakes must not end the job.
        with contextlib.suppress(ValueError, KeyError, TypeError):
            record = json.loads(line)
            if record["time"] >= self._since:
                step, cursor, attempt = (int(record[name]) for name in ("step", "cursor", "attempt"))
                if (seconds := self._seconds(record)) is not None:
                    self._recent_s.append(seconds)
                longest_s = max(self._recent_s, default=0.0)
                self._last = DoneStep(step, cursor, attempt, longest_s, max(longest_s, self._last.longest_ever_s))
                self._last_time = record["time"]

    def _seconds(self, record: Mapping[str, Any]) -> float | None:
        """Return how long a step took; None if neither its record nor the time since the step before says so."""
        if record.get("samples_per_s") and record.get("samples"):
            return float(record["samples"] / record["samples_per_s"])
        return float(record["time"] - self._last_time) if record["attempt"] == self._last.attempt else None
