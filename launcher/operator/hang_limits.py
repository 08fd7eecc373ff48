"""When a job counts as hanging. The limits have the names of HyperPod's log monitors.

A limit that the user sets is kept to the second. All others follow from what the job has shown, and end nothing that
has made no error: before the first step, start or save of a job nothing is known, so nothing is limited.
"""

from dataclasses import dataclass

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

COLLECTIVE_TIMEOUT_S = 600.0
"""Default of `collective_timeout_s`. Source: launcher.runtime.process_group, which imports torch."""


def collective_timeout_s(text: str | None) -> float:
    """Return how long a collective may take by a worker's variable RECIPES_COLLECTIVE_TIMEOUT; None if it has none.

    A value that the workers refuse gives the default.
    """
    try:
        timeout_s = float(text or COLLECTIVE_TIMEOUT_S)
    except ValueError:
        return COLLECTIVE_TIMEOUT_S
    return timeout_s if timeout_s > 0 else COLLECTIVE_TIMEOUT_S


@dataclass(frozen=True, slots=True)
class HangLimits:
    """When a job counts as hanging.

    Args:
        start_cut_off_s: Seconds to the first step, and for a checkpoint; None to derive them from earlier ones.
        recurring_s: Seconds between two steps; None to derive it from earlier steps.
        stop_pattern: Regular expression of the line of rank 0 that ends the watch; None for none.
        other_work_s: Seconds for announced work that is neither a step nor a checkpoint: an evaluation, an export,
            the script's work after its last step. None for no limit: only the user knows how long these take.
        watches_start: Whether to watch for the first step, too: a user's script may report none.
        collective_timeout_s: Minimum of the derived limits: within it, the job itself reports a rank that is missing.
    """

    start_cut_off_s: float | None = None
    recurring_s: float | None = None
    stop_pattern: str | None = None
    other_work_s: float | None = None
    watches_start: bool = True
    collective_timeout_s: float = COLLECTIVE_TIMEOUT_S
