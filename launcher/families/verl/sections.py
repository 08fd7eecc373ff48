"""The sections of verl's recipes, typed as far as the launcher checks them; verl reads `training_config` as it is.

Source of bounds: the published parameters of the recipes (release of 2026-06-22); verl 0.7, trainer/config.
"""

from typing import Annotated, Literal

from pydantic import Field

from launcher.model.base_model import (
    BatchSize,
    DeviceCount,
    LayerNames,
    Model,
    NodeCount,
    NonNegativeInt,
    Passed,
    PositiveInt,
    Seed,
    TextForm,
)
from launcher.model.recipe import Mlflow

Ratio = Annotated[float, Field(ge=0, le=1)]
Rate = Annotated[float, Field(ge=1e-7, le=1e-3)]
WarmupSteps = Annotated[int, Field(ge=-1)]
Text = Annotated[str, Field(min_length=1)]
Schedule = Literal["cosine", "constant"]
Quantity = str | int | None
_LAMBDA = r"^(arn:aws[a-z-]*:lambda:[a-z0-9-]+:\d{12}:function:[\w-]+(:[\w$-]+)?)?$"
"""Source: AWS Lambda, API reference: FunctionArn; empty for no function."""
FunctionArn = Annotated[str, TextForm(pattern=_LAMBDA, words="the ARN of a Lambda function, or empty")]


_DIGITS = r"^\d{1,4}$"
Number = Annotated[str, TextForm(pattern=_DIGITS, words="a number of at most 4 digits")]


class RayNode(Model):
    """Processors and memory of a pod of the Ray cluster, as Kubernetes quantities; GPUs as a number."""

    cpu: Quantity = None
    """Processors that the pod requests."""
    cpuLimit: Quantity = None
    """Processors that it may use at most; null: no limit."""
    memory: Quantity = None
    """Main memory that the pod requests."""
    memoryLimit: Quantity = None
    """Main memory that it may use at most; null: no limit."""
    gpu: NonNegativeInt | Number | None = None
    """GPUs of the pod: none for the head, trainer.devices for a worker."""


class RayWorkers(RayNode):
    """The pods that train and generate, one on each node."""

    replicas: NodeCount
    """Number of workers. Follows trainer.num_nodes; the head has no GPU, so that each node needs its worker."""


class RayCluster(Model):
    """The Ray cluster that a GRPO job runs on."""

    head_node: RayNode | None = None
    """The head, which runs verl's driver. Default: a small share of a node."""
    worker_nodes: RayWorkers
    """The workers."""


class Optimizer(Passed):
    """Learning rate and its schedule. FSDP and Megatron name the schedule's kind and end differently."""

    lr: Rate
    """Peak learning rate, 1e-7 to 1e-3. Of all weights 1e-5 and below, of adapters ten times as much."""
    lr_warmup_steps: WarmupSteps
    """Steps in which the learning rate rises from zero; -1: lr_warmup_steps_ratio determines them."""
    lr_warmup_steps_ratio: Ratio
    """Part of all steps in which the learning rate rises, 0 to 1."""
    weight_decay: Ratio
    """Decoupled weight decay, 0 to 1; 0 turns it off."""
    min_lr_ratio: Ratio | None = None
    """FSDP only. The schedule's end as a part of the peak, 0 to 1."""
    min_lr: Ratio | None = None
    """Megatron only. The schedule's end as a learning rate."""
    lr_scheduler_type: Schedule | None = None
    """FSDP only. Schedule after warm-up: cosine falls, constant stays."""
    lr_decay_style: Schedule | None = None
    """Megatron only. Schedule after warm-up: cosine falls, constant stays."""
    betas: Annotated[list[Annotated[float, Field(ge=0, lt=1)]], Field(min_length=2, max_length=2)] | None = None
    """Adam's two decay rates of the running means, of gradients and of their squares."""
    clip_grad: float | None = None
    """Norm at which gradients are clipped."""


class MegatronLora(Passed):
    """Low-rank adapters as Megatron takes them."""

    rank: NonNegativeInt | None = None
    """Rank of the adapters; 0: all weights are trained."""
    alpha: PositiveInt | None = None
    """Scale of the adapters; rank and alpha together determine how strongly they act."""


