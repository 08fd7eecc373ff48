"""TRL's trainers of the same small models, to compare losses and gradients with."""

import json
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedTokenizerFast

from launcher.runtime.finetune.models import built
from launcher.runtime.finetune.rehearsal_data import write_rehearsal_data
from launcher.runtime.finetune.settings import settings_of

from .cases import inputs

PLAIN = {"report_to": "none", "use_cpu": True, "bf16": False, "gradient_checkpointing": False, "max_length": None}


def model_of(config: dict[str, Any], folder: Path) -> torch.nn.Module:
    """Return the model that a training of `config` begins with."""
    model, _ = built(inputs(config, folder).config, settings_of(config, 1), torch.device("cpu"), has_weights=False)
    return model


def sft_trainer(config: dict[str, Any], folder: Path, rows: list[dict[str, list[int]]], **args: Any) -> Any:
    """Return TRL's trainer of rows with `input_ids` and `labels`."""
    from trl import SFTConfig, SFTTrainer

    settings = SFTConfig(str(folder / "sft"), **PLAIN | args)
    return SFTTrainer(
        model_of(config, folder), settings, train_dataset=_dataset(folder, rows), processing_class=_tokenizer(folder)
    )


def dpo_trainer(config: dict[str, Any], folder: Path, **args: Any) -> Any:
    """Return TRL's trainer of preference pairs."""
    from trl import DPOConfig, DPOTrainer

    settings = DPOConfig(str(folder / "dpo"), **PLAIN | args)
    row = {"prompt": "Which?", "chosen": "This.", "rejected": "That."}
    full = {} if config["training_config"]["model_config"]["peft_config"] else {"ref_model": model_of(config, folder)}
    return DPOTrainer(
        model_of(config, folder),
        args=settings,
        train_dataset=_dataset(folder, [row]),
        processing_class=_tokenizer(folder),
        **full,
    )


def _dataset(folder: Path, rows: list[dict[str, Any]]) -> Any:
    from datasets import load_dataset

    path = folder / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return load_dataset("json", data_files=str(path), cache_dir=str(folder / "cache"), split="train")


def _tokenizer(folder: Path) -> Any:
    return PreTrainedTokenizerFast.from_pretrained(write_rehearsal_data(folder / "made", "sft", 1).tokenizer_folder)
