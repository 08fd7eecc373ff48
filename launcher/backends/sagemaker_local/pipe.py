"""Pipe mode: a channel as one FIFO per epoch, `<channel>_0` first; the next appears when the previous one is closed.

Source: How Amazon SageMaker Provides Training Information, Pipe mode; Amazon SageMaker API 2017-07-24, Channel.
"""

import contextlib
import ctypes
import errno
import fcntl
import gzip
import io
import os
import select
import struct
import threading
import zlib
from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

from launcher.backends.sagemaker_local.manifests import Entry
from launcher.backends.sagemaker_local.objects import S3, S3Stream, Stores
from launcher.common.problems import Problem, ProblemsFound, fail

_PIPE_BYTES = 1 << 20
"""Capacity of a FIFO: the limit for ordinary users. Source: pipe(7), /proc/sys/fs/pipe-max-size."""

_CHUNK_BYTES = 1 << 20
_GATHERED_BYTES = 1 << 18
_SMALL_BYTES = 1 << 16
"""Files up to the second size are gathered up to the first."""

_AHEAD = 8
"""Objects of S3 that are requested before their turn."""

_CLOSE_TIMEOUT_S = 5.0

_OPENED, _READER_CLOSED = 0x20, 0x10
"""IN_OPEN and IN_CLOSE_NOWRITE. Source: linux/inotify.h."""

_EVENTS_BYTES = 4096

_MAGIC = 0xCED7230A
_MOST_BYTES = (1 << 29) - 1
"""Magic number of a record, and the limit of its length of 29 bits. Source: Apache MXNet, dmlc/recordio.h."""


class _Ended(Exception):
    """The writer was requested to end."""


class _Watch:
    """Openings and closings of one file by other processes, since the watch was created. Source: inotify(7).

    Raises:
        OSError: The kernel refuses: too many watches, or no such file exists.
    """

    def __init__(self, path: str, events: int):
        self._libc = ctypes.CDLL(None, use_errno=True)
        self.fd = self._checked(self._libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC))
        self.change(path, events)

    def change(self, path: str, events: int) -> None:
        """Watch for other events of the same file from now on."""
        self._checked(self._libc.inotify_add_watch(self.fd, os.fsencode(path), ctypes.c_uint32(events)))

    def forget(self) -> None:
        """Drop the events so far."""
        with contextlib.suppress(BlockingIOError):
            while os.read(self.fd, _EVENTS_BYTES):
                pass

    def _checked(self, result: int) -> int:
        if result < 0:
            raise OSError(ctypes.get_errno(), "the kernel refuses to watch a file")
        return result


