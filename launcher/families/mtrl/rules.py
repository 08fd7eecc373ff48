"""What values of multi-turn RL must have to do with each other."""

from collections.abc import Iterator

from launcher.common.problems import Notice, Problem
from launcher.families.mtrl.recipe import Recipe
from launcher.model.backend_registry import described
from launcher.model.batch import divisors
from launcher.model.checked_recipe import CheckedRecipe, recipe_of
from launcher.rules import MakeNotice, MakeProblem, PlannedRecipe, notice_rule, rule

_PARAMETERS = "the parameters of the published recipes of multi-turn RL"
_SAMPLING = ("sampling_params", "val_sampling_params", "eval_sampling_params")
_GROUPS = ("group_size", "val_group_size", "eval_group_size")
_NOVA_BATCHES, _OPEN_BATCHES = (8, 16, 32, 64), (32, 64, 128)
_NOVA_RANK = 32
_MODEL = "recipes.model.model_name"


def _is_of_nova(checked: CheckedRecipe) -> bool:
    """Return whether a recipe is of a Nova model, whatever weights an override names."""
    names = [value for _, value in checked.composition.sources.layers(_MODEL)]
    return any(str(name).startswith("nova-") for name in (*names, recipe_of(checked, Recipe).model.model_name))


@rule("E480", "recipes.batch", source="Shao et al., DeepSeekMath (2024), Group Relative Policy Optimization")
def groups_are_complete(checked: CheckedRecipe, problem: MakeProblem) -> Iterator[Problem]:
    """Rewards are compared within the conversations of one prompt, so a step has complete groups."""
    batch = recipe_of(checked, Recipe).batch_settings
    samples, group = batch.training_batch_size, batch.group_size
    if samples and group and samples % group:
        message = f"{samples} conversations of a step are not complete groups of {group}"
        allowed = divisors(samples, least=2, most=32)
        yield problem("recipes.batch.group_size", message, value=group, allowed=allowed)


@rule("E481", "recipes.model", *(f"recipes.{name}" for name in _SAMPLING), source=_PARAMETERS)
def answers_fit_into_the_conversation(checked: CheckedRecipe, problem: MakeProblem) -> Iterator[Problem]:
    """One answer cannot be longer than the complete conversation."""
    recipe = recipe_of(checked, Recipe)
    most = recipe.model.max_sequence_length
    for name in _SAMPLING if most else ():
        sampling = getattr(recipe, name)
        if sampling and sampling.max_tokens > most:
            path, message = f"recipes.{name}.max_tokens", f"is more than the conversation has, {most} tokens"
            yield problem(path, message, value=sampling.max_tokens, allowed=f"512 to {most}")


@rule("E482", "recipes.batch", *(f"recipes.{name}" for name in _SAMPLING), source=_PARAMETERS)
def conversations_of_a_group_differ(checked: CheckedRecipe, problem: MakeProblem) -> Iterator[Problem]:
    """At temperature 0 every conversation of a prompt is the same, so that a group shows nothing more than one."""
    recipe = recipe_of(checked, Recipe)
    for name, group in zip(_SAMPLING, _GROUPS, strict=True):
        sampling, size = getattr(recipe, name), getattr(recipe.batch_settings, group)
        if sampling and sampling.temperature == 0 and size and size > 1:
            message = f"0 makes the {size} conversations of each prompt the same"
            remedy = f"recipes.{name}.temperature=1.0"
            if group != "group_size":  # which is at least 2
                remedy += f", or recipes.batch.{group}=1"
            yield problem(f"recipes.{name}.temperature", message, value=0, allowed="above 0, to 2", remedy=remedy)


@rule("E483", "recipes.model", "recipes.batch", source=_PARAMETERS)
def values_are_of_the_model(checked: CheckedRecipe, problem: MakeProblem) -> Iterator[Problem]:
    """Nova models and open ones are trained with other batches, ranks and optimizers."""
    recipe = recipe_of(checked, Recipe)
    if not recipe.is_training:
        return
    is_nova = _is_of_nova(checked)
    kind, batches = ("Nova models", _NOVA_BATCHES) if is_nova else ("open models", _OPEN_BATCHES)
    samples, rank = recipe.batch_settings.training_batch_size, recipe.model.lora_rank
    if samples is not None and samples not in batches:
        path, allowed = "recipes.batch.training_batch_size", ", ".join(map(str, batches))
        yield problem(path, f"is not a batch that {kind} are trained with", value=samples, allowed=allowed)
    if is_nova and rank is not None and rank > _NOVA_RANK:
        path, allowed = "recipes.model.lora_rank", f"16 to {_NOVA_RANK}"
        yield problem(path, f"is more than {kind} are trained with", value=rank, allowed=allowed)
    if not is_nova and recipe.model.lora_plus_lr_ratio is not None:
        path, value = "recipes.model.lora_plus_lr_ratio", recipe.model.lora_plus_lr_ratio
        yield problem(path, "is read for Nova models only", value=value, remedy=f"~{path}")


@rule("E485", "recipes.run", "cluster", source=_PARAMETERS)
def prompts_are_a_channel(checked: CheckedRecipe, problem: MakeProblem) -> Iterator[Problem]:
    """The recipe has no key for the prompts: they reach the program as a channel of the training job."""
    recipe, backend = recipe_of(checked, Recipe), described(checked.backend)
    if recipe.is_training and not recipe.refusal(backend.choice) and not backend.files.channels(checked.settings):
        path = "cluster.sm_jobs_config.inputs"
        remedy = f"'{path}.s3={{train: s3://<bucket>/<folder>}}'"
        yield problem(f"{path}.s3", "is missing: the prompts to train on", remedy=remedy)


@notice_rule("N461", source="docs/decisions.md, Families of closed images")
def request_was_never_run(planned: PlannedRecipe, notice: MakeNotice) -> Iterator[Notice]:
    """What the entry point of a closed image reads is not public."""
    yield notice(
        "the entry point of this image is not public: the request follows the published recipes, and was compiled,"
        " not run"
    )
