"""The weights of a model that was built on the meta device and is possibly sharded by now.

Each rank reads its own part of the files. Where the files need a conversion, the first rank reads them by
transformers and sends the weights to the others, one at a time.
"""

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from launcher.runtime import process_group
from launcher.runtime.finetune import adapters
from launcher.runtime.finetune.adapters import base_parameters, published_name
from launcher.runtime.finetune.inputs import Inputs
from launcher.runtime.finetune.models import language_model, model_class, model_config
from launcher.runtime.finetune.settings import Settings
from launcher.runtime.finetune.weight_files import SavedTensor, WeightsInvalid, matched, quantization, saved_tensors
from launcher.runtime.process_group import Place, without_group_warning

MXFP4 = "mxfp4"


def loader_of(
    model: nn.Module, settings: Settings, inputs: Inputs, place: Place
) -> Callable[[torch.device], None] | None:
    """Return the function that gives a model its weights once it is sharded; None for one with random weights."""
    if not inputs.weights:
        return None
    start = settings.model.adapters_path if settings.model.lora else None
    folder = Path(start) if start else None
    return WeightLoader(model, inputs.weights, inputs.config, place, seed=settings.seed, adapters_folder=folder).fill


class WeightLoader:
    """Gives a model on the meta device its weights; `fill` does so after the model is sharded.

    Adapters start from those in their folder, or are drawn from the seed.

    Raises:
        WeightsInvalid: The folder lacks weights, or they are damaged or of another model.
    """

    def __init__(
        self,
        model: nn.Module,
        folder: Path,
        config: Mapping[str, Any],
        place: Place,
        *,
        seed: int,
        adapters_folder: Path | None = None,
    ):
        self._model, self._folder, self._config, self._place = model, folder, config, place
        self._adapters_folder = adapters_folder
        shapes = {published_name(name): parameter.shape for name, parameter in base_parameters(self._model)}
        quantized = quantization(config)
        if quantized not in (None, MXFP4):
            raise WeightsInvalid(
                f"{folder}: the weights are quantized ({quantized}); give a model in bf16 or in {MXFP4}"
            )
        saved = saved_tensors(folder)
        self._matched = None if quantized else matched(shapes, saved)
        self._buffers = computed_buffers(model)
        if adapters_folder:
            self._adapters = adapters.read(adapters_folder, adapters.trained(model))
        else:
            self._adapters = adapters.drawn(model, seed=seed) if hasattr(model, "get_base_model") else {}

    def fill(self, device: torch.device) -> None:
        """Replace the model's parameters on the meta device by the weights. Collective.

        Parameters stay on `device` between uses; buffers go to the one of this process.
        """
        self._model.to_empty(device=device)
        language_model(self._model).tie_weights()
        for name, value in self._buffers.items():
            owner, _, buffer = name.rpartition(".")
            setattr(self._model.get_submodule(owner), buffer, value.to(self._place.device))
        if self._matched is None:
            self._convert()
        else:
            self._read(self._matched)
        adapters.put(self._model, self._adapters, self._adapters_folder)

    def _read(self, places: Mapping[str, SavedTensor]) -> None:
        """Read this rank's part of each weight. No rank waits for another one."""
        from safetensors import SafetensorError
        from torch.distributed.checkpoint import CheckpointException
        from torch.distributed.checkpoint.filesystem import FileSystem
        from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader
        from torch.distributed.checkpoint.state_dict_loader import load

        class Files(FileSystem):
            def ls(self, path: str | os.PathLike[str]) -> list[str]:
                return sorted({str(tensor.file) for tensor in places.values()})

        reader = HuggingFaceStorageReader(str(self._folder))
        reader.fs = Files()  # the folder may have other safetensors files, such as those of adapters
        state: dict[str, Any] = {
            places[published_name(name)].key: each.detach() for name, each in base_parameters(self._model)
        }
        try:
            with without_group_warning():
                load(state, storage_reader=reader, no_dist=True)
        except (CheckpointException, SafetensorError, OSError) as error:
            raise WeightsInvalid(f"{self._folder}: the weights could not be read ({error})") from error

    def _convert(self) -> None:
        """Take the weights from transformers' model on the first rank."""
        weights: dict[str, torch.Tensor] = {}  # of the first rank, which keeps them
        process_group.of_first_rank(lambda: weights.update(converted(self._folder, self._config)), WeightsInvalid)
        for name, parameter in base_parameters(self._model):
            kept = weights.pop(published_name(name), None)
            full = torch.empty(parameter.shape, dtype=parameter.dtype) if kept is None else kept
            full = full.to(self._place.device, parameter.dtype).contiguous()
            if dist.is_initialized():
                dist.broadcast(full, src=0)
            adapters.put_one(parameter, full)


def computed_buffers(model: nn.Module) -> dict[str, torch.Tensor]:
    """Return the buffers that no file holds, such as the frequencies of rotary embeddings, by name.

    Their modules are built a second time, on the CPU: a buffer on the meta device has no values.
    """
    saved = set(model.state_dict())
    found: dict[str, torch.Tensor] = {}
    for prefix, module in model.named_modules():
        names = [name for name, _ in module.named_buffers(recurse=False) if f"{prefix}.{name}" not in saved]
        if names:
            again = type(module)(language_model(model).config)
            values = dict(again.named_buffers(recurse=False))
            found |= {f"{prefix}.{name}": values[name] for name in names}
    return found


def converted(folder: Path, config: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    """Return the weights of a folder as transformers converts them, in main memory, in bf16 where quantized.

    Raises:
        WeightsInvalid: Weights are missing or have another shape, or a file is damaged.
    """
    from safetensors import SafetensorError

    options: dict[str, Any] = {"config": model_config(config), "dtype": "auto", "local_files_only": True}
    if quantization(config) == MXFP4:
        options["config"].quantization_config = {**config["quantization_config"], "dequantize": True}
        options["dtype"] = torch.bfloat16
    try:
        model, found = model_class(config).from_pretrained(folder, output_loading_info=True, **options)
    except (OSError, ValueError, RuntimeError, ImportError, KeyError, SafetensorError) as error:
        raise WeightsInvalid(f"{folder}: transformers cannot load the weights ({error})") from error
    problems = [(key, "is missing") for key in found["missing_keys"]]
    problems += [(key, f"has shape {list(has)}, not {list(wants)}") for key, has, wants in found["mismatched_keys"]]
    if problems:
        key, problem = sorted(problems)[0]
        raise WeightsInvalid(
            f"{folder}: {key} {problem} ({len(problems)} in all); give weights and config.json of the same model"
        )
    return {name: parameter.detach() for name, parameter in model.named_parameters()}
