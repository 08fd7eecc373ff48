"""Detects a job that hangs: its workers run, but no step is done within a limit derived from earlier steps.

HyperPod's operator watches log lines, this one watches steps: scripts report them, while their log lines differ. The
limit follows the longest recent step, so that no model needs a setting. Rank 0 announces saves and other work; the
latter has no limit by default, since a falsely detected hang would repeat it forever.
"""

import json
import re
from collections import deque
from collections.abc import Mapping
from pathlib import Path

from launcher.common.line_reader import LineReader
from launcher.common.names import ACTIVITY_FILE, CHECKPOINT, STEPS
from launcher.operator.hang_limits import FACTOR, LEAST_LIMIT_S, HangLimits
from launcher.operator.snapshot import Attempt
from launcher.operator.step_reader import DoneStep
from launcher.operator.worker_logs import STDOUT, worker_log

RECENT_STEPS = 50


class StepTimer:
    """Measures how long the steps of a job take. Pure; times are seconds of one clock.

    Args:
        limits: When a job counts as hanging.
    """

    def __init__(self, limits: HangLimits):
        self._limits = limits
        self._gaps: deque[float] = deque(maxlen=RECENT_STEPS)
        self._attempt = -1
        self._since_s = 0.0
        self._step: int | None = None
        self._activity: Mapping[str, object] = {}
        self._knows_steps = limits.watches_start

    def overdue(self, now_s: float, attempt: int, done: DoneStep, activity: Mapping[str, object]) -> str:
        """Return a message about the time without a new step; "" while it is within the limit.

        Args:
            now_s: Time of the poll.
            attempt: Number of the start of the running workers.
            done: The last step.
            activity: The last announcement of rank 0; those of earlier starts do not count.
        """
        if attempt != self._attempt:
            self._attempt, self._since_s, self._step = attempt, now_s, None
        if activity != self._activity:
            self._activity, self._since_s = activity, now_s
        if done.attempt == attempt and done.step != self._step:
            if self._step is not None:
                self._gaps.append((now_s - self._since_s) / max(1, done.step - self._step))
            self._step, self._since_s, self._knows_steps = done.step, now_s, True
        waited_s, limit_s = now_s - self._since_s, self._limit_s()
        if limit_s is None or waited_s <= limit_s:
            return ""
        return f"no new step for {waited_s:.0f} s; {limit_s:.0f} s are allowed"

    def _limit_s(self) -> float | None:
        limits = self._limits
        what = self._activity.get("what", STEPS) if self._activity.get("attempt") == self._attempt else STEPS
        if what not in (STEPS, CHECKPOINT):  # even before the first step: a restart repeats an evaluation
            return limits.other_work_s
        if self._step is None:
            return limits.start_cut_off_s if self._knows_steps else None
        if what == CHECKPOINT:
            return limits.start_cut_off_s
        return limits.recurring_s or max(LEAST_LIMIT_S, FACTOR * max(self._gaps, default=0.0))


class HangDetector:
    """Watches a running job: its steps, rank 0's announcements, and the log line that ends the watch.

    Args:
        run_dir: Of the job.
        limits: When it counts as hanging.
    """

    def __init__(self, run_dir: Path, limits: HangLimits):
        self._run_dir = run_dir
        self._steps = StepTimer(limits)
        self._stop = re.compile(limits.stop_pattern) if limits.stop_pattern else None
        self._log: LineReader | None = None
        self._attempt = -1
        self._is_over = False

    def poll(self, now_s: float, attempt: Attempt, done: DoneStep) -> str:
        """Return a message about the time without a new step; "" while it is within the limit."""
        if attempt.number != self._attempt:
            self._attempt, self._log, self._is_over = attempt.number, None, False
        overdue = self._steps.overdue(now_s, attempt.number, done, self._activity())
        return "" if self._is_stopped(attempt) else overdue

    def _activity(self) -> Mapping[str, object]:
        try:
            activity = json.loads((self._run_dir / ACTIVITY_FILE).read_text(encoding="utf-8"))
        except (OSError, ValueError):  # nothing announced yet
            return {}
        return activity if isinstance(activity, dict) else {}

    def _is_stopped(self, attempt: Attempt) -> bool:
        if self._stop is None or self._is_over:
            return self._is_over
        path = worker_log(self._run_dir, attempt, attempt.leader, 0, STDOUT)
        if self._log is None and path:
            self._log = LineReader(path)
        lines = self._log.new_lines(complete_only=True) if self._log else ()
        self._is_over = any(list(map(self._stop.match, lines)))
        return self._is_over
