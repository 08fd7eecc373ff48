"""SageMaker's model parallel library, SMP 1: what it works with, and how a training image gets it.

Source: as `launcher.model.parallelism.smp_parameters`.
"""

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from launcher.model.parallelism.smp_parameters import PARAMETERS, TORCH

if TYPE_CHECKING:
    from launcher.model.parallelism.distribution import SmpParameters

_MEMORY_WEIGHTS = {"speed": 0.2, "memory": 0.8}
_ACTIVE_BEYOND = 2
"""Active microbatches beyond the partitions. Source: Required parameters, active_microbatches."""


def effective(parameters: "SmpParameters", framework: str) -> dict[str, Any]:
    """Return the library's effective parameters: each of its framework's as given, or its default.

    Args:
        parameters: The given parameters, including the number of partitions.
        framework: `pytorch` or `tensorflow`.
    """
    own = {name for name, known in PARAMETERS.items() if known.framework in (None, framework)}
    given = parameters.model_dump(include=own, exclude_none=True)
    found = {name: known.default for name, known in PARAMETERS.items() if name in own} | given
    if framework == TORCH:
        split = found["partitions"] or found["pipeline_parallel_degree"]
        found["memory_weight"] = given.get("memory_weight", _MEMORY_WEIGHTS[found["optimize"]])
        found["active_microbatches"] = given.get("active_microbatches", split + _ACTIVE_BEYOND)
    return {name: value for name, value in found.items() if value is not None}


def hyperparameters(tree: Mapping[str, Any], processes_per_host: int, instance_type: str) -> dict[str, str]:
    """Return the hyperparameters that describe a distribution to a training image, each as JSON.

    Args:
        tree: `distribution` as the user wrote it, checked; its order is that of `mp_parameters`.
        processes_per_host: Value for `mpi.processes_per_host`.
        instance_type: With its `ml.` prefix.

    Source: SageMaker Python SDK 2.251.1, Framework._distribution_configuration and _json_encode_hyperparameters.
    """
    found: dict[str, Any] = {}
    if mpi := tree.get("mpi"):
        found["sagemaker_mpi_enabled"] = mpi["enabled"]
        found["sagemaker_mpi_num_of_processes_per_host"] = processes_per_host
        found["sagemaker_mpi_custom_mpi_options"] = mpi.get("custom_mpi_options") or ""
    if smdistributed := tree.get("smdistributed"):
        found |= _of_libraries(smdistributed) | {"sagemaker_instance_type": instance_type}
    if torch := tree.get("torch_distributed"):
        found["sagemaker_torch_distributed_enabled"] = torch["enabled"]
        found["sagemaker_instance_type"] = instance_type
    return {name: json.dumps(value) for name, value in found.items()}


def _of_libraries(smdistributed: Mapping[str, Any]) -> dict[str, Any]:
    """Return the hyperparameters of the model and data parallel libraries."""
    found: dict[str, Any] = {}
    library = smdistributed.get("modelparallel") or {"enabled": False}
    given = {key: value for key, value in (library.get("parameters") or {}).items() if value is not None}
    if library["enabled"] and given:
        found["mp_parameters"] = given
    data = smdistributed.get("dataparallel") or {"enabled": False}
    found["sagemaker_distributed_dataparallel_enabled"] = data["enabled"]
    if data["enabled"]:
        found["sagemaker_distributed_dataparallel_custom_mpi_options"] = data.get("custom_mpi_options") or ""
    return found
