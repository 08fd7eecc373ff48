"""What the open trainer does with every key of an LLMFT recipe, its own layout: data that checks and pages read.

A key has an effect (DONE), none (NOTICED: a launch reports it where the value would have had one), or values that are
refused. Imports neither torch nor transformers.

Source: the keys of the published recipes; docs/open-trainer.md.
"""

from pathlib import PurePosixPath
from typing import Any

from launcher.runtime.finetune.data.errors import DataError
from launcher.runtime.finetune.data.settings import chain_of
from launcher.runtime.finetune.key_terms import (
    LAUNCHER_KEYS,
    KeyTable,
    Recipe,
    callbacks,
    done,
    dropout_beside,
    ignored,
    is_above_one,
    is_true,
    not_in,
    noticed,
    only,
    refused,
    section,
)
from launcher.runtime.finetune.schedules import NAMES as SCHEDULES
from launcher.runtime.finetune.settings import LOSSES
from launcher.runtime.model_configs import is_on_hub

ARGS, MODEL, DATA = (f"training_config.{name}" for name in ("training_args", "model_config", "datasets"))
STEPS = f"{DATA}.preprocessor_cfgs"
_FSDP, _LORA = "strategy.fsdp_config", "peft_config"

_LOGGED_BY_MLFLOW = "metrics go to MLflow and to metrics.jsonl"
_OF_SHARDING = "always so with this sharding"
_CLIPPING = "gradient_clipping_threshold decides"
_ACCUMULATION = "gradients are accumulated in 32 bits"
_ONE_RANK = "a sample stays on one rank"
_ONLY_ONE = refused("above 1", is_above_one, _ONE_RANK, "1")
_FILES_OF_IMAGE = "it is a file of the published image, and the tokenizer's own chat template is used"


def _leads_elsewhere(value: Any, _: Recipe) -> bool:
    """Return whether a path leads out of the folder that it is in."""
    path = PurePosixPath(str(value or ""))
    return path.is_absolute() or ".." in path.parts


def _chain_fault(value: Any, recipe: Recipe) -> str | None:
    """Return what is wrong with the preprocessing steps; None if nothing is."""
    try:
        chain_of(value or (), recipe.value(f"{ARGS}.trainer_type"))
    except DataError as error:
        return str(error)
    return None


def _has_revision_of_folder(value: Any, recipe: Recipe) -> bool:
    """Return whether a revision is given for a model that is not named as on the Hub."""
    model = str(recipe.value(f"{MODEL}.model_name_or_path") or "")
    return bool(value and model) and not is_on_hub(model)


def _template_of_image(value: Any, recipe: Recipe) -> bool:
    """Return whether a chat template is named that only the published image has."""
    names = [value, *(step.get("chat_template_name") for step in recipe.value(STEPS) or ())]
    return any(name and "/" not in name for name in names)


def _differs_from_threshold(value: Any, recipe: Recipe) -> bool:
    """Return whether a norm is not the one that gradients are clipped at."""
    clips = recipe.value(f"{ARGS}.gradient_clipping")
    return bool(clips) and bool(value != recipe.value(f"{ARGS}.gradient_clipping_threshold"))


def _differs_from_weight_decay(value: Any, recipe: Recipe) -> bool:
    """Return whether both names of weight decay are given, with different values."""
    decay = recipe.value(f"{ARGS}.weight_decay")
    return bool(value and decay and value != decay)


def _is_dpo(recipe: Recipe) -> bool:
    """Return whether the technique is preference optimization."""
    return bool(recipe.value(f"{ARGS}.trainer_type") == "dpo")


_JOB = (
    *LAUNCHER_KEYS,
    done("scale_config", "each size is a configuration of its own"),
    ignored(
        "extra_keys",
        "the keys that it declares are read by nothing",
        condition=noticed("any", is_true, "the open trainer reads no further keys"),
    ),
    ignored("run.results_dir", "results are in training_dir, or in the job's run folder"),
)

