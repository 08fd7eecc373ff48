"""The keys of an LLMFT recipe.

Source: key names and types as the published LLMFT recipes have them.
"""

import re
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, Field

from launcher.model.base_model import BatchSize, Interval, LayerNames, Model, NonNegativeInt, PositiveInt, Seed
from launcher.model.checkpointing import Content, Sharding
from launcher.model.composition import RUN_NAME, ValueSources
from launcher.model.config_tree import get
from launcher.model.recipe import named_model
from launcher.model.recipe_keys import Lora, RecipeKeys
from launcher.model.training_args import ARGS, BATCH_KEYS, BatchArgs, TrainingRecipe, TrainingSection
from launcher.runtime.model_configs import beginning, is_on_hub, known

# fmt: off
Scheduler = Literal[
    "linear", "cosine", "cosine_with_restarts", "polynomial", "constant", "constant_with_warmup", "inverse_sqrt",
    "reduce_lr_on_plateau", "cosine_with_min_lr", "cosine_warmup_with_min_lr", "warmup_stable_decay",
]
# fmt: on
"""Schedules of the learning rate. Source: transformers, SchedulerType."""
_ATTENTION = ("eager", "sdpa", "flash_attention_2", "flash_attention_3", "flex_attention")
"""Attention kernels by name. Source: transformers, Attention Interface."""


def _attention(name: str) -> str:
    if name not in _ATTENTION and not re.fullmatch(r"[\w.-]+/[\w.@:-]+", name):
        raise ValueError(f"should be {', '.join(_ATTENTION)}, or a kernel of the Hugging Face Hub as org/name")
    return name


_NonNegative = Annotated[float, Field(ge=0)]


class GenerationCfg(Model):
    """How the model answers when it is evaluated."""

    do_sample: bool
    """true draws each token at random by temperature and top_p; false always takes the likeliest."""
    max_new_tokens: PositiveInt
    """Longest answer, in tokens."""
    num_parallel_jobs: NonNegativeInt
    """Concurrent generation jobs; the published recipes use 0 to 2."""
    num_return_sequences: PositiveInt
    """Answers per prompt."""
    temperature: _NonNegative
    """Spread of the sampling: towards 0 only the likeliest tokens, 1 the model's own distribution."""
    tensor_parallel_size: PositiveInt | None = None
    """Devices that share the model while it answers. Raise it if the model does not fit on one."""
    top_p: Annotated[float, Field(gt=0, le=1)]
    """Sample from the smallest set of tokens whose probabilities add up to this, above 0 and at most 1."""


class PeftConfig(Model):
    """Adapters in place of full fine-tuning."""

    peft_type: Literal["lora"]
    """Kind of adapter; the image knows lora."""
    task_type: str
    """PEFT's name of the task: CAUSAL_LM for a language model."""
    r: PositiveInt
    """Rank of the adapters. Higher learns more, and needs more memory for states and larger adapter files."""
    lora_alpha: PositiveInt
    """Strength of the adapters: their output is scaled by lora_alpha ÷ r. Change it along with r."""
    lora_dropout: Annotated[float, Field(ge=0, le=1)]
    """Dropout in front of each adapter, 0 to 1; against overfitting on little data."""
    bias: Literal["none", "all", "lora_only"]
    """Bias terms that are trained as well: none, all, or those beside an adapter."""
    target_modules: LayerNames
    """Layers that get an adapter: all-linear, a list of module names, or a regular expression of complete names."""
    target_parameters: list[str] | None = None
    """Parameters that get an adapter although no linear layer holds them, such as the experts of a mixture-of-experts
    model."""
    exclude_modules: LayerNames | None = None
    """Module names that target_modules would match and that get no adapter, such as routers; or a regular expression.
    """
    use_dora: bool
    """true also learns each weight's magnitude (DoRA): often better at low rank, and slower."""


class ModelConfig(Model):
    """The model and how it is loaded."""

    apply_chat_template: bool | None = None
    """Whether the image formats messages by the model's chat template while loading. The published recipes leave it
    false: their preprocessors do it."""
    attn_implementation: Annotated[str, AfterValidator(_attention)]
    """Attention kernel, by transformers' name: sdpa runs everywhere, others need their package and a GPU that
    supports it."""
    chat_template_key: str | None = None
    """The image's name of a chat template; null takes the tokenizer's own."""
    device_map: str | None
    """transformers' placement of layers on devices. null: FSDP places them."""
    generation_cfg: GenerationCfg
    """How the model answers when it is evaluated."""
    lora_checkpoint_file_path: str | None
    """Adapters to start from, as the container sees them; null starts from fresh ones."""
    model_name_or_path: str
    """Hugging Face id, or a folder as the container sees it. A gated id needs run.hf_access_token."""
    model_revision: str | None = None
    """Branch, tag or commit of the Hugging Face id; null for its default branch. Needs the open trainer."""
    model_save_name: str
    """Name under which the trained model is saved."""
    multimodal: bool
    """true loads a model with image inputs."""
    peft_config: PeftConfig | None
    """Adapters in place of full fine-tuning; null trains all weights."""


