"""What a checkpoint is made of: a shard of bytes a rank, and the manifest that says what lies where.

A manifest is written last, when every shard is there. It holds a checksum for each piece of each shard, and one of
its own: whatever matches is what was saved, wherever it was found.
"""

import functools
import os
import pickle
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy
import torch

from launcher.runtime.checkpoint_search import Damaged
from launcher.runtime.checksums import CHUNK, checksum

if TYPE_CHECKING:  # a start is not to wait for it before there is something to load
    from torch.distributed.checkpoint.metadata import Metadata

MAGIC, FIRST_MAGIC = b"rcptier2", b"rcptier1"
"""First bytes of a manifest; another format gets another number. The first format, which is still read, names no
namespace and has one checksum a piece."""

DIGEST = 16
"""Bytes of a checksum."""

BLOCK = CHUNK
"""Bytes of a piece that have a checksum: what is read is checked in blocks, so that a part of a piece can be."""

ALIGNMENT = 64
"""Bytes: every piece begins at a multiple, so that a view of it has the tensor's own type."""

_HEAD = len(MAGIC) + DIGEST
"""Bytes before a manifest's body: what it is, and the checksum."""

_KEY = re.compile(r"(\d{12})\.([0-9a-f]{16})")


class Broken(Damaged):
    """What was found is not what was saved."""


@functools.total_ordering
@dataclass(frozen=True, slots=True)
class Key:
    """One save of one step. A save with a higher number is newer, whatever its step is.

    Args:
        step: Optimizer steps done.
        save: Number of the save, greater than that of every save before it. Earlier versions took nanoseconds since
            the epoch; numbers continue from the greatest one that is stored.
    """

    step: int
    save: int

    def __lt__(self, other: "Key") -> bool:
        return (self.save, self.step) < (other.save, other.step)

    def __str__(self) -> str:
        return f"{self.step:012d}.{self.save:016x}"

    @staticmethod
    def parse(text: str) -> "Key | None":
        """Return the key that `text` begins with, None where it begins with something else."""
        found = _KEY.match(text)
        return Key(int(found[1]), int(found[2], 16)) if found else None


@dataclass(frozen=True, slots=True)
class Piece:
    """Where a tensor, or a part of one, lies.

    Args:
        rank: Of the shard.
        offset: First byte in the shard.
        length: Bytes.
        checksum: xxh3_128 of each block, one after another.
        dtype: Of the tensor; None for any other object.
        shape: Of this part.
        block: Bytes of a block, the last one may be shorter; 0 where the piece is a single block.
    """

    rank: int
    offset: int
    length: int
    checksum: bytes
    dtype: torch.dtype | None
    shape: tuple[int, ...]
    block: int = 0


@dataclass(frozen=True, slots=True)
class Manifest:
    """All that a published checkpoint is.

    Args:
        key: Which save it is.
        sizes: Bytes of each rank's shard, shape `(num_ranks,)`.
        progress: What the training program wants to know when it goes on.
        metadata: Of torch.distributed.checkpoint; its `storage_data` holds a `Piece` for each index.
        namespace: Of the checkpoint; empty where it is not recorded.
    """

    key: Key
    sizes: tuple[int, ...]
    metadata: "Metadata"
    progress: Mapping[str, Any] = field(default_factory=dict)
    namespace: str = ""

    @property
    def world_size(self) -> int:
        """Ranks that wrote it."""
        return len(self.sizes)


def seal(manifest: Manifest) -> bytes:
    """Return a manifest as it is stored."""
    body = pickle.dumps(manifest)
    return MAGIC + checksum(body) + body


def unseal(data: bytes) -> Manifest:
    """Return the manifest that `seal` made `data` of.

    Raises:
        Broken: It is cut short or changed.
    """
    magic, body = data[: len(MAGIC)], memoryview(data)[_HEAD:]
    if magic not in (MAGIC, FIRST_MAGIC) or data[len(MAGIC) : _HEAD] != checksum(body):
        raise Broken("the manifest is cut short or changed")
    manifest = pickle.loads(body)
    return manifest if magic == MAGIC else _from_first_format(manifest)


def unseal_own(data: bytes, key: Key, namespace: str) -> Manifest:
    """Return the manifest of a save, which `data` is to be.

    Args:
        data: As it was found.
        key: Under which key.
        namespace: In which namespace.

    Raises:
        Broken: It is cut short or changed, or belongs to another save.
    """
    manifest = unseal(data)
    if manifest.key != key:
        raise Broken(f"its manifest belongs to step {manifest.key.step}, save {manifest.key.save}")
    if manifest.namespace not in ("", namespace):
        raise Broken(f"its manifest belongs to the namespace {manifest.namespace}")
    return manifest


def _from_first_format(manifest: Manifest) -> Manifest:
    """Fill in the fields that the first format does not have."""
    known = [each.name for each in fields(Piece) if each.name != "block"]
    found = manifest.metadata.storage_data.items()
    pieces = {index: Piece(*(getattr(piece, name) for name in known)) for index, piece in found}
    metadata = replace(manifest.metadata, storage_data=pieces)
    return Manifest(manifest.key, manifest.sizes, metadata, manifest.progress)


class Shard(Protocol):
    """The bytes of a shard, wherever they lie.

    Args:
        moved: Bytes that were read from the tier so far.
    """

    moved: int

    def fetch(self, start: int, stop: int) -> None:
        """Prepare for reading these bytes, one after another.

        Raises:
            Broken: There is not so much.
        """

    def read(self, offset: int, room: numpy.ndarray) -> None:
        """Fill `room`, bytes of shape `(num_bytes,)`, with what is at `offset`.

        Raises:
            Broken: There is not so much.
        """

    def close(self) -> None:
        """Let go of it."""


class FileShard:
    """A shard in a file. It is read, not mapped: a file system that fails would end this process.

    Args:
        path: Of the file.
        num_bytes: What the manifest says that it holds.

    Raises:
        Broken: It is not there, or cut short.
    """

    def __init__(self, path: Path, num_bytes: int):
        self.moved = 0
        try:
            self._descriptor = os.open(path, os.O_RDONLY)
        except FileNotFoundError as error:
            raise Broken(f"{path.name} is gone") from error
        if os.fstat(self._descriptor).st_size < num_bytes:
            self.close()
            raise Broken(f"{path.name} is cut short")

    def fetch(self, start: int, stop: int) -> None:
        pass

    def read(self, offset: int, room: numpy.ndarray) -> None:
        self.moved += len(room)
        while len(room):
            count = os.preadv(self._descriptor, [room], offset)
            if not count:
                raise Broken("a shard is cut short")
            room, offset = room[count:], offset + count

    def close(self) -> None:
        os.close(self._descriptor)


class BytesShard:
    """A shard that is in memory.

    Args:
        data: Shape `(num_bytes,)`.
        fetched: Bytes that were moved to have it; 0 where it lies in the tier itself.
    """

    def __init__(self, data: numpy.ndarray, fetched: int = 0):
        self._data, self._is_fetched, self.moved = data, bool(fetched), fetched

    def fetch(self, start: int, stop: int) -> None:
        pass

    def read(self, offset: int, room: numpy.ndarray) -> None:
        self.moved += 0 if self._is_fetched else len(room)
        room[:] = self._data[offset : offset + len(room)]

    def close(self) -> None:
        pass