_DATA = (
    done(
        STEPS,
        "the steps of the published chains: form of the samples, chat template, masks, filters",
        refused(
            "an unknown step or argument, or a step of the other technique",
            _chain_fault,
            "the open trainer has the steps of the published recipes",
        ),
    ),
    done(f"{DATA}.assistant_turns", "last trains the last answer of a conversation only; all, or null: every answer"),
    done(
        f"{DATA}.max_lost_share",
        "part of the samples or turns that may be dropped, cut or left unmarked, 0 to 1; null: 0.1. More is an error",
    ),
    done(f"{DATA}.data_dir", "folder of prepared samples; null: in the job's run folder"),
    done(f"{DATA}.save_intermediate_processing_steps", "true writes the first samples as JSON beside the arrays"),
    ignored(f"{DATA}.train_data.name", "a label of the image's logs"),
    done(
        f"{DATA}.train_data.file_path", "JSONL, parquet or a Hugging Face folder; a training job's channel if empty"
    ),
    done(f"{DATA}.train_data.limit", "samples that are read"),
    ignored(f"{DATA}.val_data.name", "a label of the image's logs"),
    done(f"{DATA}.val_data.file_path", "as of train_data; if empty, a part of the training samples"),
    done(f"{DATA}.val_data.limit", "samples that are read"),
    done(f"{DATA}.train_val_split_ratio", "part of the samples to train on, where val_data has none"),
    done(f"{DATA}.train_val_split_seed", "seed of that split"),
    ignored("training_config.force_rerun", "prepared samples are used again only if nothing of them has changed"),
    done("training_config.mlflow", "the job's MLflow run"),
)

_MODEL = section(
    MODEL,
    ignored("apply_chat_template", "the preprocessing steps apply the template", False, None),
    done(
        "attn_implementation",
        "taken where the device can compute it, else the kernel that runs on any device: sdpa, of gpt_oss eager",
    ),
    done(
        "chat_template_key",
        "a path of a chat template; null: the tokenizer's own",
        noticed("a bare name, here or in chat_template_name", _template_of_image, _FILES_OF_IMAGE),
    ),
    ignored("device_map", "the sharding places the layers", None),
    ignored("generation_cfg", "training generates no text"),
    done("lora_checkpoint_file_path", "adapters to start from"),
    done("model_name_or_path", "a model's folder, or its name on the Hub; a rehearsal takes its architecture"),
    done(
        "model_revision",
        "branch, tag or commit of a model on the Hub; the job records the commit, and keeps it through restarts",
        refused(
            "any, with a path as model_name_or_path",
            _has_revision_of_folder,
            "a folder has no revisions",
            "leave it out, or give a model's name on the Hub",
        ),
    ),
    done(
        "model_save_name",
        "folder of the results, below the folder for results; empty: the recipe's name",
        refused(
            "a path that leads elsewhere",
            _leads_elsewhere,
            "results are written below the folder for results only",
            "a relative path without ..",
        ),
    ),
    done(
        "multimodal",
        "the language model is trained",
        refused("true", is_true, "layers for images would get adapters and no gradients", "false"),
    ),
    done(_LORA, "adapters by PEFT; null trains all weights"),
    done(f"{_LORA}.bias", "no bias is trained", only("biases are not part of the saved adapters", "none")),
    done(f"{_LORA}.exclude_modules", "modules without an adapter"),
    done(f"{_LORA}.lora_alpha", "strength of the adapters"),
    done(
        f"{_LORA}.lora_dropout",
        "dropout in front of each adapter",
        dropout_beside(f"{MODEL}.{_LORA}.target_parameters"),
    ),
    done(f"{_LORA}.peft_type", "lora"),
    done(f"{_LORA}.r", "rank of the adapters"),
    done(f"{_LORA}.target_modules", "layers with an adapter"),
    done(f"{_LORA}.target_parameters", "parameters outside linear layers with an adapter, such as experts"),
    done(f"{_LORA}.task_type", "a language model", only("only language models are trained", "CAUSAL_LM")),
    done(
        f"{_LORA}.use_dora",
        "plain LoRA",
        refused("true", is_true, "DoRA is not implemented with sharded weights", "false"),
    ),
)

