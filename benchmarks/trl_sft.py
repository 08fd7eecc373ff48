"""TRL's trainer of supervised fine-tuning, of the same model, samples, batch and optimizer as the open trainer."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from launcher.runtime.finetune.inputs import Inputs
from launcher.runtime.finetune.models import built
from launcher.runtime.finetune.settings import Settings


def trl_trainer(
    inputs: Inputs,
    settings: Settings,
    samples: Any,
    folder: Path,
    device: torch.device,
    on_step: Callable[[], bool | None],
    **more: Any,
) -> Any:
    """Return TRL's trainer.

    Args:
        inputs: Of the open trainer: model and tokenizer.
        settings: Of the same.
        samples: Prepared conversations.
        folder: Receives what it writes.
        device: To train on.
        on_step: Called after each optimizer step; returns whether to stop.
        more: Further arguments of `SFTConfig`.
    """
    from transformers import PreTrainedTokenizerFast, TrainerCallback
    from trl import SFTConfig, SFTTrainer

    class Ticks(TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> Any:
            control.should_training_stop = bool(on_step())
            return control

    is_gpu = device.type == "cuda"
    model, _ = built(inputs.config, settings, device, has_weights=False)
    args = SFTConfig(
        str(folder / "trl"),
        per_device_train_batch_size=settings.shares.micro,
        gradient_accumulation_steps=settings.shares.samples_per_step // settings.shares.micro,
        learning_rate=settings.optimizer.schedule.peak,
        lr_scheduler_type="cosine",
        max_grad_norm=settings.optimizer.max_norm,
        gradient_checkpointing=settings.parallel.recomputes,
        gradient_checkpointing_kwargs={"use_reentrant": False},
        max_length=None,
        use_cpu=not is_gpu,
        bf16=is_gpu,
        report_to="none",
        logging_strategy="no",
        save_strategy="no",
        disable_tqdm=True,
        **more,
    )
    return SFTTrainer(
        model,
        args,
        train_dataset=_rows(samples, folder),
        processing_class=PreTrainedTokenizerFast.from_pretrained(inputs.tokenizer),
        callbacks=[Ticks()],
    )


def _rows(samples: Any, folder: Path) -> Any:
    """Return the samples as TRL reads them."""
    from datasets import load_dataset

    path = folder / "rows.jsonl"
    with path.open("w") as file:
        for index in range(len(samples)):
            ids, trained = (each.astype(int).tolist() for each in samples.sample(index))
            labels = [each if flag else -100 for each, flag in zip(ids, trained, strict=True)]
            file.write(json.dumps({"input_ids": ids, "labels": labels}) + "\n")
    return load_dataset("json", data_files=str(path), cache_dir=str(folder / "cache"), split="train")
