"""The keys of a compiled fine-tuning recipe that the open trainer reads, typed. Data has settings of its own."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from launcher.runtime.shares import Shares
from launcher.runtime.tiers.tier_settings import TierSettings, tier_settings
from launcher.runtime.training_config import Schedule, Tracking, max_skipped_steps_of, shares_of, tracking_of

DPO = "dpo"
"""The technique of preference optimization; the other one is `sft`."""
LOSSES = ("sigmoid", "ipo", "hinge")
"""Forms of the loss over preference pairs."""


@dataclass(frozen=True, slots=True)
class LoraSettings:
    """Adapters of rank `r`, whose scale is `alpha / r`.

    Args:
        dropout: In front of each adapter, 0 to below 1.
        bias: Biases that are trained as well: `none`, `all`, `lora_only`.
        targets: `all-linear`, a regular expression, or names of modules.
        parameters: Names of parameters outside linear layers, such as experts.
        excluded: Names of modules without an adapter, or a regular expression.
    """

    r: int
    alpha: int
    dropout: float
    bias: str
    targets: str | tuple[str, ...]
    parameters: tuple[str, ...]
    excluded: str | tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ModelSettings:
    """The model.

    Args:
        path: Folder, or name on the Hugging Face Hub; may be empty in a rehearsal.
        save_name: Folder of the results, within the folder for results.
        attention: transformers' name of the attention kernel that the recipe requests.
        lora: None trains all weights.
        adapters_path: Folder of adapters to start from; None for new ones.
        revision: Branch, tag or commit of a model on the Hub; None for its default branch.
    """

    path: str
    save_name: str
    attention: str
    lora: LoraSettings | None
    adapters_path: str | None
    revision: str | None = None


@dataclass(frozen=True, slots=True)
class ParallelSettings:
    """How the model is spread over the ranks, and what memory it saves.

    Args:
        sharding: PyTorch FSDP's name of the strategy: `FULL_SHARD`, `HYBRID_SHARD`, `SHARD_GRAD_OP`, `NO_SHARD`.
        offloads: Whether parameters and optimizer state wait in main memory.
        recomputes: Whether activations are recomputed in the backward pass.
        prefetches: Whether the next block is gathered during the forward pass of the one before.
    """

    sharding: str
    offloads: bool
    recomputes: bool
    prefetches: bool


@dataclass(frozen=True, slots=True)
class OptimizerSettings:
    """AdamW; `max_norm` is the norm to which gradients are clipped, None for no clipping."""

    schedule: Schedule
    betas: tuple[float, float]
    weight_decay: float
    max_norm: float | None


@dataclass(frozen=True, slots=True)
class PreferenceSettings:
    """The loss over preference pairs.

    Args:
        loss_type: `sigmoid`, `ipo` or `hinge`.
        beta: Strength of the pull towards the reference.
        label_smoothing: Assumed part of pairs that are labelled the wrong way round, 0 to below 0.5.
        nll_coef: Weight of the likelihood of the chosen answers.
        reference_free: Whether to compare with a uniform reference.
    """

    loss_type: str
    beta: float
    label_smoothing: float
    nll_coef: float
    reference_free: bool


@dataclass(frozen=True, slots=True)
class SavingSettings:
    """Checkpoints of the training, and what is written at its end.

    Args:
        folder: Of checkpoints; empty for the one under the run folder.
        every: Steps between two checkpoints; 0 for once an epoch, -1 for at the end only.
        max_gb: Most disk space of checkpoints, in gigabytes.
        resumes: Whether a new job resumes from a checkpoint in the folder.
        overrides: Whether a new job may use a folder that holds a checkpoint.
        resume_path: Checkpoint to start from; empty for none.
        saves_state: Whether checkpoints of the training state are saved.
        merges: Whether adapters are also written merged into the model.
        exports: Whether a checkpoint in the Hugging Face format is written at the end.
        gathers: Whether the recipe wants all weights in one place, `FULL_STATE_DICT`; adapters are then merged, too.
    """

    folder: str
    every: int
    keep: int
    max_gb: float
    resumes: bool
    overrides: bool
    resume_path: str
    saves_state: bool
    merges: bool
    exports: bool
    gathers: bool

    def steps_between(self, epoch: int) -> int:
        """Return the steps between two checkpoints, with `epoch` steps in an epoch; 0 for one at the end only."""
        if not self.saves_state:
            return 0
        return epoch if self.every == 0 else max(self.every, 0)


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings of the open trainer on one number of ranks; every default is in the recipe.

    Args:
        technique: `sft` or `dpo`.
        shares: Samples, or pairs, per rank and step.
        packs: Whether a rank's micro batch is one row without padding.
        aux_loss_coef: Weight of the load-balancing loss of experts; 0 for none.
        eval_steps: Steps between two evaluations; 0 for at the end only, -1 for once an epoch.
        max_skipped_steps: Steps in a row whose loss or gradients may not be finite.
        logging_steps: Steps between two printed lines.
        logs_memory: Whether device memory is reported.
        logs_phases: Whether the time of the parts of a step is reported.
        logs_adapter: Whether trained adapters become artifacts of the MLflow run.
    """

    name: str
    technique: str
    model: ModelSettings
    parallel: ParallelSettings
    optimizer: OptimizerSettings
    preference: PreferenceSettings | None
    saving: SavingSettings
    shares: Shares
    max_epochs: int
    seed: int
    packs: bool
    aux_loss_coef: float
    eval_steps: int
    max_skipped_steps: int
    logging_steps: int
    logs_memory: bool
    logs_phases: bool
    tracking: Tracking
    logs_adapter: bool
    tiers: TierSettings | None


