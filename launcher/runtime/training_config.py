"""The parts of a resolved recipe that the trainer reads, typed."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from launcher.common.names import RUN_ID_AT_LAUNCH
from launcher.runtime.shares import Shares, SharesMismatch, passes
from launcher.runtime.tiers.tier_settings import TierSettings, tier_settings

MAX_SKIPPED_STEPS = 3
"""Steps without a finite loss or gradient, in a row, that are skipped before training ends, by default.

A single one may be due to its samples.
"""


@dataclass(frozen=True, slots=True)
class Tracking:
    """The MLflow run for metrics; none if `run_id` is empty."""

    uri: str | None
    run_id: str


@dataclass(frozen=True, slots=True)
class Schedule:
    """The schedule of the learning rate: `kind` is its shape after a linear warmup, `cosine` or `constant`.

    Args:
        peak: Highest learning rate.
        warmup_ratio: Part of all samples that the warmup takes, 0 to 1.
        warmup_steps: Optimizer steps that it takes instead; None for the part.
        min_ratio: End of a falling shape as a part of the peak, 0 to 1; None for that of the shape.
    """

    peak: float
    kind: str
    warmup_ratio: float
    warmup_steps: int | None = None
    min_ratio: float | None = None

    def over(self, part: float) -> "Schedule":
        """Return the schedule of a training of which an optimizer step is so small a `part`, above 0 to 1."""
        if self.warmup_steps is None:
            return self
        return replace(self, warmup_ratio=min(1.0, self.warmup_steps * part), warmup_steps=None)


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings of the trainer. `launcher/families/tiny_lm.py` describes the keys; every default is in the recipe.

    Args:
        model_type: A key of `launcher.runtime.model.MODELS`; `model` has the arguments of its constructor.
        data_limit: Maximum samples to use; None for all.
        shares: Samples per rank and step.
        training_dir: Folder of the checkpoints; empty for the one under the run folder.
        tiers: Tiers that replace the folder; None for none.
    """

    model_type: str
    model: Mapping[str, Any]
    strategy: str
    data_path: str
    data_limit: int | None
    max_len: int
    max_epochs: int
    seed: int
    shares: Shares
    schedule: Schedule
    weight_decay: float
    adam_betas: tuple[float, float]
    max_norm: float
    logging_steps: int
    log_samples: bool
    min_step_s: float
    save_steps: int
    max_checkpoints: int
    load_checkpoint: bool
    override_training_dir: bool
    training_dir: str
    tracking: Tracking
    tiers: TierSettings | None = None
    max_skipped_steps: int = MAX_SKIPPED_STEPS


def shares_of(training_args: Mapping[str, Any], world_size: int) -> Shares:
    """Return the shares that a recipe gives `world_size` ranks.

    Raises:
        SharesMismatch: The sizes do not add up to `train_batch_size`, or do not divide.
    """
    total = int(training_args["train_batch_size"])
    uneven = training_args.get("uneven_batch") or {}
    if uneven.get("use_uneven_batch"):
        num_small = int(uneven["num_dp_groups_with_small_batch_size"])
        small, large = int(uneven["small_local_batch_size"]), int(uneven["large_local_batch_size"])
        per_rank = (small,) * num_small + (large,) * (world_size - num_small)
        if len(per_rank) != world_size or sum(per_rank) != total:
            raise SharesMismatch(f"{per_rank} on {world_size} ranks is not train_batch_size={total}")
        micro, _ = passes(large, int(training_args.get("micro_train_batch_size") or large))  # as in the plan
        return Shares(per_rank, micro)
    local, rest = divmod(total, world_size)
    if rest:
        raise SharesMismatch(f"train_batch_size={total} does not divide over {world_size} ranks")
    return Shares((local,) * world_size, micro=int(training_args.get("micro_train_batch_size") or local))


def max_skipped_steps_of(training_args: Mapping[str, Any]) -> int:
    """Return how many steps in a row may be skipped; recipes need not name the key."""
    found = training_args.get("max_skipped_steps")
    return MAX_SKIPPED_STEPS if found is None else int(found)


def tracking_of(training: Mapping[str, Any]) -> Tracking:
    """Return the MLflow run of a recipe's `training_config`."""
    mlflow = training.get("mlflow") or {}
    run_id = "" if mlflow.get("enabled") is False else mlflow.get("run_id") or ""
    if run_id == RUN_ID_AT_LAUNCH:  # the bundle of a dry run, started without the launcher
        run_id = ""
    return Tracking(mlflow.get("tracking_uri") or None, run_id)


def settings_of(config: Mapping[str, Any], world_size: int) -> Settings:
    """Return the typed settings of the resolved recipe `config` on `world_size` ranks."""
    training = config["training_config"]
    args = training["training_args"]
    data = training["datasets"]["train_data"]
    return Settings(
        model_type=config["run"]["model_type"],
        model=training["model_config"],
        strategy=args["strategy"],
        data_path=data["file_path"],
        data_limit=data.get("limit"),
        max_len=int(args["max_len"]),
        max_epochs=int(args["max_epochs"]),
        seed=int(args["seed"]),
        shares=shares_of(args, world_size),
        schedule=Schedule(float(args["learning_rate"]), args["lr_scheduler"], float(args["lr_warmup_ratio"])),
        weight_decay=float(args["weight_decay"]),
        adam_betas=(float(args["adam_betas"][0]), float(args["adam_betas"][1])),
        max_norm=float(args["max_norm"]),
        logging_steps=int(args["logging_steps"]),
        log_samples=bool(args["log_samples"]),
        min_step_s=float(args["min_step_seconds"]),
        save_steps=int(args["save_steps"]),
        max_checkpoints=int(args["max_ckpt_num"]),
        load_checkpoint=bool(args["load_checkpoint"]),
        override_training_dir=bool(args["override_training_dir"]),
        training_dir=args["training_dir"] or "",
        tracking=tracking_of(training),
        tiers=tier_settings(config.get("checkpointing")),
        max_skipped_steps=max_skipped_steps_of(args),
    )
