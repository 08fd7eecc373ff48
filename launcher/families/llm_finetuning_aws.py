"""Fine-tuning with the LLMFT training image.

Source: key names and types as the published LLMFT recipes have them.
"""

from typing import Any, Literal

from pydantic import Field

from launcher.families import Interface
from launcher.recipe import BatchArgs, Model, NonNegativeInt, PositiveInt, RecipeBase, TrainingBase
from launcher.scales import get
from launcher.specs import JobSpec


class GenerationCfg(Model):
    """How the model answers when it is evaluated."""

    do_sample: bool
    max_new_tokens: PositiveInt
    num_parallel_jobs: NonNegativeInt
    num_return_sequences: PositiveInt
    temperature: float
    tensor_parallel_size: PositiveInt | None = None
    top_p: float


class PeftConfig(Model):
    """Adapters in place of full fine-tuning."""

    peft_type: Literal["lora"]
    task_type: str
    r: PositiveInt
    lora_alpha: PositiveInt
    lora_dropout: float
    bias: Literal["none", "all", "lora_only"]
    target_modules: str | list[str]
    target_parameters: list[str] | None = None
    exclude_modules: list[str] | None = None
    use_dora: bool


class ModelConfig(Model):
    """The model and how it is loaded."""

    apply_chat_template: bool | None = None
    attn_implementation: str
    chat_template_key: str | None = None
    device_map: str | None
    generation_cfg: GenerationCfg
    lora_checkpoint_file_path: str | None
    model_name_or_path: str
    model_save_name: str
    multimodal: bool
    peft_config: PeftConfig | None


class Data(Model):
    """One data set; `limit` in samples."""

    name: str
    file_path: str
    limit: NonNegativeInt | None


class Datasets(Model):
    """Training and validation data, and how samples are made of them."""

    data_dir: str | None = None
    preprocessor_cfgs: list[dict[str, Any]]
    save_intermediate_processing_steps: bool
    train_data: Data
    val_data: Data
    train_val_split_ratio: float
    train_val_split_seed: int


class FsdpConfig(Model):
    """PyTorch FSDP, in its own words."""

    activation_checkpointing: bool | None = None
    auto_wrap_policy: str
    backward_prefetch: str | None
    cpu_offload: bool
    cpu_ram_efficient_loading: bool
    forward_prefetch: bool
    sharding_strategy: str
    state_dict_type: str
    sync_module_states: bool
    use_orig_params: bool


class Strategy(Model):
    """How weights and states are spread over ranks."""

    fsdp_config: FsdpConfig


class TrainingArgs(BatchArgs):
    """Optimizer, lengths, checkpoints and logging. Lengths in tokens, batch sizes in samples."""

    trainer_type: Literal["sft", "dpo"]
    strategy: Strategy
    adam_betas: list[float]
    aux_loss_coef: float
    disable_ds_ckpt: bool
    disable_fast_tokenizer: bool
    eval_steps: int
    grad_accum_dtype: str | None
    gradient_checkpointing: bool
    gradient_checkpointing_use_reentrant: bool
    gradient_clipping: bool
    gradient_clipping_threshold: float
    l2: float
    load_checkpoint: bool
    log_gpu_memory: bool | None = None
    log_run_time: bool | None = None
    logging_steps: PositiveInt
    lr_scheduler: str
    lr_warmup_ratio: float
    max_ckpt_mem: float
    max_ckpt_num: PositiveInt
    max_epochs: PositiveInt
    max_len: PositiveInt
    max_norm: float
    max_samples: float
    merge_weights: bool | None = None
    packing_samples: bool
    pretrain_mode: bool
    resume_checkpoint_path: str
    ring_head_stride: PositiveInt
    save_hf_ckpt: bool
    save_steps: int
    seed: int
    trainer_callbacks: list[dict[str, Any]]
    ulysses_sequence_parallel_size: PositiveInt | None = None
    use_tensorboard: str | None
    use_wandb: str | None
    weight_decay: float
    # preference optimisation (trainer_type: dpo)
    M: int | None = None
    beta: float | None = None
    label_smoothing: float | None = None
    loss_type: str | None = None
    nll_loss_coef: float | None = None
    ref_offload: bool | None = None
    reference_free: bool | None = None
    sampling_method: str | None = None


class TrainingConfig(TrainingBase):
    """`training_config` as the image reads it."""

    model_settings: ModelConfig = Field(alias="model_config")
    datasets: Datasets
    training_args: TrainingArgs


class Recipe(RecipeBase):
    """An LLMFT recipe."""

    training_config: TrainingConfig


_MODULE = "amzn_awsllm_fine_tuning.train_hp"
_COMMAND = ("/bin/bash", "-c", "/opt/bin/scripts/train-script-gpu.sh 2>&1 | tee /data/training.log")
_CONFIG_MOUNT = "/config"


def _image_env(job: JobSpec) -> dict[str, str]:
    """Return what the published LLMFT image reads.

    Source: the variables of that image's start script.
    """
    git = job.config["git"]
    script_args = f"--config-path={_CONFIG_MOUNT}" + ("" if job.elastic else " --config-name=config.yaml")
    env = {
        "GIT_REPO_URL": _repository(git),
        "GIT_BRANCH": git["branch"] or "",
        "GIT_COMMIT": git["commit"] or "",
        "GIT_UPDATE_ADAPTER": "true" if git["update_adapter"] else "",
        "NODES": str(job.initial_nodes),
        "NTASKS_PER_NODE": str(job.nproc_per_node),
        "SCRIPT_PATH": git["entry_script"] or git["entry_module"] or _MODULE,
        "SCRIPT_ARGS": script_args,
        "PRE_SCRIPT_COMMANDS": ";".join(get(job.config, "recipes.pre_script") or ()),
        "POST_SCRIPT_COMMANDS": ";".join(get(job.config, "recipes.post_script") or ()),
        "USE_HYPERPODRUN": "true",
        "INSTANCE_TYPE": job.resources.instance_type or "",
    }
    if not getattr(job.settings, "queue_name", None):  # a Kueue queue names the job itself
        env["JOB_NAME"] = job.name
    return env


def _repository(git: dict[str, Any]) -> str:
    """Return the repository's address; a token is expanded by Kubernetes from the variable before it."""
    url = git["repo_url_or_path"] or ""
    if git["token"] and url.startswith("https://"):
        return url.replace("https://", "https://oauth2:$(GIT_TOKEN)@", 1)
    return url


INTERFACE = Interface(program=("-m", _MODULE), image_command=lambda job: _COMMAND, image_env=_image_env)
