"""Keys that are accepted because users' scripts set them, but are not yet supported."""

from collections.abc import Iterator

from launcher.common.problems import Problem
from launcher.model.backend_registry import described, descriptions
from launcher.model.checked_recipe import CheckedRecipe
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
        remedy = "recipes.checkpointless=false"
        yield problem("recipes.checkpointless", "is not yet supported", value=True, remedy=remedy)
