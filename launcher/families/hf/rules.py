"""What a recipe of the training adapter needs: folders, and ranks that divide into shards."""

from collections.abc import Iterator

from launcher.common.problems import Problem
from launcher.families.hf.recipe import Recipe
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
    recipe, ranks = recipe_of(checked, Recipe), checked.recipe.trainer.num_nodes * checked.devices
    degree = recipe.model.shard_degree
    if "hybrid" in recipe.model.sharding_strategy and ranks % degree:
        divisors = ", ".join(str(n) for n in range(1, ranks + 1) if ranks % n == 0)
        message = f"does not divide the {ranks} ranks"
        yield problem("recipes.model.shard_degree", message, value=degree, allowed=divisors)
