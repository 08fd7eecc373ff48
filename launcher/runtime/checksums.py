"""Checksums of stored data, computed in the same pass that reads or writes it.

Both kinds of checkpoints use them: those of torch.distributed.checkpoint in a folder, and those in tiers.
"""

import numpy
import numpy.typing
import xxhash

Bytes = numpy.typing.NDArray[numpy.uint8]
"""An array of bytes, shape `(num_bytes,)`."""

CHUNK = 512 << 10
"""Bytes that are checked right after they are read, while they are in the processor's cache."""


def checksum(data: bytes | memoryview | Bytes) -> bytes:
    """Return the xxh3_128 of a buffer, 16 bytes."""
    return xxhash.xxh3_128(data.data if isinstance(data, numpy.ndarray) else data).digest()


def new_checksum() -> xxhash.xxh3_128:
    """Return an xxh3_128 that is updated piece by piece; its `digest` is that of `checksum`."""
    return xxhash.xxh3_128()
