"""Arithmetic between the keys of verl's recipes: GPUs, batches, lengths and token budgets.

What verl asserts after the model is loaded, minutes into a job, is checked before it starts.
"""

import math
from collections.abc import Iterable, Iterator

from launcher.common.problems import Notice, Problem
from launcher.common.texts import counted
from launcher.families.verl.recipe import Recipe
from launcher.families.verl.sections import ActorRolloutRef, Parallelism
from launcher.model.batch import divisors, largest_micro_batch
from launcher.model.checked_recipe import CheckedRecipe, recipe_of
from launcher.model.config_tree import get
from launcher.rules import MakeNotice, MakeProblem, PlannedRecipe, notice_rule, rule

_SIZE = "recipes.trainer"
_TRAINING = "recipes.training_config"
_DATA, _ROLES, _ENGINE = f"{_TRAINING}.data", f"{_TRAINING}.actor_rollout_ref", f"{_TRAINING}.engine"
_ACTOR, _ROLLOUT, _REF = f"{_ROLES}.actor", f"{_ROLES}.rollout", f"{_ROLES}.ref"
_BATCH, _MINI_BATCH = f"{_DATA}.train_batch_size", f"{_ACTOR}.ppo_mini_batch_size"
_RAY_TRAINER = "verl, trainer/ppo/ray_trainer.py, check_worker_group_compatibility and _validate_config"
_SFT_TRAINER = "verl, trainer/sft_trainer.py, _build_dataloader; workers/engine/utils.py, prepare_micro_batches"
_MEGATRON = "Megatron-LM, core/parallel_state.py, initialize_model_parallel"

_MOST = 64
"""Largest number of samples, or of GPUs, that a Problem offers."""
_MOST_IN_A_PASS = 2**16
"""Largest number of answers that is tried as a pass: divisors of the product of two numbers are beyond any search."""
_OFFERED = {
    "data.train_batch_size": (16, 32, 64, 128, 256, 512, 1024),
    "actor_rollout_ref.rollout.n": (1, 2, 4, 8, 16, 32),
    "actor_rollout_ref.model.lora_rank": (0, 8, 16, 32, 64, 128),
    "actor_rollout_ref.model.lora_alpha": (16, 32, 64, 128, 256),
    "actor_rollout_ref.rollout.prompt_length": range(512, 16385),
    "actor_rollout_ref.actor.optim.lr_warmup_steps": range(-1, 101),
    "model.lora_rank": (0, 8, 16, 32, 64, 128),
    "model.lora_alpha": (16, 32, 64, 128, 256),
    "optim.lr_warmup_steps": range(-1, 101),
}
"""Key below training_config to the values that its published parameter offers, and the published recipes have."""
_SHARED = {"algorithm.adv_estimator": "grpo", "actor_rollout_ref.rollout.name": "vllm"}
"""Key below training_config, which verl reads when it starts, to the name that all published recipes have."""


def _roles(checked: CheckedRecipe) -> ActorRolloutRef | None:
    return recipe_of(checked, Recipe).training_config.actor_rollout_ref


def _gpus(checked: CheckedRecipe) -> str:
    return f"{counted(checked.recipe.trainer.num_nodes, 'node')} × {counted(checked.devices, 'GPU')}"


def _multiples(number: int, of: int) -> tuple[int, ...]:
    """Return the multiples of `of` next to a number, above 0."""
    below = number // of * of
    return tuple(each for each in (below, below + of) if each)


def _sizes(checked: CheckedRecipe) -> Iterator[tuple[str, int, int, str]]:
    """Yield path and value of each number that sizes a job, the job's own number, and the key of `trainer` for it."""
    recipe, devices = recipe_of(checked, Recipe), checked.devices
    trainer, nodes = recipe.training_config.trainer, recipe.trainer.num_nodes
    yield (f"{_TRAINING}.trainer.nnodes", trainer.nnodes, nodes, "num_nodes")
    yield (f"{_TRAINING}.trainer.n_gpus_per_node", trainer.n_gpus_per_node, devices, "devices")
    if cluster := recipe.ray_cluster:
        workers = cluster.worker_nodes
        yield ("recipes.ray_cluster.worker_nodes.replicas", workers.replicas, nodes, "num_nodes")
        if workers.gpu is not None:
            yield ("recipes.ray_cluster.worker_nodes.gpu", int(workers.gpu), devices, "devices")


