"""The memory of gradients on a rank, counted in two ways: by where they lie, and by what a pass left allocated."""

import gc
import weakref
from dataclasses import dataclass

import torch
from torch import nn
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


@dataclass(frozen=True)
class GradientBytes:
    """Bytes of gradients on this rank: in parameters, complete ones that fully_shard holds, and parts of a sum."""

    of_parameters: int
    unsharded: int
    partial: int

    @property
    def total(self) -> int:
        return self.of_parameters + self.unsharded + self.partial


def size(tensor: torch.Tensor | None) -> int:
    local = tensor.to_local() if isinstance(tensor, DTensor) else tensor
    return 0 if local is None else local.nbytes


def gradient_bytes(model: nn.Module) -> GradientBytes:
    """Return the bytes of the gradients that this rank holds between two passes."""
    unsharded = partial = 0
    for module in model.modules():
        for group in module._get_fsdp_state()._fsdp_param_groups if hasattr(module, "_get_fsdp_state") else ():
            partial += size(group._partial_reduce_output)
            for each in group.fsdp_params:
                unsharded += size(each.unsharded_accumulated_grad)
                if hasattr(each, "_unsharded_param"):
                    unsharded += size(each._unsharded_param.grad)
    return GradientBytes(sum(size(each.grad) for each in model.parameters()), unsharded, partial)


def complete_bytes(model: nn.Module) -> int:
    """Return the bytes of the gradients of all trained parameters together."""
    return sum(each.numel() * each.element_size() for each in model.parameters() if each.requires_grad)


class Allocations(TorchDispatchMode):
    """Records the storages that operations return, and how many of their bytes are still in use."""

    def __init__(self) -> None:
        super().__init__()
        self._storages: list[weakref.ref] = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        for leaf in tree_leaves(result):
            if isinstance(leaf, torch.Tensor) and not isinstance(leaf, DTensor):
                self._storages.append(weakref.ref(leaf.untyped_storage()))
        return result

    def bytes_in_use(self) -> int:
        gc.collect()
        found = {storage._cdata: storage.nbytes() for each in self._storages if (storage := each()) is not None}
        return sum(found.values())
