"""The trained weights as transformers names them, gathered one at a time, with the adapters merged into them."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, cast

import torch
from torch import nn

from launcher.runtime import process_group
from launcher.runtime.finetune.adapters import ADAPTER, NAME

DTYPES = {name: getattr(torch, name) for name in ("bfloat16", "float16", "float32")}


def published_name(name: str) -> str:
    """Return the name that transformers gives a parameter, without PEFT's wrappers.

    Source: peft, `BaseTuner`: the model is in `base_model.model`, an adapted layer in `base_layer`.
    """
    return ".".join(part for part in name.removeprefix("base_model.model.").split(".") if part != "base_layer")


def base_parameters(model: nn.Module) -> list[tuple[str, nn.Parameter]]:
    """Return the parameters that are no adapters, with their own names; tied ones once."""
    return [(name, parameter) for name, parameter in model.named_parameters() if ADAPTER not in name]


def published_dtype(config: Mapping[str, Any]) -> torch.dtype | None:
    """Return the dtype that a model is published in; None if its config.json names none.

    Args:
        config: As in config.json.
    """
    return DTYPES.get(str(config.get("dtype") or config.get("torch_dtype")))


def gathered(parameter: torch.Tensor) -> torch.Tensor:
    """Return a parameter in full, on this rank's device. Collective if it is sharded."""
    from torch.distributed.tensor import DTensor

    value = parameter.detach()
    if not isinstance(value, DTensor):
        return value
    there = cast(DTensor, value.to(value.device_mesh.device_type))  # offloaded shards cannot be gathered as they are
    return there.full_tensor()


class TrainedWeights:
    """The weights of a model, with its adapters merged.

    Args:
        model: Of transformers, or as PEFT wraps it; possibly sharded.
        dtype: To save in; None for that of training.
    """

    def __init__(self, model: nn.Module, dtype: torch.dtype | None):
        self._parameters = {published_name(name): parameter for name, parameter in base_parameters(model)}
        self._dtype = dtype
        self._layers = _adapted(model)

    def sizes(self) -> dict[str, int]:
        """Return the bytes of each weight, by name."""
        return {name: each.numel() * self._dtype_of(each).itemsize for name, each in self._parameters.items()}

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
                value = value + _delta(layer, part).float()
        return value.to("cpu", self._dtype_of(parameter)).contiguous()

    def _dtype_of(self, parameter: nn.Parameter) -> torch.dtype:
        return self._dtype or parameter.dtype


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
        for part in layer.adapter_layer_names
        if hasattr(layer, part)
        for name, parameter in getattr(layer, part).named_parameters()
    }


def _delta(layer: Any, parts: Mapping[str, torch.Tensor]) -> torch.Tensor:
    """Return what the adapters add to a layer's weight, by PEFT's own rule."""
    with torch.no_grad(), _in_place(layer, parts):
        return cast(torch.Tensor, layer.get_delta_weight(NAME))


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
