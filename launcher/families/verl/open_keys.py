"""What the open trainer does with every key of verl's SFT and DPO recipes.

Source: the keys of the published recipes; verl 0.7, trainer/config; docs/open-trainer.md.
"""

from typing import Any

from launcher.families.verl.sections import Parallelism
from launcher.families.verl.translation import sharding
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

_LAUNCHER = "read by the launcher"
_SPEED = "it changes speed or memory only, and the open trainer has no such option"
_LABEL = "a label of verl's logs"
_IMAGE = "no module or class that a recipe names is imported"
_PRECISION = "trained weights, gradients and optimizer state have 32 bits; GPUs compute in bf16"
_PREFERENCE_FORMS = ("sigmoid", "hinge", "ipo")


def _is_listed(value: Any, _: Recipe) -> bool:
    return isinstance(value, list) and len(value) > 1


_ONE_FILE = refused("more than one", _is_listed, "the open trainer reads one file, or a folder of files", "a folder")


def _further(*known: str) -> Any:
    """Return the condition of sections with keys beside the known ones."""
    return lambda value, _: bool(set(value or {}) - set(known))


def _has_other_groups(value: Any, recipe: Recipe) -> bool:
    engine = Parallelism(fsdp_size=value) if isinstance(value, int) else Parallelism()
    return sharding(recipe.config, engine) is None


def _is_no_truth(value: Any, _: Recipe) -> bool:
    return value not in (None, True, False)


_JOB = (
    *LAUNCHER_KEYS,
    *(done(name, _LAUNCHER) for name in ("images", "scale_config")),
    ignored("extra_keys", "the keys that it declares are read by nothing"),
    ignored("ray_cluster", "the job runs without a Ray cluster"),
    ignored("run.results_dir", "results are in default_local_dir, or in the job's run folder"),
    done("training_config.mlflow", "the job's MLflow run"),
)

_DATA = section(
    "training_config.data",
    ignored("_target_", _IMAGE),
    done(
        "apply_chat_template_kwargs",
        "enable_thinking goes to the chat template",
        refused(
            "with other keys", _further("enable_thinking"), "the chat template is given enable_thinking only", "{}"
        ),
    ),
    done(
        "apply_chat_template_kwargs.enable_thinking",
        "goes to the chat template",
        refused("neither true nor false", _is_no_truth, "the chat template is given true or false", "null"),
    ),
    done("assistant_turns", "last trains the last answer of a conversation only; all, or null: every answer"),
    done("chosen_key", "DPO: column of the better answers"),
    done(
        "custom_cls.path",
        "the launcher's own reader of samples",
        refused("any", is_true, _IMAGE, "null"),
    ),
    ignored("custom_cls.name", _IMAGE),
    ignored("dataloader_num_workers", _SPEED),
    ignored("ignore_input_ids_mismatch", "the chat is tokenized at once, so no turn can differ"),
    done(
        "max_length",
        "tokens kept of a sample",
        refused("null", lambda value, _: value is None, "the open trainer cuts samples at a length", "4096"),
    ),
    done(
        "max_lost_share",
        "part of the samples or turns that may be dropped, cut or left unmarked, 0 to 1; null: 0.1. More is an error",
    ),
    ignored("max_prompt_length", "is for GRPO"),
    ignored("max_response_length", "is for GRPO"),
    done(
        "max_token_len_per_gpu",
        "with use_dynamic_bsz, as many of the longest samples as it holds are a forward pass of a rank",
    ),
    done("messages_key", "column of the conversations", only("conversations are in this column", "messages", None)),
    done("micro_batch_size_per_gpu", "without use_dynamic_bsz, samples in a forward pass of a rank"),
    ignored("pad_mode", "rows are padded to the longest of a pass, which changes no loss"),
    done("prompt_key", "DPO: column of the prompts"),
    done("rejected_key", "DPO: column of the worse answers"),
    ignored("remove_invalid_samples", "an invalid sample is an error before training", False, None),
    done("seed", "of the split and of sample order, of weights too"),
    done("shuffle", "samples are shuffled", only("samples are always shuffled", True, None)),
    done("train_batch_size", "samples of an optimizer step over all ranks"),
    done("train_files", "JSONL, parquet or a Hugging Face folder; a training job's channel if empty", _ONE_FILE),
    done("train_max_samples", "samples that are read"),
    done("train_val_split_ratio", "part of the samples to train on, where val_files names none"),
    done(
        "truncation",
        "the end at which a longer sample is cut; of a preference pair, left cuts the prompt",
        only("longer samples are cut, at one of their ends", "right", "left", None),
    ),
    done("use_dynamic_bsz", "whether max_token_len_per_gpu or micro_batch_size_per_gpu determines a forward pass"),
    ignored("use_shm", _SPEED),
    done("val_files", "as train_files; if empty, a part of the training samples", _ONE_FILE),
    done("val_max_samples", "samples that are read"),
)

