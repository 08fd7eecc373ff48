"""The recipe's section `checkpointing`, typed and in the form for the training program; content of a checkpoint."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, get_args

from pydantic import Field

from launcher.model.base_model import Model, NonNegativeInt, PositiveInt, TextForm
from launcher.runtime.tiers.tier_settings import PATIENCE_S, S3

MEMORY_STEPS, MEMORY_KEPT = 10, 3
"""Steps between two saves to memory, and checkpoints kept there.

Source: AWS, managed tiered checkpointing, Best practices; amzn-sagemaker-checkpointing 1.1.3, steps_retained.
"""
PERSISTENT_STEPS, PERSISTENT_KEPT = 100, 2
"""Steps between two saves to persistent storage; checkpoints kept there: one is complete while another is written.

Source: AWS, managed tiered checkpointing, Best practices; the number kept is our own choice.
"""
REPLICAS = 1
"""Copies beside the first. Source: AWS, managed tiered checkpointing: replication to adjacent nodes."""

Rate = Annotated[float, Field(ge=1e-9, le=1e9)]
"""Bounds far beyond any real rate, whose quotients are still finite. Our own choice."""
Parameters = Annotated[int, Field(ge=1, le=10**18)]
Sharding = Literal["fsdp", "hsdp", "ddp"]
SHARDINGS: tuple[Sharding, ...] = get_args(Sharding)


class MemoryTier(Model):
    """Checkpoints in the memory of the nodes: frequent, and lost with the nodes."""

    frequency: PositiveInt | None = None
    """Optimizer steps between two saves; 10 when left out. A fault loses at most so many, and the save under way."""
    retention: PositiveInt | None = None
    """Checkpoints kept, 3 when left out; each takes its size in the nodes' memory, plus once for each replica."""

    @property
    def steps(self) -> int:
        """Optimizer steps between two saves, given or not."""
        return self.frequency or MEMORY_STEPS

    @property
    def kept(self) -> int:
        """Checkpoints kept, given or not."""
        return self.retention or MEMORY_KEPT


class PersistentTier(Model):
    """Checkpoints that outlive the nodes."""

    frequency: PositiveInt | None = None
    """Optimizer steps between two saves, a multiple of the memory tier's; 100 when left out."""
    retention: PositiveInt | None = None
    """Checkpoints kept, 2 when left out; older ones are removed."""
    path: Annotated[str, Field(min_length=1)]
    """Their location: s3://bucket/prefix, or a folder that every node can reach, as a path in the job. On this
    machine it may be relative to the folder the job is launched from."""

    @property
    def steps(self) -> int:
        """Optimizer steps between two saves, given or not."""
        return self.frequency or PERSISTENT_STEPS

    @property
    def kept(self) -> int:
        """Checkpoints kept, given or not."""
        return self.retention or PERSISTENT_KEPT


class Estimate(Model):
    """Estimates for model, failures and storage, for `recipes checkpoint` and the notices of a launch."""

    parameters: Parameters | None = None
    """Parameters that a checkpoint holds, for a model that the launcher does not know; otherwise counted."""
    dtype: Literal["float32", "bfloat16", "float16", "float8"] | None = None
    """Number format of the saved weights. Default: what the family's training program saves."""
    optimizer: Literal["adam_16bit", "adam_fp16", "adam_fp32", "adam_fp32_master", "adam_8bit", "none"] | None = None
    """State that the optimizer keeps for each trained parameter: adam_16bit 4 bytes, adam_fp16 6, adam_fp32 8,
    adam_fp32_master 12, adam_8bit about 2, none 0. Default: what the family's training program keeps."""
    sharding: Sharding | None = None
    """How states are sharded: fsdp over all ranks, hsdp over those of a node, ddp not at all. Default: as the family
    trains; ddp for your own script."""
    step_s: Rate | None = None
    """Seconds of one optimizer step, measured; turns seconds between saves into steps. Without it no steps are
    reported."""
    failures_per_node_hour: Rate | None = None
    """Failures of one node per hour; 1.6e-4 when left out, those of a published run on 2,048 nodes."""
    restart_s: Rate | None = None
    """Seconds from a failure until training continues, without repeated steps; 300 when left out."""
    copy_gb_per_s: Rate | None = None
    """GB (1e9 bytes) per second that a node copies from its devices to main memory, while training waits; 40 when
    left out."""
    memory_gb_per_s: Rate | None = None
    """GB (1e9 bytes) per second that a node saves to the memory tier, replicas included; 10 when left out."""
    persistent_gb_per_s: Rate | None = None
    """GB (1e9 bytes) per second that a node writes to persistent storage; 1 when left out."""
    storage_gb_per_s: Rate | None = None
    """GB (1e9 bytes) per second that persistent storage accepts from all nodes together; no bound when left out."""


