"""SageMaker's model parallel library, SMP 1: its parameters with their defaults, and how a training image gets them.

Their types are in `launcher.model.parallelism.distribution`, which costs milliseconds to import.

Source: Amazon SageMaker Python SDK, Required SageMaker Python SDK parameters: the two editions for SMP 1.0 to 1.3 and
for SMP 1.11, and `validate_mp_config` of SDK 2.251.1 for what both leave out.
"""

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from launcher.model.parallelism.distribution import SmpParameters

TORCH, TENSORFLOW = "pytorch", "tensorflow"
DEFAULT_STRATEGY = "cluster"
ORDERS = {"cluster": "DPT", "spread": "TPD"}
"""Named placement strategies as permutations. Source: Required parameters, placement_strategy."""


class Parameter(NamedTuple):
    """Documented properties of a parameter besides its type."""

    default: Any = None
    """Value that the library uses if it is left out; None if it follows from others, or there is none."""
    framework: str | None = None
    """The only framework that has it; None for both."""
    since: tuple[int, int] | None = None
    """First version of the library with it, major and minor; None for all."""


PARAMETERS = {
    "partitions": Parameter(),
    "microbatches": Parameter(1),
    "pipeline": Parameter("interleaved"),
    "optimize": Parameter("memory"),
    "placement_strategy": Parameter(DEFAULT_STRATEGY),
    "auto_partition": Parameter(True),
    "default_partition": Parameter(0),
    "contiguous": Parameter(True, TENSORFLOW),
    "horovod": Parameter(False, TENSORFLOW),
    "memory_weight": Parameter(None, TORCH),
    "ddp": Parameter(False, TORCH),
    "active_microbatches": Parameter(None, TORCH, (1, 3)),
    "deterministic_server": Parameter(False, TORCH, (1, 3)),
    "pipeline_parallel_degree": Parameter(None, TORCH, (1, 6)),
    "tensor_parallel_degree": Parameter(1, TORCH, (1, 6)),
    "offload_activations": Parameter(False, TORCH, (1, 6)),
    "activation_loading_horizon": Parameter(4, TORCH, (1, 6)),
    "fp16": Parameter(False, TORCH, (1, 10)),
    "fp16_params": Parameter(False, TORCH, (1, 6)),
    "shard_optimizer_state": Parameter(False, TORCH, (1, 6)),
    "prescaled_batch": Parameter(False, TORCH, (1, 6)),
    "skip_tracing": Parameter(False, TORCH, (1, 6)),
    "sharded_data_parallel_degree": Parameter(1, TORCH, (1, 11)),
    "sdp_reduce_bucket_size": Parameter(500_000_000, TORCH, (1, 11)),
    "sdp_param_persistence_threshold": Parameter(1_000_000, TORCH, (1, 11)),
    "sdp_max_live_parameters": Parameter(1_000_000_000, TORCH, (1, 11)),
    "sdp_hierarchical_allgather": Parameter(True, TORCH, (1, 11)),
    "sdp_gradient_clipping": Parameter(1.0, TORCH, (1, 11)),
    "load_partition": Parameter(),
    "partition_file": Parameter(),
    "ddp_port": Parameter(None, TORCH),
    "ddp_dist_backend": Parameter("auto", TORCH),
}
"""Every parameter. Source: the module's; the last four from SDK 2.251.1 and the sagemaker-training toolkit 5.1.4."""
_MEMORY_WEIGHTS = {"speed": 0.2, "memory": 0.8}
_ACTIVE_BEYOND = 2
"""Active microbatches beyond the partitions. Source: Required parameters, active_microbatches."""


def effective(parameters: "SmpParameters", framework: str) -> dict[str, Any]:
    """Return the library's effective parameters: each of its framework's as given, or its default.

    The number of partitions must be given.
    """
    own = {name for name, known in PARAMETERS.items() if known.framework in (None, framework)}
    given = parameters.model_dump(include=own, exclude_none=True)
    found = {name: known.default for name, known in PARAMETERS.items() if name in own} | given
    if framework == TORCH:
        split = found["partitions"] or found["pipeline_parallel_degree"]
        found["memory_weight"] = given.get("memory_weight", _MEMORY_WEIGHTS[found["optimize"]])
        found["active_microbatches"] = given.get("active_microbatches", split + _ACTIVE_BEYOND)
    return {name: value for name, value in found.items() if value is not None}


def hyperparameters(distribution: Mapping[str, Any], processes_per_host: int, instance_type: str) -> dict[str, str]:
    """Return the hyperparameters that describe a distribution to a training image, each as JSON.

    `distribution` is as the user wrote it, checked; its order is that of `mp_parameters`.

    Source: SageMaker Python SDK 2.251.1, Framework._distribution_configuration and _json_encode_hyperparameters.
    """
    found: dict[str, Any] = {}
    if mpi := distribution.get("mpi"):
        found["sagemaker_mpi_enabled"] = mpi["enabled"]
        found["sagemaker_mpi_num_of_processes_per_host"] = processes_per_host
        found["sagemaker_mpi_custom_mpi_options"] = mpi.get("custom_mpi_options") or ""
    if smdistributed := distribution.get("smdistributed"):
        found |= _of_libraries(smdistributed) | {"sagemaker_instance_type": instance_type}
    if torch := distribution.get("torch_distributed"):
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