_MODEL = section(
    "training_config.model",
    ignored("_target_", _IMAGE),
    done(
        "custom_chat_template",
        "the tokenizer's own chat template is used",
        refused("any", is_true, "the open trainer takes the tokenizer's own chat template", "null"),
    ),
    ignored("enable_activation_offload", _SPEED, False, None),
    done("enable_gradient_checkpointing", "activations of each block are recomputed"),
    done("exclude_modules", "modules without an adapter"),
    done("external_lib", "no further code", refused("any", is_true, _IMAGE, "null")),
    ignored("fused_kernel_options", _SPEED),
    done(
        "hf_config_path",
        "the configuration is that of the model",
        refused("any", is_true, "the model's own config.json is used", "null"),
    ),
    done("lora", "none under FSDP", refused("any", is_true, "these are Megatron's adapters; set lora_rank", "null")),
    done("lora_adapter_path", "adapters to start from"),
    done("lora_alpha", "strength of the adapters"),
    done(
        "lora_dropout",
        "dropout in front of each adapter; null: none",
        dropout_beside("training_config.model.target_parameters"),
    ),
    done("lora_rank", "rank of the adapters; 0 trains all weights"),
    done(
        "override_config",
        "attn_implementation is taken where the device can compute it, else sdpa, of gpt_oss eager",
        refused(
            "with other keys",
            _further("attn_implementation"),
            "the model keeps its own config.json apart from it",
            "{}",
        ),
    ),
    done("override_config.attn_implementation", "a preference; null: flash_attention_2"),
    done("path", "a model's folder, or its name on the Hub; a rehearsal takes its architecture"),
    done("target_modules", "layers with an adapter"),
    done("target_parameters", "parameters outside linear layers with an adapter, such as experts"),
    ignored("tiled_mlp", _SPEED),
    done(
        "tokenizer_path",
        "the tokenizer is that of the model",
        refused("any", is_true, "the tokenizer in the model's folder is used", "null"),
    ),
    ignored("trust_remote_code", "no code of a model is run"),
    ignored("use_fused_kernels", _SPEED),
    ignored("use_liger", _SPEED),
    ignored("use_remove_padding", "rows are padded to the longest of a pass, which changes no loss"),
    ignored("use_shm", _SPEED),
)

_ENGINE = section(
    "training_config.engine",
    ignored("_target_", _IMAGE),
    ignored("dtype", _PRECISION, "bfloat16", "bf16", None),
    ignored("entropy_checkpointing", "no entropy is computed"),
    ignored("entropy_from_logits_with_chunking", "no entropy is computed"),
    done("forward_only", "training needs gradients", only("the open trainer trains", False, None)),
    done("forward_prefetch", "true gathers the next block during the forward pass"),
    done(
        "fsdp_size",
        "GPUs that share one copy of the model: all, those of a node, or one",
        refused(
            "any other", _has_other_groups, "the open trainer shards over all GPUs, those of a node, or none", "-1"
        ),
    ),
    ignored("full_determinism", "operations are those of PyTorch's default", False, None),
    done(
        "model_dtype",
        _PRECISION,
        noticed("other than null, fp32", not_in(None, "fp32", "float32"), _PRECISION),
    ),
    done("offload_policy", "true keeps parameters and optimizer state in main memory"),
    done("optimizer_offload", "as offload_policy"),
    done("param_offload", "as offload_policy"),
    done("reshard_after_forward", "false keeps gathered blocks until the backward pass"),
    done("seed", "of weights, sample order and dropout, where data.seed gives none"),
    done("strategy", "FSDP2", only("the open trainer shards by FSDP", "fsdp2", "fsdp", None)),
    done(
        "ulysses_sequence_parallel_size",
        "a sample stays on one rank",
        refused("above 1", is_above_one, "a sample stays on one rank", "1"),
    ),
    ignored("use_orig_params", "always so with this sharding"),
    ignored("use_torch_compile", _SPEED),
    ignored("wrap_policy", "each transformer block is sharded as one unit"),
)

