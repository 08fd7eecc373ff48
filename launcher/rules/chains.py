"""Jobs that wait for others."""

from collections.abc import Iterator

from launcher.common.problems import Problem
from launcher.model.backend_registry import choices, described
from launcher.model.checked_recipe import CheckedRecipe
from launcher.model.earlier_jobs import KEY
from launcher.rules import MakeProblem, rule


@rule("E450", KEY, "cluster", source="docs/slurm.md, Chains")
def place_has_a_queue(checked: CheckedRecipe, problem: MakeProblem) -> Iterator[Problem]:
    """A job waits for another in a queue; without one it would start at once."""
    if checked.launch.after and not described(checked.backend).queue():
        message = "jobs wait for others only where they are queued"
        allowed = choices(lambda each: each.queue() is not None)
        yield problem(KEY, message, value=checked.launch.after, allowed=allowed, remedy=f"{KEY}=null")
