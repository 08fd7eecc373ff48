"""The results of a training: adapters, merged weights, a checkpoint in the Hugging Face format."""

from pathlib import Path
from typing import Any

from torch import nn

from launcher.runtime import process_group
from launcher.runtime.finetune.inputs import Inputs
from launcher.runtime.finetune.settings import Settings
from launcher.runtime.reporting import StepMetrics


def write(model: nn.Module, settings: Settings, inputs: Inputs, last: StepMetrics | None) -> None:
    """Write the results. Collective."""
    from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict

    state: dict[str, Any] = get_model_state_dict(
        model, options=StateDictOptions(full_state_dict=True, cpu_offload=True)
    )
    if process_group.rank() == 0:
        folder = Path(inputs.results)
        folder.mkdir(parents=True, exist_ok=True)
        model.save_pretrained(folder, state_dict=state)  # type: ignore[operator]