class ModelSource(Passed):
    """The model that is trained, and its adapters."""

    path: Text
    """Name on the Hugging Face Hub, or a folder in the container."""
    lora_rank: NonNegativeInt
    """Rank of the adapters under FSDP; 0: all weights are trained. Megatron reads lora.rank."""
    lora_alpha: PositiveInt
    """Scale of the adapters under FSDP. Megatron reads lora.alpha."""
    lora: MegatronLora | None = None
    """Adapters under Megatron, which does not read lora_rank and lora_alpha."""
    target_modules: LayerNames
    """Layers that get adapters under FSDP: all-linear, a regular expression, or names."""
    target_parameters: list[str] | None = None
    """Parameters that get adapters beside those layers: experts that are one parameter."""
    exclude_modules: LayerNames | None = None
    """Layers without adapters that target_modules would match: a regular expression, or names."""
    lora_dropout: Annotated[float, Field(ge=0, lt=1)] | None = None
    """Dropout in front of each adapter, 0 to below 1."""
    lora_adapter_path: str | None = None
    """Adapters to start from, as the container sees them; null starts from fresh ones."""
    enable_gradient_checkpointing: bool | None = None
    """true recomputes activations in the backward pass: far less memory, about a third more time."""


class Checkpoint(Passed):
    """What a checkpoint holds."""

    save_contents: list[str]
    """Any of model, optimizer, extra and hf_model. Training resumes from the first three; hf_model is the model in
    the Hugging Face format."""


class Parallelism(Passed):
    """How a model is divided among GPUs, under FSDP and under Megatron: each reads its own keys."""

    model_dtype: str | None = None
    """FSDP only. Number format of the weights while they are trained, such as bfloat16; null: float32."""
    fsdp_size: int | None = None
    """FSDP only. GPUs that share one copy of the model; -1: all. A divisor of all GPUs."""
    ulysses_sequence_parallel_size: BatchSize | None = None
    """FSDP only. GPUs that share a sample's sequence by attention heads."""
    forward_prefetch: bool | None = None
    """FSDP only. true gathers the next block during the forward pass."""
    reshard_after_forward: bool | None = None
    """FSDP only. false keeps gathered blocks until the backward pass: faster, and takes more memory."""
    offload_policy: bool | None = None
    """FSDP only. true keeps parameters, gradients and optimizer state in main memory between uses."""
    param_offload: bool | None = None
    """true keeps parameters in main memory between steps."""
    optimizer_offload: bool | None = None
    """true keeps the optimizer's state in main memory between steps."""
    seed: Seed | None = None
    """Seed of the training."""
    tensor_model_parallel_size: BatchSize | None = None
    """Megatron only. GPUs that share each layer."""
    pipeline_model_parallel_size: BatchSize | None = None
    """Megatron only. Groups of GPUs that hold consecutive layers."""
    context_parallel_size: BatchSize | None = None
    """Megatron only. GPUs that share a sample's sequence."""
    expert_model_parallel_size: BatchSize | None = None
    """Megatron only. GPUs that share the experts of a layer."""
    expert_tensor_parallel_size: BatchSize | None = None
    """Megatron only. GPUs that share each expert; null: as many as share a layer."""


class Actor(Passed):
    """GRPO: the training of the model."""

    strategy: Literal["fsdp", "fsdp2", "megatron"]
    """The engine. It determines which keys are read."""
    ppo_mini_batch_size: BatchSize
    """Prompts per optimizer step, all GPUs together; at most train_batch_size. Each counts rollout.n answers."""
    ppo_micro_batch_size_per_gpu: BatchSize | None
    """Answers per forward pass on one GPU where use_dynamic_bsz is false; a divisor of a GPU's share."""
    ppo_max_token_len_per_gpu: PositiveInt
    """Tokens per forward pass on one GPU where use_dynamic_bsz is true. It must hold the longest sample; more is
    faster and takes more memory."""
    use_dynamic_bsz: bool
    """true fills each forward pass up to a number of tokens, false takes a number of samples."""
    ulysses_sequence_parallel_size: BatchSize | None = None
    """FSDP only. GPUs that share a sample's sequence by attention heads, for samples that one GPU does not hold."""
    clip_ratio: Annotated[float, Field(ge=0.1, le=1.5)]
    """How far the probability of a token may change in a step before its gradient is cut, 0.1 to 1.5."""
    clip_ratio_low: Annotated[float, Field(ge=0, le=0.5)]
    """The bound on the side of less probable, 0 to 0.5."""
    clip_ratio_high: Annotated[float, Field(ge=0, le=0.5)]
    """The bound on the side of more probable, 0 to 0.5. Larger than clip_ratio_low keeps the answers diverse."""
    use_kl_loss: bool
    """Whether the distance to the reference model is part of the loss."""
    kl_loss_coef: Annotated[float, Field(ge=0, le=0.1)]
    """Weight of that distance, 0 to 0.1."""
    checkpoint: Checkpoint
    """What a checkpoint holds."""
    optim: Optimizer
    """Learning rate and its schedule."""
    fsdp_config: Parallelism | None = None
    """How FSDP divides the model."""
    megatron: Parallelism | None = None
    """How Megatron divides the model."""


