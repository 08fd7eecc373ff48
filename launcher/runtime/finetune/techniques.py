"""The objective of a recipe's technique."""

import hashlib
import json
from pathlib import Path
from typing import Any

from torch import nn

from launcher.runtime.finetune import reference
from launcher.runtime.finetune.batches import Batcher
from launcher.runtime.finetune.data.prepared import Prepared, PreparedPairs
from launcher.runtime.finetune.dpo import Preference, Reference, uniform_reference
from launcher.runtime.finetune.inputs import Inputs
from launcher.runtime.finetune.objectives import Objective
from launcher.runtime.finetune.settings import Settings
from launcher.runtime.finetune.sft import Supervised


def objective_of(
    root: nn.Module, data: Prepared, batcher: Batcher, settings: Settings, inputs: Inputs
) -> Objective[Any]:
    """Return the objective; where it needs a precomputed reference, compute it. Collective.

    Args:
        root: The model before training.
        data: Prepared samples.
        batcher: Makes rows of them.
        settings: Of the training.
        inputs: Of the job.
    """
    if settings.preference is None:
        return Supervised(batcher)
    return Preference(batcher, settings.preference, _reference(root, data, batcher, settings, inputs))


def _reference(root: nn.Module, data: Prepared, batcher: Batcher, settings: Settings, inputs: Inputs) -> Reference:
    if settings.preference and settings.preference.reference_free:
        return uniform_reference
    if settings.model.lora:
        return reference.without_adapters(root)
    files = {}
    for name, pairs in (("train", data.train), ("validation", data.validation)):
        if isinstance(pairs, PreparedPairs):
            file = inputs.prepared / f"reference-{name}-{data.digest}-{_identity(settings, inputs)}.npy"
            files[id(pairs)] = reference.precomputed(root, pairs, batcher, file, settings.shares.micro)
    return reference.from_file(files)


def _identity(settings: Settings, inputs: Inputs) -> str:
    """Return what the model before training is known by: its weights' files, or how it is made up."""
    if inputs.weights:
        files = sorted(Path(inputs.weights).glob("*.safetensors"))
        described: Any = [(each.name, each.stat().st_size, each.stat().st_mtime_ns) for each in files]
    else:
        described = [settings.seed, dict(inputs.config)]
    return hashlib.sha256(json.dumps(described, sort_keys=True).encode()).hexdigest()[:16]