_NAMESPACE, _ENDPOINT = r"^[A-Za-z0-9_-]+$", r"^https?://[^/]+$"
_KEY = r"^arn:aws[a-z-]*:kms:[a-z0-9-]+:\d{12}:key/[A-Za-z0-9-]+$"
_ROLE = r"^arn:aws[a-z-]*:iam::\d{12}:role/[A-Za-z0-9_+=,.@/-]+$"
Namespace = Annotated[str, TextForm(pattern=_NAMESPACE, words="a text of letters, digits, _ and -", max_length=63)]
Endpoint = Annotated[str, TextForm(pattern=_ENDPOINT, words="a URL without a path, such as http://127.0.0.1:9000")]
KeyArn = Annotated[str, TextForm(pattern=_KEY, words="the ARN of a KMS key")]
RoleArn = Annotated[str, TextForm(pattern=_ROLE, words="the ARN of an IAM role")]


class Checkpointing(Model):
    """Locations of checkpoints, their frequency and number. Without a tier the training program saves in its own
    way."""

    namespace: Namespace | None = None
    """Name under which checkpoints are stored: letters, digits, _ and -. The job's name when left out, so that a
    new launch starts without any."""
    memory: MemoryTier | None = None
    """Frequent checkpoints in the nodes' memory, copied to neighbours; none when left out. On cluster=k8s the cluster
    must have managed tiered checkpointing enabled."""
    persistent: PersistentTier | None = None
    """Checkpoints in S3 or a folder, which outlive the nodes; none when left out."""
    s3_endpoint: Endpoint | None = None
    """Address of another store with S3's interface, e.g. http://127.0.0.1:9000; AWS's own when left out."""
    s3_checksums: bool | None = None
    """Whether uploads have checksums that the store compares on arrival; yes when left out. A store that refuses them
    needs false."""
    kms_key: KeyArn | None = None
    """ARN of the KMS key that objects in S3 are encrypted with; the bundle's policies then allow its use. The
    bucket's own encryption when left out."""
    patience_s: PositiveInt | None = None
    """Seconds for which requests to a tier that throttles or cannot be reached are retried before loading fails; 600
    when left out. A job never starts from an older step because of it."""
    replicas: NonNegativeInt | None = None
    """Copies of each memory checkpoint that neighbour nodes hold; 1 when left out. HyperPod determines it itself."""
    copy_every: PositiveInt | None = None
    """Optimizer steps between two copies of each rank's part of a sharded model in the memory of a rank on another
    node, from which a job whose workers stay continues after a node is lost. Default: no copies."""
    memory_percent: Annotated[int, Field(ge=1, le=100)] | None = None
    """Part of each node's main memory, 1 to 100 %, that the cluster reserves for the memory tier
    (InstanceMemoryAllocationPercentage). Default: the cluster's own."""
    role_arn: RoleArn | None = None
    """IAM role of the pods, if the bucket belongs to another account: the bundle then has the policy that this
    account must set on its bucket."""
    max_lost_work_minutes: Rate | None = None
    """Maximum work, in minutes, that may be lost with all nodes; with estimate.step_s a notice reports if the
    persistent tier risks more. Default: no notice."""
    estimate: Estimate | None = None
    """Estimates of failures, storage and speed. They change only reports and notices, not the job."""

    @property
    def has_tiers(self) -> bool:
        """Whether any tier is requested."""
        return self.memory is not None or self.persistent is not None

    @property
    def num_replicas(self) -> int:
        """Copies of each memory checkpoint on neighbour nodes, given or not."""
        return REPLICAS if self.replicas is None else self.replicas


