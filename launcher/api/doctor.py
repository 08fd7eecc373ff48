"""The examination of a plan before its launch."""

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from launcher.doctor.examination import examine, would_fail
from launcher.model.finding import Finding, found

if TYPE_CHECKING:
    from launcher.api.plan import Plan

__all__ = ["findings", "would_fail"]


def findings(
    plan: "Plan", *, deadline_s: float, show: Callable[[int, int], None] = lambda done, total: None
) -> Iterator[Finding]:
    """Yield what is found about a plan's job.

    Args:
        deadline_s: Time limit of all questions together, in seconds.
        show: Called with the number of answered questions, and of all, while it waits.
    """
    if not plan.overrides:  # not even its name is known
        yield from (found("recipe", problem) for problem in plan.problems)
        return
    yield from examine(plan.overrides, plan.context, plan.session.cache, deadline_s, show)
