"""What a recipe of the training adapter needs: folders, and ranks that divide into shards."""

from collections.abc import Iterator

from launcher.common.problems import Problem
from launcher.families.hf.recipe import Recipe
from launcher.model.batch import divisors
from launcher.model.checked_recipe import CheckedRecipe, recipe_of
from launcher.rules import MakeProblem, rule


@rule(
    "E496",
    "recipes.trainer",
    "recipes.model",
    "instance_type",
    source="PyTorch, FullyShardedDataParallel: HYBRID_SHARD",
)
def shards_divide(checked: CheckedRecipe, problem: MakeProblem) -> Iterator[Problem]:
    """Ranks that share a copy of the model form complete groups."""
    model, ranks = recipe_of(checked, Recipe).model, checked.ranks
    if "hybrid" in model.sharding_strategy and ranks % model.shard_degree:
        path, message = "recipes.model.shard_degree", f"does not divide the {ranks} ranks"
        yield problem(path, message, value=model.shard_degree, allowed=divisors(ranks))
