"""What a recipe requests of the chosen cluster as such: that it is named once, and has what any of its jobs needs."""

from collections.abc import Iterator

from launcher.common.problems import Problem
from launcher.model.backend_registry import choices, described, descriptions
from launcher.model.checked_recipe import CheckedRecipe
from launcher.model.earlier_jobs import KEY
from launcher.model.family_registry import interface
from launcher.model.interface import HEAD, SUBMITTER, WORKERS
from launcher.rules import MakeProblem, rule

_ROADMAP = "docs/decisions.md, Not supported yet"


@rule("E901", source=_ROADMAP)
def backend_exists(checked: CheckedRecipe, problem: MakeProblem) -> Iterator[Problem]:
    """A cluster whose keys are known but for which jobs cannot be compiled yet."""
    if described(checked.backend).load() is None:
        yield problem(
            "cluster",
            "is not yet supported: its keys are checked, but no bundle is rendered",
            value=described(checked.backend).choice,
            allowed=", ".join(each.choice for each in descriptions() if each.load()),
        )


@rule("E902", "recipes.checkpointless", source=_ROADMAP)
def feature_exists(checked: CheckedRecipe, problem: MakeProblem) -> Iterator[Problem]:
    """A key of a feature that is not yet supported."""
    if checked.recipe.checkpointless and not checked.is_elastic:
        remedy = "recipes.checkpointless=false, or one of the recipes whose names begin with checkpointless_"
        yield problem("recipes.checkpointless", "is not yet supported for any recipe", value=True, remedy=remedy)


@rule("E213", "cluster_type", source="the published launcher's own convention")
def cluster_type_agrees(checked: CheckedRecipe, problem: MakeProblem) -> Iterator[Problem]:
    """`cluster` and `cluster_type` have the same meaning."""
    backend = described(checked.backend)
    cluster = backend.choice
    if checked.launch.cluster_type not in (None, *backend.cluster_types):
        yield problem(
            "cluster_type",
            f"does not agree with cluster={cluster}",
            value=checked.launch.cluster_type,
            remedy=f"cluster_type={cluster}, or omit it",
        )


@rule("E113", "recipes.run.model_type", source="launcher/families")
def every_role_is_started(checked: CheckedRecipe, problem: MakeProblem) -> Iterator[Problem]:
    """A job needs all the roles of its family; without a head, its workers would wait for it."""
    known = (WORKERS, HEAD, SUBMITTER) if described(checked.backend).programs.has_ray else (WORKERS,)
    if others := [role.name for role in interface(checked).roles if role.name not in known]:
        yield problem(
            "recipes.run.model_type",
            f"this family also has the roles {', '.join(others)}; cluster={checked.backend} starts workers only",
            value=checked.recipe.run.model_type,
            allowed=choices(lambda each: each.programs.has_ray) if interface(checked).is_ray else None,
        )


@rule("E450", KEY, "cluster", source="docs/slurm.md, Chains")
def place_has_a_queue(checked: CheckedRecipe, problem: MakeProblem) -> Iterator[Problem]:
    """A job waits for another in a queue; without one it would start at once."""
    if checked.launch.after and not described(checked.backend).queue():
        message = "jobs wait for others only where they are queued"
        allowed = choices(lambda each: each.queue() is not None)
        yield problem(KEY, message, value=checked.launch.after, allowed=allowed, remedy=f"{KEY}=null")
