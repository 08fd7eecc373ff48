"""What the values of a Nova recipe must agree about.

Source: the parameters of the published recipes, and their launcher.
"""

from collections.abc import Iterator
from typing import Any

from launcher.common.problems import Notice, Problem
from launcher.families.amazon_nova.limits import limits
from launcher.families.amazon_nova.recipe import Recipe
from launcher.families.amazon_nova.techniques import generation_of, technique_of
from launcher.model.backend_registry import described
from launcher.model.checked_recipe import CheckedRecipe, recipe_of
from launcher.model.config_tree import get, leaves, related
from launcher.model.passed_keys import written
from launcher.model.validation import is_field
from launcher.rules import MakeNotice, MakeProblem, PlannedRecipe, notice_rule, rule

_PARAMETERS = "the parameters of the published recipes"
_RECIPES = "the published recipes"
_MODEL = "recipes.run.model_name_or_path"
_REWARD, _ENDPOINT = "run.reward_lambda_arn", "training_config.rollout.rewards.api_endpoint.lambda_arn"
_REPLICAS = (
    *("replicas", "generation_replicas", "rollout_worker_replicas"),
    *("actor_train_replicas", "actor_generation_replicas", "rm_replicas", "cm_replicas", "am_replicas"),
)
_SECTIONS = tuple(f"recipes.{section}" for section in Recipe.keys.passed)
_WEIGHTS = {
    "amazon.nova-micro-v1": "nova-micro",
    "amazon.nova-lite-v1": "nova-lite",
    "amazon.nova-pro-v1": "nova-pro",
    "amazon.nova-premier-v1": "nova-premier",
    "amazon.nova-2-lite-v1": "nova-lite-2",
}
"""`run.model_type` up to its version, to the beginning of `run.model_name_or_path`."""
_SPELLINGS = {"loraplus_lr_ratio": "lora_plus_lr_ratio", "lora_plus_lr_ratio": "loraplus_lr_ratio"}
_HOW = {
    "mmlu": ("zs_cot", "accuracy"),
    "mmmu": ("zs_cot", "accuracy"),
    "gen_qa": ("gen_qa", "all"),
    "llm_judge": ("judge", "all"),
    "rubric_llm_judge": ("judge", "all"),
    "rft_eval": ("rft_eval", "all"),
}
"""Strategy and metric of an evaluation's task."""
_BENCHMARKS = ("mmlu_pro", "bbh", "gpqa", "math", "strong_reject", "ifeval")
"""Further tasks. Source: the parameters of the published evaluations of open models; Nova's name none."""
_ACCOUNT = "X_AMZ_SOURCE_ACCOUNT"
_EXAMPLES = ("s3://my-bucket-name/", "s3://example-bucket/")
"""Beginnings of the S3 URIs that published recipes have as examples."""


@rule("E560", _MODEL, "recipes.run.model_type", source=_RECIPES)
def weights_are_of_the_model(checked: CheckedRecipe, problem: MakeProblem) -> Iterator[Problem]:
    """The program of one model cannot load the weights of another."""
    model_type, weights = checked.recipe.run.model_type, recipe_of(checked, Recipe).run.model_name_or_path
    of_model = _WEIGHTS.get(model_type.partition(":")[0])
    if of_model is None:
        allowed = ", ".join(f"{known}:…" for known in _WEIGHTS)
        yield problem("recipes.run.model_type", "no such Nova model is known", value=model_type, allowed=allowed)
    elif weights and not weights.startswith("s3://") and weights.partition("/")[0] != of_model:
        message = f"are not weights of {model_type}"
        yield problem(_MODEL, message, value=weights, allowed=f"{of_model}/prod, or s3://…")


