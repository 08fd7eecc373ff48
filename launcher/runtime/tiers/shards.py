"""The parts of a checkpoint: one shard of bytes per rank, and a manifest that states where each piece is.

The manifest is written last, once every shard exists. It holds a checksum for each piece of each shard, and one of
its own: data that matches is the data that was saved, wherever it was found.

Manifests are pickled: the names of this module and of `Key`, `Piece` and `Manifest` are part of the format.
"""

import contextlib
import errno
import functools
import os
import pickle
import re
import stat
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from launcher.runtime.checkpoint_folder import WRONG_KIND
from launcher.runtime.checkpoint_search import Damaged, Unavailable
from launcher.runtime.checksums import CHUNK, Bytes, checksum

if TYPE_CHECKING:  # start-up time: only needed once there is a checkpoint to load
    from torch.distributed.checkpoint.metadata import Metadata

MAGIC, FIRST_MAGIC = b"rcptier2", b"rcptier1"
"""First bytes of a manifest; each format has its own number. The first format, which can still be read, has no
namespace and one checksum per piece."""

DIGEST = 16
"""Bytes of a checksum."""

BLOCK = CHUNK
"""Bytes of a piece per checksum: data is checked in blocks, so that a part of a piece can be checked."""

ALIGNMENT = 64
"""Every piece begins at a multiple of this many bytes, so that it can be viewed with the tensor's type."""

_HEAD = len(MAGIC) + DIGEST
"""Bytes before a manifest's body: the format and the checksum."""

_KEY = re.compile(r"(\d{12})\.([0-9a-f]{16})")


class Broken(Damaged):
    """The data found is not the data saved."""


REFUSALS = (errno.EACCES, errno.EPERM, errno.ENOTDIR, errno.EISDIR)
"""Errors of a file system that remain until someone changes it. Source: errno(3)."""


class TierFailure(Unavailable):
    """A tier could not complete a request: it is unreachable, full, or throttling. No damage is known.

    Args:
        retry_after_s: Seconds to wait, if the tier named any; otherwise 0.
        code: The service's error code; "" if it has none.
    """

    def __init__(self, reason: str, retry_after_s: float = 0.0, code: str = ""):
        super().__init__(reason)
        self.retry_after_s = retry_after_s
        self.code = code


class TierRefused(TierFailure):
    """A tier refuses a request, and waiting will not help: access denied, no such bucket, not a folder."""


@contextlib.contextmanager
def translated(*, is_reading: bool = False) -> Iterator[None]:
    """Raise errors of a file system as failures of a tier, or as damage if a file is missing.

    Args:
        is_reading: Whether the block reads what was saved: a file of a wrong kind then is damage too.
    """
    try:
        yield
    except FileNotFoundError as error:
        raise Broken(f"{error.filename} is gone") from error
    except OSError as error:
        if is_reading and error.errno in WRONG_KIND:
            raise Broken(f"{error.filename}: {error.strerror}") from error
        raise (TierRefused if error.errno in REFUSALS else TierFailure)(str(error)) from error


@functools.total_ordering
@dataclass(frozen=True, slots=True)
class Key:
    """One save of one step. A save with a higher number is newer, whatever its step.

    Args:
        step: Optimizer steps done.
        save: Number of the save, greater than that of every earlier save. Earlier versions used nanoseconds since the
            epoch; numbers continue from the greatest one stored.
    """

    step: int
    save: int

    def __lt__(self, other: "Key") -> bool:
        return (self.save, self.step) < (other.save, other.step)

    def __str__(self) -> str:
        return f"{self.step:012d}.{self.save:016x}"

    @staticmethod
    def parse(text: str) -> "Key | None":
        """Return the key that `text` begins with; None if it does not begin with one."""
        found = _KEY.match(text)
        return Key(int(found[1]), int(found[2], 16)) if found else None


def retained(published: Collection[Key], key: Key, retention: int) -> tuple[set[Key], set[Key]]:
    """Return the saves to keep once `key` is published: the newest ones up to it, and those of later steps.

    A published save of a later step is kept until it is proven broken or its step is repeated.

    Args:
        published: The published saves that are not proven broken.
    """
    newest = sorted(each for each in {*published, key} if each <= key)[-retention:]
    return set(newest), {each for each in published if each > key or each.step > key.step}


