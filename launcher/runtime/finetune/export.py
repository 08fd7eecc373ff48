"""The results of a training: adapters, merged weights, a model in the Hugging Face format, a model card.

| trained | written |
|---|---|
| adapters | the adapters, as PEFT reads them |
| adapters, with `merge_weights` or `state_dict_type: FULL_STATE_DICT` | also the merged model, in `merged` |
| all weights, unless `save_hf_ckpt` is false and checkpoints of the training state are sharded and kept | the model |

Their folder appears complete or not at all: they are written beside it under a temporary name. Only the first rank
writes; all ranks learn whether it could.
"""

import copy
import json
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, cast

import torch
from torch import nn

from launcher.runtime import process_group
from launcher.runtime.durable import sync, write_text
from launcher.runtime.finetune import adapters
from launcher.runtime.finetune.architectures import architecture_of
from launcher.runtime.finetune.inputs import Inputs
from launcher.runtime.finetune.model_card import Facts, card
from launcher.runtime.finetune.models import language_model
from launcher.runtime.finetune.settings import Settings
from launcher.runtime.finetune.weight_files import FILE_PATTERN, INDEX
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
_DTYPES = {name: getattr(torch, name) for name in ("bfloat16", "float16", "float32")}
"""Of published models, by their name in config.json; others are saved as they were trained."""
MARK = "result.json"
"""File that only folders of results have, so that nothing else is ever replaced."""


class ExportFailed(RuntimeError):
    """The results could not be written; nothing of them is left."""


class ResultsInUse(RuntimeError):
    """The folder for results holds something else."""


def refuse_foreign(folder: Path) -> None:
    """Check that results may replace a folder: it is missing, empty, or holds results.

    Raises:
        ResultsInUse: It holds something else, which is left as it is.
    """
    if ".." in folder.parts or folder.is_file() or folder.is_mount():
        raise ResultsInUse(f"{folder} cannot hold the results; give model_save_name a name of its own")
    if folder.exists() and any(folder.iterdir()) and not (folder / MARK).is_file():
        raise ResultsInUse(
            f"{folder} holds other files, which are left as they are; give model_save_name another name, or move them"
        )


class ResultFolder:
    """A new folder of results: `partial` receives the files, and gets the name `final` at the end. Collective."""

    def __init__(self, partial: Path, final: Path):
        self.partial, self.final = partial, final
        self._patient = process_group.patient_group()

    def first_rank(self, work: Callable[[], object]) -> None:
        """Let the first rank write something; the others wait for it as long as it takes.

        Raises:
            ExportFailed: It could not, on all ranks.
        """
        from safetensors import SafetensorError  # its errors while writing are not OSErrors

        def attempt() -> None:
            try:
                work()
            except (OSError, SafetensorError) as error:
                raise ExportFailed(
                    f"{self.final}: the results could not be written ({error}); nothing is left of them. Make room "
                    "there; the next start writes them again, without training again"
                ) from error

        process_group.of_first_rank(attempt, ExportFailed, group=self._patient)


@contextmanager
def replaced(final: Path) -> Iterator[ResultFolder]:
    """Give a new folder of results its name at the end, in place of older results. Collective.

    Raises:
        ExportFailed: The file system failed; on all ranks.
        ResultsInUse: The name is in use by something else.
    """
    partial, removed = (final.with_name(f".{final.name}.{word}") for word in ("partial", "removed"))
    folder = ResultFolder(partial, final)

    def begin() -> None:
        refuse_foreign(final)
        for leftover in (partial, removed):
            shutil.rmtree(leftover, ignore_errors=True)
        partial.mkdir(parents=True)

    def publish() -> None:
        mode = partial.stat().st_mode & 0o666
        for path in (*partial.rglob("*"), partial):
            if path.is_file():
                path.chmod(mode)  # safetensors creates files that only this user can read
            sync(path)
        if final.exists():
            final.rename(removed)
        partial.rename(final)
        sync(final.parent)
        shutil.rmtree(removed, ignore_errors=True)

    try:
        folder.first_rank(begin)
        yield folder
        folder.first_rank(publish)
    except BaseException:
        if process_group.rank() == 0:
            shutil.rmtree(partial, ignore_errors=True)
        raise


def write(model: nn.Module, settings: Settings, inputs: Inputs, facts: Facts) -> None:
    """Write the results of a model, possibly sharded. Collective."""
    found = contents(settings)
    with replaced(inputs.results) as folder:
        if "adapters" in found:
            _write_adapters(model, settings, inputs, folder)
        if "merged" in found:
            _write_model(model, inputs, folder, folder.partial / MERGED)
        if "model" in found:
            _write_model(model, inputs, folder, folder.partial)
        folder.first_rank(lambda: _describe(folder.partial, replace(facts, contents=found)))
    if settings.logs_adapter and settings.tracking.run_id and "adapters" in found and process_group.rank() == 0:
        _log_adapters(settings.tracking.uri, settings.tracking.run_id, inputs)


