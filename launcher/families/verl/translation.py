"""SFT and DPO recipes as the open trainer reads them: the value of each of its keys, from verl's.

Source of verl's meanings: verl 0.7, trainer/sft_trainer.py, workers/engine/fsdp and utils/torch_functional.py.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

from launcher.common.names import FINE_TUNING
from launcher.families.verl.sections import (
    Checkpoint,
    Data,
    ModelSource,
    Optimizer,
    Parallelism,
    TrainerSection,
    TrainingConfig,
)
from launcher.model.config_tree import get

Section = dict[str, Any]

_OF_JOB = "/opt/ml/model"
"""The published default_local_dir: the folder of a training job's results, which other clusters do not have."""
_ALL = 10**8
"""More samples and gigabytes than any job has."""


class _Sections(NamedTuple):
    """The sections of an SFT or DPO recipe."""

    model: ModelSource
    engine: Parallelism
    optim: Optimizer
    checkpoint: Checkpoint
    data: Data
    trainer: TrainerSection

    @classmethod
    def of(cls, recipe: Mapping[str, Any]) -> "_Sections":
        """Return the typed sections of a recipe. Raises ValueError if one is missing, or a value is not valid."""
        training = TrainingConfig.model_validate(recipe["training_config"])
        found = (training.model, training.engine, training.optim, training.checkpoint)
        model, engine, optim, checkpoint = found
        if model is None or engine is None or optim is None or checkpoint is None:
            raise ValueError("model, engine, optim or checkpoint is missing")
        return cls(model, engine, optim, checkpoint, training.data, training.trainer)

    @property
    def is_dpo(self) -> bool:
        """Whether the technique is preference optimization."""
        return self.trainer.beta is not None

    @property
    def seed(self) -> int:
        """Of weights, sample order and dropout."""
        return next((seed for seed in (self.data.seed, self.engine.seed) if seed is not None), 0)


def trained(recipe: Mapping[str, Any]) -> Section:
    """Return the open trainer's configuration of a recipe that has no Problem."""
    training = _Sections.of(recipe)
    arguments = {
        **_batch(recipe, training.data),
        **_optimizer(training.optim),
        **_saving(training),
        **_memory(recipe, training),
        **_preference(training),
        "seed": training.seed,
    }
    return {
        **{key: value for key, value in recipe.items() if key != "training_config"},
        "run": {**recipe["run"], "model_type": FINE_TUNING},
        "training_config": {
            "model_config": _model(recipe, training.model),
            "datasets": _datasets(recipe, training),
            "training_args": arguments,
            "force_rerun": False,
            "mlflow": recipe["training_config"]["mlflow"],
        },
    }


def _model(recipe: Mapping[str, Any], source: ModelSource) -> Section:
    attention = get(recipe, "training_config.model.override_config.attn_implementation")
    return {
        "model_name_or_path": source.path,
        "model_save_name": "",
        "attn_implementation": attention or "flash_attention_2",
        "lora_checkpoint_file_path": source.lora_adapter_path,
        "device_map": None,
        "multimodal": False,
        "peft_config": _peft(source) if source.lora_rank else None,
    }


def _peft(source: ModelSource) -> Section:
    return {
        "peft_type": "lora",
        "task_type": "CAUSAL_LM",
        "r": source.lora_rank,
        "lora_alpha": source.lora_alpha,
        "lora_dropout": source.lora_dropout or 0.0,
        "bias": "none",
        "target_modules": source.target_modules,
        "target_parameters": source.target_parameters,
        "exclude_modules": source.exclude_modules,
        "use_dora": False,
    }


def _datasets(recipe: Mapping[str, Any], training: _Sections) -> Section:
    data = training.data
    thinking = get(recipe, "training_config.data.apply_chat_template_kwargs.enable_thinking")
    variables = {} if thinking is None else {"enable_thinking": thinking}
    columns = {"chosen": data.chosen_key or "chosen", "rejected": data.rejected_key or "rejected"}
    of_pairs: list[Section] = [
        {"type": "TrainingPOSampleConverter", "prompt_key": data.prompt_key or "prompt", "key_map": columns},
        {"type": "ApplyChatTemplate", **variables},
        {"type": "TokenizeSampleDPO"},
    ]
    of_chats = [{"type": "TrainingSFTSampleConverter"}, {"type": "Seq2SeqTokensProcessor", **variables}]
    return {
        "preprocessor_cfgs": of_pairs if training.is_dpo else of_chats,
        "save_intermediate_processing_steps": False,
        "assistant_turns": data.assistant_turns,
        "max_lost_share": data.max_lost_share,
        "train_data": {"name": "", "file_path": _file(data.train_files), "limit": _limit(data.train_max_samples)},
        "val_data": {"name": "", "file_path": _file(data.val_files), "limit": _limit(data.val_max_samples)},
        "train_val_split_ratio": data.train_val_split_ratio,
        "train_val_split_seed": training.seed,
    }


def _file(files: str | list[str] | None) -> str:
    """Return the only file; several are refused."""
    return (files[0] if files else "") if isinstance(files, list) else files or ""


def _limit(samples: int | None) -> int | None:
    return None if samples is None or samples < 0 else samples


