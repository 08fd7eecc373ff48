"""The weights in a model's folder: which file holds a tensor, and in what shape. Only the files' headers are read."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from launcher.runtime.file_kinds import irregular

INDEX = "model.safetensors.index.json"
"""Source: transformers, `utils.SAFE_WEIGHTS_INDEX_NAME`."""
SINGLE, FILE_PATTERN = "model.safetensors", "model{suffix}.safetensors"
"""Source: transformers, `utils.SAFE_WEIGHTS_NAME`; huggingface_hub, `constants.SAFETENSORS_WEIGHTS_FILE_PATTERN`."""
PICKLED = "pytorch_model*.bin"
_BEFORE = ("", "language_model.")
"""In front of a language model's names. Source: Llama 4 Scout's index has the second one."""
_WITHIN = "model.language_model."
"""In place of `model.` at their start. Source: transformers, Qwen3_5ForConditionalGeneration and its index."""


class WeightsInvalid(ValueError):
    """A folder lacks weights, or they are damaged or of another model."""


@dataclass(frozen=True, slots=True)
class SavedTensor:
    """A tensor in a file, which has it under `key`."""

    key: str
    file: Path
    shape: tuple[int, ...]


def saved_tensors(folder: Path) -> dict[str, SavedTensor]:
    """Return the tensors of a model's folder by their names; none if its weights are not in safetensors files."""
    return {each.key: each for file in weight_files(folder) for each in header(file)}


def weight_files(folder: Path) -> list[Path]:
    """Return the safetensors files of a model: those that the index names, or the only ones.

    Raises:
        WeightsInvalid: There are none, one that the index names does not exist, or one is not a regular file.
    """
    for path in sorted({folder / INDEX, *folder.glob("model*.safetensors"), *folder.glob(PICKLED)}):
        if kind := irregular(path):  # opening a FIFO blocks
            raise WeightsInvalid(f"{path}: is {kind}; copy the file there, or remove it")
    if (folder / INDEX).is_file():
        places = indexed(folder / INDEX)
        for key, name in places.items():
            if Path(name).name != name or not (folder / name).is_file():
                raise WeightsInvalid(
                    f"{folder / INDEX}: {key} is in {name}, which is not a file of the folder; copy it"
                )
        return [folder / name for name in sorted(set(places.values()))]
    if (folder / SINGLE).is_file():
        return [folder / SINGLE]
    found = sorted(folder.glob("model*.safetensors"))
    if not found and not any(folder.glob(PICKLED)):
        raise WeightsInvalid(
            f"{folder}: no weights, neither {SINGLE} nor {INDEX}; give the folder of a saved model, or rehearse"
        )
    return found


def indexed(file: Path) -> dict[str, str]:
    """Return the file of each weight in an index of safetensors files."""
    try:
        found = json.loads(file.read_text(encoding="utf-8"))["weight_map"]
        return {key: str(place) for key, place in found.items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise WeightsInvalid(f"{file}: not a readable index of weights ({error!r})") from error


def header(file: Path) -> Iterator[SavedTensor]:
    """Yield the tensors of a safetensors file.

    Raises:
        WeightsInvalid: It is damaged or truncated.
    """
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(file, framework="pt") as opened:
            for key in opened.keys():  # noqa: SIM118  # not a mapping
                yield SavedTensor(key, file, tuple(opened.get_slice(key).get_shape()))
    except (SafetensorError, OSError) as error:
        raise WeightsInvalid(f"{file}: damaged or truncated ({error}); copy it again") from error


def matched(shapes: Mapping[str, Sequence[int]], saved: Mapping[str, SavedTensor]) -> dict[str, SavedTensor] | None:
    """Return where each weight is; None if a weight has no tensor of its name, so that a conversion is needed.

    Raises:
        WeightsInvalid: A tensor has another shape than the model's configuration gives it.
    """
    found: dict[str, SavedTensor] = {}
    for name, shape in shapes.items():
        known = (*(f"{prefix}{name}" for prefix in _BEFORE), name.replace("model.", _WITHIN, 1))
        tensor = next((saved[each] for each in known if each in saved), None)
        if tensor is None:
            return None
        if tensor.shape != tuple(shape):
            raise WeightsInvalid(
                f"{tensor.file}: {tensor.key} has the shape {list(tensor.shape)}, and config.json makes it "
                f"{list(shape)}; give weights and config.json of the same model"
            )
        found[name] = tensor
    return found


def quantization(config: Mapping[str, Any]) -> str | None:
    """Return how a model's weights are quantized; None if they are not."""
    settings = config.get("quantization_config")
    return str(settings.get("quant_method", "unknown")) if isinstance(settings, Mapping) else None
