"""The memory tier of one node: a folder in shared memory that its ranks share, and that vanishes with the node.

A shard's file gets its name once it is complete. A rank's own shards end in `.shard`, copies of shards of a neighbour
node in `.replica`. A manifest beside them states that all shards of the save were written.
"""

import contextlib
import os
import re
import stat
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from pathlib import Path

from launcher.common import names
from launcher.runtime.durable import delete, write_atomically
from launcher.runtime.tiers.buffers import FREE_PREFIX, Buffer, BufferPool
from launcher.runtime.tiers.owner import FileMark
from launcher.runtime.tiers.shards import Broken, BytesShard, Key, retained

_NAME = re.compile(r"(\d{12}\.[0-9a-f]{16})\.rank(\d{5})\.(shard|replica)")
_MANIFEST = ".manifest"


class NotOurs(RuntimeError):
    """The folder in shared memory belongs to another user."""


@dataclass(frozen=True, slots=True)
class Held:
    """A shard on a node. `is_replica` is whether it is a copy of a neighbour's."""

    key: Key
    rank: int
    is_replica: bool


def node_folder(namespace: str) -> Path:
    """Return the folder of a namespace in this node's memory."""
    root = os.environ.get(names.ENV_NODE_MEMORY)
    return Path(root) / namespace if root else names.SHARED_MEMORY / f"recipes-{os.getuid()}" / namespace


