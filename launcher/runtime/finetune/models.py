"""The model of a fine-tuning recipe, by transformers, its adapters, by PEFT, and its optimizer."""

import importlib
import importlib.util
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import torch
from torch import nn

from launcher.runtime.finetune import adapters
from launcher.runtime.finetune.architectures import architecture_of
from launcher.runtime.finetune.settings import LoraSettings, OptimizerSettings, Settings

_UNDECAYED = ("bias", "norm")
_PACKAGES = {"flash_attention_2": "flash_attn", "flash_attention_3": "flash_attn_interface"}
"""Of attention kernels."""


def import_libraries(config: Mapping[str, Any]) -> None:
    """Import what takes long to import and a compiled recipe needs: transformers' models and, for adapters, PEFT."""
    importlib.import_module("transformers.modeling_utils")
    if config["training_config"]["model_config"]["peft_config"]:
        importlib.import_module("peft")


def model_class(config: Mapping[str, Any]) -> Any:
    """Return transformers' class of a language model. Imports the module of this architecture only."""
    architecture = architecture_of(config)
    package = importlib.import_module(f"transformers.models.{architecture.package}.modeling_{architecture.package}")
    return getattr(package, architecture.model)


def model_config(config: Mapping[str, Any]) -> Any:
    """Return transformers' object of a configuration, as config.json has it."""
    architecture = architecture_of(config)
    package = importlib.import_module(
        f"transformers.models.{architecture.package}.configuration_{architecture.package}"
    )
    return getattr(package, architecture.config)(
        **{key: value for key, value in config.items() if key not in ("model_type", "quantization_config")}
    )


def random_model(config: Mapping[str, Any], attention: str, *, dtype: torch.dtype, seed: int) -> nn.Module:
    """Return a language model with random weights from a seed; the generator's state is left untouched."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model: nn.Module = model_class(config)._from_config(
            model_config(config), attn_implementation=attention, dtype=dtype
        )
    return model


def built(
    config: Mapping[str, Any], settings: Settings, device: torch.device, *, has_weights: bool
) -> tuple[nn.Module, tuple[str, ...]]:
    """Return a recipe's model with its adapters, and remarks on requests of the recipe that this device cannot meet.

    A model that `has_weights` is on the meta device until they are loaded.
    """
    lora, start = settings.model.lora, settings.model.adapters_path
    attention, remark = attention_for(config, settings.model.attention, device)
    remarks = [remark] if remark else []
    dtype = (compute_dtype(device) if lora else None) or torch.float32
    with torch.device("meta" if has_weights else device):
        model = random_model(config, attention, dtype=dtype, seed=settings.seed)
        if lora:
            model = with_adapters(model, lora, seed=settings.seed, folder=start)
    if lora and start:
        remarks.append(f"training starts from the adapters in {start}; the recipe's rank and modules do not count")
    return model, tuple(remarks)


def compute_dtype(device: torch.device) -> torch.dtype | None:
    """Return the precision of forward and backward passes on a device, and of frozen weights there; None for 32 bits.

    Matrix products in 32 bits stay exact: TF32 would round the positions of rotary embeddings to 10 bits.
    """
    return torch.bfloat16 if device.type == "cuda" else None


def attention_for(config: Mapping[str, Any], requested: str, device: torch.device) -> tuple[str, str | None]:
    """Return the attention kernel to use on a device, and why it is not the `requested` one, if it is not.

    Source: transformers, Attention Interface; gpt_oss has attention sinks, which sdpa does not compute.
    """
    fallback = architecture_of(config).attention
    if requested in (fallback, "eager"):
        return requested, None
    if device.type != "cuda":
        return fallback, f"attn_implementation={requested} needs a GPU; {fallback} computes the same here"
    package = _PACKAGES.get(requested, "kernels" if "/" in requested else None)
    if requested == "sdpa":
        reason = f"this architecture runs with {fallback}"
    elif package and importlib.util.find_spec(package) is None:
        reason = f"the package {package} is not installed"
    else:
        return requested, None
    return fallback, f"attn_implementation={requested}: {reason}; {fallback} computes the same"


def with_adapters(model: nn.Module, lora: LoraSettings, *, seed: int, folder: str | None = None) -> nn.Module:
    """Return the model as PEFT wraps it: its weights frozen, its adapters trained in 32 bits.

    New adapters are the same on every rank. Those of a folder bring their own sizes and modules.
    """
    from peft import get_peft_model  # start-up time: full fine-tuning does without

    config = adapters.saved_config(Path(folder)) if folder else _lora_config(lora)
    config.lora_dropout = 0.0 if config.target_parameters else lora.dropout  # PEFT has none for parameters
    with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "`is_gradient_checkpointing` is deprecated", FutureWarning)  # PEFT reads it
        torch.manual_seed(seed)
        wrapped: nn.Module = get_peft_model(model, config)
    for parameter in trained_parameters(wrapped):
        parameter.data = parameter.data.float()  # biases, too: fully_shard takes one precision of trained parameters
    for layer in wrapped.modules():
        if hasattr(layer, "cast_input_dtype_enabled"):  # autocast or fully_shard casts, without a copy in 32 bits
            cast(Any, layer).cast_input_dtype_enabled = False
    if folder and not any(parameter.is_meta for parameter in wrapped.parameters()):
        source = Path(folder)
        adapters.put(wrapped, adapters.read(source, adapters.trained(wrapped)), source)
    return wrapped


def _lora_config(lora: LoraSettings) -> Any:
    from peft import LoraConfig

    return LoraConfig(
        task_type="CAUSAL_LM",
        r=lora.r,
        lora_alpha=lora.alpha,
        lora_dropout=lora.dropout,
        bias=lora.bias,  # type: ignore[arg-type]  # checked with the recipe
        target_modules=lora.targets if isinstance(lora.targets, str) else list(lora.targets),
        target_parameters=list(lora.parameters) or None,
        exclude_modules=(lora.excluded if isinstance(lora.excluded, str) else list(lora.excluded)) or None,
    )


def language_model(model: nn.Module) -> Any:
    """Return transformers' model inside PEFT's wrapper, if there is one."""
    return cast(Any, model).get_base_model() if hasattr(model, "get_base_model") else model


def blocks(model: nn.Module) -> list[nn.Module]:
    """Return the model's blocks, first to last."""
    return list(language_model(model).model.layers)


def trained_parameters(model: nn.Module) -> list[nn.Parameter]:
    """Return the parameters that train."""
    return list(adapters.trained(model).values())


def adamw(model: nn.Module, settings: OptimizerSettings, device: torch.device) -> torch.optim.AdamW:
    """Return AdamW; weights of norms and biases do not decay.

    Source: transformers, `Trainer.get_decay_parameter_names`: the same parameters decay.
    """
    decayed: list[nn.Parameter] = []
    others: list[nn.Parameter] = []
    for name, parameter in adapters.trained(model).items():
        (others if any(part in name for part in _UNDECAYED) else decayed).append(parameter)
    groups = [{"params": decayed, "weight_decay": settings.weight_decay}, {"params": others, "weight_decay": 0.0}]
    return torch.optim.AdamW(
        [group for group in groups if group["params"]],
        lr=settings.schedule.peak,
        betas=settings.betas,
        fused=True if device.type == "cuda" else None,
    )
