"""SageMaker's model parallel library, SMP 1: the defaults of its parameters, and their form for a training image.

Their types are in `launcher.model.parallelism.distribution`, which costs milliseconds to import.

Source: Amazon SageMaker Python SDK, Required SageMaker Python SDK parameters: the two editions for SMP 1.0 to 1.3 and
for SMP 1.11, and `validate_mp_config` of SDK 2.251.1 for parameters that both omit.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from launcher.model.parallelism.distribution import SmpParameters

TORCH, TENSORFLOW = "pytorch", "tensorflow"
DEFAULT_STRATEGY = "cluster"
ORDERS = {"cluster": "DPT", "spread": "TPD"}
"""Named placement strategies as permutations. Source: Required parameters, placement_strategy."""


@dataclass(frozen=True, slots=True)
class Parameter:
    """Documented properties of a parameter besides its type.

    Args:
        default: Value that the library uses if it is left out; None if it follows from others, or there is none.
        framework: The only framework that has it; None for both.
        since: First version of the library with it, major and minor; None for all.
    """

    default: Any = None
    framework: str | None = None
    since: tuple[int, int] | None = None


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
        library = smdistributed.get("modelparallel") or {"enabled": False}
        given = {key: value for key, value in (library.get("parameters") or {}).items() if value is not None}
        if library["enabled"] and given:
            found["mp_parameters"] = given
        data = smdistributed.get("dataparallel") or {"enabled": False}
        found["sagemaker_distributed_dataparallel_enabled"] = data["enabled"]
        found["sagemaker_instance_type"] = instance_type
        if data["enabled"]:
            found["sagemaker_distributed_dataparallel_custom_mpi_options"] = data.get("custom_mpi_options") or ""
    if torch := tree.get("torch_distributed"):
        found["sagemaker_torch_distributed_enabled"] = torch["enabled"]
        found["sagemaker_instance_type"] = instance_type
    return {name: json.dumps(value) for name, value in found.items()}
