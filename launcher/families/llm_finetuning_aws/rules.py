"""What values of a fine-tuning recipe must have to do with each other."""

from collections.abc import Iterator

from launcher.common.problems import Problem
from launcher.families.llm_finetuning_aws.recipe import Recipe
from launcher.model.checked_recipe import CheckedRecipe, recipe_of
from launcher.model.job_spec import OPEN
from launcher.rules import MakeProblem, rule

_ARGS = "recipes.training_config.training_args"
_STEPS = "recipes.training_config.datasets.preprocessor_cfgs"
_TECHNIQUES = {
    "TrainingSFTSampleConverter": "sft",
    "Seq2SeqTokensProcessor": "sft",
    "TrainingPOSampleConverter": "dpo",
    "TokenizeSampleDPO": "dpo",
}
"""The technique that each preprocessor makes samples for; others make them for both."""


@rule("E268", f"{_ARGS}.trainer_type", _STEPS, source="the published recipes of both techniques")
def samples_are_of_the_technique(checked: CheckedRecipe, problem: MakeProblem) -> Iterator[Problem]:
    """SFT trains on conversations and DPO on pairs, so each has preprocessors of its own."""
    config = recipe_of(checked, Recipe).training_config
    technique = config.training_args.trainer_type
    steps = [step.get("type") for step in config.datasets.preprocessor_cfgs]
    wrong = [step for step in steps if _TECHNIQUES.get(str(step), technique) != technique]
    if wrong and checked.trainer != OPEN:  # that one has a rule for its own steps
        path, remedy = f"{_ARGS}.trainer_type", f"{_ARGS}.trainer_type={_TECHNIQUES[str(wrong[0])]}"
        message = f"does not go with {wrong[0]} in datasets.preprocessor_cfgs, which is for another technique"
        yield problem(path, message, value=technique, remedy=remedy)
