"""The optimizer, of the parameters that train."""

import torch
from torch import nn

from launcher.runtime.finetune.settings import OptimizerSettings

_UNDECAYED = ("bias", "norm")


def adamw(model: nn.Module, settings: OptimizerSettings, device: torch.device) -> torch.optim.AdamW:
    """Return AdamW; weights of norms and biases do not decay.

    Source: transformers, `Trainer.get_decay_parameter_names`: the same parameters decay.
    """
    decayed: list[nn.Parameter] = []
    others: list[nn.Parameter] = []
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            (others if any(part in name for part in _UNDECAYED) else decayed).append(parameter)
    groups = [
        {"params": decayed, "weight_decay": settings.weight_decay},
        {"params": others, "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(
        [group for group in groups if group["params"]],
        lr=settings.schedule.peak,
        betas=settings.betas,
        fused=True if device.type == "cuda" else None,
    )
