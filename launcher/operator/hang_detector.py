"""Detects a job that hangs: its workers run, but no step is done within a limit derived from earlier steps.

HyperPod's operator watches log lines, this one watches steps: scripts report them, while their log lines differ. A
time without a step is first reported as slow; the job counts as hanging much later, or if one of its processes is
stopped. Rank 0 announces saves and other work; the latter has no limit by default, since a falsely detected hang
would repeat it forever.
"""

import contextlib
import json
import re
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from launcher.common.lines import LineReader
from launcher.common.names import ACTIVITY_FILE, CHECKPOINT, LAST_CHECKPOINT, METRICS_FILE, STEPS
from launcher.operator.job_request import HangLimits
from launcher.operator.snapshot import Attempt
from launcher.operator.worker_logs import STDOUT, worker_log
from launcher.runtime.durable import read_object

START_CUT_OFF_S = 1200.0
"""Seconds without a first step, or for a first save, after which the job is reported as slow.

Source: expectedStartCutOffInSeconds of docs/manifest.md, Watching the log.
"""

LEAST_LIMIT_S = 60.0
"""Seconds without a step after which a job is reported as slow, however short its steps are."""

FACTOR = 10.0
"""A step, a start or a save may take this many times as long as the longest one seen."""

AGAIN = 2.0
"""A step may take this many times as long as the longest step of the launch, however long ago that was."""

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


@dataclass(frozen=True, slots=True)
class Overdue:
    """A job without a new step for longer than it took before.

    Args:
        message: For how long, and what it is compared with.
        is_hang: Whether the job counts as hanging even if all of its processes run.
    """

    message: str
    is_hang: bool


@dataclass(frozen=True, slots=True)
class _Limit:
    """Limits of a wait in seconds, None for none, and their reason: from `slow_s` on it is reported."""

    slow_s: float | None
    hang_s: float | None
    reason: str = ""


class StepTimer:
    """Compares the time without a new step with what the job took before. Pure; times are seconds of one clock."""

    def __init__(self, limits: HangLimits):
        self._limits = limits
        self._attempt = -1
        self._since_s = 0.0
        self._step: int | None = None
        self._activity: Mapping[str, object] = {}
        self._longest_start_s = self._longest_save_s = 0.0
        self._was_hang, self._patience = False, 1
        self._watches_start = limits.watches_start

    def overdue(
        self, now_s: float, attempt: int, done: DoneStep, activity: Mapping[str, object], *, stays: bool = False
    ) -> Overdue | None:
        """Return that there has been no new step for too long; None while the time is within the limits.

        Args:
            attempt: Number of the start of the running workers.
            activity: The last announcement of rank 0; those of earlier starts do not count.
            stays: Whether workers stay in their processes: after the first start, they import and load nothing.
        """
        if attempt != self._attempt:
            self._attempt, self._since_s, self._step = attempt, now_s, None
            # It may have been slow only: the same limit again could end it at the same step for ever.
            self._patience *= 2 if self._was_hang else 1
        is_step = done.attempt == attempt and done.step != self._step
        if is_step and self._step is None:
            self._longest_start_s = max(now_s - self._since_s, self._longest_start_s)
            self._watches_start = True
        if is_step or activity != self._activity:
            self._step = done.step if is_step else self._step
            self._activity, self._since_s = activity, now_s
            longest_s = activity.get("longest_s")
            saved_s = longest_s.get(CHECKPOINT) if isinstance(longest_s, dict) else None
            if isinstance(saved_s, int | float):
                self._longest_save_s = max(saved_s, self._longest_save_s)
        least_start_s = LEAST_LIMIT_S if stays and attempt else START_CUT_OFF_S
        waited_s, limit = now_s - self._since_s, self._limit(done, least_start_s)
        self._was_hang = limit.hang_s is not None and waited_s > limit.hang_s
        for limit_s, is_hang in ((limit.hang_s, True), (limit.slow_s, False)):
            if limit_s is not None and waited_s > limit_s:
                return Overdue(f"no new step for {waited_s:.0f} s; {limit_s:.0f} s are {limit.reason}", is_hang)
        return None

    def _limit(self, done: DoneStep, least_start_s: float) -> _Limit:
        limits = self._limits
        what = self._activity.get("what", STEPS) if self._activity.get("attempt") == self._attempt else STEPS
        # Even before the first step: a restart repeats an evaluation.
        if what not in (STEPS, CHECKPOINT, LAST_CHECKPOINT):
            return _set(limits.other_work_s)
        if self._step is None and not self._watches_start:
            return _Limit(None, None)
        if what != STEPS or self._step is None:
            if limits.start_cut_off_s is not None:
                return _set(limits.start_cut_off_s)
            if what == LAST_CHECKPOINT:  # earlier ones did not wait for the slowest storage
                return self._derived(LEAST_LIMIT_S, 0.0, "last save")
            if what == CHECKPOINT:
                return self._derived(LEAST_LIMIT_S, self._longest_save_s, "save")
            # A start ends with a step, which may be as long as others.
            start_s = self._longest_start_s and max(self._longest_start_s, done.longest_s)
            return self._derived(least_start_s, start_s, "start")
        if limits.recurring_s is not None:
            return _set(limits.recurring_s)
        limit = self._derived(LEAST_LIMIT_S, done.longest_s, f"of the last {RECENT_STEPS} steps")
        if limit.hang_s is None:  # no step has a length yet
            return limit
        return replace(limit, hang_s=max(limit.hang_s, AGAIN * done.longest_ever_s))

    def _derived(self, least_s: float, longest_s: float, what: str) -> _Limit:
        """Return the limits that follow from the longest step, start or save seen; 0 for none."""
        if not longest_s:
            return _Limit(START_CUT_OFF_S, None, f"unusual for a first {what}")
        slow_s = max(least_s, FACTOR * longest_s)
        reason = f"expected: the longest {what} took {longest_s:.1f} s"
        return _Limit(slow_s, max(slow_s, self._limits.collective_timeout_s) * self._patience, reason)


def _set(limit_s: float | None) -> _Limit:
    return _Limit(limit_s, limit_s, "allowed")


class HangDetector:
    """Watches a running job: its steps, rank 0's announcements, and the log line that ends the watch."""

    def __init__(self, run_dir: Path, limits: HangLimits):
        self._run_dir = run_dir
        self._steps = StepTimer(limits)
        self._stop = re.compile(limits.stop_pattern) if limits.stop_pattern else None
        self._log: LineReader | None = None
        self._attempt = -1
        self._is_over = False

    def poll(self, now_s: float, attempt: Attempt, done: DoneStep, *, stays: bool = False) -> Overdue | None:
        """Return that there has been no new step for too long; None while the time is within the limits."""
        if attempt.number != self._attempt:
            self._attempt, self._log, self._is_over = attempt.number, None, False
        activity = read_object(self._run_dir / ACTIVITY_FILE)  # empty while nothing is announced
        overdue = self._steps.overdue(now_s, attempt.number, done, activity, stays=stays)
        return None if self._is_stopped(attempt) else overdue

    def _is_stopped(self, attempt: Attempt) -> bool:
        if self._stop is None or self._is_over:
            return self._is_over
        path = worker_log(self._run_dir, attempt, attempt.leader, 0, STDOUT)
        if self._log is None and path:
            self._log = LineReader(path)
        lines = self._log.new_lines(complete_only=True) if self._log else ()
        self._is_over = any(list(map(self._stop.match, lines)))
        return self._is_over