@rule("E280", _SIZE, f"{_TRAINING}.trainer", "recipes.ray_cluster", "instance_type", source=_RAY_TRAINER)
def one_number_sizes_the_job(checked: CheckedRecipe, problem: MakeProblem) -> Iterator[Problem]:
    """verl waits for GPUs that no worker has, or leaves workers idle, if its numbers are not those of the job."""
    for path, value, of_job, key in _sizes(checked):
        if value != of_job:
            is_own = checked.is_explicit(path)
            remedy = f"recipes.trainer.{key}={value if is_own else of_job}, which it follows"
            yield problem(
                path, f"differs from recipes.trainer.{key}", value=value, allowed=f"{of_job}", remedy=remedy
            )


@rule("E282", _BATCH, _MINI_BATCH, source=_RAY_TRAINER)
def a_batch_has_its_mini_batches(checked: CheckedRecipe, problem: MakeProblem) -> Iterator[Problem]:
    """The answers of a round of generation are trained in one or more optimizer steps."""
    if (roles := _roles(checked)) is None:
        return
    batch, mini = recipe_of(checked, Recipe).training_config.data.train_batch_size, roles.actor.ppo_mini_batch_size
    if mini > batch:
        message = f"a step takes {mini} prompts, but a round has {batch}"
        remedy = _fitting(checked, roles)[_MINI_BATCH]
        yield problem(_MINI_BATCH, message, value=mini, allowed=f"1 to {batch}", remedy=remedy)


@rule("E283", _SIZE, _BATCH, _MINI_BATCH, f"{_ROLLOUT}.n", "instance_type", source=_RAY_TRAINER)
def answers_divide_among_gpus(checked: CheckedRecipe, problem: MakeProblem) -> Iterator[Problem]:
    """Each GPU trains the same number of answers, in a round of generation and in an optimizer step."""
    if (roles := _roles(checked)) is None:
        return
    n, remedies = roles.rollout.n, _fitting(checked, roles)
    batch = recipe_of(checked, Recipe).training_config.data.train_batch_size
    for path, prompts in ((_BATCH, batch), (_MINI_BATCH, roles.actor.ppo_mini_batch_size)):
        if prompts * n % checked.ranks:
            message = f"{prompts}·{n} answers do not divide among {_gpus(checked)}"
            allowed = " or ".join(map(str, _multiples(prompts, _step(checked, roles, path))))
            yield problem(path, message, value=prompts, allowed=allowed, remedy=remedies[path])


def _step(checked: CheckedRecipe, roles: ActorRolloutRef, path: str) -> int:
    """Return the number that the prompts of a round, or of an optimizer step, are a multiple of."""
    unit, n = checked.ranks, roles.rollout.n
    if path == _MINI_BATCH:
        unit = math.lcm(unit, _data_parallel_size(checked) * (_fixed_pass(checked) or 1))
    return unit // math.gcd(unit, n)