@dataclass(frozen=True, slots=True)
class Piece:
    """The place of a tensor, or of a part of one, in the shard of a rank.

    Args:
        checksum: xxh3_128 of each block, concatenated.
        dtype: Of the tensor; None for any other object.
        block: Bytes of a block, of which the last may be shorter; 0 if the piece is a single block.
    """

    rank: int
    offset: int
    length: int
    checksum: bytes
    dtype: torch.dtype | None
    shape: tuple[int, ...]
    block: int = 0

    @property
    def tensor_dtype(self) -> torch.dtype:
        """The type of a piece of a tensor."""
        if self.dtype is None:
            raise AssertionError("this piece is an object, not a tensor")
        return self.dtype


@dataclass(frozen=True, slots=True)
class Manifest:
    """The description of a published checkpoint.

    Args:
        sizes: Bytes of each rank's shard, shape `(num_ranks,)`.
        metadata: Of torch.distributed.checkpoint; its `storage_data` holds a `Piece` for each index.
        progress: What the training program needs to resume.
        namespace: Of the checkpoint; empty if not recorded.
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
    """Return a manifest in stored form."""
    body = pickle.dumps(manifest)
    return MAGIC + checksum(body) + body


def unseal(data: bytes) -> Manifest:
    """Return the manifest that `seal` turned into `data`.

    Raises:
        Broken: It is truncated or changed.
    """
    magic, body = data[: len(MAGIC)], memoryview(data)[_HEAD:]
    if magic not in (MAGIC, FIRST_MAGIC) or data[len(MAGIC) : _HEAD] != checksum(body):
        raise Broken("the manifest is truncated or changed")
    manifest: Manifest = pickle.loads(body)
    return manifest if magic == MAGIC else _from_first_format(manifest)


def unseal_own(data: bytes, key: Key, namespace: str) -> Manifest:
    """Return the manifest in `data`; Broken, too, if it belongs to another save or namespace."""
    manifest = unseal(data)
    if manifest.key != key:
        raise Broken(f"its manifest belongs to step {manifest.key.step}, save {manifest.key.save}")
    if manifest.namespace not in ("", namespace):
        raise Broken(f"its manifest belongs to the namespace {manifest.namespace}")
    return manifest


def _from_first_format(manifest: Manifest) -> Manifest:
    known = [each.name for each in fields(Piece) if each.name != "block"]
    found = manifest.metadata.storage_data.items()
    pieces = {index: Piece(*(getattr(piece, name) for name in known)) for index, piece in found}
    metadata = replace(manifest.metadata, storage_data=pieces)
    return Manifest(manifest.key, manifest.sizes, metadata, manifest.progress)


class Shard:
    """The bytes of a shard in any tier. `moved` counts those read from the tier so far. Broken if it is shorter."""

    moved = 0

    def fetch(self, start: int, stop: int) -> None:
        """Prepare to read these bytes sequentially."""

    def read(self, offset: int, room: Bytes) -> None:
        """Fill `room`, bytes of shape `(num_bytes,)`, with the data at `offset`."""
        raise NotImplementedError

    def close(self) -> None:
        """Close it."""


class FileShard(Shard):
    """A shard in a file. It is read, not mapped: an error in a mapped file would kill this process.

    Args:
        num_bytes: Its size according to the manifest.

    Raises:
        Broken: It is missing or truncated.
    """

    def __init__(self, path: Path, num_bytes: int):
        try:
            self._descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)  # a pipe would block
        except FileNotFoundError as error:
            raise Broken(f"{path.name} is missing") from error
        found = os.fstat(self._descriptor)
        is_file = stat.S_ISREG(found.st_mode)
        if not is_file or found.st_size < num_bytes:
            self.close()
            raise Broken(f"{path.name} is {'truncated' if is_file else 'not a file'}")

    def read(self, offset: int, room: Bytes) -> None:
        self.moved += len(room)
        while len(room):
            count = os.preadv(self._descriptor, [room.data], offset)
            if not count:
                raise Broken("a shard is truncated")
            room, offset = room[count:], offset + count

    def close(self) -> None:
        os.close(self._descriptor)


class BytesShard(Shard):
    """A shard in memory.

    Args:
        fetched: Bytes transferred to obtain it; 0 if it is in the tier itself.
    """

    def __init__(self, data: Bytes, fetched: int = 0):
        self._data, self._is_fetched, self.moved = data, bool(fetched), fetched

    def read(self, offset: int, room: Bytes) -> None:
        self.moved += 0 if self._is_fetched else len(room)
        room[:] = self._data[offset : offset + len(room)]