def settings_of(config: Mapping[str, Any], world_size: int) -> Settings:
    """Return the typed settings of the compiled recipe `config` on `world_size` ranks.

    Raises:
        SharesMismatch: The recipe's batch does not match this number of ranks.
    """
    training = config["training_config"]
    args = training["training_args"]
    return Settings(
        name=config["run"]["name"],
        technique=args["trainer_type"],
        model=_model(training["model_config"]),
        parallel=_parallel(args),
        optimizer=_optimizer(args),
        preference=_preference(args) if args["trainer_type"] == DPO else None,
        saving=_saving(args),
        shares=shares_of(args, world_size),
        max_epochs=int(args["max_epochs"]),
        seed=int(args["seed"]),
        packs=bool(args["packing_samples"]),
        aux_loss_coef=float(args["aux_loss_coef"]),
        eval_steps=int(args["eval_steps"]),
        max_skipped_steps=max_skipped_steps_of(args),
        logging_steps=int(args["logging_steps"]),
        logs_memory=bool(args.get("log_gpu_memory")),
        logs_phases=bool(args.get("log_run_time")),
        tracking=tracking_of(training),
        logs_adapter=bool((training.get("mlflow") or {}).get("log_adapter")),
        tiers=tier_settings(config.get("checkpointing")),
    )


def _model(model: Mapping[str, Any]) -> ModelSettings:
    return ModelSettings(
        path=model["model_name_or_path"] or "",
        save_name=model["model_save_name"],
        attention=model["attn_implementation"],
        lora=_lora(model["peft_config"]) if model["peft_config"] else None,
        adapters_path=model["lora_checkpoint_file_path"] or None,
        revision=model.get("model_revision") or None,
    )


def _lora(peft: Mapping[str, Any]) -> LoraSettings:
    targets, excluded = peft["target_modules"], peft.get("exclude_modules") or ()
    return LoraSettings(
        r=int(peft["r"]),
        alpha=int(peft["lora_alpha"]),
        dropout=float(peft["lora_dropout"]),
        bias=peft["bias"],
        targets=targets if isinstance(targets, str) else tuple(targets),
        parameters=tuple(peft.get("target_parameters") or ()),
        excluded=excluded if isinstance(excluded, str) else tuple(excluded),
    )


def _parallel(args: Mapping[str, Any]) -> ParallelSettings:
    fsdp = args["strategy"]["fsdp_config"]
    return ParallelSettings(
        sharding=fsdp["sharding_strategy"],
        offloads=bool(fsdp["cpu_offload"]),
        recomputes=bool(args["gradient_checkpointing"] or fsdp.get("activation_checkpointing")),
        prefetches=bool(fsdp["forward_prefetch"]),
    )


def _optimizer(args: Mapping[str, Any]) -> OptimizerSettings:
    threshold = float(args["gradient_clipping_threshold"])
    clips = args["gradient_clipping"] and threshold > 0
    return OptimizerSettings(
        schedule=_schedule(args),
        betas=(float(args["adam_betas"][0]), float(args["adam_betas"][1])),
        weight_decay=float(args["weight_decay"] or args["l2"]),
        max_norm=threshold if clips else None,
    )


def _schedule(args: Mapping[str, Any]) -> Schedule:
    steps, least = args.get("lr_warmup_steps"), args.get("lr_min_ratio")
    return Schedule(
        peak=float(args["learning_rate"]),
        kind=args["lr_scheduler"],
        warmup_ratio=float(args["lr_warmup_ratio"]),
        warmup_steps=None if steps is None else int(steps),
        min_ratio=None if least is None else float(least),
    )


def _preference(args: Mapping[str, Any]) -> PreferenceSettings:
    return PreferenceSettings(
        loss_type=args.get("loss_type") or "sigmoid",
        beta=float(args["beta"]),
        label_smoothing=float(args.get("label_smoothing") or 0),
        nll_coef=float(args.get("nll_loss_coef") or 0),
        reference_free=bool(args.get("reference_free")),
    )


def _saving(args: Mapping[str, Any]) -> SavingSettings:
    is_full = args["strategy"]["fsdp_config"]["state_dict_type"] == "FULL_STATE_DICT"
    return SavingSettings(
        folder=args["training_dir"] or "",
        every=int(args["save_steps"]),
        keep=int(args["max_ckpt_num"]),
        max_gb=float(args["max_ckpt_mem"]),
        resumes=bool(args["load_checkpoint"]),
        overrides=bool(args["override_training_dir"]),
        resume_path=args["resume_checkpoint_path"] or "",
        saves_state=not args["disable_ds_ckpt"],
        merges=bool(args.get("merge_weights")),
        exports=bool(args["save_hf_ckpt"]) or is_full,
        gathers=is_full,
    )
