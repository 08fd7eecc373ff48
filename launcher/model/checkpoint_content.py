"""Content of a checkpoint: a family provides it, `checkpointing` computes sizes and times from it."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

DTYPES: Mapping[str, int] = {"float32": 4, "bfloat16": 2, "float16": 2, "float8": 1}
"""Bytes of one number. Source: PyTorch, torch.dtype."""

_BLOCK = 2048
OPTIMIZERS: Mapping[str, float] = {
    "adam_fp16": 6,
    "adam_fp32": 8,
    "adam_fp32_master": 12,
    "adam_8bit": 2 * (1 + 4 / _BLOCK),
    "none": 0,
}
"""Bytes that an optimizer keeps for each trained parameter, beside the parameter.

`adam_fp16` three 16-bit numbers, `adam_fp32` both moments in 32 bits, `adam_fp32_master` those and a 32-bit copy of
the parameter, `adam_8bit` both moments in 8 bits and a 32-bit scale for each block.

Source: AWS, managed tiered checkpointing, Solution overview (6 B); Rajbhandari et al., ZeRO (2020), section 3.1
(12 B); Dettmers et al., 8-bit Optimizers via Block-wise Quantization (2022), section 2 (blocks of 2048).
"""

Sharding = Literal["fsdp", "hsdp", "ddp"]
SHARDINGS: tuple[Sharding, ...] = ("fsdp", "hsdp", "ddp")


@dataclass(frozen=True, slots=True)
class Content:
    """Content of a checkpoint.

    Args:
        saved: Parameters in the checkpoint: all of the model, or its adapters.
        dtype: Number format of the saved weights, a key of `DTYPES`.
        optimizer: A key of `OPTIMIZERS`.
        sharding: How the state is sharded over ranks.
        parameters: Parameters of the complete model; None if only `saved` is known.
        is_dealt: Whether the ranks divide the writing of replicated content among them, also under `ddp`.
    """

    saved: int
    dtype: str
    optimizer: str
    sharding: Sharding
    parameters: int | None = None
    is_dealt: bool = False

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
