"""The sizes of a plan as their picture takes them."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class PlanSize:
    """A size of a job.

    Args:
        largest_share: Samples of a step that the busiest rank trains.
        equal_share: The same if all ranks could train equally many: a fraction.
        is_even: Whether they do.
        is_start: Whether the job starts at this size.
    """

    nodes: int
    largest_share: float
    equal_share: float
    is_even: bool
    is_start: bool

    @classmethod
    def every(cls, plan: Mapping[str, Any]) -> "list[PlanSize]":
        """Return the sizes of a plan, as `recipes plan --json` prints it, that have a batch."""
        return [
            cls(
                scale["nodes"],
                share["large"],
                scale["samples_per_step"] / scale["data_parallel_size"],
                share["small"] == share["large"],
                scale["nodes"] == plan["initial_nodes"],
            )
            for scale in plan["scales"]
            if (share := scale["samples_per_rank"])
        ]