_OPTIMIZER = section(
    "training_config.optim",
    ignored("_target_", _IMAGE),
    done("betas", "AdamW"),
    done("clip_grad", "norm of all gradients together; 0 or null: none"),
    done("lr", "highest learning rate"),
    done("lr_scheduler_type", "cosine, or constant after the warmup"),
    done("lr_warmup_steps", "steps over which the learning rate rises; 0 or less: lr_warmup_steps_ratio"),
    done("lr_warmup_steps_ratio", "part of all samples over which the learning rate rises"),
    done("min_lr_ratio", "end of the cosine as a part of lr"),
    done("num_cycles", "the cosine falls once", only("the cosine falls once", 0.5, None)),
    done("optimizer", "AdamW", only("the open trainer has this optimizer", "AdamW", None)),
    done("optimizer_impl", "PyTorch's", only("the open trainer has this implementation", "torch.optim", None)),
    done(
        "override_optimizer_config",
        "no further arguments",
        refused("any", is_true, "the optimizer has no further arguments", "null"),
    ),
    done(
        "total_training_steps",
        "the number of samples and epochs determine the steps",
        only("the steps are those of all epochs", -1, None),
    ),
    ignored("warmup_style", "an earlier name of lr_scheduler_type", None),
    done("weight_decay", "AdamW, not of norms and biases"),
)

_TRAINER = (
    *section(
        "training_config.trainer",
        done("beta", "DPO: pull towards the reference"),
        done(
            "default_hdfs_dir",
            "no copy on HDFS",
            refused("any", is_true, "the open trainer writes to no HDFS", "null"),
        ),
        done(
            "default_local_dir",
            "folder of checkpoints and results; /opt/ml/model: the results of a training job, elsewhere the job's "
            "run folder",
        ),
        ignored("device", "the device is that of the machine"),
        ignored("experiment_name", _LABEL),
        done(
            "label_smoothing",
            "DPO: part of the pairs assumed to be the wrong way round",
            noticed(
                "above 0, and a loss_type other than sigmoid",
                lambda value, recipe: value and recipe.value("training_config.trainer.loss_type") != "sigmoid",
                "the losses ipo and hinge have no label smoothing",
            ),
        ),
        ignored("logger", "metrics go to the console, to MLflow and to metrics.jsonl"),
        done(
            "loss_type",
            "DPO: form of the loss",
            only("the open trainer has the losses sigmoid, hinge and ipo", *_PREFERENCE_FORMS, None),
        ),
        done("max_ckpt_to_keep", "checkpoints kept; null: all"),
        done("merge_lora_on_final_save", "true also writes the model with its adapters merged"),
        *(done(name, _LAUNCHER) for name in ("n_gpus_per_node", "nnodes")),
        ignored("profile_interval", "the open trainer has no profiler"),
        ignored("project_name", _LABEL),
        done("reference_free", "DPO: compare with a uniform reference"),
        done("resume_from_path", "checkpoint of the open trainer that a new job starts from"),
        done("resume_mode", "auto resumes from default_local_dir, resume_path from resume_from_path"),
        done("save_freq", "steps between two checkpoints; 0 or less: at the end only"),
        done("test_freq", "steps between two evaluations; 0 or less: at the end only"),
        done("total_epochs", "passes over the samples"),
        done(
            "total_training_steps",
            "the number of samples and epochs determine the steps",
            only("the steps are those of all epochs", None),
        ),
        ignored("training_mode", "the samples determine it", "auto", None),
    ),
    *section(
        "training_config.checkpoint",
        ignored("_target_", _IMAGE),
        ignored("load_contents", "a job resumes with all of its training state"),
        done("save_contents", "with optimizer, the training state is kept; hf_model writes the model at the end"),
        ignored("save_only_adapter_if_lora", "checkpoints hold trained parameters", True),
    ),
    ignored("training_config.profiler", "the open trainer has no profiler"),
    callbacks("training_config.trainer_callbacks", _IMAGE),
)

TABLE = KeyTable(
    {
        "Job": _JOB,
        "Data": _DATA,
        "Model": _MODEL,
        "Engine": _ENGINE,
        "Optimizer": _OPTIMIZER,
        "Trainer and checkpoints": _TRAINER,
    }
)
