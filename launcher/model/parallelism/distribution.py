"""`distribution` of a recipe: how a script is started, and the parameters of the model parallel library, SMP 1.

Source: as `launcher.model.parallelism.smp`.
"""

from typing import Annotated, Literal

from pydantic import Field

from launcher.model.base_model import BatchSize, DeviceCount, Model, NonNegativeInt, PositiveInt, TextForm
from launcher.model.parallelism.smp import DEFAULT_STRATEGY, TORCH


class SmpParameters(Model):
    """Parameters that initialize the library. Missing ones take the library's default."""

    partitions: BatchSize | None = None
    """Parts the model is split into, one per device of its replica. Required, unless pipeline_parallel_degree is
    given.
    """
    microbatches: BatchSize | None = None
    """Parts each batch is cut into for pipelining; a divisor of the batch. 1, the default, disables pipelining; more
    leave devices idle for less of a step."""
    pipeline: Literal["interleaved", "simple"] | None = None
    """Pipeline schedule. interleaved, the default, runs backward passes as early as possible; simple runs all forward
    passes first."""
    optimize: Literal["memory", "speed"] | None = None
    """Optimization goal of the split and the schedule: memory, the default, balances parameters and activations;
    speed balances operations and is less strict about order."""
    placement_strategy: Literal["cluster", "spread", "DPT", "DTP", "PDT", "PTD", "TDP", "TPD"] | None = None
    """Ranks that hold one replica: cluster, the default, neighbours; spread, ranks as far apart as possible. Or an
    order of D (replicas), P (partitions) and T (tensor slices), the last over neighbours."""
    auto_partition: bool | None = None
    """true, the default, lets the library split the model; false follows the script's smp.partition contexts and
    needs default_partition."""
    default_partition: NonNegativeInt | None = None
    """Partition of layers outside any smp.partition context; below partitions. 0 unless auto_partition=false, which
    makes it required."""
    contiguous: bool | None = None
    """Whether each partition is one connected part of the graph; true by default. TensorFlow only."""
    horovod: bool | None = None
    """true if replicas train together through Horovod; false by default. TensorFlow only."""
    memory_weight: Annotated[float, Field(ge=0, le=1)] | None = None
    """Weight of balancing memory in the automatic split, against balancing time: 0 to 1. By default 0.2 with
    optimize=speed, else 0.8. PyTorch only."""
    ddp: bool | None = None
    """true if replicas train together through DistributedDataParallel; false by default. PyTorch only."""
    active_microbatches: BatchSize | None = None
    """Maximum number of microbatches in the pipeline; partitions + 2 by default. Fewer need less memory. PyTorch, SMP
    1.3.
    """
    deterministic_server: bool | None = None
    """true runs pipelined requests in the same order on every replica; false by default. PyTorch, SMP 1.3."""
    pipeline_parallel_degree: BatchSize | None = None
    """The newer name of partitions; give one of the two. PyTorch, SMP 1.6."""
    tensor_parallel_degree: BatchSize | None = None
    """Devices that share each tensor-parallel module; 1 by default. More need ddp=true. PyTorch, SMP 1.6."""
    offload_activations: bool | None = None
    """true keeps checkpointed activations in main memory; false by default. Needs more than one microbatch, and more
    than one active. PyTorch, SMP 1.6."""
    activation_loading_horizon: PositiveInt | None = None
    """Number of pipeline tasks that an offloaded activation is loaded before its use; 4 by default. PyTorch, SMP
    1.6."""
    fp16: bool | None = None
    """true trains in 16-bit floating point; false by default. PyTorch, SMP 1.10."""
    fp16_params: bool | None = None
    """true creates the parameters of distributed modules in 16-bit floating point; false by default. PyTorch, SMP
    1.6.
    """
    shard_optimizer_state: bool | None = None
    """true shards the optimizer's state over the replicas; false by default. PyTorch, SMP 1.6."""
    prescaled_batch: bool | None = None
    """true if the ranks that share a tensor get the same batch; false, the default, if each gets its own. It
    determines how many samples a step uses. PyTorch, SMP 1.6."""
    skip_tracing: bool | None = None
    """true skips the first, tracing step, for models that do not fit in main memory; false by default. PyTorch,
    SMP 1.6."""
    sharded_data_parallel_degree: BatchSize | None = None
    """Ranks over which parameters, gradients and optimizer state are sharded; 1 by default. PyTorch, SMP 1.11."""
    sdp_reduce_bucket_size: PositiveInt | None = None
    """Number of elements of a gradient bucket that is reduced at once; 500,000,000 by default. PyTorch, SMP 1.11."""
    sdp_param_persistence_threshold: NonNegativeInt | None = None
    """Tensors with fewer elements are not sharded; 1,000,000 by default. PyTorch, SMP 1.11."""
    sdp_max_live_parameters: PositiveInt | None = None
    """Maximum number of parameters gathered at a time; 1,000,000,000 by default. PyTorch, SMP 1.11."""
    sdp_hierarchical_allgather: bool | None = None
    """true, the default, gathers parameters first between nodes, then within them. PyTorch, SMP 1.11."""
    sdp_gradient_clipping: Annotated[float, Field(gt=0)] | None = None
    """Norm that gradients are clipped to; 1.0 by default. PyTorch, SMP 1.11."""
    load_partition: bool | None = None
    """true loads the split from partition_file instead of computing one."""
    partition_file: Annotated[str, Field(min_length=1)] | None = None
    """File that the split is saved to, or loaded from."""
    ddp_port: Annotated[int, Field(ge=0, le=65535)] | None = None
    """Port of DistributedDataParallel's rendezvous; needs ddp. PyTorch only."""
    ddp_dist_backend: Annotated[str, Field(min_length=1)] | None = None
    """Collective library of DistributedDataParallel; auto, the default, leaves the choice to the image. Needs ddp.
    PyTorch only."""


