"""A job without a new step for long: its stacks are collected and reported, and decide whether it hangs."""

from collections.abc import Callable
from pathlib import Path

from launcher.operator import stacks
from launcher.operator.event_log import EventWriter
from launcher.operator.hang_detector import Overdue
from launcher.operator.snapshot import Attempt
from launcher.operator.stacks import Stack
from launcher.runtime.durable import write_text
from launcher.runtime.stacks import stacks_folder

REPORT_FILE = "report.txt"
"""Beside the stacks: the message, the ranks that lag, and the stack of each rank's main thread."""

ANSWER_S = 10.0
"""Time for the workers to write their stacks; they do so as soon as they get a processor."""

_MAX_NAMED = 8


class SlowJob:
    """Requests the stacks of a job that is overdue, and reports each such time once.

    Args:
        run_dir: Of the job.
        nproc_per_node: Worker processes per node.
        request: Requests the stacks of the workers with a file in a folder.
        events: Where a slow job is reported that is not known to hang.
    """

    def __init__(self, run_dir: Path, nproc_per_node: int, request: Callable[[Path], None], events: EventWriter):
        self._run_dir, self._nproc_per_node = run_dir, nproc_per_node
        self._request, self._events = request, events
        self._sizes: dict[int, int] | None = None
        self._texts: dict[int, str] = {}
        self._until_s = 0.0
        self._is_reported = False

    def poll(self, now_s: float, attempt: Attempt, overdue: Overdue | None) -> str:
        """Return why the job hangs, and which rank lags; "" while it does not, or its stacks are not written yet."""
        if overdue is None:
            self._sizes, self._is_reported = None, False
            return ""
        if self._is_reported and not overdue.is_hang:
            return ""
        try:
            return self._examined(now_s, attempt, overdue)
        except OSError:  # a full disk, say: what made the job slow must not end its operator
            return overdue.message if overdue.is_hang else ""

    def _examined(self, now_s: float, attempt: Attempt, overdue: Overdue) -> str:
        folder = stacks_folder(self._run_dir, attempt.number)
        if self._sizes is None:
            self._sizes, self._until_s = stacks.sizes(folder), now_s + ANSWER_S
            self._request(folder)
        before, self._texts = self._texts, stacks.texts_after(folder, self._sizes)
        texts = self._texts
        if now_s < self._until_s and not (all(texts.values()) and texts == before):  # written in many pieces
            return ""
        self._sizes = None
        found = {rank: stacks.parse(text) for rank, text in texts.items()}
        message = self._report(folder, attempt, overdue, found)
        if overdue.is_hang or any(stack.is_stopped for stack in found.values()):
            return message
        self._is_reported = True
        self._events.add("slow", f"slow: {message}; the job is not stopped", {"ranks": stacks.lagging(found)})
        return ""

    def _report(self, folder: Path, attempt: Attempt, overdue: Overdue, found: dict[int, Stack]) -> str:
        """Write the report and return its first line."""
        if not found:
            return overdue.message
        path = (folder / REPORT_FILE).relative_to(self._run_dir.parent)
        message = f"{overdue.message}; {self._place(attempt, found)}; stacks: {path}"
        lines = [message]
        for rank, stack in sorted(found.items()):
            frames = [f"  {frame}" for frame in stack.frames] or [f"  {stack}"]
            lines += ["", f"rank {rank} (node {self._node(attempt, rank)}), innermost call first:", *frames]
        write_text(folder / REPORT_FILE, "\n".join(lines) + "\n")
        return message

    def _place(self, attempt: Attempt, found: dict[int, Stack]) -> str:
        """Return which ranks lag, and where the first of them is."""
        lagging = stacks.lagging(found)
        first = min(lagging or found)
        named = f"rank {first} (node {self._node(attempt, first)})"
        if not lagging:
            return f"{named} is at {found[first]}" + (", and no rank lags" if len(found) > 1 else "")
        others = ", ".join(map(str, lagging[1:_MAX_NAMED]))
        more = f" and {len(lagging) - _MAX_NAMED} more" if len(lagging) > _MAX_NAMED else ""
        return f"{named} lags: {found[first]}" + (f"; as do ranks {others}{more}" if others else "")

    def _node(self, attempt: Attempt, rank: int) -> int:
        return attempt.nodes[min(rank // self._nproc_per_node, len(attempt.nodes) - 1)]
