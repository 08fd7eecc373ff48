"""The examination of a plan before its launch."""

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from launcher.api.plan import Plan
    from launcher.model.finding import Finding


def findings(
    plan: "Plan",
    *,
    deadline_s: float | None = None,
    show: Callable[[int, int], None] = lambda done, total: None,
) -> "Iterator[Finding]":
    """Yield what is found about a plan's job.

    Args:
        deadline_s: Time limit of all questions together, in seconds; None for the usual one.
        show: Called with the number of answered questions, and of all, while it waits.
    """
    from launcher.doctor import examination
    from launcher.model.finding import found

    if not plan.overrides:  # not even its name is known
        yield from (found("recipe", problem) for problem in plan.problems)
        return
    limit_s = examination.DEADLINE_S if deadline_s is None else deadline_s
    given = (plan.overrides, plan.context, plan.session.cache)
    yield from examination.examine(*given, deadline_s=limit_s, show=show)


def would_fail(findings: "tuple[Finding, ...]") -> bool:
    """Return whether a job with these findings would be refused, would never start, or would fail."""
    from launcher.doctor import examination

    return examination.would_fail(findings)
