"""Stores keep checkpoints outside of this program: folders, object stores, a service.

All ranks reach the same stores. A store keeps named blobs; the manifest, written last, makes them a checkpoint.
"""

import contextlib
import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Protocol

import torch

from launcher.runtime.durable import delete, sync, write_atomically
from launcher.runtime.tiers.owner import FileMark, MarkPlace
from launcher.runtime.tiers.shards import Broken, FileShard, Key, Shard, TierFailure, translated

BLOCK = 64 << 20
"""Bytes per system call."""

MANIFEST = "manifest"


class Store(MarkPlace, Protocol):
    """The operations of a tier that all ranks reach. Its `begin` removes leftovers that no listing shows.

    Attributes:
        name: The tier it serves.
        faults: The damage that the last `saves` found, as messages.
        is_ranged: Whether it can read parts of a shard.

    Raises:
        TierFailure: In all methods, if the operation failed.
        Broken: The data to read is damaged: it no longer exists, or has another size.
    """

    @property
    def name(self) -> str: ...

    @property
    def faults(self) -> Sequence[str]: ...

    @property
    def is_ranged(self) -> bool: ...

    def write(self, key: Key, rank: int, data: torch.Tensor) -> None:
        """Store this rank's shard, shape `(num_bytes,)`; return once it is durable."""

    def publish(self, key: Key, manifest: bytes) -> None:
        """Store the manifest. Called by one rank, once every shard is stored."""

    def saves(self) -> dict[Key, bool]:
        """Return every save that has left any blob, and whether its manifest exists."""

    def manifest(self, key: Key) -> bytes:
        """Return a manifest."""

    def open(self, key: Key, rank: int, num_bytes: int) -> Shard:
        """Return the shard of a rank."""

    def remove(self, keys: Iterable[Key]) -> None:
        """Remove saves, each one's manifest first."""


class Folder(FileMark):
    """A folder of a namespace that all ranks reach, on a disk or a network file system. A write creates it."""

    name = "persistent"
    faults: tuple[str, ...] = ()
    is_ranged = True

    def __init__(self, folder: Path):
        super().__init__(folder.with_name(f".{folder.name}.owner"))
        self.folder = folder

    def write(self, key: Key, rank: int, data: torch.Tensor) -> None:
        path = self.folder / str(key) / shard_name(rank)
        with translated():
            path.parent.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)
            try:
                view = data.numpy().data
                while len(view):
                    view = view[os.write(descriptor, view[:BLOCK]) :]
                os.fsync(descriptor)
            finally:
                os.close(descriptor)

    def publish(self, key: Key, manifest: bytes) -> None:
        folder = self.folder / str(key)
        with translated():
            sync(folder)  # the names of the shards
            write_atomically(folder / MANIFEST, lambda file: file.write(manifest))
            sync(self.folder)

    def saves(self) -> dict[Key, bool]:
        # Not with glob: it treats an unreadable folder as an empty one, and training would start from scratch.
        with translated():
            names = os.listdir(self.folder) if self.folder.exists() else []
            keys = [key for name in names if (key := Key.parse(name)) and str(key) == name]
            return {key: (self.folder / str(key) / MANIFEST).is_file() for key in keys}

    def manifest(self, key: Key) -> bytes:
        with self._reading():
            return (self.folder / str(key) / MANIFEST).read_bytes()

    def open(self, key: Key, rank: int, num_bytes: int) -> Shard:
        with self._reading():
            return FileShard(self.folder / str(key) / shard_name(rank), num_bytes)

    def remove(self, keys: Iterable[Key]) -> None:
        with translated():
            for key in keys:
                folder = self.folder / str(key)
                if os.path.lexists(folder / MANIFEST):  # first: without it, the rest is not a checkpoint
                    delete(folder / MANIFEST)
                delete(folder)

    @contextlib.contextmanager
    def _reading(self) -> Iterator[None]:
        try:
            with translated(is_reading=True):
                yield
        except Broken as error:
            # A file system that is not mounted looks like an empty folder.
            if not self.folder.is_dir():
                raise TierFailure(f"{self.folder} does not exist: is its file system mounted?") from error
            raise


def shard_name(rank: int) -> str:
    """Return the name of a rank's shard in the folder of its save."""
    return f"rank{rank:05d}.shard"
