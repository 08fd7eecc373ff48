"""Whether an LLMFT job has a model to train."""

from collections.abc import Callable, Iterator

from launcher.common.problems import Problem
from launcher.model.checked_recipe import CheckedRecipe
from launcher.model.config_tree import get
from launcher.rules import rule

MODEL = "recipes.training_config.model_config.model_name_or_path"


@rule("E112", MODEL, source="transformers, from_pretrained")
def model_is_named(checked: CheckedRecipe, problem: Callable[..., Problem]) -> Iterator[Problem]:
    """A model that a recipe names cannot be loaded once its name is taken away."""
    if get(checked.composition.tree, MODEL) != "":
        return
    if named := [setting.value for setting in checked.composition.sources.settings(MODEL) if setting.value]:
        yield problem(MODEL, "is empty: there is no model to load", value="", remedy=f"{MODEL}={named[-1]}")