class Data(Model):
    """One data set; `limit` in samples."""

    name: str
    """Name of the data set in the image's logs."""
    file_path: str
    """File or folder of samples, as the container sees it. Empty: the container's own default applies, with a notice.
    """
    limit: NonNegativeInt | None
    """Use only so many samples; null for all. A small number makes a trial run."""


class Datasets(Model):
    """Training and validation data, and how samples are made of them."""

    assistant_turns: Literal["all", "last"] | None = None
    """Open trainer only. Answers of a conversation that are trained: all, also if null, or the last one."""
    data_dir: str | None = None
    """Folder for processed data, as the container sees it; null leaves the choice to the image."""
    max_lost_share: Annotated[float, Field(ge=0, le=1)] | None = None
    """Open trainer only. Part of the samples, or of the assistant's turns if that is more, that a job may lose:
    dropped, cut, or not marked by the template. More is an error. null allows 0.1, 1 everything."""
    preprocessor_cfgs: list[dict[str, Any]]
    """Steps from raw to tokenized samples, in order: `type` names the image's preprocessor, the other keys are its
    arguments. Follows the technique and the model's chat format."""
    save_intermediate_processing_steps: bool
    """true keeps what each preprocessor made, for finding out where a sample goes wrong. Takes disk space."""
    train_data: Data
    """Samples to train on."""
    val_data: Data
    """Samples to validate on. Without a file, train_val_split_ratio takes a part of the training data."""
    train_val_split_ratio: Annotated[float, Field(gt=0, le=1)]
    """Fraction of the samples used for training if val_data is not given, above 0 and at most 1."""
    train_val_split_seed: Seed
    """Seed of that split. Keep it, or a resumed run trains on what it validated on."""


class FsdpConfig(Model):
    """PyTorch FSDP, with its own names."""

    activation_checkpointing: bool | None = None
    """FSDP's recomputation of activations in the backward pass: less memory, more time. The published recipes set it
    with CPU offload."""
    auto_wrap_policy: str
    """Modules that are sharded as one unit: TRANSFORMER_BASED_WRAP takes each transformer block."""
    backward_prefetch: str | None
    """When the next block is gathered in the backward pass: BACKWARD_PRE overlaps most and needs most memory,
    BACKWARD_POST less, null not at all."""
    cpu_offload: bool
    """true keeps parameters and gradients in main memory between uses. For models that do not fit; far slower."""
    cpu_ram_efficient_loading: bool
    """true has one rank of a node read the weights and the others receive them, so that main memory holds one copy.
    Needs sync_module_states."""
    forward_prefetch: bool
    """true gathers the next block during the forward pass. Helps models limited by the CPU."""
    sharding_strategy: Literal["FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD", "HYBRID_SHARD", "_HYBRID_SHARD_ZERO2"]
    """FULL_SHARD spreads states over all ranks: least memory, traffic between nodes. HYBRID_SHARD spreads them within
    a node and replicates across nodes: faster where one node can hold them."""
    state_dict_type: str
    """Form of checkpoints: SHARDED_STATE_DICT is written by all ranks, FULL_STATE_DICT gathered on one, which must
    have the memory."""
    sync_module_states: bool
    """true sends rank 0's weights to the others at the start. Needed with cpu_ram_efficient_loading."""
    use_orig_params: bool
    """true keeps the model's own parameters visible. Needed where only some are trained, as with LoRA."""


class Strategy(Model):
    """How weights and states are spread over ranks."""

    fsdp_config: FsdpConfig
    """How PyTorch FSDP shards weights and states."""