_VERSION = r"^1\.\d+(\.\d+)*$"
_Version = Annotated[str, TextForm(pattern=_VERSION, words="a version of 1, such as '1.3'")]


class ModelParallel(Model):
    """The model parallel library."""

    enabled: bool
    """true starts the library with the parameters. It has no default: the SDK's, false, silently drops them all."""
    parameters: SmpParameters | None = None
    """How the model is split over devices."""
    framework: Literal["pytorch", "tensorflow"] | None = None
    """Framework of the script: it determines the available parameters. pytorch when left out."""
    version: _Version | None = None
    """The library's version in your image, such as '1.3'; parameters that it lacks are then refused."""


class DataParallel(Model):
    """The data parallel library, SMDDP, started by its own launcher with one process per GPU."""

    enabled: bool
    """true starts the script by the library's launcher. It has no default: the SDK's is false."""
    custom_mpi_options: str | None = None
    """Further options of mpirun, separated by blanks; quotes are not special."""


class SmDistributed(Model):
    """SageMaker's distributed libraries; a job uses at most one of them."""

    modelparallel: ModelParallel | None = None
    """The model parallel library; it needs mpi."""
    dataparallel: DataParallel | None = None
    """The data parallel library, SMDDP; it does not need mpi."""


class TorchDistributed(Model):
    """Start by torchrun, one process per GPU or Neuron core."""

    enabled: bool
    """true starts the script by torchrun, which is also the default without distribution for more
    than one process; false starts one process per host."""


class Mpi(Model):
    """How the script is started."""

    enabled: bool
    """true starts the script by mpirun. It has no default: the SDK's, false, starts one process per host."""
    processes_per_host: DeviceCount | None = None
    """Processes per host, one per GPU; must equal trainer.devices, which is the default."""
    custom_mpi_options: str | None = None
    """Further options of mpirun, separated by blanks; quotes are not special. --NCCL_DEBUG WARN sets that
    variable."""


class Distribution(Model):
    """How a script's processes are started and what they share."""

    smdistributed: SmDistributed | None = None
    """SageMaker's distributed libraries."""
    mpi: Mpi | None = None
    """Start by mpirun."""
    torch_distributed: TorchDistributed | None = None
    """Start by torchrun."""

    @property
    def is_mpi(self) -> bool:
        """Whether mpirun starts the script."""
        return self.mpi is not None and self.mpi.enabled is True

    @property
    def started_by_mpi(self) -> Mpi | None:
        """The section mpi, if mpirun starts the script."""
        return self.mpi if self.is_mpi else None

    @property
    def data_parallel(self) -> DataParallel | None:
        """The data parallel library, if its launcher starts the script."""
        found = self.smdistributed.dataparallel if self.smdistributed else None
        return found if found and found.enabled is True else None

    @property
    def is_data_parallel(self) -> bool:
        """Whether the data parallel library's launcher starts the script."""
        return self.data_parallel is not None

    @property
    def starts(self) -> tuple[str, ...]:
        """Sections that are enabled and start the script, each in its own way."""
        found = {
            "mpi": self.is_mpi,
            "smdistributed.dataparallel": self.is_data_parallel,
            "torch_distributed": self.torch_distributed is not None and self.torch_distributed.enabled is True,
        }
        return tuple(name for name, is_enabled in found.items() if is_enabled)

    @property
    def library(self) -> ModelParallel | None:
        """The model parallel library, if it is enabled."""
        found = self.smdistributed.modelparallel if self.smdistributed else None
        return found if found and found.enabled is True else None

    @property
    def framework(self) -> str:
        """The framework that the script is written in, by the model parallel library's name."""
        return (self.library and self.library.framework) or TORCH

    @property
    def parameters(self) -> SmpParameters | None:
        """The library's parameters, if it is enabled."""
        library = self.library
        return (library.parameters or SmpParameters()) if library else None

    @property
    def degrees(self) -> tuple[int, int]:
        """Pipeline and tensor parallel degree; 1 if nothing is split."""
        given = self.parameters
        if given is None:
            return 1, 1
        return given.partitions or given.pipeline_parallel_degree or 1, given.tensor_parallel_degree or 1

    @property
    def strategy(self) -> str:
        """The placement strategy."""
        given = self.parameters
        return (given and given.placement_strategy) or DEFAULT_STRATEGY

    @property
    def ranks_per_batch(self) -> int:
        """Ranks that work on one batch: those of a pipeline, and with a prescaled batch those of a tensor too.

        Source: Required parameters, Prescaled Batch.
        """
        pipeline, tensor = self.degrees
        return pipeline * tensor if self.parameters and self.parameters.prescaled_batch else pipeline

    @property
    def idle_sections(self) -> tuple[str, ...]:
        """The sections that set values but are not enabled."""
        sections = (
            ("smdistributed.modelparallel", self.smdistributed and self.smdistributed.modelparallel),
            ("smdistributed.dataparallel", self.smdistributed and self.smdistributed.dataparallel),
            ("mpi", self.mpi),
        )
        return tuple(
            name
            for name, section in sections
            if section and not section.enabled and section.model_dump(exclude={"enabled"}, exclude_none=True)
        )
