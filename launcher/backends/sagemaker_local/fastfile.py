"""FastFile mode: a channel's objects as a read-only folder, each read from its store when it is read.

The folder is a FUSE file system, whose server is this module as a separate program. It ends with the process that
mounted the folder, when it reads the end of its standard input.

Source: How Amazon SageMaker Provides Training Information, FastFile mode; fuse(4), mount.fuse3(8).
"""

import contextlib
import errno
import importlib.util
import itertools
import json
import os
import select
import signal
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from launcher.backends.sagemaker_local.manifests import Entry
from launcher.backends.sagemaker_local.objects import Stores
from launcher.common.problems import Problem, ProblemsFound

_BLOCK_BYTES = 4 << 20
"""Size of a request to S3: at 100 MB/s, about the data of one request's latency."""

_BLOCKS = 2
"""Blocks cached per open file: the kernel reads ahead, and not always in order."""

_CLOSE_TIMEOUT_S = 5.0
_READY = b"ready\n"
_CACHED_S = 3600
_COPIED = "copied before the job starts, whereas SageMaker reads on demand ({})"


@dataclass(frozen=True, slots=True)
class View:
    """A mounted folder, and the process that serves it.

    Args:
        to_server: Its standard input; it ends when this is closed.
        from_server: Its standard output: read errors.
    """

    folder: Path
    server: subprocess.Popen[bytes]
    to_server: IO[bytes]
    from_server: IO[bytes]

    @property
    def problem(self) -> Problem | None:
        """The read error of which the program saw only an error code; None if there was none."""
        if self.server.poll() is None and not select.select([self.from_server], [], [], 0)[0]:
            return None
        reason = self.from_server.readline().decode().strip()
        return Problem("E425", str(self.folder), reason or "its FUSE server has ended")

    def close(self) -> None:
        """Unmount it."""
        self.to_server.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.server.wait(_CLOSE_TIMEOUT_S)
        if self.server.poll() != 0:
            # It hangs or was killed; if it is still in use, the folder is unmounted after its last reader.
            subprocess.run(["umount", "--lazy", self.folder], stderr=subprocess.DEVNULL, check=False)
            self.server.kill()
            self.server.wait()
        self.from_server.close()


