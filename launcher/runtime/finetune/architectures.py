"""The architectures that the open trainer knows, and their rehearsal sizes. Imports no torch and no transformers."""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from launcher.runtime import model_configs
from launcher.runtime.file_kinds import irregular

CONFIG_FILE = "config.json"


class ModelUnknown(ValueError):
    """The model has no known architecture, or its folder no readable config.json."""


@dataclass(frozen=True, slots=True)
class Architecture:
    """Where transformers has an architecture.

    Args:
        package: Below `transformers.models`.
        config: Class of its configuration.
        model: Class of its language model.
        attention: The kernel that runs on any device.
        period: Layers after which the pattern of layers repeats.
        window: Key of the attention window that some of its layers have; empty for none.
        packs: Whether samples in one row can be kept apart; linear attention carries its state from one to the next.
    """

    package: str
    config: str
    model: str
    attention: str = "sdpa"
    period: int = 1
    window: str = "sliding_window"
    packs: bool = True


KNOWN = {
    "llama": Architecture("llama", "LlamaConfig", "LlamaForCausalLM"),
    "llama4_text": Architecture(
        "llama4", "Llama4TextConfig", "Llama4ForCausalLM", period=4, window="attention_chunk_size"
    ),
    "qwen2": Architecture("qwen2", "Qwen2Config", "Qwen2ForCausalLM"),
    "qwen3": Architecture("qwen3", "Qwen3Config", "Qwen3ForCausalLM"),
    "qwen3_5_text": Architecture(
        "qwen3_5", "Qwen3_5TextConfig", "Qwen3_5ForCausalLM", period=4, window="", packs=False
    ),
    "gpt_oss": Architecture("gpt_oss", "GptOssConfig", "GptOssForCausalLM", attention="eager", period=2),
    "mistral": Architecture("mistral", "MistralConfig", "MistralForCausalLM"),
    "ministral3": Architecture("ministral3", "Ministral3Config", "Ministral3ForCausalLM"),
    "smollm3": Architecture("smollm3", "SmolLM3Config", "SmolLM3ForCausalLM", period=4),
    "phi3": Architecture("phi3", "Phi3Config", "Phi3ForCausalLM"),
    "glm": Architecture("glm", "GlmConfig", "GlmForCausalLM"),
    "ernie4_5": Architecture("ernie4_5", "Ernie4_5Config", "Ernie4_5ForCausalLM"),
    "jais2": Architecture("jais2", "Jais2Config", "Jais2ForCausalLM"),
}
"""By `model_type`. Source: transformers, `models/<package>/modeling_<package>.py`."""

_HEAD_DIM, _MAX_WIDTH, _NUM_EXPERTS, _WINDOW = 16, 128, 4, 32
_PER_LAYER = ("layer_types", "no_rope_layers", "moe_layers", "mlp_only_layers")
_OF_ALL_PARTS = ("quantization_config",)
"""Keys of a model of several parts that hold for each of them."""
_LEFT_OUT = ("architectures", "dtype", "torch_dtype", "quantization_config", "transformers_version", "auto_map")


def architecture_of(config: Mapping[str, Any]) -> Architecture:
    """Return the architecture of a model's configuration.

    Raises:
        ModelUnknown: It is not a known one.
    """
    kind = config.get("model_type")
    if kind not in KNOWN:
        raise ModelUnknown(f"model_type {kind!r}: the open trainer supports {', '.join(sorted(KNOWN))}")
    return KNOWN[kind]


def trainable() -> tuple[str, ...]:
    """Return the known models that the open trainer supports, by their names on the Hugging Face Hub."""
    return tuple(name for name, config in model_configs.table().items() if config["model_type"] in KNOWN)