class NodeMemory(FileMark):
    """One rank's view of its node's folder in shared memory, which is created if missing.

    Args:
        num_sources: Number of ranks whose shards this rank keeps a copy of.

    Raises:
        NotOurs: Another user owns the folder, or may write to it.
    """

    name = "memory"

    def __init__(self, folder: Path, rank: int, retention: int, num_sources: int = 0):
        for each in (folder.parent, folder):
            each.mkdir(mode=0o700, parents=True, exist_ok=True)
        # Checkpoints are unpickled, which can run code: no other user may own or replace them.
        if folder.stat().st_uid != os.getuid() or folder.stat().st_mode & 0o022:
            raise NotOurs(f"{folder} belongs to another user, or others may write to it")
        above = folder.parent.stat()
        if above.st_uid not in (0, os.getuid()) or (above.st_mode & 0o022 and not above.st_mode & stat.S_ISVTX):
            raise NotOurs(f"{folder.parent} belongs to another user, or others may remove its files")
        super().__init__(folder.with_name(f".{folder.name}.owner"))
        self.folder, self.rank, self.retention = folder, rank, retention
        # One more than is kept, for the current save, and one that may still be written to storage.
        self.buffers = BufferPool(folder, retention + 2)
        self.copies = BufferPool(folder, (retention + 1) * num_sources)
        self._held: dict[Path, tuple[Key, BufferPool, Buffer]] = {}
        self._strays: dict[Path, Key] = {}

    def adopt(self, own: Iterable[tuple[int, bool]], others: Iterable[tuple[int, bool]], *, is_leader: bool) -> None:
        """Take over the shards that an earlier process left, before any rank of the node saves.

        Args:
            own: Rank and `is_replica` of the shards that this rank must keep.
            others: Those that other ranks of this node must keep.
            is_leader: Whether this is the first rank of its node, which later removes shards that no rank keeps.
        """
        kept, others = dict.fromkeys(own, 0), set(others)
        for path, held in sorted(self.shards().items(), key=lambda each: each[1].key, reverse=True):
            shard = (held.rank, held.is_replica)
            # No more than are retained: a save that was killed must not occupy a buffer that later saves need.
            if kept.get(shard, self.retention) < self.retention:
                pool = self.copies if held.is_replica else self.buffers
                self._held[path] = (held.key, pool, pool.adopt(path))
                kept[shard] += 1
            elif shard in kept or (is_leader and shard not in others):
                self._strays[path] = held.key
        if is_leader:
            for path in self.folder.glob(f"{FREE_PREFIX}*"):
                path.unlink(missing_ok=True)

    def shards(self) -> dict[Path, Held]:
        """Return the shards on this node by their files."""
        found = {}
        for path in self.folder.iterdir():
            key, name = Key.parse(path.name), _NAME.fullmatch(path.name)
            if key and name and path.is_file():
                found[path] = Held(key, int(name[2]), name[3] == "replica")
        return found

    def manifests(self) -> dict[Key, Path]:
        """Return the files of the manifests on this node."""
        # The name of a manifest that is being written begins with a dot, which no key does.
        found = ((Key.parse(path.name), path) for path in self.folder.glob(f"*{_MANIFEST}") if path.is_file())
        return {key: path for key, path in found if key}

    def manifest(self, key: Key) -> bytes:
        """Return the manifest of a save; Broken if it does not exist."""
        try:
            return self._manifest_file(key).read_bytes()
        except FileNotFoundError as error:
            raise Broken(f"the manifest of step {key.step} is missing") from error

    def commit(self, buffer: Buffer, key: Key) -> None:
        """Name the buffer that holds this rank's shard of a save."""
        buffer.name(self._file(key, self.rank, is_replica=False))
        self.buffers.hold(buffer)
        self._held[buffer.file] = (key, self.buffers, buffer)

    def commit_copy(self, buffer: Buffer, key: Key, rank: int) -> None:
        """Name the buffer that holds the shard of another node's rank; this object owns it from now on."""
        buffer.name(self._file(key, rank, is_replica=True))
        self._held[buffer.file] = (key, self.copies, buffer)

    def publish(self, key: Key, manifest: bytes) -> None:
        """Write a save's manifest on this node. Called by the node's first rank."""
        write_atomically(self._manifest_file(key), lambda file: file.write(manifest))

    def retire(self, key: Key, broken: Collection[Key] = ()) -> None:
        """Release all but the newest saves, of which `key` is the last; manifests first."""
        manifests = self.manifests()
        newest, later = retained(set(manifests).difference(broken), key, self.retention)
        for each, path in manifests.items():
            if each not in newest | later:
                path.unlink(missing_ok=True)
        for path, (each, pool, buffer) in list(self._held.items()):
            if each in later:  # its shards are kept, but not their buffers, which later saves need
                del self._held[path]
                self._strays[path] = each
                pool.give_up(buffer)
            elif each not in newest:
                del self._held[path]
                pool.release(buffer)
        for path, each in list(self._strays.items()):
            if each not in newest | later:
                del self._strays[path]
                path.unlink(missing_ok=True)

    def forget(self, key: Key) -> None:
        """Release this rank's shards of a save."""
        for path, (each, pool, buffer) in list(self._held.items()):
            if each == key:
                del self._held[path]
                pool.release(buffer)

    def withdraw(self, key: Key) -> None:
        """Withdraw a save whose manifest exists on some nodes only."""
        self._manifest_file(key).unlink(missing_ok=True)
        self.forget(key)

    def clear(self) -> None:
        """Remove everything of this namespace on this node. Called by the node's first rank."""
        for path in self.folder.iterdir():
            with contextlib.suppress(FileNotFoundError):
                delete(path)

    def open(self, key: Key, rank: int, num_bytes: int, *, is_replica: bool) -> BytesShard:
        """Return a shard on this node; Broken if it is missing or truncated."""
        path = self._file(key, rank, is_replica=is_replica)
        buffer = self._held[path][2] if path in self._held else Buffer(self.folder, path)
        return BytesShard(buffer.contents(num_bytes))

    def _manifest_file(self, key: Key) -> Path:
        return self.folder / f"{key}{_MANIFEST}"

    def _file(self, key: Key, rank: int, *, is_replica: bool) -> Path:
        return self.folder / f"{key}.rank{rank:05d}.{'replica' if is_replica else 'shard'}"