class Validation(Passed):
    """How answers are generated for validation."""

    temperature: Annotated[float, Field(ge=0, le=2)]
    """Randomness of the answers, 0 to 2; 0 takes the most probable token."""


class Rollout(Passed):
    """GRPO: the generation of answers by vLLM."""

    n: BatchSize
    """Answers per prompt, which are compared with each other."""
    temperature: Annotated[float, Field(ge=0.01, le=2)]
    """Randomness of the answers, 0.01 to 2."""
    tensor_model_parallel_size: BatchSize
    """GPUs of one inference engine; a divisor of all GPUs. Raise it for a model that one GPU does not hold."""
    prompt_length: PositiveInt
    """Tokens of a prompt at most. Follows data.max_prompt_length."""
    response_length: PositiveInt
    """Tokens of an answer at most: generation stops there."""
    max_model_len: PositiveInt | None = None
    """Tokens of a prompt with its answer at most; null: the sum of both lengths."""
    max_num_batched_tokens: PositiveInt
    """Tokens that vLLM handles in one step."""
    enable_chunked_prefill: bool
    """true lets vLLM divide a long prompt among steps."""
    mode: Literal["sync", "async"]
    """Whether GPUs generate in step with each other. verl 0.7 reads async only."""
    gpu_memory_utilization: Annotated[float, Field(gt=0, le=1)]
    """Part of a GPU's memory that vLLM may take while it generates."""
    log_prob_max_token_len_per_gpu: PositiveInt
    """Tokens per forward pass that computes probabilities of answers. Follows actor.ppo_max_token_len_per_gpu."""
    log_prob_use_dynamic_bsz: bool
    """true fills such a pass up to that number of tokens, false takes a number of samples."""
    val_kwargs: Validation
    """How answers are generated for validation."""


class Reference(Passed):
    """GRPO: the model before training, which the trained one is compared with."""

    log_prob_max_token_len_per_gpu: PositiveInt
    """Tokens per forward pass on one GPU. Follows actor.ppo_max_token_len_per_gpu."""
    log_prob_use_dynamic_bsz: bool
    """true fills such a pass up to that number of tokens, false takes a number of samples."""


class ActorRolloutRef(Passed):
    """GRPO: the model in its three roles."""

    model: ModelSource
    """The model that is trained, and its adapters."""
    actor: Actor
    """Its training."""
    rollout: Rollout
    """Its answers."""
    ref: Reference
    """The model before training."""


class Data(Passed):
    """The prompts or samples, and their lengths."""

    train_files: str | list[str] | None
    """Parquet files to train on, as the container sees them."""
    val_files: str | list[str] | None
    """Parquet files to validate on."""
    train_val_split_ratio: Ratio
    """Part of the data that is trained on where val_files names none, 0 to 1."""
    train_batch_size: BatchSize
    """GRPO: prompts per round of generation; SFT and DPO: samples per optimizer step. All GPUs together."""
    max_prompt_length: PositiveInt | None = None
    """GRPO only. Tokens of a prompt at most; longer ones are filtered."""
    max_response_length: PositiveInt | None = None
    """GRPO only. Tokens of an answer at most."""
    max_length: PositiveInt | None = None
    """SFT and DPO only. Tokens of a sample at most."""
    max_token_len_per_gpu: PositiveInt | None = None
    """SFT and DPO only. Tokens per forward pass on one GPU where use_dynamic_bsz is true; it must hold the longest
    sample."""
    micro_batch_size_per_gpu: BatchSize | None = None
    """SFT and DPO only. Samples per forward pass on one GPU where use_dynamic_bsz is false."""
    truncation: str | None = None
    """The end at which a longer sample is cut, left or right; error stops at one."""
    train_max_samples: int | None = None
    """Samples that are trained on at most; -1: all."""
    val_max_samples: int | None = None
    """Samples that are validated on at most; -1: all."""
    seed: Seed | None = None
    """Seed of the order of samples."""
    assistant_turns: Literal["all", "last"] | None = None
    """Open trainer only. Answers of a conversation that are trained: all, also if null, or the last one."""
    max_lost_share: Ratio | None = None
    """Open trainer only. Part of the samples, or of the assistant's turns if that is more, that a job may lose, 0 to
    1. More is an error. null allows 0.1."""
    prompt_key: str | None = None
    """Column of the prompts."""
    chosen_key: str | None = None
    """DPO only. Column of the better answers."""
    rejected_key: str | None = None
    """DPO only. Column of the worse answers."""
    use_dynamic_bsz: bool | None = None
    """SFT and DPO only. true fills each forward pass up to a number of tokens, false takes a number of samples."""