def mount(folder: Path, entries: Sequence[Entry], stores: Stores) -> tuple[View | None, str]:
    """Mount a folder that shows entries.

    Returns:
        The view, None if this machine cannot mount it; and a description of how the channel is provided.
    """
    if importlib.util.find_spec("mfusepy") is None:
        return None, _COPIED.format("mfusepy is not installed")
    if not os.access("/dev/fuse", os.R_OK | os.W_OK):
        return None, _COPIED.format("/dev/fuse is not accessible")
    described = {
        "folder": str(folder),
        "endpoint": stores.endpoint,
        "region": stores.region,
        "files": [(entry.path, piece.uri, piece.size) for entry in entries for piece in entry.objects],
    }
    server = subprocess.Popen(
        [sys.executable, "-m", "launcher.backends.sagemaker_local.fastfile"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    assert server.stdin and server.stdout and server.stderr  # all three are pipes
    with contextlib.suppress(BrokenPipeError):
        server.stdin.write(json.dumps(described).encode() + b"\n")
        server.stdin.flush()
    if server.stdout.readline() == _READY:
        server.stderr.close()
        return View(folder, server, server.stdin, server.stdout), "read on demand, through FUSE"
    reason = server.communicate()[1].decode(errors="replace").strip().rpartition("\n")[2]
    return None, _COPIED.format(reason or "FUSE is not permitted")


@dataclass(slots=True)
class _OpenFile:
    """An open file, whose blocks are fetched as they are read; those read last are kept, by number."""

    stores: Stores
    uri: str
    size: int
    blocks: dict[int, bytes] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def read(self, offset: int, count: int) -> bytes:
        """Read bytes of it; fewer at its end."""
        end, found = min(offset + count, self.size), bytearray()
        with self.lock:
            while offset < end:
                number, first = divmod(offset, _BLOCK_BYTES)
                part = self._block(number)[first : first + end - offset]
                if not part:
                    raise OSError(errno.EIO, "shorter than listed", self.uri)
                found += part
                offset += len(part)
        return bytes(found)

    def _block(self, number: int) -> bytes:
        if number not in self.blocks:
            start = number * _BLOCK_BYTES
            with self.stores.open(self.uri, start, min(_BLOCK_BYTES, self.size - start)) as stream:
                found = bytearray()
                while len(found) < _BLOCK_BYTES and (data := stream.read(_BLOCK_BYTES - len(found))):
                    found += data
            while len(self.blocks) >= _BLOCKS:
                del self.blocks[next(iter(self.blocks))]
            self.blocks[number] = bytes(found)
        return self.blocks[number]


def _operations(files: Mapping[str, tuple[str, int]], stores: Stores) -> Any:
    """Return the FUSE operations of a view; `files` has URI and size of each file, by path."""
    import mfusepy

    folders: dict[str, set[str]] = {"/": set()}  # names of their entries
    for path in files:
        while path != "/":
            folder, _, name = path.rpartition("/")
            path = folder or "/"
            folders.setdefault(path, set()).add(name)
    times = dict.fromkeys(("st_atime", "st_mtime", "st_ctime"), time.time_ns())
    opened: dict[int, _OpenFile] = {}
    handles = itertools.count(1)

    class Operations(mfusepy.Operations):  # type: ignore[misc]  # mfusepy has no types
        use_ns = True

        def init(self, path: str) -> None:
            sys.stdout.buffer.write(_READY)
            sys.stdout.buffer.flush()

        def getattr(self, path: str, fh: int | None = None) -> dict[str, Any]:
            if path in folders:
                kind, size, links = stat.S_IFDIR | 0o555, 0, 2
            elif path in files:
                kind, size, links = stat.S_IFREG | 0o444, files[path][1], 1
            else:
                raise mfusepy.FuseOSError(errno.ENOENT)
            owner = {"st_uid": os.getuid(), "st_gid": os.getgid()}
            return {"st_mode": kind, "st_size": size, "st_nlink": links, **owner, **times}

        def readdir(self, path: str, fh: int) -> list[str]:
            return [".", "..", *sorted(folders[path])]

        def open(self, path: str, flags: int) -> int:
            handle = next(handles)
            opened[handle] = _OpenFile(stores, *files[path])
            return handle

        def read(self, path: str, size: int, offset: int, fh: int) -> bytes:
            try:
                return opened[fh].read(offset, size)
            except (ProblemsFound, OSError) as error:
                os.write(sys.stdout.fileno(), f"{' '.join(str(error).split())}\n".encode()[: select.PIPE_BUF])
                raise mfusepy.FuseOSError(errno.EIO) from error

        def release(self, path: str, fh: int) -> int:
            del opened[fh]
            return 0

    return Operations()


def main() -> None:
    """Serve the view that standard input describes.

    Raises:
        SystemExit: It cannot be mounted; the last line of standard error is the reason.
    """
    try:
        import mfusepy
    except OSError as error:
        sys.exit(f"{error}: install fuse3")
    described = json.loads(sys.stdin.buffer.readline())
    files = {f"/{path}": (uri, size) for path, uri, size in described["files"]}
    operations = _operations(files, Stores(described["endpoint"], described["region"]))
    main_thread = threading.get_ident()

    def end_with_launcher() -> None:
        os.read(sys.stdin.fileno(), 1)  # returns when the process at the other end has closed it or ended
        signal.pthread_kill(main_thread, signal.SIGTERM)  # unmounts

    threading.Thread(target=end_with_launcher, daemon=True).start()
    options = {"ro": True, "default_permissions": True, "fsname": "fastfile", "kernel_cache": True}
    times = {"entry_timeout": _CACHED_S, "attr_timeout": _CACHED_S}
    try:
        mfusepy.FUSE(operations, described["folder"], foreground=True, **options, **times)
    except RuntimeError:
        sys.exit(1)


if __name__ == "__main__":
    main()
