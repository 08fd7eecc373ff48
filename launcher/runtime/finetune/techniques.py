"""The objective of a recipe's technique."""

import json
from pathlib import Path
from typing import Any

from torch import nn

from launcher.runtime import process_group
from launcher.runtime.checksums import checksum
from launcher.runtime.finetune import reference
from launcher.runtime.finetune.batches import Batcher
from launcher.runtime.finetune.data.fingerprints import fingerprints
from launcher.runtime.finetune.data.prepared import Prepared, PreparedPairs
from launcher.runtime.finetune.dpo import Preference, uniform_reference
from launcher.runtime.finetune.inputs import Inputs
from launcher.runtime.finetune.objectives import Objective
from launcher.runtime.finetune.settings import Settings
from launcher.runtime.finetune.sft import Supervised
from launcher.runtime.finetune.weight_files import PICKLED, weight_files

FORMAT = 2
"""Of the files of precomputed references; a part of their names."""
MEMORY = ".weights.json"
"""Among the prepared data: the fingerprints of weights."""


def objective_of(
    root: nn.Module, data: Prepared, batcher: Batcher, settings: Settings, inputs: Inputs
) -> Objective[Any, Any]:
    """Return the objective.

    Args:
        root: The model before training.
        data: Prepared samples.
        batcher: Makes rows of them.
        settings: Of the training.
        inputs: Of the job.
    """
    if settings.preference is None:
        return Supervised(batcher)
    if settings.preference.reference_free:
        return Preference(batcher, settings.preference, uniform_reference)
    if settings.model.lora:
        return Preference(batcher, settings.preference, reference.without_adapters(root))
    found = reference.Precomputed(root, batcher, settings.shares.micro, lambda: _files(data, settings, inputs))
    return Preference(batcher, settings.preference, found, found.prepare)


def _files(data: Prepared, settings: Settings, inputs: Inputs) -> list[tuple[PreparedPairs, Path]]:
    """Return the pairs of a job, and the file of the reference of each. Collective."""
    patient = process_group.patient_group()
    identity = _identity(settings, inputs) if process_group.rank() == 0 else ""
    process_group.barrier(patient)
    identity = process_group.share(identity)
    return [
        (pairs, inputs.prepared / f"reference-{name}-{data.digest}-{identity}.npy")
        for name, pairs in (("train", data.train), ("validation", data.validation))
        if isinstance(pairs, PreparedPairs)
    ]


def _identity(settings: Settings, inputs: Inputs) -> str:
    """Return what the model before training is known by: the content of its files, or how it is made up."""
    described: list[Any] = [FORMAT, dict(inputs.config)]
    if inputs.weights:
        files = weight_files(inputs.weights) or sorted(inputs.weights.glob(PICKLED))
        described.append(fingerprints(files, inputs.prepared, MEMORY))
    else:
        described.append(settings.seed)
    return checksum(json.dumps(described, sort_keys=True).encode()).hex()[:16]
