"""Whether an LLMFT job has a model to train."""

from collections.abc import Callable, Iterator

from launcher.check import Draft
from launcher.problems import Problem
from launcher.rules import rule
from launcher.scales import get

MODEL = "recipes.training_config.model_config.model_name_or_path"


@rule("E112", MODEL, source="transformers, from_pretrained")
def model_is_named(draft: Draft, problem: Callable[..., Problem]) -> Iterator[Problem]:
    """A model that a recipe names cannot be loaded once its name is taken away."""
    if get(draft.composition.tree, MODEL) != "":
        return
    if named := [setting.value for setting in draft.composition.settings(MODEL) if setting.value]:
        yield problem(MODEL, "is empty: there is no model to load", value="", remedy=f"{MODEL}={named[-1]}")