def read_config(folder: Path) -> Mapping[str, Any]:
    """Return a model folder's config.json; of a model of several parts, that of its language model.

    Raises:
        ModelUnknown: It is missing, or not a JSON object.
    """
    if kind := irregular(folder / CONFIG_FILE):  # opening a FIFO blocks
        raise ModelUnknown(f"{folder / CONFIG_FILE}: is {kind}; give a folder of a saved model")
    try:
        found = json.loads((folder / CONFIG_FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ModelUnknown(
            f"{folder}: no readable {CONFIG_FILE} ({error}); give a folder of a saved model"
        ) from error
    if not isinstance(found, dict):
        raise ModelUnknown(f"{folder / CONFIG_FILE} holds no JSON object")
    text = found.get("text_config")
    if not isinstance(text, dict):
        return found
    shared = {key: found[key] for key in _OF_ALL_PARTS if key in found}
    return {**shared, **text}


def rehearsal_config(path: str, name: str, vocabulary: int) -> dict[str, Any]:
    """Return the shrunk configuration of the model in `path`, a folder or name on the Hub, or else named `name`.

    Raises:
        ModelUnknown: The model is not known.
    """
    if path and (Path(path) / CONFIG_FILE).is_file():
        return shrunk(read_config(Path(path)), vocabulary)
    found = model_configs.table().get(model_configs.beginning(path or name))
    if found is None:
        known = ", ".join(trainable())
        raise ModelUnknown(
            f"model_name_or_path={path or name!r}: the architecture is not known; give a folder with a "
            f"{CONFIG_FILE}, or a name that begins with one of {known}"
        )
    return shrunk(found, vocabulary)


def shrunk(config: Mapping[str, Any], vocabulary: int) -> dict[str, Any]:
    """Return a model's configuration with rehearsal sizes.

    Kept: the ratios of query to key heads, of hidden size to the width of all heads, and of intermediate to hidden
    size; rope type, biases, tied embeddings, norms; the number of experts per token and the pattern of layers.
    Shrunk: head size to 16, hidden size to at most 128, layers to 2 or one period of the pattern, experts to 4, the
    vocabulary to `vocabulary`, attention windows to 32 tokens.

    Raises:
        ModelUnknown: The architecture is not known, or a size is missing.
    """
    architecture = architecture_of(config)
    try:
        sizes = _sizes(config)
    except (KeyError, TypeError, ZeroDivisionError) as error:
        raise ModelUnknown(f"the configuration lacks a size, or has one that is not a number: {error}") from error
    layers = max(2, architecture.period)
    small = {key: value for key, value in config.items() if key not in _LEFT_OUT}
    small |= sizes | {"num_hidden_layers": layers, "vocab_size": vocabulary}
    if architecture.window and (architecture.period > 1 or config.get(architecture.window)):
        small[architecture.window] = _WINDOW  # an architecture with a pattern of layers has one by default
    for key in _PER_LAYER:
        if isinstance(config.get(key), list):
            small[key] = config[key][:layers] if key != "moe_layers" else [n for n in config[key] if n < layers]
    for key in ("bos_token_id", "eos_token_id"):
        small.pop(key, None)
    return small | {"pad_token_id": None}  # the class's own may lie outside of the small vocabulary


def _sizes(config: Mapping[str, Any]) -> dict[str, int]:
    heads, keys = config["num_attention_heads"], config.get("num_key_value_heads") or config["num_attention_heads"]
    hidden, dim = config["hidden_size"], config.get("head_dim") or config["hidden_size"] // heads
    group = math.ceil(heads / keys)
    small_keys = 2 if 2 * group * _HEAD_DIM <= _MAX_WIDTH else 1
    small_heads = small_keys * group
    small_hidden = min(_multiple_of_8(small_heads * _HEAD_DIM * hidden / (heads * dim)), _MAX_WIDTH)
    found = {
        "num_attention_heads": small_heads,
        "num_key_value_heads": small_keys,
        "head_dim": _HEAD_DIM,
        "hidden_size": small_hidden,
    }
    for key in ("intermediate_size", "intermediate_size_mlp", "moe_intermediate_size"):
        if config.get(key):
            found[key] = _multiple_of_8(small_hidden * config[key] / hidden)
    if config.get("linear_num_value_heads"):
        found |= {
            "linear_num_key_heads": 1,
            "linear_num_value_heads": max(1, config["linear_num_value_heads"] // config["linear_num_key_heads"]),
            "linear_key_head_dim": _HEAD_DIM,
            "linear_value_head_dim": _HEAD_DIM,
        }
    if config.get("num_local_experts"):
        found["num_local_experts"] = min(config["num_local_experts"], _NUM_EXPERTS)
    return found


def _multiple_of_8(size: float) -> int:
    return max(8, 8 * round(size / 8))