def _fitting(checked: CheckedRecipe, roles: ActorRolloutRef) -> dict[str, str]:
    """Return overrides for the prompts of a round and of an optimizer step: typed together, they hold both rules."""
    given = recipe_of(checked, Recipe).training_config.data.train_batch_size
    batch_step, mini_step = (_step(checked, roles, path) for path in (_BATCH, _MINI_BATCH))
    batch = math.ceil(given / batch_step) * batch_step
    mini = math.ceil(roles.actor.ppo_mini_batch_size / mini_step) * mini_step
    if mini > batch:
        mini = max(batch // mini_step, 1) * mini_step
        batch = max(batch, math.ceil(mini / batch_step) * batch_step)
    of_batch, of_mini = f"{_BATCH}={batch}", f"{_MINI_BATCH}={mini}"
    return {_BATCH: of_batch, _MINI_BATCH: f"{of_batch} {of_mini}" if mini > given else of_mini}


@rule(
    "E284",
    *(_SIZE, _ACTOR, f"{_ROLLOUT}.n", "instance_type"),
    source="verl, workers/fsdp_workers.py and workers/megatron_workers.py, ActorRolloutRefWorker",
)
def micro_batches_divide_a_share(checked: CheckedRecipe, problem: MakeProblem) -> Iterator[Problem]:
    """A GPU takes its share of a step in passes of a fixed number of answers; on FSDP with a token budget, too."""
    if (roles := _roles(checked)) is None or not (micro := _fixed_pass(checked)):
        return
    groups, answers = _data_parallel_size(checked), roles.actor.ppo_mini_batch_size * roles.rollout.n
    if answers % groups == 0 and (share := answers // groups) % micro:
        path = f"{_ACTOR}.ppo_micro_batch_size_per_gpu"
        message = f"a GPU's share of {share} answers does not divide into passes of {micro}"
        fitting = largest_micro_batch(share, min(micro, _MOST_IN_A_PASS))
        yield problem(path, message, value=micro, allowed=divisors(share, most=_MOST), remedy=f"{path}={fitting}")


def _fixed_pass(checked: CheckedRecipe) -> int | None:
    """Return the number of answers in a pass that a GPU's share must divide into; None if it need not."""
    if (roles := _roles(checked)) is None or (roles.actor.strategy == "megatron" and roles.actor.use_dynamic_bsz):
        return None
    return roles.actor.ppo_micro_batch_size_per_gpu


def _data_parallel_size(checked: CheckedRecipe) -> int:
    """Return the number of groups of GPUs that each train samples of their own."""
    keys = ("ulysses_sequence_parallel_size", *_MEGATRON_GROUPS)
    return max(1, checked.ranks // _product(recipe_of(checked, Recipe).parallelism, keys))


_MEGATRON_GROUPS = ("tensor_model_parallel_size", "pipeline_model_parallel_size", "context_parallel_size")
_EXPERT_GROUPS = ("expert_model_parallel_size", "expert_tensor_parallel_size", "pipeline_model_parallel_size")


def _groups(checked: CheckedRecipe) -> Iterator[tuple[str, int, str]]:
    """Yield the groups into which all GPUs are divided: the key that a user would change, their size and meaning."""
    roles, parallelism = _roles(checked), recipe_of(checked, Recipe).parallelism
    if roles:
        path = f"{_ROLLOUT}.tensor_model_parallel_size"
        yield (path, roles.rollout.tensor_model_parallel_size, "an inference engine")
    if parallelism is None:
        return
    engine = "megatron" if roles and roles.actor.strategy == "megatron" else "fsdp_config"
    section = f"{_ACTOR}.{engine}" if roles else _ENGINE
    if parallelism.tensor_model_parallel_size:
        yield (f"{section}.tensor_model_parallel_size", _product(parallelism, _MEGATRON_GROUPS), "a model")
        if parallelism.expert_tensor_parallel_size is None:
            parallelism = parallelism.model_copy(
                update={"expert_tensor_parallel_size": parallelism.tensor_model_parallel_size}
            )
        experts = _product(parallelism, _EXPERT_GROUPS)
        yield (f"{section}.expert_model_parallel_size", experts, "a model's experts")
        return
    if (size := parallelism.fsdp_size or -1) > 0:
        yield (f"{section}.fsdp_size", size, "a copy of the model")
    if size := parallelism.ulysses_sequence_parallel_size or 0:
        owner = _ACTOR if roles else _ENGINE
        yield (f"{owner}.ulysses_sequence_parallel_size", size, "a sequence")


def _product(parallelism: Parallelism | None, keys: Iterable[str]) -> int:
    """Return the product of some numbers of GPUs, 1 for those that a recipe leaves out."""
    return math.prod((parallelism and getattr(parallelism, key)) or 1 for key in keys)


@rule("E285", _SIZE, _ROLES, _ENGINE, "instance_type", source=f"{_RAY_TRAINER}; {_MEGATRON}; PyTorch, DeviceMesh")
def gpus_divide_into_groups(checked: CheckedRecipe, problem: MakeProblem) -> Iterator[Problem]:
    """Inference engines, copies of a model and shared sequences have the same number of GPUs each."""
    ranks = checked.ranks
    for path, size, meaning in _groups(checked):
        if ranks % size:
            message = f"{_gpus(checked)} do not divide into groups of {size} for {meaning}"
            value = get(checked.recipe_tree, path.removeprefix("recipes."))
            yield problem(path, message, value=value, allowed=f"groups of {divisors(ranks, most=_MOST)}")


@rule("E286", _ROLLOUT, _DATA, source="verl, workers/rollout/vllm_rollout: max_model_len, prompt_length")
def answers_fit_the_engine(checked: CheckedRecipe, problem: MakeProblem) -> Iterator[Problem]:
    """The inference engine keeps room for the longest prompt and its longest answer."""
    if (roles := _roles(checked)) is None:
        return
    rollout, data = roles.rollout, recipe_of(checked, Recipe).training_config.data
    longest = rollout.prompt_length + rollout.response_length
    if rollout.max_model_len and rollout.max_model_len < longest:
        path = f"{_ROLLOUT}.max_model_len"
        message = f"prompts of {rollout.prompt_length} and answers of {rollout.response_length} tokens are longer"
        allowed = f"at least {longest}, or null"
        yield problem(path, message, value=rollout.max_model_len, allowed=allowed, remedy=f"{path}={longest}")
    if data.max_prompt_length and data.max_prompt_length > rollout.prompt_length:
        path = f"{_ROLLOUT}.prompt_length"
        message = f"data.max_prompt_length lets prompts of {data.max_prompt_length} tokens pass"
        allowed = f"at least {data.max_prompt_length}"
        remedy = f"{_DATA}.max_prompt_length={rollout.prompt_length}"
        yield problem(path, message, value=rollout.prompt_length, allowed=allowed, remedy=remedy)


@rule("E287", _ROLLOUT, source="verl before 0.7, workers/rollout/vllm_rollout, vLLMRollout")
def an_answer_fits_a_step(checked: CheckedRecipe, problem: MakeProblem) -> Iterator[Problem]:
    """verl before 0.7 refuses chunked prefill whose steps are shorter than the longest answer with its prompt."""
    if (roles := _roles(checked)) is None or roles.rollout.mode != "sync" or not roles.rollout.enable_chunked_prefill:
        return
    rollout = roles.rollout
    longest = rollout.max_model_len or rollout.prompt_length + rollout.response_length
    if rollout.max_num_batched_tokens < longest:
        path, value = f"{_ROLLOUT}.max_num_batched_tokens", rollout.max_num_batched_tokens
        message = f"is less than {longest} tokens of the longest prompt and answer"
        remedy = f"{path}={longest}, or {_ROLLOUT}.enable_chunked_prefill=false"
        yield problem(path, message, value=value, allowed=f"at least {longest}", remedy=remedy)


def _budgets(checked: CheckedRecipe) -> Iterator[tuple[str, int]]:
    """Yield path and value of the token budgets of forward passes that are filled by tokens."""
    training = recipe_of(checked, Recipe).training_config
    if (roles := training.actor_rollout_ref) is None:
        if training.data.use_dynamic_bsz and training.data.max_token_len_per_gpu:
            yield (f"{_DATA}.max_token_len_per_gpu", training.data.max_token_len_per_gpu)
        return
    if roles.actor.use_dynamic_bsz:
        yield (f"{_ACTOR}.ppo_max_token_len_per_gpu", roles.actor.ppo_max_token_len_per_gpu)
    for section, role in ((_ROLLOUT, roles.rollout), (_REF, roles.ref)):
        if role.log_prob_use_dynamic_bsz:
            yield (f"{section}.log_prob_max_token_len_per_gpu", role.log_prob_max_token_len_per_gpu)


@rule("E288", _ROLES, _DATA, _ENGINE, source="verl, utils/seqlen_balancing.py, rearrange_micro_batches")
def a_pass_holds_the_longest_sample(checked: CheckedRecipe, problem: MakeProblem) -> Iterator[Problem]:
    """A sample is not divided among passes, only among GPUs that share its sequence."""
    recipe = recipe_of(checked, Recipe)
    data, roles, parallelism = recipe.training_config.data, _roles(checked), recipe.parallelism
    longest = roles.rollout.prompt_length + roles.rollout.response_length if roles else data.max_length or 0
    sharing = _product(parallelism, ("ulysses_sequence_parallel_size", "context_parallel_size"))
    for path, tokens in _budgets(checked):
        if tokens * sharing < longest:
            least = -(-longest // sharing)
            among = f" among {sharing} GPUs" if sharing > 1 else ""
            message = f"a pass does not hold the longest sample, {longest} tokens{among}"
            yield problem(path, message, value=tokens, allowed=f"at least {least}", remedy=f"{path}={least}")


@rule("E289", _ROLES, _ENGINE, f"{_TRAINING}.model", source="verl 0.7, workers/config/model.py, HFModelConfig.lora")
def megatron_has_its_own_adapters(checked: CheckedRecipe, problem: MakeProblem) -> Iterator[Problem]:
    """Megatron trains the adapters of model.lora, and all weights without them, whatever lora_rank is."""
    recipe, roles = recipe_of(checked, Recipe), _roles(checked)
    source, parallelism = recipe.source, recipe.parallelism
    if source is None or parallelism is None or not parallelism.tensor_model_parallel_size:
        return
    own = source.lora.rank if source.lora else None
    if source.lora_rank and not own:
        model = f"{_ROLES}.model" if roles else f"{_TRAINING}.model"
        message = "Megatron does not read it, and would train all weights"
        remedy = f"{model}.lora.rank={source.lora_rank} {model}.lora_rank=0"
        yield problem(f"{model}.lora_rank", message, value=source.lora_rank, allowed="0", remedy=remedy)


@rule("E290", _SIZE, _DATA, _ENGINE, "instance_type", source=_SFT_TRAINER)
def samples_divide_among_gpus(checked: CheckedRecipe, problem: MakeProblem) -> Iterator[Problem]:
    """The trainer rounds a share of samples down, so that a step would be smaller than the recipe's."""
    if _roles(checked):
        return
    data, groups = recipe_of(checked, Recipe).training_config.data, _data_parallel_size(checked)
    share, rest = divmod(data.train_batch_size, groups)
    if rest:
        fitting = _multiples(data.train_batch_size, groups)
        sharing = checked.ranks // groups
        message = f"does not divide among {groups} groups of {sharing} of {_gpus(checked)}"
        allowed = " or ".join(map(str, fitting))
        remedy = f"{_BATCH}={fitting[-1]}"
        yield problem(_BATCH, message, value=data.train_batch_size, allowed=allowed, remedy=remedy)
    elif data.use_dynamic_bsz is False and (micro := data.micro_batch_size_per_gpu) and share % micro:
        path = f"{_DATA}.micro_batch_size_per_gpu"
        message = f"a GPU's share of {share} samples does not divide into passes of {micro}"
        allowed, remedy = divisors(share, most=_MOST), f"{_DATA}.use_dynamic_bsz=true"
        yield problem(path, message, value=micro, allowed=allowed, remedy=remedy)


_SECTIONS = ("model", "engine", "optim", "checkpoint")


@rule("E291", _TRAINING, source="verl, trainer/config/sft_trainer_engine.yaml")
def a_training_has_its_sections(checked: CheckedRecipe, problem: MakeProblem) -> Iterator[Problem]:
    """SFT and DPO read a model, an engine, an optimizer and the contents of checkpoints."""
    if _roles(checked):
        return
    for name in _SECTIONS:
        if getattr(recipe_of(checked, Recipe).training_config, name) is None:
            path = f"{_TRAINING}.{name}"
            remedy = f"leave {path} as the recipe has it"
            yield problem(path, "is missing, and SFT and DPO read it", value=None, remedy=remedy)


@notice_rule("N181", source="the published parameters of verl's recipes")
def values_are_published(planned: PlannedRecipe, notice: MakeNotice) -> Iterator[Notice]:
    """verl takes other values than the published parameters offer and the recipes have; they are untested here."""
    training = planned.checked.recipe_tree["training_config"]
    for key, offered in _OFFERED.items():
        value = get(training, key)
        if isinstance(value, int) and value not in offered:
            span = isinstance(offered, range)
            listed = f"{offered[0]} to {offered[-1]}" if span else ", ".join(map(str, offered))
            yield notice(f"{key} is {value}; the published parameters offer {listed}")
    for key, name in _SHARED.items():
        if (value := get(training, key)) not in (None, name):
            yield notice(f"{key} is {value}; the published recipes have {name}")


@notice_rule("N182", source="verl, trainer/config/rollout: response_length")
def answers_stop_early(planned: PlannedRecipe, notice: MakeNotice) -> Iterator[Notice]:
    """Generation stops at the rollout's length, whatever the data allows."""
    checked = planned.checked
    allowed = recipe_of(checked, Recipe).training_config.data.max_response_length
    roles = _roles(checked)
    if roles and allowed and roles.rollout.response_length < allowed:
        length = roles.rollout.response_length
        yield notice(f"answers end after rollout.response_length={length} tokens; data.max_response_length={allowed}")
