"""Reads the steps that the workers of a job record."""

import contextlib
import json
from dataclasses import dataclass
from pathlib import Path

from launcher.common.line_reader import LineReader
from launcher.common.names import METRICS_FILE


@dataclass(frozen=True, slots=True)
class DoneStep:
    """The last optimizer step.

    Args:
        step: Its number; 0 if none was done.
        samples: Samples consumed since the start of training.
        attempt: The start of the workers it belongs to; -1 for none.
    """

    step: int = 0
    samples: int = 0
    attempt: int = -1


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
                self._last = DoneStep(int(record["step"]), int(record["cursor"]), int(record["attempt"]))
