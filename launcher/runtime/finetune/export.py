"""The results of a training: adapters, merged weights, a model in the Hugging Face format, a model card.

| trained | written |
|---|---|
| adapters | the adapters, as PEFT reads them |
| adapters, with `merge_weights` or `state_dict_type: FULL_STATE_DICT` | also the merged model, in `merged` |
| all weights, unless `save_hf_ckpt` is false and checkpoints of the training state are sharded and kept | the model |
"""

import copy
import json
import shutil
import sys
from pathlib import Path
from typing import Any, cast

import torch
from torch import nn

from launcher.runtime import process_group
from launcher.runtime.durable import write_text
from launcher.runtime.finetune import adapters
from launcher.runtime.finetune.architectures import architecture_of
from launcher.runtime.finetune.inputs import Inputs
from launcher.runtime.finetune.model_card import Facts, card
from launcher.runtime.finetune.models import language_model
from launcher.runtime.finetune.result_folder import MARK, ResultFolder, replaced
from launcher.runtime.finetune.settings import Settings
from launcher.runtime.finetune.weight_files import INDEX, SINGLE
from launcher.runtime.finetune.weights import TrainedWeights, gathered, published_dtype
from launcher.runtime.metric_shipping import TrackingUnavailable, log_artifacts

MERGED = "merged"
ARTIFACTS = "adapters"
"""Folder among the artifacts of an MLflow run."""
MAX_SHARD_BYTES = 4 * 10**9
"""Bytes of weights in a file, and so in the first rank's memory at a time."""
TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "tokenizer.model",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "chat_template.jinja",
    "chat_template.json",
)
"""Source: transformers, `tokenization_utils_base` and `processing_utils`, names of files."""
_GENERATION = "generation_config.json"


def write(model: nn.Module, settings: Settings, inputs: Inputs, facts: Facts) -> None:
    """Write the results. Collective.

    Args:
        model: Of transformers, or as PEFT wraps it; possibly sharded.
        settings: Of the training.
        inputs: Of the job.
        facts: About the training.

    Raises:
        ExportFailed: They could not be written; nothing is left of them.
        ResultsInUse: Their folder holds something else.
    """
    found = contents(settings)
    with replaced(inputs.results) as folder:
        if "adapters" in found:
            _write_adapters(model, settings, inputs, folder)
        if "merged" in found:
            _write_model(model, inputs, folder, folder.partial / MERGED)
        if "model" in found:
            _write_model(model, inputs, folder, folder.partial)
        described = facts.with_contents(found)
        folder.first_rank(lambda: _describe(folder.partial, described))
    if settings.logs_adapter and "adapters" in found and process_group.rank() == 0:
        _log_adapters(settings, inputs)


def _log_adapters(settings: Settings, inputs: Inputs) -> None:
    """Upload the adapters to the MLflow run. A failure is printed only: they are in their folder."""
    if not settings.tracking.run_id:
        return
    files = [inputs.results / name for name in (adapters.WEIGHTS_FILE, adapters.CONFIG_FILE, "README.md")]
    try:
        log_artifacts(settings.tracking.uri, settings.tracking.run_id, files, ARTIFACTS)
    except TrackingUnavailable as error:
        print(f"the adapters are not among the MLflow run's artifacts: {error}", file=sys.stderr, flush=True)


def contents(settings: Settings) -> tuple[str, ...]:
    """Return what is written: adapters, the merged model, the model."""
    saving = settings.saving
    if settings.model.lora:
        return ("adapters", "merged") if saving.merges or saving.gathers else ("adapters",)
    return ("model",) if saving.exports or not saving.saves_state else ()


def _describe(folder: Path, facts: Facts) -> None:
    write_text(folder / "README.md", card(facts))
    write_text(folder / MARK, json.dumps(facts.as_dict(), indent=2) + "\n")


def _write_adapters(model: nn.Module, settings: Settings, inputs: Inputs, folder: ResultFolder) -> None:
    """Write the trained parameters as PEFT does."""
    from safetensors.torch import save_file

    values = {}
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            value = gathered(parameter)
            if process_group.rank() == 0:
                values[adapters.saved_name(name)] = value.cpu().contiguous()

    def save() -> None:
        save_file(values, folder.partial / adapters.WEIGHTS_FILE, {"format": "pt"})
        config = copy.copy(cast(Any, model).peft_config[adapters.NAME])
        config.inference_mode = True
        if isinstance(config.target_modules, set):
            config.target_modules = sorted(config.target_modules)
        config.base_model_name_or_path = None if inputs.is_rehearsal else settings.model.path
        config.revision = inputs.commit or None
        config.save_pretrained(folder.partial)
        _copy_tokenizer(inputs, folder.partial)

    folder.first_rank(save)


def _write_model(model: nn.Module, inputs: Inputs, folder: ResultFolder, target: Path) -> None:
    """Write all weights, the configuration and the tokenizer, one file of weights at a time."""
    from safetensors.torch import save_file

    dtype = published_dtype(inputs.config)
    weights = TrainedWeights(model, dtype)
    sizes = weights.sizes()
    shards = sharded(sizes, MAX_SHARD_BYTES)
    places: dict[str, str] = {}
    for number, names in enumerate(shards, 1):
        file = SINGLE if len(shards) == 1 else f"model-{number:05}-of-{len(shards):05}.safetensors"
        places |= dict.fromkeys(names, file)
        tensors = {name: value for name in names if (value := weights.gather(name)) is not None}

        def save(file: str = file, tensors: dict[str, torch.Tensor] = tensors) -> None:
            target.mkdir(exist_ok=True)
            save_file(tensors, target / file, {"format": "pt"})

        folder.first_rank(save)

    def finish() -> None:
        if len(shards) > 1:
            index = {"metadata": {"total_size": sum(sizes.values())}, "weight_map": places}
            write_text(target / INDEX, json.dumps(index, indent=2) + "\n")
        _write_config(model, inputs, target, dtype)
        _copy_tokenizer(inputs, target)

    folder.first_rank(finish)


def sharded(sizes: dict[str, int], limit: int) -> list[list[str]]:
    """Return the names of the weights of each file: in order, as many as fit into `limit` bytes, at least one."""
    shards: list[list[str]] = []
    room = 0
    for name, size in sizes.items():
        if not shards or size > room:
            shards.append([])
            room = limit
        shards[-1].append(name)
        room -= size
    return shards


def _write_config(model: nn.Module, inputs: Inputs, folder: Path, dtype: torch.dtype | None) -> None:
    config: Any = copy.deepcopy(language_model(model).config)
    config.architectures = [architecture_of(inputs.config).model]
    config.dtype = dtype or next(model.parameters()).dtype
    config.save_pretrained(folder)
    if inputs.weights and (inputs.weights / _GENERATION).is_file():
        shutil.copyfile(inputs.weights / _GENERATION, folder / _GENERATION)


def _copy_tokenizer(inputs: Inputs, folder: Path) -> None:
    for name in TOKENIZER_FILES:
        if (inputs.tokenizer / name).is_file():
            shutil.copyfile(inputs.tokenizer / name, folder / name)
    if inputs.data.template_file:
        shutil.copyfile(inputs.data.template_file, folder / "chat_template.jinja")