class Judge(Passed):
    """The large language model that grades answers."""

    model_id: Text
    """The model, as bedrock/ and its id on Amazon Bedrock."""
    llmj_prompt_template_path: Text
    """Template of the judge's prompt, a file of the image."""
    max_workers: PositiveInt
    """Requests at a time."""
    num_retries: NonNegativeInt
    """Times that a failed request is repeated."""
    range: Annotated[list[float], Field(min_length=2, max_length=2)]
    """Lowest and highest grade."""


class RewardArguments(Passed):  # type: ignore[no-redef]  # the plugin's own __init__ has **kwargs
    """Arguments of the reward's function."""

    judge: Judge = Field(alias="kwargs")
    """The judge."""


class RewardModel(Passed):
    """GRPO: how answers are graded by a model."""

    reward_kwargs: RewardArguments | None = None
    """The judge, for rewards from a large language model."""


class RewardFunction(Passed):
    """GRPO: how answers are graded by a function."""

    name: str | None
    """A function of the image (gsm8k, prime_code, prime_math) or of the file at path; empty: by the data's source."""
    path: str | None
    """Python file of a function of your own, in the container."""
    lambda_arn: FunctionArn | None = None
    """ARN of a Lambda function that grades; empty: none."""


class TrainerSection(Passed):
    """Size, length and folders of the training."""

    nnodes: NodeCount
    """Nodes that train. Follows trainer.num_nodes."""
    n_gpus_per_node: DeviceCount
    """GPUs of a node. Follows trainer.devices."""
    total_epochs: Annotated[int, Field(ge=1, le=100)]
    """Passes over the data, 1 to 100."""
    save_freq: int | Literal["after_each_epoch"]
    """Optimizer steps between two checkpoints; -1: none. SFT and DPO also know after_each_epoch."""
    test_freq: int | Literal["after_each_epoch"]
    """Optimizer steps between two validations; -1: none. SFT and DPO also know after_each_epoch."""
    resume_mode: Literal["disable", "auto", "resume_path"]
    """auto resumes from the newest checkpoint in default_local_dir, resume_path from resume_from_path, disable never.
    """
    resume_from_path: str | None
    """Checkpoint to resume from with resume_mode: resume_path."""
    default_local_dir: Text
    """Folder of checkpoints and of the final weights, as the container sees it."""
    max_ckpt_to_keep: PositiveInt | None = None
    """SFT and DPO only. Checkpoints kept; the oldest are removed. null: all."""
    merge_lora_on_final_save: bool | None = None
    """SFT and DPO only. true saves the model with the adapters merged into it at the end."""
    beta: Annotated[float, Field(ge=0.001, le=1)] | None = None
    """DPO only. How closely the model follows the reference, 0.001 to 1: higher stays closer."""
    loss_type: Literal["sigmoid", "hinge", "ipo", "kto_pair"] | None = None
    """DPO only. Form of the loss; sigmoid is that of the original paper."""
    label_smoothing: Annotated[float, Field(ge=0, lt=0.5)] | None = None
    """DPO only. Assumed part of pairs that are labelled the wrong way round, 0 to below 0.5."""
    reference_free: bool | None = None
    """DPO only. true compares with a uniform reference in place of a second model, which saves its memory."""


class TrainingConfig(Passed):
    """verl's complete configuration; each technique reads its own sections."""

    actor_rollout_ref: ActorRolloutRef | None = None
    """GRPO only. The model in its three roles: trained, generating, and as it was before."""
    model: ModelSource | None = None
    """SFT and DPO only. The model that is trained, and its adapters."""
    engine: Parallelism | None = None
    """SFT and DPO only. How the model is divided among GPUs."""
    optim: Optimizer | None = None
    """SFT and DPO only. Learning rate and its schedule."""
    checkpoint: Checkpoint | None = None
    """SFT and DPO only. What a checkpoint holds."""
    data: Data
    """The prompts or samples, and their lengths."""
    reward_model: RewardModel | None = None
    """GRPO only. How answers are graded by a model."""
    custom_reward_function: RewardFunction | None = None
    """GRPO only. How answers are graded by a function."""
    trainer: TrainerSection
    """Size, length and folders of the training."""
    mlflow: Mlflow
    """The job's MLflow run."""