@rule("E561", "recipes.run.replicas", "recipes.node_counts", source=_PARAMETERS)
def model_is_spread_over_the_nodes(checked: CheckedRecipe, problem: MakeProblem) -> Iterator[Problem]:
    """A model is divided among a number of nodes that its program knows."""
    recipe = recipe_of(checked, Recipe)
    nodes, known = recipe.run.replicas, recipe.node_counts
    if nodes and known and nodes not in known:
        near = min(known, key=lambda count: (abs(count - nodes), count))
        yield problem(
            "recipes.run.replicas",
            "the model cannot be spread over this number of nodes",
            value=nodes,
            allowed=", ".join(map(str, known)),
            remedy=f"recipes.run.replicas={near}",
        )


@rule("E562", "recipes.trainer.num_nodes", "recipes.run", source="recipes_collection/base/nova")
def nodes_follow_the_replicas(checked: CheckedRecipe, problem: MakeProblem) -> Iterator[Problem]:
    """The program takes its number of nodes from the keys of its replicas, whatever the launcher reserves."""
    run, reserved = recipe_of(checked, Recipe).run, checked.recipe.trainer.num_nodes
    given = {key: count for key in _REPLICAS if (count := getattr(run, key)) is not None}
    if given and sum(given.values()) != reserved:
        keys = ", ".join(f"recipes.run.{key}" for key in given)
        message = f"the programs run on {sum(given.values())} nodes"
        yield problem("recipes.trainer.num_nodes", message, value=reserved, remedy=f"change {keys} instead")


@rule("E563", *_SECTIONS, source=_PARAMETERS)
def values_are_within_their_limits(checked: CheckedRecipe, problem: MakeProblem) -> Iterator[Problem]:
    """A technique takes the values that its program was made for; the program fails after the nodes were paid for."""
    tree, run = checked.recipe_tree, recipe_of(checked, Recipe).run
    technique, size = technique_of(tree), run.model_name_or_path.partition("/")[0]
    is_lora = any(value == "lora" for path, value in leaves(tree) if path.endswith(".peft_scheme"))
    for limit in limits(technique, generation_of(run.model_type), size, is_lora=is_lora):
        value = get(tree, limit.key)
        if value is not None and not limit.holds(float(value)):
            message = f"is outside of what Nova's {technique.value} takes"
            yield problem(f"recipes.{limit.key}", message, value=value, allowed=limit.allowed)


@rule("E564", *_SECTIONS, source=_RECIPES)
def keys_belong_to_the_technique(checked: CheckedRecipe, problem: MakeProblem) -> Iterator[Problem]:
    """Programs ignore keys of each other, and the second LoRA+ ratio is only another spelling of the first."""
    composition, technique = checked.composition, technique_of(checked.recipe_tree)
    for path, value, published in written(composition):
        is_typed = any(related(section, path) for section in _SECTIONS)
        is_typed = is_typed and is_field(Recipe, path.removeprefix("recipes."))
        if not is_typed or published or value is None:
            continue
        above, _, name = path.rpartition(".")
        other = f"{above}.{_SPELLINGS[name]}" if name in _SPELLINGS else ""
        remedy = f"{other}={value}" if other and get(composition.tree, other) is not None else None
        yield problem(path, f"is not read by Nova's {technique.value} with this model", value=value, remedy=remedy)


@rule("E566", f"recipes.{_REWARD}", f"recipes.{_ENDPOINT}", source=_PARAMETERS)
def one_function_rewards(checked: CheckedRecipe, problem: MakeProblem) -> Iterator[Problem]:
    """Two keys name the function that rewards answers; a job that is given two calls one of them."""
    run, called = (get(checked.recipe_tree, key) for key in (_REWARD, _ENDPOINT))
    if run != called and called is not None:
        remedy = f"recipes.{_ENDPOINT}='${{recipes.{_REWARD}}}'"
        yield problem(f"recipes.{_ENDPOINT}", f"is not {_REWARD}, which is {run}", value=called, remedy=remedy)


