"""The optimizer, of the parameters that train."""

import torch
from torch import nn

from launcher.runtime.finetune.settings import OptimizerSettings


def adamw(model: nn.Module, settings: OptimizerSettings, device: torch.device) -> torch.optim.AdamW:
    """Return AdamW; weights of norms and biases do not decay.

    Source: transformers, `Trainer.get_decay_parameter_names`: the same parameters decay.
    """
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    groups = [
        {"params": [each for each in trained if each.ndim > 1], "weight_decay": settings.weight_decay},
        {"params": [each for each in trained if each.ndim <= 1], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(
        [group for group in groups if group["params"]],
        lr=settings.schedule.peak,
        betas=settings.betas,
        fused=True if device.type == "cuda" else None,
    )
