"""Checksums of what is stored, computed in one pass with reading or writing it.

Both kinds of checkpoints use them: those of torch.distributed.checkpoint in a folder, and those in tiers.
"""

from typing import Any

import xxhash

CHUNK = 512 << 10
"""Bytes that are checked right after they were read, while they are in the processor's cache."""


def checksum(data: Any) -> bytes:
    """Return the xxh3_128 of a buffer, 16 bytes."""
    return xxhash.xxh3_128(data).digest()


def new_checksum() -> Any:
    """Return an xxh3_128 that is updated piece by piece; its `digest` is that of `checksum`."""
    return xxhash.xxh3_128()