def _batch(recipe: Mapping[str, Any], data: Data) -> Section:
    """Return the batch and its passes: of as many of the longest samples as the budget of tokens holds."""
    share = data.train_batch_size // (recipe["trainer"]["num_nodes"] * recipe["trainer"]["devices"])
    longest = data.max_length or 1
    passes = (
        (data.max_token_len_per_gpu or longest) // longest if data.use_dynamic_bsz else data.micro_batch_size_per_gpu
    )
    return {
        "train_batch_size": data.train_batch_size,
        "micro_train_batch_size": max(1, min(passes or 1, share)),
        "max_len": longest,
        "truncation": data.truncation or "right",
        "max_samples": _ALL,
        "packing_samples": False,
        "pretrain_mode": False,
    }


def _optimizer(optim: Optimizer) -> Section:
    steps = optim.lr_warmup_steps if optim.lr_warmup_steps > 0 else None
    has_minimum = optim.lr_scheduler_type != "constant"
    return {
        "learning_rate": optim.lr,
        "lr_scheduler": "cosine" if has_minimum else "constant_with_warmup",
        "lr_warmup_ratio": optim.lr_warmup_steps_ratio,
        "lr_warmup_steps": steps,
        "lr_min_ratio": (optim.min_lr_ratio or 0.0) if has_minimum else None,
        "adam_betas": optim.betas or [0.9, 0.999],
        "weight_decay": optim.weight_decay,
        "l2": 0.0,
        "gradient_clipping": bool(optim.clip_grad),
        "gradient_clipping_threshold": optim.clip_grad or 0.0,
        "max_norm": optim.clip_grad or 0.0,
        "grad_accum_dtype": None,
        "aux_loss_coef": 0.0,
    }


def _saving(training: _Sections) -> Section:
    section, contents = training.trainer, training.checkpoint.save_contents
    folder, start = section.default_local_dir, section.resume_from_path or ""
    has_start = section.resume_mode == "resume_path"
    return {
        "max_epochs": section.total_epochs,
        "training_dir": "" if folder == _OF_JOB else folder,
        "override_training_dir": True,
        # Without a path to resume from, verl ignores the checkpoints in its folder.
        "load_checkpoint": bool(start) if has_start else section.resume_mode != "disable",
        "resume_checkpoint_path": start if has_start else "",
        "save_steps": _save_steps(section.save_freq),
        "max_ckpt_num": section.max_ckpt_to_keep or _ALL,
        "max_ckpt_mem": float(_ALL),
        "disable_ds_ckpt": "optimizer" not in contents,
        "save_hf_ckpt": "hf_model" in contents,
        "merge_weights": bool(section.merge_lora_on_final_save),
        "eval_steps": _eval_steps(section.test_freq),
        "logging_steps": 1,
        "use_tensorboard": None,
        "use_wandb": None,
        "disable_fast_tokenizer": False,
        "trainer_callbacks": [],
    }


def _save_steps(frequency: int | str) -> int:
    """Return the steps between checkpoints: 0 once an epoch, and -1 at the end only, as verl without a frequency."""
    if isinstance(frequency, str):
        return 0
    return frequency if frequency > 0 else -1


def _eval_steps(frequency: int | str) -> int:
    """Return the steps between evaluations: 0 at the end only, which verl's -1 means, and -1 once an epoch."""
    if isinstance(frequency, str):
        return -1
    return max(0, frequency)


def _memory(recipe: Mapping[str, Any], training: _Sections) -> Section:
    engine, source = training.engine, training.model
    return {
        "gradient_checkpointing": bool(source.enable_gradient_checkpointing),
        "gradient_checkpointing_use_reentrant": False,
        "ring_attn_size": 1,
        "ring_head_stride": 1,
        "strategy": {
            "fsdp_config": {
                "sharding_strategy": sharding(recipe, engine),
                "auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
                "backward_prefetch": "BACKWARD_PRE",
                "forward_prefetch": bool(engine.forward_prefetch),
                "cpu_offload": bool(engine.offload_policy or engine.param_offload or engine.optimizer_offload),
                "cpu_ram_efficient_loading": True,
                "state_dict_type": "SHARDED_STATE_DICT",
                "sync_module_states": True,
                "use_orig_params": True,
            }
        },
    }


def sharding(recipe: Mapping[str, Any], engine: Parallelism) -> str | None:
    """Return PyTorch's name of how FSDP divides the model; None for groups that the open trainer does not have."""
    devices = recipe["trainer"]["devices"]
    ranks, group = devices * recipe["trainer"]["num_nodes"], engine.fsdp_size or -1
    gathers_twice = engine.reshard_after_forward is not False
    if group == 1 < ranks:
        return "NO_SHARD"
    if group < 1 or group == ranks:
        return "FULL_SHARD" if gathers_twice else "SHARD_GRAD_OP"
    if group == devices:
        return "HYBRID_SHARD" if gathers_twice else "_HYBRID_SHARD_ZERO2"
    return None


def _preference(training: _Sections) -> Section:
    section = training.trainer
    if not training.is_dpo:
        return {"trainer_type": "sft"}
    return {
        "trainer_type": "dpo",
        "beta": section.beta,
        "loss_type": section.loss_type or "sigmoid",
        "label_smoothing": section.label_smoothing or 0.0,
        "nll_loss_coef": 0.0,
        "reference_free": bool(section.reference_free),
    }
