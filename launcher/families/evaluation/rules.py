"""What values of an evaluation must have to do with each other."""

from collections.abc import Iterator

from launcher.common.problems import Problem
from launcher.families.evaluation.recipe import JUDGE, SUBTASKS, Recipe
from launcher.model.checked_recipe import CheckedRecipe, recipe_of
from launcher.rules import MakeProblem, rule

_OF_BENCHMARKS = ("model_name_or_path", "data_s3_path", "replicas")
_OF_JUDGES = ("judge_model_id", "inference_data_s3_path", "base_model_inference_data_s3_path")
_PARAMETERS = "the parameters of the published evaluation recipes"


@rule("E491", "recipes.run", f"recipes.{JUDGE}", source="the published evaluation recipes")
def keys_are_of_the_kind(checked: CheckedRecipe, problem: MakeProblem) -> Iterator[Problem]:
    """A judge reads answers, a benchmark a model: the keys of the other kind have no effect."""
    recipe = recipe_of(checked, Recipe)
    kind, others = ("benchmark", _OF_BENCHMARKS) if recipe.llm_as_judge else ("judge", _OF_JUDGES)
    for key in others:
        if value := getattr(recipe.run, key):
            path = f"recipes.run.{key}"
            yield problem(path, f"is read by recipes with a {kind} only", value=value, remedy=f"leave {path} out")


@rule("E492", "recipes.run", "recipes.evaluation", source=_PARAMETERS)
def own_prompts_are_given(checked: CheckedRecipe, problem: MakeProblem) -> Iterator[Problem]:
    """The task gen_qa evaluates on your own prompts."""
    recipe = recipe_of(checked, Recipe)
    if recipe.evaluation and recipe.evaluation.task == "gen_qa" and not recipe.run.data_s3_path:
        path = "recipes.run.data_s3_path"
        yield problem(path, "is missing: the prompts of gen_qa", remedy=f"{path}=s3://<bucket>/<folder>")


@rule("E493", "recipes.evaluation", source=_PARAMETERS)
def subtask_is_of_its_task(checked: CheckedRecipe, problem: MakeProblem) -> Iterator[Problem]:
    """Each part belongs to one benchmark."""
    benchmark = recipe_of(checked, Recipe).evaluation
    if benchmark is None or not benchmark.subtask or benchmark.subtask in SUBTASKS.get(benchmark.task, ()):
        return
    task = next(task for task, parts in SUBTASKS.items() if benchmark.subtask in parts)
    path, message = "recipes.evaluation.subtask", f"is a part of {task}, not of {benchmark.task}"
    yield problem(path, message, value=benchmark.subtask, remedy=f"recipes.evaluation.task={task}")


@rule("E494", "recipes.inference", source=_PARAMETERS)
def answers_fit_into_the_model(checked: CheckedRecipe, problem: MakeProblem) -> Iterator[Problem]:
    """Prompt and answer share the model's context."""
    inference = recipe_of(checked, Recipe).inference
    if inference and inference.max_new_tokens >= inference.max_model_len:
        message = f"leaves no token of max_model_len, {inference.max_model_len}, for the prompt"
        value = inference.max_new_tokens
        yield problem("recipes.inference.max_new_tokens", message, value=value, allowed="less than max_model_len")


@rule("E495", "recipes.trainer.num_nodes", "recipes.run", source="the published evaluation recipes")
def nodes_follow_the_replicas(checked: CheckedRecipe, problem: MakeProblem) -> Iterator[Problem]:
    """The program of a benchmark takes its number of nodes from run.replicas, whatever the launcher reserves."""
    replicas, reserved = recipe_of(checked, Recipe).run.replicas, checked.recipe.trainer.num_nodes
    if replicas is not None and replicas != reserved:
        message = f"the program runs on {replicas}"
        remedy = f"recipes.run.replicas={reserved}, which it follows"
        yield problem("recipes.trainer.num_nodes", message, value=reserved, remedy=remedy)
