"""Checksums of stored data, computed in the same pass that reads or writes it, and data in memory as a file.

Both kinds of checkpoints use them: those of torch.distributed.checkpoint in a folder, and those in tiers.
"""

import io
import json
from collections.abc import Callable
from typing import Any

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


def of_json(value: Any) -> str:
    """Return the checksum of a value as JSON with sorted keys, as 32 hexadecimal digits."""
    return checksum(json.dumps(value, sort_keys=True).encode()).hex()


def new_checksum() -> xxhash.xxh3_128:
    """Return an xxh3_128 that is updated piece by piece; its `digest` is that of `checksum`."""
    return xxhash.xxh3_128()


def filled(room: Bytes, read: Callable[[int, Bytes], None]) -> bytes:
    """Fill a buffer in parts, each of which is hashed while it is in the cache; return the checksum.

    Args:
        room: Receives the data, shape `(num_bytes,)`.
        read: Fills a part of it, given the place of its first byte.
    """
    state = xxhash.xxh3_128()
    for start in range(0, len(room), CHUNK):
        part = room[start : start + CHUNK]
        read(start, part)
        state.update(part.data)
    return state.digest()


class MemoryFile(io.RawIOBase):
    """Bytes in memory as a file. io.BytesIO would copy them."""

    def __init__(self, data: memoryview):
        self._data, self._position = data, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: len(self._data)}[whence]
        self._position = base + offset
        return self._position

    def tell(self) -> int:
        return self._position

    def readinto(self, room: Any) -> int:
        part = self._data[self._position : self._position + len(room)]
        room[: len(part)] = part
        self._position += len(part)
        return len(part)
