"""The parameters of adapters and of the model below them: their names, and the values of adapters, drawn or read."""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import torch
from torch import nn

from launcher.runtime.finetune.weight_files import WeightsInvalid, header

NAME = "default"
"""PEFT's name of a model's first adapter. Source: peft, `get_peft_model`, adapter_name."""
ADAPTER = "lora_"
"""In the name of every parameter of an adapter. Source: peft, `LoraLayer.adapter_layer_names`."""
CONFIG_FILE = "adapter_config.json"
WEIGHTS_FILE = "adapter_model.safetensors"
"""Source: peft, `utils.constants`: CONFIG_NAME, SAFETENSORS_WEIGHTS_NAME."""
_UNSUPPORTED = ("use_dora", "modules_to_save", "layer_replication", "trainable_token_indices", "lora_bias")
"""Keys of PEFT's configuration that add parameters of other kinds."""


def saved_name(name: str) -> str:
    """Return the name that PEFT gives a parameter in its files: without the name of the adapter."""
    return ".".join(part for part in name.split(".") if part != NAME)


def published_name(name: str) -> str:
    """Return the name that transformers gives a parameter, without PEFT's wrappers.

    Source: peft, `BaseTuner`: the model is in `base_model.model`, an adapted layer in `base_layer`.
    """
    return ".".join(part for part in name.removeprefix("base_model.model.").split(".") if part != "base_layer")


def base_parameters(model: nn.Module) -> list[tuple[str, nn.Parameter]]:
    """Return the parameters below the adapters, with their own names; tied ones once."""
    return [(name, parameter) for name, parameter in model.named_parameters() if ADAPTER not in name]


def trained(model: nn.Module) -> dict[str, nn.Parameter]:
    """Return the parameters that train, by name."""
    return {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}


def parts(layer: Any) -> dict[str, nn.Module]:
    """Return the parts of PEFT's layer that have the parameters of its adapters, by name."""
    return {name: getattr(layer, name) for name in layer.adapter_layer_names if hasattr(layer, name)}


@contextmanager
def disabled(model: nn.Module) -> Iterator[None]:
    """Let the model compute without its adapters, for passes without gradients.

    PEFT's own context switches `requires_grad` as well: fully_shard reads that in its first pass, and would take the
    adapters for frozen ones; parameters that stay gathered would get it back instead of their shards.

    Source: peft, `BaseTunerLayer.enable_adapters`.
    """
    from peft.tuners.tuners_utils import BaseTunerLayer

    layers: list[Any] = [layer for layer in model.modules() if isinstance(layer, BaseTunerLayer)]
    for layer in layers:
        layer._disable_adapters = True
    try:
        yield
    finally:
        for layer in layers:
            layer._disable_adapters = False


def drawn(model: nn.Module, *, seed: int) -> dict[str, torch.Tensor]:
    """Return new values of the adapters of a model on the meta device, drawn on the CPU by PEFT's own rule.

    They depend on the seed only: not on the rank, the number of ranks or the kind of device.
    """
    from peft.tuners.lora import LoraLayer

    found = {}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        for prefix, layer in model.named_modules():
            if not isinstance(layer, LoraLayer):
                continue
            own = parts(layer)
            for part in own.values():
                part.to_empty(device="cpu")
            cast(Any, layer).reset_lora_parameters(NAME, init_lora_weights=True)
            for part_name, part in own.items():
                for name, parameter in part.named_parameters():
                    found[f"{prefix}.{part_name}.{name}"] = parameter.detach()
                part.to("meta")
    return found


def saved_config(folder: Path) -> Any:
    """Return PEFT's configuration of saved adapters, for training.

    Raises:
        WeightsInvalid: The folder has none, or one of adapters that are not supported.
    """
    from peft import LoraConfig

    file = folder / CONFIG_FILE
    if not file.is_file():  # PEFT would look for it on the Hub
        raise WeightsInvalid(f"{file} does not exist; lora_checkpoint_file_path is a folder that PEFT saved")
    try:
        config = LoraConfig.from_pretrained(str(folder))
    except (ValueError, TypeError, KeyError) as error:
        raise WeightsInvalid(f"{file}: not a configuration of LoRA adapters ({error})") from error
    if not isinstance(config, LoraConfig):
        raise WeightsInvalid(f"{file}: the adapters are not LoRA adapters")
    for key in _UNSUPPORTED:
        if getattr(config, key, None):
            raise WeightsInvalid(f"{file}: adapters with {key} are not supported")
    config.inference_mode, config.init_lora_weights = False, True
    return config


def read(folder: Path, names: Iterable[str]) -> dict[str, torch.Tensor]:
    """Return the values of the adapters that PEFT saved in a folder, by `names`, the parameters that train.

    Raises:
        WeightsInvalid: The file is missing or damaged, or of another model.
    """
    from safetensors.torch import load_file

    file = folder / WEIGHTS_FILE
    if not file.is_file():
        raise WeightsInvalid(f"{file} does not exist; save the adapters with safe_serialization=True")
    keys = {tensor.key for tensor in header(file)}
    wanted = {saved_name(name): name for name in names}
    for key in sorted(keys ^ wanted.keys()):
        problem = "has no place in the model" if key in keys else "is missing"
        raise WeightsInvalid(f"{file}: {key} {problem}; the adapters are of another model or other target modules")
    return {wanted[key]: value for key, value in load_file(file).items()}


def put(model: nn.Module, values: Mapping[str, torch.Tensor], source: Path | None) -> None:
    """Give parameters of a model, possibly sharded, `values` by name, complete and the same on every rank.

    Raises:
        WeightsInvalid: A value of the folder `source` has another shape than its parameter.
    """
    parameters = trained(model)
    for name, value in values.items():
        if value.shape != parameters[name].shape:
            raise WeightsInvalid(
                f"{source}: {saved_name(name)} has the shape {list(value.shape)}, and the model's is "
                f"{list(parameters[name].shape)}; the adapters are of another model"
            )
        put_one(parameters[name], value)


@torch.no_grad()
def put_one(parameter: nn.Parameter, value: torch.Tensor) -> None:
    """Copy a tensor, complete and the same on every rank, into a parameter; of a sharded one, this rank's part."""
    from torch.distributed.tensor import DTensor, distribute_tensor

    if isinstance(parameter, DTensor):
        mesh = parameter.device_mesh
        full = value.to(mesh.device_type, parameter.dtype)
        parameter.to_local().copy_(distribute_tensor(full, mesh, parameter.placements, src_data_rank=None).to_local())
    else:
        parameter.copy_(value)