class Fifo:
    """One epoch's FIFO, written without blocking. It exists from when its writer is ready until its reader closes it.

    Its methods raise _Ended once the writer must end, which `wake_fd` reports by becoming readable.
    """

    def __init__(self, path: Path, wake_fd: int):
        self.path, self._wake_fd = path, wake_fd
        self._kept = bytearray()
        hidden = path.with_name(f".{path.name}")
        os.mkfifo(hidden)
        # Opened both ways it does not block, and a reader's open, which the watch reports, succeeds at once.
        self._fd = os.open(hidden, os.O_RDWR | os.O_CLOEXEC)
        try:
            with contextlib.suppress(PermissionError):
                fcntl.fcntl(self._fd, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
            self._watch = _Watch(str(hidden), _OPENED)
        except OSError:
            os.close(self._fd)
            hidden.unlink()
            raise
        hidden.rename(path)

    def wait_for_reader(self) -> None:
        """Return when a reader has opened it."""
        self._wait(self._watch.fd, select.POLLIN)
        both, self._fd = self._fd, os.open(self.path, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        os.close(both)
        self._watch.change(str(self.path), _READER_CLOSED)

    def send(self, data: bytes | memoryview) -> None:
        """Write bytes, or buffer a few until there are more: waking the reader costs more than copying them.

        Raises:
            BrokenPipeError: The reader has closed it.
        """
        if len(self._kept) + len(data) > _GATHERED_BYTES:
            self.flush()
        if len(data) > _GATHERED_BYTES:
            self._write(data)
        else:
            self._kept += data

    def flush(self) -> None:
        """Write the buffered bytes; raises like `send`."""
        kept, self._kept = self._kept, bytearray()
        self._write(kept)

    def send_file(self, fd: int, count: int) -> int:
        """Write up to `count` bytes of a file, without copying where possible; return how many there were."""
        if count <= _SMALL_BYTES:
            data = os.pread(fd, count, 0)
            self.send(data)
            return len(data)
        self.flush()
        sent = 0
        while sent < count:
            try:
                moved = os.sendfile(self._fd, fd, sent, count - sent)
            except BlockingIOError:
                self._wait(self._fd, select.POLLOUT)
                continue
            if not moved:
                break
            sent += moved
        return sent

    def _write(self, data: bytes | bytearray | memoryview) -> None:
        left = memoryview(data)
        while left:
            try:
                left = left[os.write(self._fd, left) :]
            except BlockingIOError:
                self._wait(self._fd, select.POLLOUT)

    def end(self) -> None:
        """Let the reader see the end, wait until it has closed, and remove the FIFO."""
        os.close(self._fd)
        self._fd = -1
        while self._is_read():
            self._wait(self._watch.fd, select.POLLIN)
            self._watch.forget()
        self.remove()

    def remove(self) -> None:
        for fd in (self._fd, self._watch.fd):
            if fd >= 0:
                os.close(fd)
        self._fd = self._watch.fd = -1
        self.path.unlink(missing_ok=True)

    def _is_read(self) -> bool:
        """Return whether a reader has it open: writing to a FIFO without a reader fails."""
        try:
            os.close(os.open(self.path, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC))
        except OSError as error:
            if error.errno in (errno.ENXIO, errno.ENOENT):
                return False
            raise
        return True

    def _wait(self, fd: int, events: int) -> None:
        if self._wake_fd in _ready({fd: events, self._wake_fd: select.POLLIN}):
            raise _Ended


def _ready(watched: Mapping[int, int]) -> set[int]:
    """Wait until a descriptor has one of its events; return all that have."""
    poller = select.poll()  # select(2) has no descriptors above 1023
    for fd, events in watched.items():
        poller.register(fd, events)
    return {fd for fd, _ in poller.poll()}


class Writer(threading.Thread):
    """Writes a channel's epochs as long as they are read.

    Args:
        stem: The FIFOs' path without the epoch.
        epochs: Returns the entries to stream in an epoch.
        is_gzip: Whether objects are decompressed.
    """

    def __init__(
        self,
        stem: Path,
        epochs: Callable[[int], Sequence[Entry]],
        stores: Stores,
        *,
        is_gzip: bool,
        is_recordio: bool,
    ):
        super().__init__(name=f"pipe {stem.name}", daemon=True)
        self.problem: Problem | None = None
        self._stem, self._epochs, self._stores = stem, epochs, stores
        self._is_gzip, self._is_recordio = is_gzip, is_recordio
        self._wake_fd = -1
        self._reading = stem.name
        self._fifo: Fifo  # exists from start() on

    def start(self) -> None:
        """Start with epoch 0, whose FIFO exists when this returns; raises OSError if the system refuses."""
        self._wake_fd = os.eventfd(0, os.EFD_CLOEXEC)
        self._fifo = Fifo(self._path(0), self._wake_fd)
        super().start()

    def run(self) -> None:
        """Write epoch after epoch; on an error the FIFO stays open, so that it does not look like the epoch's end."""
        epoch = 0
        try:
            while True:
                self._write(epoch)
                epoch += 1
                self._fifo = Fifo(self._path(epoch), self._wake_fd)
        except _Ended:
            pass
        except ProblemsFound as error:
            self._hold(error.problems[0])
        except (OSError, EOFError, zlib.error) as error:
            self._hold(Problem("E425", self._reading, f"cannot be streamed: {error}"))
        finally:
            self._fifo.remove()

    def close(self) -> None:
        """End the writer and remove its FIFO. A writer that waits for S3 ends when the request completes or fails."""
        if self._wake_fd < 0:
            return
        os.eventfd_write(self._wake_fd, 1)
        if self.ident:
            self.join(_CLOSE_TIMEOUT_S)
        if not self.is_alive():
            os.close(self._wake_fd)
            self._wake_fd = -1

    def _path(self, epoch: int) -> Path:
        return self._stem.with_name(f"{self._stem.name}_{epoch}")

    def _hold(self, problem: Problem) -> None:
        self.problem = problem
        _ready({self._wake_fd: select.POLLIN})

    def _write(self, epoch: int) -> None:
        self._fifo.wait_for_reader()
        with contextlib.suppress(BrokenPipeError), contextlib.closing(self._opened(epoch)) as opened:
            for uri, found in opened:
                self._reading = uri
                if isinstance(found, bytes):
                    with self._record(len(found)):
                        self._fifo.send(found)
                else:
                    with found:
                        self._send_object(found)
            self._fifo.flush()
        self._fifo.end()

    def _opened(self, epoch: int) -> Generator[tuple[str, Any], None, None]:
        """Yield each piece of an epoch: its name, and its bytes or a stream; those of S3 are requested early."""
        pieces = (piece for entry in self._epochs(epoch) for piece in entry.pieces)
        waiting: deque[tuple[str, Any]] = deque()
        pool = ThreadPoolExecutor(_AHEAD)
        try:
            for piece in pieces:
                if isinstance(piece, bytes):
                    waiting.append((self._stem.name, piece))
                elif piece.uri.startswith(S3):
                    waiting.append((piece.uri, pool.submit(self._stores.open, piece.uri)))
                else:
                    waiting.append((piece.uri, self._stores.open(piece.uri)))
                if len(waiting) > _AHEAD or not isinstance(waiting[0][1], Future):
                    yield self._finished(waiting.popleft())
            while waiting:
                yield self._finished(waiting.popleft())
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
            for _, begun in waiting:
                if isinstance(begun, Future):
                    begun.add_done_callback(_close_result)
                elif not isinstance(begun, bytes):
                    begun.close()

    def _finished(self, begun: tuple[str, Any]) -> tuple[str, Any]:
        """Return a piece when it has arrived; send buffered ones first, so that the reader does not wait for them."""
        uri, found = begun
        if not isinstance(found, Future):
            return begun
        if not found.done():
            self._fifo.flush()
        return uri, found.result()

    def _send_object(self, stream: Any) -> None:
        if not self._is_gzip:
            self._send_whole(stream)
            return
        with gzip.GzipFile(fileobj=io.BufferedReader(stream, _CHUNK_BYTES)) as unpacked:
            if not self._is_recordio:
                self._copy(unpacked)
                return
            with _unpacked(unpacked, self._reading) as whole:
                self._send_whole(whole)

    def _send_whole(self, stream: Any) -> None:
        """Send a stream whose size is known."""
        is_remote = isinstance(stream, S3Stream)
        size = stream.size if is_remote else os.fstat(stream.fileno()).st_size
        with self._record(size):
            sent = self._copy(stream) if is_remote else self._fifo.send_file(stream.fileno(), size)
            if sent != size:
                raise fail("E425", self._reading, f"changed while it was streamed: {sent} of {size} bytes")

    @contextlib.contextmanager
    def _record(self, size: int) -> Iterator[None]:
        """Make a record of what is sent within the block, if configured.

        A record's bytes are not searched for the magic number: a reader cannot start in the middle of a FIFO.

        Source: dmlc/recordio.h: magic, three flag bits (0: complete) and length, bytes, padding to 4.
        """
        if not self._is_recordio:
            yield
            return
        if size > _MOST_BYTES:
            raise fail("E425", self._reading, "is too large for a record", value=size, allowed=f"{_MOST_BYTES} bytes")
        self._fifo.send(struct.pack("<II", _MAGIC, size))
        yield
        self._fifo.send(bytes(-size % 4))

    def _copy(self, stream: Any) -> int:
        sent, buffer = 0, memoryview(bytearray(_CHUNK_BYTES))
        while count := stream.readinto(buffer):
            self._fifo.send(buffer[:count])
            sent += count
        return sent


def _close_result(begun: Future[Any]) -> None:
    """Close a stream that is no longer needed."""
    if not begun.cancelled() and begun.exception() is None:
        begun.result().close()


def _unpacked(stream: Any, uri: str) -> Any:
    """Return the decompressed bytes as a file in memory, since a record begins with its length."""
    whole = os.fdopen(os.memfd_create("record", os.MFD_CLOEXEC), "w+b", buffering=0)
    size = 0
    while data := stream.read(_CHUNK_BYTES):
        size += len(data)
        if size > _MOST_BYTES:
            whole.close()
            raise fail("E425", uri, "is too large for a record when decompressed", allowed=f"{_MOST_BYTES} bytes")
        whole.write(data)
    return whole
