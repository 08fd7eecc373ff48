"""When a job counts as hanging. The limits have the names of HyperPod's log monitors."""

from dataclasses import dataclass

START_CUT_OFF_S = 1200.0
"""Seconds from a start of the workers to their first step, and for a checkpoint.

Source: expectedStartCutOffInSeconds of docs/manifest.md, Watching the log.
"""

LEAST_LIMIT_S = 60.0
"""Minimum limit of a step, however short the others were: data, other programs and the machine may pause."""

FACTOR = 10.0
"""A step may take this many times as long as the longest recent one."""


@dataclass(frozen=True, slots=True)
class HangLimits:
    """When a job counts as hanging.

    Args:
        start_cut_off_s: Seconds to the first step, and for a checkpoint.
        recurring_s: Seconds between two steps; None to derive it from earlier steps.
        stop_pattern: Regular expression of the line of rank 0 that ends the watch; None for none.
        other_work_s: Seconds for announced work that is neither a step nor a checkpoint: an evaluation, an export,
            the script's work after its last step. None for no limit: only the user knows how long these take.
        watches_start: Whether to watch for the first step, too: a user's script may report none.
    """

    start_cut_off_s: float = START_CUT_OFF_S
    recurring_s: float | None = None
    stop_pattern: str | None = None
    other_work_s: float | None = None
    watches_start: bool = True
