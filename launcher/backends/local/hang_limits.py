"""When a job counts as hanging. The limits have the names of HyperPod's log monitors."""

from dataclasses import dataclass

START_CUT_OFF_S = 1200.0
"""From a start of the workers to their first step, and for a checkpoint.

Source: expectedStartCutOffInSeconds of docs/manifest.md, Watching the log.
"""

LEAST_LIMIT_S = 60.0
"""A step may take this long, however short the others were: data, other programs and the machine pause."""

FACTOR = 10.0
"""A step may take this many times as long as the longest of the last ones."""


@dataclass(frozen=True, slots=True)
class HangLimits:
    """When a job counts as hanging.

    Args:
        start_cut_off_s: Seconds to the first step, and for a checkpoint.
        recurring_s: Seconds between two steps; None follows the steps seen.
        stop_pattern: Regular expression of rank 0's line after which the watch ends; None for none.
        other_work_s: Seconds for announced work that is neither a step nor a checkpoint: an evaluation, an export,
            the script's work after its last step. None sets no limit: only the user knows how long these take.
        watches_start: Whether the first step is waited for, too: a script of one's own may report none.
    """

    start_cut_off_s: float = START_CUT_OFF_S
    recurring_s: float | None = None
    stop_pattern: str | None = None
    other_work_s: float | None = None
    watches_start: bool = True