_TRAINING = section(
    ARGS,
    ignored("M", "a sampling number of the image's trainer", 1, None),
    done("adam_betas", "AdamW"),
    done("aux_loss_coef", "above 0: the load-balancing loss of experts; it depends slightly on the number of ranks"),
    done("beta", "DPO: pull towards the reference"),
    done(
        "disable_ds_ckpt",
        "true: no checkpoints of the training state",
        refused(
            "true in an elastic job",
            lambda value, recipe: value and recipe.is_elastic,
            "an elastic job resumes from checkpoints of the training state",
            "false",
        ),
    ),
    ignored("disable_fast_tokenizer", "tokenizers are of one kind, the fast one", False),
    done("eval_steps", "steps between two evaluations; 0: at the end, -1: once an epoch"),
    done(
        "grad_accum_dtype",
        _ACCUMULATION,
        noticed("other than null, fp32", not_in(None, "fp32", "float32"), _ACCUMULATION),
    ),
    done("gradient_checkpointing", "activations of each block are recomputed"),
    ignored("gradient_checkpointing_use_reentrant", "the form that is not reentrant is used", False),
    done("gradient_clipping", "whether gradients are clipped"),
    done("gradient_clipping_threshold", "norm of all gradients together"),
    done(
        "l2",
        "weight decay where weight_decay is 0",
        refused(
            "other than weight_decay, both above 0",
            _differs_from_weight_decay,
            "two names of weight decay have different values",
            "0.0",
        ),
    ),
    done(
        "label_smoothing",
        "DPO: part of the pairs assumed to be the wrong way round",
        noticed(
            "above 0, and a loss_type other than sigmoid",
            lambda value, recipe: value and _is_dpo(recipe) and recipe.value(f"{ARGS}.loss_type") in LOSSES[1:],
            "the losses ipo and hinge have no label smoothing",
        ),
    ),
    done("learning_rate", "highest learning rate"),
    done("load_checkpoint", "true resumes from a checkpoint in training_dir"),
    done("log_gpu_memory", "true adds device memory to the metrics"),
    done("log_run_time", "true adds the time of each phase to the metrics"),
    done("logging_steps", "steps between two printed lines; the metrics have every step"),
    done(
        "loss_type",
        "DPO: form of the loss",
        refused(
            "other than sigmoid, ipo, hinge",
            lambda value, recipe: _is_dpo(recipe) and value not in (None, *LOSSES),
            "the open trainer has the losses sigmoid, ipo and hinge",
            "sigmoid",
        ),
    ),
    done("lr_min_ratio", "end of a falling schedule, as a part of learning_rate"),
    done(
        "lr_scheduler",
        "shape of the learning rate, a function of the samples done",
        refused(
            "reduce_lr_on_plateau",
            not_in(*SCHEDULES),
            "its learning rate depends on evaluations, which a resized job does not repeat",
            "cosine",
        ),
    ),
    done("lr_warmup_ratio", "part of all samples over which the learning rate rises"),
    done("lr_warmup_steps", "steps over which the learning rate rises, in place of lr_warmup_ratio"),
    done("max_ckpt_mem", "the oldest checkpoints are removed while there are more gigabytes"),
    done("max_ckpt_num", "checkpoints kept"),
    done("max_epochs", "passes over the samples"),
    done("max_len", "tokens kept of a sample"),
    ignored(
        "max_norm",
        _CLIPPING,
        condition=noticed("other than gradient_clipping_threshold", _differs_from_threshold, _CLIPPING),
    ),
    done("max_samples", "samples that are read"),
    done(
        "max_skipped_steps",
        "steps in a row that may be skipped since their loss or gradients are not finite, 3 by default; one more "
        "ends the job, and its ranks exit with code 65",
    ),
    done("merge_weights", "true also writes the model with its adapters merged"),
    done("micro_train_batch_size", "samples in a forward pass of a rank"),
    done("nll_loss_coef", "DPO: weight of the likelihood of the chosen answers"),
    done("override_training_dir", "whether a new job may use a folder that holds a checkpoint"),
    done(
        "packing_samples", "samples of a micro batch in one row, kept apart by their positions, of gpt_oss by masks"
    ),
    done("pretrain_mode", "true trains every token"),
    ignored(
        "ref_offload", "the reference is the model without adapters, or is computed before training", False, None
    ),
    done("reference_free", "DPO: compare with a uniform reference"),
    done("resume_checkpoint_path", "checkpoint that a new job starts from"),
    done("ring_attn_size", _ONE_RANK, _ONLY_ONE),
    ignored("ring_head_stride", "the open trainer has no ring attention", 1),
    ignored("sampling_method", "a choice of the image's trainer", "mc", None),
    done("save_hf_ckpt", "true writes a checkpoint in the Hugging Face format at the end"),
    done("save_steps", "steps between two checkpoints; 0: once an epoch, -1: at the end only"),
    done("seed", "of weights, sample order and dropout"),
    done(f"{_FSDP}.activation_checkpointing", "the same as gradient_checkpointing, never both"),
    done(
        f"{_FSDP}.auto_wrap_policy",
        "each transformer block is sharded as one unit",
        only("only transformer blocks are units of sharding", "TRANSFORMER_BASED_WRAP"),
    ),
    done(
        f"{_FSDP}.backward_prefetch",
        "the next block is gathered during the backward pass of the one before",
        noticed(
            "other than BACKWARD_PRE", not_in("BACKWARD_PRE"), "blocks are always gathered ahead in the backward pass"
        ),
    ),
    done(f"{_FSDP}.cpu_offload", "true keeps parameters and optimizer state in main memory"),
    ignored(f"{_FSDP}.cpu_ram_efficient_loading", _OF_SHARDING, True),
    done(f"{_FSDP}.forward_prefetch", "true gathers the next block during the forward pass"),
    done(
        f"{_FSDP}.sharding_strategy",
        "FULL_SHARD, HYBRID_SHARD, SHARD_GRAD_OP by FSDP2; NO_SHARD by DDP",
    ),
    done(
        f"{_FSDP}.state_dict_type",
        "the training state is always sharded; FULL_STATE_DICT also writes a Hugging Face checkpoint at the end",
        only("the open trainer has no such form of checkpoint", "SHARDED_STATE_DICT", "FULL_STATE_DICT"),
    ),
    ignored(f"{_FSDP}.sync_module_states", _OF_SHARDING, True),
    ignored(f"{_FSDP}.use_orig_params", _OF_SHARDING, True),
    done("train_batch_size", "samples of an optimizer step over all ranks"),
    callbacks("trainer_callbacks", "no class that a recipe names is imported"),
    done("trainer_type", "sft or dpo"),
    done("truncation", "the end at which a longer sample is cut; of a preference pair, left cuts the prompt"),
    done("training_dir", "folder of checkpoints and results; empty: in the job's run folder"),
    done("ulysses_sequence_parallel_size", _ONE_RANK, _ONLY_ONE),
    done("uneven_batch", "shares of ranks that are not equal, cut by the micro batch"),
    ignored("use_tensorboard", _LOGGED_BY_MLFLOW, "logs", None),
    ignored("use_wandb", _LOGGED_BY_MLFLOW),
    done("weight_decay", "AdamW, not of norms and biases"),
)

TABLE = KeyTable({"Job": _JOB, "Data": _DATA, "Model": _MODEL, "Training": _TRAINING})
