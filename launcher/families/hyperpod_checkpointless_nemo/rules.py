"""What checkpointless training needs: copies to recover from, an agent, and values that a recipe cannot know."""

import math
from collections.abc import Iterator

from launcher.common.problems import Notice, Problem
from launcher.families.hyperpod_checkpointless_nemo.recipe import Recipe
from launcher.model.batch import divisors
from launcher.model.checked_recipe import CheckedRecipe, recipe_of
from launcher.model.start_script import as_commands
from launcher.rules import MakeNotice, MakeProblem, PlannedRecipe, notice_rule, rule

_PAGE = "AWS, Checkpointless training in Amazon SageMaker HyperPod"
_MEGATRON = "Megatron core, parallel_state.initialize_model_parallel"
_STRATEGY, _COPIES = "recipes.strategy", "recipes.strategy.num_distributed_optimizer_instances"


def _replicas(checked: CheckedRecipe) -> int:
    """Return the ranks with the same part of the model; 0 if they do not divide, which is reported separately."""
    recipe, ranks = recipe_of(checked, Recipe), checked.ranks
    parts = recipe.strategy.tensor_model_parallel_size * recipe.strategy.pipeline_model_parallel_size
    return 0 if ranks % recipe.model_parallel_size else ranks // parts


@rule("E497", _STRATEGY, "recipes.trainer", "instance_type", source=_MEGATRON)
def ranks_divide(checked: CheckedRecipe, problem: MakeProblem) -> Iterator[Problem]:
    """Ranks that share the model, a part of its layers each, form complete groups."""
    ranks, parts = checked.ranks, checked.recipe.model_parallel_size
    if ranks % parts:
        path = f"{_STRATEGY}.tensor_model_parallel_size"
        message = f"{ranks} ranks do not divide into groups of {parts}"
        value = recipe_of(checked, Recipe).strategy.tensor_model_parallel_size
        allowed = f"tensor · pipeline · context parallel size: a divisor of {ranks}"
        yield problem(path, message, value=value, allowed=allowed)


@rule("E486", _STRATEGY, "recipes.trainer", "instance_type", source=f"{_PAGE}, In-process recovery; {_MEGATRON}")
def a_lost_rank_has_a_copy(checked: CheckedRecipe, problem: MakeProblem) -> Iterator[Problem]:
    """A lost rank is restored from another copy of its state, so that there are two at least, of equal parts."""
    copies, replicas = recipe_of(checked, Recipe).strategy.num_distributed_optimizer_instances, _replicas(checked)
    if not replicas:
        return
    allowed = divisors(replicas, least=2) or None
    more = None if allowed else "more nodes in recipes.trainer.num_nodes, or less model parallelism"
    if copies == 1:
        message = "leaves a lost rank without a copy to recover from"
        yield problem(_COPIES, message, value=copies, allowed=allowed, remedy=more or f"{_COPIES}=2")
    elif replicas % copies:
        message = f"does not divide the {replicas} ranks that have the same part of the model"
        yield problem(_COPIES, message, value=copies, allowed=allowed, remedy=more)


@rule("E487", _STRATEGY, "recipes.trainer", "recipes.model", "instance_type", source=_MEGATRON)
def experts_divide(checked: CheckedRecipe, problem: MakeProblem) -> Iterator[Problem]:
    """Ranks that share the experts form complete groups, of equal numbers of experts, in every copy."""
    recipe, replicas = recipe_of(checked, Recipe), _replicas(checked)
    shares, copies = recipe.strategy.expert_model_parallel_size, recipe.strategy.num_distributed_optimizer_instances
    path, experts = f"{_STRATEGY}.expert_model_parallel_size", recipe.model.config.num_moe_experts or 0
    if shares is None or shares == 1:
        return
    if not experts or experts % shares:
        message = f"does not divide the {experts} experts" if experts else "the model has no experts to share"
        yield problem(path, message, value=shares, remedy=None if experts else f"{path}=1")
    elif replicas and replicas % copies == 0 and replicas % (shares * copies):
        message = f"{replicas} ranks that have the same layers are not {copies} copies of {shares} shares of experts"
        yield problem(path, message, value=shares, allowed=divisors(math.gcd(experts, replicas // copies)))


@rule("E489", "recipes.checkpointing", source=f"{_PAGE}, Special considerations")
def no_tiers_of_checkpoints(checked: CheckedRecipe, problem: MakeProblem) -> Iterator[Problem]:
    """Checkpointless training and managed tiered checkpointing exclude each other."""
    if checked.recipe.checkpointing:
        message = "checkpointless training has no tiers of checkpoints"
        yield problem("recipes.checkpointing", message, remedy="recipes.checkpointing=null")


@rule("E490", "cluster.use_hyperpod_pytorch_job", source=f"{_PAGE}: HyperPod training operator 1.2 or later")
def recovery_has_its_agent(checked: CheckedRecipe, problem: MakeProblem) -> Iterator[Problem]:
    """Recovery within the processes is led by HyperPod's agent, which a Kubeflow job lacks."""
    path = "cluster.use_hyperpod_pytorch_job"
    if getattr(checked.settings, "use_hyperpod_pytorch_job", True) is False:
        message = "a Kubeflow job has no agent that leads the recovery"
        yield problem(path, message, value=False, remedy=f"{path}=true")


@notice_rule("N460", source="Kubernetes, Using sysctls in a Kubernetes Cluster; sysctl(8)")
def sysctl_needs_privileges(planned: PlannedRecipe, notice: MakeNotice) -> Iterator[Notice]:
    """A container without privileges cannot set parameters of the kernel, such as the range of ports."""
    context = getattr(planned.job.settings, "security_context", None)
    lines = as_commands(planned.checked.recipe.pre_script)
    if any("sysctl -w" in line for line in lines) and not (context and context.privileged):
        yield notice(
            "sysctl in recipes.pre_script has no effect: the container is not privileged. To allow it:"
            " 'cluster.security_context={privileged: true, runAsUser: 0}'"
        )