class TrainingArgs(BatchArgs):
    """Optimizer, lengths, checkpoints and logging. Lengths in tokens, batch sizes in samples."""

    trainer_type: Literal["sft", "dpo"]
    """Technique: sft, supervised fine-tuning, or dpo, direct preference optimisation. It goes with the form of the
    data."""
    strategy: Strategy
    """How weights and states are spread over ranks."""
    adam_betas: Annotated[list[Annotated[float, Field(ge=0, lt=1)]], Field(min_length=2, max_length=2)]
    """Adam's two decay rates of the running means, of gradients and of their squares."""
    aux_loss_coef: float
    """Weight of the load-balancing loss of a mixture-of-experts model; 0 turns it off."""
    disable_ds_ckpt: bool
    """true skips the checkpoints of the training state, so that nothing can be resumed; only weights are saved. Not
    for elastic jobs."""
    disable_fast_tokenizer: bool
    """true takes the tokenizer written in Python. For models without a fast one."""
    eval_steps: Interval
    """Optimizer steps between two evaluations. The published recipes use 0 (SFT) and -1 (DPO), which leave it to the
    image."""
    grad_accum_dtype: str | None
    """Number format in which gradients are accumulated, such as fp32; null for the image's choice."""
    gradient_checkpointing: bool
    """true recomputes activations in the backward pass: far less memory, about a third more time. false when memory
    is plentiful."""
    gradient_checkpointing_use_reentrant: bool
    """PyTorch's older way to recompute. Leave false; the published recipes with CPU offload set it."""
    gradient_clipping: bool
    """Whether gradients are clipped at gradient_clipping_threshold."""
    gradient_clipping_threshold: _NonNegative
    """Norm at which gradients are clipped. Lower it when the loss jumps."""
    l2: _NonNegative
    """Weight decay under the name in trainers of this lineage. Use weight_decay; leave this at 0."""
    load_checkpoint: bool
    """true resumes from a checkpoint in training_dir. An elastic job needs it; false trains from the start after
    every restart."""
    log_gpu_memory: bool | None = None
    """true adds device memory to the logs. For finding the largest micro batch."""
    log_run_time: bool | None = None
    """true adds the time of each phase to the logs."""
    logging_steps: PositiveInt
    """Optimizer steps between two logged values."""
    lr_min_ratio: Annotated[float, Field(ge=0, le=1)] | None = None
    """Open trainer only. End of a falling schedule as a part of learning_rate, 0 to 1. null: 0, and 0.1 of schedules
    with a minimum."""
    lr_scheduler: Scheduler
    """Schedule of the learning rate after warm-up, by its transformers name."""
    lr_warmup_ratio: Annotated[float, Field(ge=0, le=1)]
    """Fraction of all optimizer steps over which the learning rate rises to its peak, 0 to 1."""
    lr_warmup_steps: NonNegativeInt | None = None
    """Open trainer only. Optimizer steps over which the learning rate rises, in place of lr_warmup_ratio; null: the
    ratio."""
    max_ckpt_mem: float
    """Maximum disk space for checkpoints, in GB; the oldest are removed. 1e8 means no bound."""
    max_ckpt_num: PositiveInt
    """Checkpoints kept; the oldest are removed."""
    max_epochs: PositiveInt
    """Passes over the training data."""
    max_len: PositiveInt
    """Longest sample in tokens; longer ones are cut. Memory grows with it: lower the micro batch when you raise it.
    """
    max_norm: float
    """Norm at which the optimizer clips gradients; 0 or less turns it off in trainers of this lineage."""
    max_samples: float
    """Use at most so many samples of the training data. 1e8 means all."""
    max_skipped_steps: NonNegativeInt | None = None
    """Open trainer only. Steps in a row that may be skipped since their loss or gradients are not finite; one more
    ends the job. null: 3."""
    merge_weights: bool | None = None
    """true saves the model with the adapters merged into it, ready to serve; false only the adapters."""
    packing_samples: bool
    """true packs several short samples into one sequence of max_len: faster on short ones. Needs an attention kernel
    that keeps them apart."""
    pretrain_mode: bool
    """true takes the loss over every token, as in pre-training; false over the answers only."""
    resume_checkpoint_path: str
    """A checkpoint to resume from, other than training_dir's newest. Leave empty for an elastic job."""
    ring_head_stride: PositiveInt
    """Attention heads that ring attention handles at a time, a divisor of their number. More is faster and takes more
    memory; no effect with ring_attn_size 1."""
    save_hf_ckpt: bool
    """true also saves each checkpoint in the Hugging Face format, ready to load elsewhere. Takes time and disk space.
    """
    save_steps: Interval
    """Optimizer steps between two checkpoints; 0: once per epoch. A fault loses unsaved work; a graceful scale
    event saves first."""
    seed: Seed
    """Seed of sample order and dropout."""
    trainer_callbacks: list[dict[str, Any]]
    """Callbacks of the image, in Hydra's form: `_target_` names the class, the other keys are its arguments. The
    published one meters usage."""
    truncation: Literal["right", "left"] | None = None
    """Open trainer only. The end at which a sample longer than max_len is cut; left cuts the prompt of a preference
    pair. null: right."""
    ulysses_sequence_parallel_size: BatchSize | None = None
    """Ranks that share a sample's sequence by attention heads. It multiplies with ring_attn_size: both leave fewer
    ranks to deal samples to. The published recipes use 1."""
    use_tensorboard: str | None
    """Folder of TensorBoard's logs; null writes none."""
    use_wandb: str | None
    """null logs nothing to Weights & Biases. An API key does not belong here: it would be written into the bundle.
    Give WANDB_API_KEY by env_vars."""
    weight_decay: _NonNegative
    """Decoupled weight decay of the optimizer; 0 turns it off."""
    # preference optimisation (trainer_type: dpo)
    M: int | None = None
    """DPO only. A sampling number of the image's trainer; every published recipe has 1."""
    beta: Annotated[float, Field(gt=0)] | None = None
    """DPO only. How closely the model follows the reference: higher stays closer, lower follows the preferences
    further."""
    label_smoothing: float | None = None
    """DPO only. Assumed part of preference pairs that are labelled the wrong way round, 0 to below 0.5."""
    loss_type: str | None = None
    """DPO only. Form of the loss; sigmoid is that of the original paper."""
    nll_loss_coef: float | None = None
    """DPO only. Weight of the likelihood loss on the chosen answers, against both answers becoming unlikely; 0 turns
    it off."""
    ref_offload: bool | None = None
    """DPO only. true keeps the reference model in main memory: less device memory, slower."""
    reference_free: bool | None = None
    """DPO only. true compares with a uniform reference in place of a second model, which saves its memory."""
    sampling_method: str | None = None
    """DPO only. A choice of the image's trainer; every published recipe has mc."""

    @property
    def ranks_per_sample(self) -> int:
        """Ranks that share one sample: by its sequence, and by attention heads."""
        return self.ring_attn_size * (self.ulysses_sequence_parallel_size or 1)


