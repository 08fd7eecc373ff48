"""Buffers for shards in host memory, allocated once and reused.

Touching a page for the first time costs several times as much as copying into it, so saves reuse touched pages.
"""

import contextlib
import mmap
import os
import secrets
import threading
from pathlib import Path

import torch

from launcher.runtime.checksums import Bytes
from launcher.runtime.tiers.shards import Broken

GRANULE = 1 << 20
"""Buffers grow by multiples of this many bytes."""

FREE_PREFIX = ".free-"
"""Files with this prefix hold no shard: they are free, or being written."""


class Buffer:
    """Memory for one shard: a new file in a folder of shared memory or, without one, plain memory; or a file's."""

    def __init__(self, folder: Path | None, path: Path | None = None):
        self._inode, self._is_pinned = 0, False
        self.bytes = torch.empty(0, dtype=torch.uint8)
        self.path = path or (folder / f"{FREE_PREFIX}{secrets.token_hex(8)}" if folder else None)
        self.pins = 1

    @property
    def file(self) -> Path:
        """The file of a buffer in shared memory."""
        if self.path is None:
            raise AssertionError("a buffer in plain memory has no file")
        return self.path

    def reserve(self, num_bytes: int) -> None:
        """Grow to `num_bytes`, all of it backed by memory; OSError if there is not enough."""
        if self._fits(num_bytes):
            return
        size = -(-num_bytes // GRANULE) * GRANULE
        if self.path is None:
            self.bytes = torch.zeros(size, dtype=torch.uint8, pin_memory=torch.cuda.is_available())
            return
        self._unpin()
        self.bytes = torch.empty(0, dtype=torch.uint8)
        descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            os.ftruncate(descriptor, size)
            # Without this, writing to memory that does not exist would kill the process with SIGBUS.
            os.posix_fallocate(descriptor, 0, size)
            self._map(descriptor)
            if torch.cuda.is_initialized():  # an accelerator copies to pinned memory only without blocking
                code = torch.cuda.cudart().cudaHostRegister(self.bytes.data_ptr(), len(self.bytes), 0)
                self._is_pinned = not int(code)  # if it is refused, copies are slower
        except OSError:
            self.path.unlink(missing_ok=True)
            raise
        finally:
            os.close(descriptor)

    def contents(self, num_bytes: int) -> Bytes:
        """Return the shard in the file, shape `(num_bytes,)`; Broken if it is missing or truncated."""
        if not self._fits(num_bytes):
            try:
                descriptor = os.open(self.file, os.O_RDWR)
            except FileNotFoundError as error:
                raise Broken(f"{self.file.name} is missing") from error
            try:  # later saves reuse the mapping
                if os.fstat(descriptor).st_size < num_bytes:
                    raise Broken(f"{self.file.name} is truncated")
                self._map(descriptor)
            finally:
                os.close(descriptor)
        found: Bytes = self.bytes[:num_bytes].numpy()
        return found

    def _unpin(self) -> None:
        """Undo the pinning, before the memory is unmapped."""
        if self._is_pinned:
            torch.cuda.cudart().cudaHostUnregister(self.bytes.data_ptr())
            self._is_pinned = False

    def _map(self, descriptor: int) -> None:
        self._unpin()
        status = os.fstat(descriptor)
        self._inode = status.st_ino
        if status.st_size:
            # Populated at once: one page fault each would cost more than the copy.
            memory = mmap.mmap(descriptor, status.st_size, flags=mmap.MAP_SHARED | mmap.MAP_POPULATE)
            self.bytes = torch.frombuffer(memory, dtype=torch.uint8)

    def _fits(self, num_bytes: int) -> bool:
        if len(self.bytes) < num_bytes:
            return False
        if self.path is None:
            return True
        # Another process may have truncated or removed the file.
        if not self.path.exists():
            return False
        status = self.path.stat()
        return status.st_ino == self._inode and status.st_size >= len(self.bytes)

    def name(self, path: Path) -> None:
        """Give the file the name of a shard, under which it is found from now on."""
        self.file.rename(path)
        self.path = path

    def clear(self) -> None:
        """Take the shard's name away, so that new content is not mistaken for the old shard."""
        if self.path and not self.path.name.startswith(FREE_PREFIX):
            free = self.path.with_name(f"{FREE_PREFIX}{secrets.token_hex(8)}")
            with contextlib.suppress(FileNotFoundError):
                self.path.rename(free)
            self.path = free


class BufferPool:
    """The buffers of one rank, at most `limit`; without a folder, plain memory. Threads may share the pool."""

    def __init__(self, folder: Path | None, limit: int):
        self._folder, self._limit = folder, limit
        self._free: list[Buffer] = []
        self._count, self._fault = 0, ""
        self._changed = threading.Condition()

    def set_fault(self, fault: str) -> None:
        """Set why buffers may not be returned, so that `take` fails rather than waits; "" if they will be."""
        with self._changed:
            self._fault = fault
            self._changed.notify_all()

    def take(self) -> Buffer:
        """Return a free buffer, kept until `release`; OSError if none is free, and none may be returned."""
        with self._changed:
            while not self._free and self._count >= self._limit:
                if self._fault:
                    raise OSError(self._fault)
                self._changed.wait()
            if self._free:
                buffer = self._free.pop()
                buffer.pins = 1
                return buffer
            self._count += 1
            return Buffer(self._folder)

    def adopt(self, path: Path) -> Buffer:
        """Return a buffer for a file that an earlier process left; the caller keeps it until `release`."""
        with self._changed:
            self._count += 1
        return Buffer(self._folder, path)

    def prepare(self, num_bytes: int, count: int) -> None:
        """Allocate a buffer in advance while there are fewer than `count`, so that no save waits for memory."""
        with self._changed:
            if self._free or self._count >= min(count, self._limit):
                return
            buffer = self.take()  # under the lock: otherwise a save could take the last one first
        try:
            buffer.reserve(num_bytes)
        finally:
            self.release(buffer)

    def hold(self, buffer: Buffer) -> None:
        """Keep a buffer for one more purpose."""
        with self._changed:
            buffer.pins += 1

    def release(self, buffer: Buffer) -> None:
        """Release one hold; a buffer that is no longer held is free again.

        Raises:
            OSError: Its file keeps the name of a shard; the pool does without this buffer.
        """
        with self._changed:
            buffer.pins -= 1
            if buffer.pins:
                return
            self._count -= 1  # if it cannot be cleared, another buffer may take its place
            self._changed.notify_all()
            buffer.clear()
            self._free.append(buffer)
            self._count += 1

    def give_up(self, buffer: Buffer) -> None:
        """Leave a buffer's file unchanged, and allow another buffer in its place."""
        with self._changed:
            buffer.pins -= 1
            self._count -= 1
            self._changed.notify_all()
