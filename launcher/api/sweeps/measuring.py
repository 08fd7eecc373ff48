"""The objective of a trial, step by step: from the metrics file where it is on this machine, else from MLflow."""

import math
from collections.abc import Iterator, Mapping
from typing import Any

from launcher.api import metrics
from launcher.api.job import Job
from launcher.bundle import store
from launcher.common.lines import LineReader
from launcher.common.names import METRICS_FILE, RUN_DIR
from launcher.job_store import tracking
from launcher.model.backend_registry import described

_SIGNIFICANT = 100


def names(objective: str) -> tuple[str, ...]:
    """Return what jobs may call an objective: `eval_loss` of other trainers is `eval/loss` of the open trainer."""
    before, underscore, rest = objective.partition("_")
    return (objective, f"{before}/{rest}") if before == "eval" and underscore else (objective,)


def is_reported(index: int) -> bool:
    """Return whether a pruner sees the point of this index: 100 of a decade, the same points of every trial."""
    return index < _SIGNIFICANT or index % 10 ** (len(str(index)) - 2) == 0


class Meter:
    """Reads the objective of one job.

    Attributes:
        value: The last value; None before the first.
        step: Its step.
        seen: Names of metrics that the job wrote.
    """

    def __init__(self, job: Job, objective: str):
        self.job = job
        self.objective = objective
        self.value: float | None = None
        self.step: int | None = None
        self.seen: set[str] = set()
        self._count = 0
        self._file = LineReader(job.folder / RUN_DIR / METRICS_FILE)

    @property
    def is_here(self) -> bool:
        """Whether the job's metrics are on this machine; from elsewhere, they take a request each time."""
        return (self.job.folder / RUN_DIR / METRICS_FILE).exists() or described(self.job.backend.name).runs_here

    def new_points(self) -> Iterator[tuple[int, float]]:
        """Yield the steps and values since the last call that a pruner sees. A step that is repeated counts once."""
        for step, value in self._lines() if self.is_here else self._history():
            is_new = self.step is None or step > self.step
            self.value, self.step = value, max(step, self.step or 0)
            if is_new:
                self._count += 1
                if is_reported(self._count - 1):
                    yield step, value

    def _lines(self) -> Iterator[tuple[int, float]]:
        for text in self._file.new_lines(complete_only=True):
            if (parsed := metrics.parsed(text)) is None:
                continue
            row, further = parsed
            found = {name: row.get(name) for name in metrics.OF_A_STEP} | further
            try:
                step = int(row["step"])
            except (ValueError, TypeError, KeyError):
                continue
            self.seen |= {name for name, value in found.items() if value is not None}
            if (value := _number(found, self.objective)) is not None:
                yield step, value

    def _history(self) -> Iterator[tuple[int, float]]:
        bundle, _ = store.read(self.job.folder)
        for name in names(self.objective):
            if points := tracking.history(bundle, name):
                yield from (point for point in points if self.step is None or point[0] > self.step)
                return

    def fault(self) -> str | None:
        """Return why a job that succeeded has no objective; None if it has one."""
        if self.value is None:
            wrote = f"; it wrote {', '.join(sorted(self.seen))}" if self.seen else ""
            return f"the job wrote no metric {self.objective}{wrote}"
        if not math.isfinite(self.value):
            return f"{self.objective} is {self.value} at step {self.step}"
        return None


def _number(found: Mapping[str, Any], objective: str) -> float | None:
    for name in names(objective):
        if isinstance(value := found.get(name), int | float):
            return float(value)
    return None