@rule("E567", "recipes.images", "cluster", source="the published images")
def region_has_the_other_images(checked: CheckedRecipe, problem: MakeProblem) -> Iterator[Problem]:
    """Pods keep the published images that prepare them and that generate answers beside your own `container`."""
    images = recipe_of(checked, Recipe).images
    if not checked.launch.container or images.region in images.accounts or not described(checked.backend).pods():
        return
    message = "the image that prepares pods is not in this region"
    if images.generation:
        message = "the images that prepare pods and generate answers are not in this region"
    allowed, remedy = ", ".join(images.accounts), f"recipes.images.region={next(iter(images.accounts))}"
    yield problem("recipes.images.region", message, value=images.region, allowed=allowed, remedy=remedy)


@rule("E568", "recipes.evaluation", source=_RECIPES)
def evaluation_is_complete(checked: CheckedRecipe, problem: MakeProblem) -> Iterator[Problem]:
    """A task is asked and measured in its own way; another strategy finds no questions that it can ask."""
    evaluation = recipe_of(checked, Recipe).evaluation
    expected = _HOW.get(evaluation.task) if evaluation else None
    if evaluation and expected:
        for key, value, right in zip(
            ("strategy", "metric"), (evaluation.strategy, evaluation.metric), expected, strict=True
        ):
            if value != right:
                path = f"recipes.evaluation.{key}"
                yield problem(path, f"does not go with task {evaluation.task}", value=value, remedy=f"{path}={right}")


@rule("E570", "cluster", source="the published launcher")
def restricted_nodes_mount_nothing_else(checked: CheckedRecipe, problem: MakeProblem) -> Iterator[Problem]:
    """The nodes that may load Nova's weights give pods no folders and claims but the program's own."""
    for key in ("volumes", "persistent_volume_claims"):
        if mounts := getattr(checked.settings, key, None):
            message = "cannot be mounted by pods on restricted nodes"
            yield problem(f"cluster.{key}", message, value=len(mounts), remedy=f"cluster.{key}=null")


@rule("E571", "cluster", source="the published images")
def program_is_in_its_image(checked: CheckedRecipe, problem: MakeProblem) -> Iterator[Problem]:
    """A closed program cannot be put into an image of your own."""
    if getattr(checked.settings, "runtime", None) == "launcher":
        message, remedy = "is for an image of your own, which lacks Nova's program", "cluster.runtime=image"
        yield problem("cluster.runtime", message, value="launcher", remedy=remedy)


@notice_rule("N440", source=_RECIPES)
def data_is_an_example(planned: PlannedRecipe, notice: MakeNotice) -> Iterator[Notice]:
    """A published recipe may have the S3 URI of an example, which is not your data."""
    found: dict[str, Any] = dict(leaves(planned.checked.recipe_tree["run"]))
    if shown := [key for key, value in found.items() if str(value).startswith(_EXAMPLES)]:
        verb = "is the example" if len(shown) == 1 else "are the examples"
        yield notice(f"{' and '.join(f'run.{key}' for key in shown)} {verb} of the published recipe")


@notice_rule("N441", source="the published launcher")
def account_is_unknown(planned: PlannedRecipe, notice: MakeNotice) -> Iterator[Notice]:
    """Pods get the account that they run for as a variable; without it, access to the weights may be refused."""
    checked = planned.checked
    if described(checked.backend).pods() and _ACCOUNT not in (checked.launch.env_vars or {}):
        yield notice(f"{_ACCOUNT}, your account, is not set: ++env_vars.{_ACCOUNT}='<12 digits>'")


@notice_rule("N442", source=_PARAMETERS)
def task_is_unknown(planned: PlannedRecipe, notice: MakeNotice) -> Iterator[Notice]:
    """Published parameters take any task, so that a misspelt one is found by the program only."""
    evaluation = recipe_of(planned.checked, Recipe).evaluation
    known = (*_HOW, *_BENCHMARKS)
    if evaluation and evaluation.task.lower() not in known:
        yield notice(f"evaluation.task={evaluation.task} is not a task that is known here: {', '.join(known)}")