def compiled(section: Checkpointing, job_name: str, base: Path | None) -> dict[str, Any] | None:
    """Return the section in the form for the training program, every key with its value; None without a tier.

    A relative path starts from `base`; None leaves it to the container.
    """
    if not section.has_tiers:
        return None
    memory, persistent = section.memory, section.persistent
    path = persistent.path if persistent else ""
    if base and not path.startswith(S3):
        path = str(base / path)
    return {
        "namespace": section.namespace or job_name,
        "memory": memory and _tier(memory),
        "persistent": persistent and {**_tier(persistent), "path": path},
        "s3_endpoint": section.s3_endpoint,
        "s3_checksums": section.s3_checksums is not False,
        "kms_key": section.kms_key,
        "patience_s": section.patience_s or PATIENCE_S,
        "replicas": section.num_replicas,
    }


def _tier(tier: MemoryTier | PersistentTier) -> Mapping[str, int]:
    return {"frequency": tier.steps, "retention": tier.kept}


DTYPES: Mapping[str, int] = {"float32": 4, "bfloat16": 2, "float16": 2, "float8": 1}
"""Bytes of one number. Source: PyTorch, torch.dtype."""

_BLOCK = 2048
OPTIMIZERS: Mapping[str, float] = {
    "adam_16bit": 4,
    "adam_fp16": 6,
    "adam_fp32": 8,
    "adam_fp32_master": 12,
    "adam_8bit": 2 * (1 + 4 / _BLOCK),
    "none": 0,
}
"""Bytes that an optimizer keeps for each trained parameter, beside the parameter.

`adam_16bit` both moments in 16 bits, `adam_fp16` three 16-bit numbers, `adam_fp32` both moments in 32 bits,
`adam_fp32_master` those and a 32-bit copy of the parameter, `adam_8bit` both moments in 8 bits and a 32-bit scale for
each block.

Source: AWS, managed tiered checkpointing, Solution overview (6 B); Rajbhandari et al., ZeRO (2020), section 3.1
(12 B); PyTorch, torch.optim.Adam: moments have their parameter's type (4 B); Dettmers et al., 8-bit Optimizers via
Block-wise Quantization (2022), section 2 (blocks of 2048).
"""


class Content(NamedTuple):
    """Content of a checkpoint: a family provides it, the package `checkpointing` computes sizes and times from it."""

    saved: int
    """Parameters in the checkpoint: all of the model, or its adapters."""
    dtype: str
    """Number format of the saved weights, a key of `DTYPES`."""
    optimizer: str
    """A key of `OPTIMIZERS`."""
    sharding: Sharding
    parameters: int | None = None
    """Those of the complete model; None if only `saved` is known."""
    is_dealt: bool = False
    """Whether the ranks divide the writing of replicated content among them, also under `ddp`."""

    @property
    def weight_bytes(self) -> int:
        """Bytes of the weights. Source: AWS, managed tiered checkpointing, Solution overview."""
        return self.saved * DTYPES[self.dtype]

    @property
    def optimizer_bytes(self) -> int:
        """Bytes of the optimizer's state."""
        return math.ceil(self.saved * OPTIMIZERS[self.optimizer])

    @property
    def total_bytes(self) -> int:
        """Bytes of the checkpoint."""
        return self.weight_bytes + self.optimizer_bytes
