"""What a family's programs can do: the clusters that run them, and whether their jobs change their size."""

from collections.abc import Iterator

from launcher.common.problems import Problem
from launcher.model.backend_registry import described, descriptions
from launcher.model.checked_recipe import CheckedRecipe
from launcher.model.config_tree import get
from launcher.model.family_registry import interface
from launcher.rules import MakeProblem, rule


@rule("E120", "recipes.run", "cluster", source="the published recipes and their images")
def cluster_runs_the_family(checked: CheckedRecipe, problem: MakeProblem) -> Iterator[Problem]:
    """Some programs run on some clusters only: their images, or what they need around them, exist there alone."""
    cluster = described(checked.backend).choice
    if reason := checked.recipe.refusal(cluster):
        others = [each.choice for each in descriptions() if not checked.recipe.refusal(each.choice)]
        remedy = " or ".join(f"cluster={other}" for other in others) or None
        yield problem("cluster", reason, value=cluster, allowed=", ".join(others), remedy=remedy)


@rule("E122", "recipes", "cluster", source="the published recipes, in which these are empty")
def launch_gives_what_the_recipe_leaves_open(checked: CheckedRecipe, problem: MakeProblem) -> Iterator[Problem]:
    """Data, folders and names of your own: without them the program fails once its nodes have started."""
    given = interface(checked).open_recipe
    of_trainer = {f"recipes.{key}" for key in (given.model, given.train)} if given else set()  # E116, or a rehearsal
    for path, example in checked.recipe.left_to_launch(checked.composition.tree).items():
        if path in of_trainer:
            continue
        given = get(checked.composition.tree, path)
        yield problem(path, "is left to each launch", value=given, remedy=f"{path}={example}")


@rule("E121", "recipes.elastic_policy", source="the published recipes and their images")
def size_is_fixed(checked: CheckedRecipe, problem: MakeProblem) -> Iterator[Problem]:
    """Only a program that restarts at another size can be elastic."""
    if checked.is_elastic and (reason := checked.recipe.fixed_size):
        remedy = "recipes.elastic_policy.is_elastic=false"
        yield problem("recipes.elastic_policy.is_elastic", reason, value=True, remedy=remedy)