def _log_adapters(uri: str | None, run_id: str, inputs: Inputs) -> None:
    """Upload the adapters to the MLflow run. A failure is printed only: they are in their folder."""
    files = [inputs.results / name for name in (adapters.WEIGHTS_FILE, adapters.CONFIG_FILE, "README.md")]
    try:
        log_artifacts(uri, run_id, files, ARTIFACTS)
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
    write_text(folder / MARK, json.dumps(asdict(facts), indent=2) + "\n")


def _write_adapters(model: nn.Module, settings: Settings, inputs: Inputs, folder: ResultFolder) -> None:
    from safetensors.torch import save_file

    values = {}
    for name, parameter in adapters.trained(model).items():
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
    from huggingface_hub import split_state_dict_into_shards_factory
    from safetensors.torch import save_file

    dtype = _DTYPES.get(str(inputs.config.get("dtype") or inputs.config.get("torch_dtype")))
    weights = TrainedWeights(model, dtype)
    shards = split_state_dict_into_shards_factory(
        weights.sizes(), get_storage_size=int, filename_pattern=FILE_PATTERN, max_shard_size=MAX_SHARD_BYTES
    )
    for file, names in shards.filename_to_tensors.items():
        tensors = {name: value for name in names if (value := weights.gather(name)) is not None}

        def save(file: str = file, tensors: dict[str, torch.Tensor] = tensors) -> None:
            target.mkdir(exist_ok=True)
            save_file(tensors, target / file, {"format": "pt"})

        folder.first_rank(save)

    def finish() -> None:
        if shards.is_sharded:
            index = {"metadata": shards.metadata, "weight_map": shards.tensor_to_filename}
            write_text(target / INDEX, json.dumps(index, indent=2) + "\n")
        _write_config(model, inputs, target, dtype)
        _copy_tokenizer(inputs, target)

    folder.first_rank(finish)


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


def gathered(parameter: torch.Tensor) -> torch.Tensor:
    """Return a parameter in full, on this rank's device. Collective if it is sharded."""
    from torch.distributed.tensor import DTensor

    value = parameter.detach()
    if not isinstance(value, DTensor):
        return value
    there = cast(DTensor, value.to(value.device_mesh.device_type))  # offloaded shards cannot be gathered as they are
    return there.full_tensor()


class TrainedWeights:
    """The weights of a model, possibly sharded, as transformers names them, with its adapters merged.

    They are saved in `dtype`; None for that of training.
    """

    def __init__(self, model: nn.Module, dtype: torch.dtype | None):
        self._parameters = {adapters.published_name(name): each for name, each in adapters.base_parameters(model)}
        self._dtype = dtype
        self._layers = _adapted(model)

    def sizes(self) -> dict[str, int]:
        """Return the bytes of each weight, by name."""
        return {name: each.numel() * (self._dtype or each.dtype).itemsize for name, each in self._parameters.items()}

    def gather(self, name: str) -> torch.Tensor | None:
        """Return a weight in main memory, on the first rank; None on the others. Collective."""
        parameter = self._parameters[name]
        value = gathered(parameter)
        parts = [(layer, _gathered_parts(layer)) for layer in self._layers.get(parameter, [])]
        if process_group.rank():
            return None
        if parts:
            value = value.float()
            for layer, part in parts:
                with torch.no_grad(), _in_place(layer, part):
                    value = value + layer.get_delta_weight(adapters.NAME).float()  # by PEFT's own rule
        return value.to("cpu", self._dtype or parameter.dtype).contiguous()


def _adapted(model: nn.Module) -> dict[nn.Parameter, list[Any]]:
    """Return the adapted layers of each weight that has adapters."""
    found: dict[nn.Parameter, list[Any]] = {}
    if not hasattr(model, "get_base_model"):
        return found
    from peft.tuners.lora import LoraLayer, ParamWrapper

    for layer in model.modules():
        if isinstance(layer, ParamWrapper):
            found.setdefault(cast(Any, layer).get_param(), []).append(layer)
        elif isinstance(layer, LoraLayer):
            found.setdefault(cast(Any, layer).get_base_layer().weight, []).append(layer)
    return found


def _gathered_parts(layer: Any) -> dict[str, torch.Tensor]:
    """Return a layer's adapters in full. Collective."""
    return {
        f"{part}.{name}": gathered(parameter)
        for part, module in adapters.parts(layer).items()
        for name, parameter in module.named_parameters()
    }


@contextmanager
def _in_place(layer: Any, parts: Mapping[str, torch.Tensor]) -> Iterator[None]:
    """Give a layer full adapters in place of its sharded ones."""
    owners = {name: (layer.get_submodule(name.rpartition(".")[0]), name.rpartition(".")[2]) for name in parts}
    kept = {name: getattr(owner, leaf) for name, (owner, leaf) in owners.items()}
    try:
        for name, (owner, leaf) in owners.items():
            setattr(owner, leaf, nn.Parameter(parts[name], requires_grad=False))
        yield
    finally:
        for name, (owner, leaf) in owners.items():
            setattr(owner, leaf, kept[name])
