"""Room for shards in host memory, made once and used again and again.

A page that is touched for the first time costs several times its copy: what a save copies into is there already.
"""

import contextlib
import mmap
import os
import secrets
import threading
from pathlib import Path

import numpy
import torch

from launcher.runtime.tiers.shards import Broken

GRANULE = 1 << 20
"""Slots grow by so many bytes."""

FREE_PREFIX = ".free-"
"""Files of this prefix hold no shard: room, or one that is just being written."""


class Slot:
    """Room for one shard: a file in shared memory, or where there is no folder, plain memory.

    Args:
        folder: In shared memory; None for plain memory.
        path: Of its file where there is one already.
    """

    def __init__(self, folder: Path | None, path: Path | None = None):
        self._inode = 0
        self.bytes = torch.empty(0, dtype=torch.uint8)
        self.path = path or (folder / f"{FREE_PREFIX}{secrets.token_hex(8)}" if folder else None)
        self.pins = 0

    def reserve(self, num_bytes: int) -> None:
        """Make room for `num_bytes`, all of it backed by memory.

        Raises:
            OSError: There is not so much.
        """
        if self._fits(num_bytes):
            return
        size = -(-num_bytes // GRANULE) * GRANULE
        if self.path is None:
            self.bytes = torch.zeros(size, dtype=torch.uint8, pin_memory=torch.cuda.is_available())
            return
        self.bytes = torch.empty(0, dtype=torch.uint8)
        descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            os.ftruncate(descriptor, size)
            # Memory that is promised only when it is written to would end this process by SIGBUS there.
            os.posix_fallocate(descriptor, 0, size)
            self._map(descriptor)
        except OSError:
            self.path.unlink(missing_ok=True)
            raise
        finally:
            os.close(descriptor)

    def contents(self, num_bytes: int) -> numpy.ndarray:
        """Return the shard in the file, bytes of shape `(num_bytes,)`; what is mapped for it is there for saves too.

        Raises:
            Broken: It is not there, or cut short.
        """
        if not self._fits(num_bytes):
            try:
                descriptor = os.open(self.path, os.O_RDWR)
            except FileNotFoundError as error:
                raise Broken(f"{self.path.name} is gone") from error
            try:
                if os.fstat(descriptor).st_size < num_bytes:
                    raise Broken(f"{self.path.name} is cut short")
                self._map(descriptor)
            finally:
                os.close(descriptor)
        return self.bytes[:num_bytes].numpy()

    def _map(self, descriptor: int) -> None:
        status = os.fstat(descriptor)
        self._inode = status.st_ino
        if status.st_size:
            # All pages at once: a fault for each would cost more than the copy.
            memory = mmap.mmap(descriptor, status.st_size, flags=mmap.MAP_SHARED | mmap.MAP_POPULATE)
            self.bytes = torch.frombuffer(memory, dtype=torch.uint8)

    def _fits(self, num_bytes: int) -> bool:
        if len(self.bytes) < num_bytes:
            return False
        if self.path is None:
            return True
        # Somebody else may have cut the file, or taken it away.
        status = self.path.stat() if self.path.exists() else None
        return bool(status) and status.st_ino == self._inode and status.st_size >= len(self.bytes)

    def name(self, path: Path) -> None:
        """Give the file a shard's name: from here on it is found."""
        self.path.rename(path)
        self.path = path

    def clear(self) -> None:
        """Take the name away: what is written next must not be taken for what was there."""
        if self.path and not self.path.name.startswith(FREE_PREFIX):
            free = self.path.with_name(f"{FREE_PREFIX}{secrets.token_hex(8)}")
            with contextlib.suppress(FileNotFoundError):
                self.path.rename(free)
            self.path = free

    def drop(self) -> None:
        """Give the memory back."""
        self.clear()
        self.bytes = torch.empty(0, dtype=torch.uint8)
        if self.path:
            self.path.unlink(missing_ok=True)


class Slots:
    """The slots of one rank. Threads may share them.

    Args:
        folder: Where their files are; None for plain memory.
        limit: Most slots; who wants one more waits for one to come back.
    """

    def __init__(self, folder: Path | None, limit: int):
        self._folder = folder
        self._limit = limit
        self._free: list[Slot] = []
        self._count = 0
        self._fault = ""
        self._changed = threading.Condition()

    def tell(self, fault: str) -> None:
        """Say why slots may not come back, or with an empty text that they do: nobody waits in vain."""
        with self._changed:
            self._fault = fault
            self._changed.notify_all()

    def take(self) -> Slot:
        """Return a free slot; the caller has it until `release`.

        Raises:
            OSError: None is free, and none may come back.
        """
        with self._changed:
            while not self._free and self._count >= self._limit:
                if self._fault:
                    raise OSError(self._fault)
                self._changed.wait()
            if self._free:
                slot = self._free.pop()
            else:
                slot = Slot(self._folder)
                self._count += 1
            slot.pins = 1
            return slot

    def adopt(self, path: Path) -> Slot:
        """Return a slot whose file an earlier process has left; the caller has it until `release`."""
        with self._changed:
            slot = Slot(self._folder, path)
            slot.pins = 1
            self._count += 1
            return slot

    def prepare(self, num_bytes: int, count: int) -> None:
        """Make a slot in advance while there are fewer than `count`, so that no save waits for the memory.

        Raises:
            OSError: There is not so much memory.
        """
        with self._changed:
            if self._free or self._count >= min(count, self._limit):
                return
            slot = self.take()  # in here: saves that begin meanwhile must not leave it waiting for one
        try:
            slot.reserve(num_bytes)
        finally:
            self.release(slot)

    def hold(self, slot: Slot) -> None:
        """Keep a slot for one more purpose."""
        with self._changed:
            slot.pins += 1

    def release(self, slot: Slot) -> None:
        """Take a slot back once nobody holds it any more.

        Raises:
            OSError: Its file keeps the name of a shard; the slot is done without.
        """
        with self._changed:
            slot.pins -= 1
            if slot.pins:
                return
            self._count -= 1
            self._changed.notify_all()
            slot.clear()
            self._free.append(slot)
            self._count += 1

    def give_up(self, slot: Slot) -> None:
        """Leave a slot's file as it is, and make room for another slot."""
        with self._changed:
            slot.pins -= 1
            self._count -= 1
            self._changed.notify_all()

    def close(self) -> None:
        """Give the memory of free slots back."""
        with self._changed:
            for slot in self._free:
                slot.drop()
            self._count -= len(self._free)
            self._free.clear()
