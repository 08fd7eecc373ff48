"""The parameters of SageMaker's model parallel library, SMP 1, with their defaults.

Their types are in `launcher.model.parallelism.distribution`, which costs milliseconds to import.

Source: Amazon SageMaker Python SDK, Required SageMaker Python SDK parameters: the two editions for SMP 1.0 to 1.3 and
for SMP 1.11, and `validate_mp_config` of SDK 2.251.1 for what both leave out.
"""

from dataclasses import dataclass
from typing import Any

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