class TrainingConfig(TrainingSection):
    """`training_config` as the image reads it."""

    model_settings: ModelConfig = Field(alias="model_config")
    """The model, its adapters, and how it is loaded."""
    datasets: Datasets
    """Data, and how samples are made of it."""
    training_args: TrainingArgs
    """Optimizer, batch, checkpoints, logging."""


_MODEL = "training_config.model_config.model_name_or_path"
_PEFT = "training_config.model_config.peft_config"
_DATA_FILES = tuple(f"training_config.datasets.{name}.file_path" for name in ("train_data", "val_data"))


class Recipe(TrainingRecipe):
    """An LLMFT recipe."""

    keys: ClassVar[RecipeKeys] = TrainingRecipe.keys._replace(
        batch=BATCH_KEYS._replace(
            sample_groups=(*BATCH_KEYS.sample_groups, f"{ARGS}.ulysses_sequence_parallel_size")
        ),
        left_to_image=(*TrainingRecipe.keys.left_to_image, *_DATA_FILES),
        resumes=f"{ARGS}.load_checkpoint",
    )

    training_config: TrainingConfig

    @classmethod
    def script_kind(cls, recipe: Mapping[str, Any]) -> str:
        """Return whether a recipe names the weights to start from."""
        named = get(recipe, _MODEL)
        return "fine_tuning" if named else "without_weights"

    def published_model(self, sources: ValueSources) -> str:
        """Return the published model that the recipe is of; if it leaves the model open, the one its files name."""
        model = self.training_config.model_settings.model_name_or_path
        return beginning(model) if model else named_model(sources, RUN_NAME)

    def counted_model(self, sources: ValueSources) -> str:
        """Return the published model that has as many weights, whose name a folder of weights hides."""
        model = self.training_config.model_settings.model_name_or_path
        own = self.published_model(sources)
        return own or ("" if model and is_on_hub(model) else named_model(sources, f"recipes.{_MODEL}", RUN_NAME))

    @property
    def lora(self) -> Lora | None:
        """The low-rank adapters that are trained."""
        model = self.training_config.model_settings
        own = model.peft_config
        return Lora(_PEFT, dict(own), model.lora_checkpoint_file_path) if own else None

    def content(self, config: Mapping[str, Any] | None = None, published_model: str = "") -> Content:
        """Return what a checkpoint of the training state holds: all weights, or only the adapters."""
        from launcher.checkpointing import architecture  # few compiles need it

        args = self.training_config.training_args
        config = config or known(published_model)
        weights = architecture.weights(config) if config else ()
        total = sum(weight.parameters for weight in weights)
        saved = architecture.lora_parameters(weights, self.lora.values) if self.lora else total
        return Content(saved, "bfloat16", "adam_fp32_master", _sharding(args.strategy.fsdp_config), total or None)


def _sharding(fsdp: FsdpConfig) -> Sharding:
    """Return how states are sharded. Source: PyTorch, torch.distributed.fsdp.ShardingStrategy and StateDictType."""
    if fsdp.state_dict_type == "FULL_STATE_DICT" or fsdp.sharding_strategy == "NO_SHARD":
        return "ddp"
    return "hsdp" if "HYBRID" in fsdp.sharding_strategy else "fsdp"
