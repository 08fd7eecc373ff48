"""Files of this machine as objects: listed as S3 lists keys, copied within the kernel, published atomically."""

import contextlib
import errno
import functools
import io
import logging
import os
import secrets
import stat
from collections.abc import Iterator
from pathlib import Path

from launcher.runtime.file_kinds import irregular

_log = logging.getLogger("files")

_CHUNK_BYTES = 1 << 30
_NO_RANGE = (errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP)
"""Source: copy_file_range(2), ERRORS: the errors of file systems without support."""

_NO_TMPFILE = (errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL)
"""Source: open(2), O_TMPFILE."""


def beginning_with(prefix: str) -> Iterator[tuple[str, int]]:
    """Yield path and size of each regular file whose path begins with a prefix, in the order of S3's keys.

    Anything else is left out, and logged once.
    """
    folder, _, name = prefix.rpartition("/")
    try:
        top = os.stat(folder or "/")
    except (FileNotFoundError, NotADirectoryError):
        return
    yield from sorted(_below(folder, name, frozenset({(top.st_dev, top.st_ino)})))


def _below(folder: str, name: str, above: frozenset[tuple[int, int]]) -> Iterator[tuple[str, int]]:
    """Yield files below a folder whose entry begins with a name. A link to a parent folder is left out."""
    with os.scandir(folder or "/") as entries:
        for entry in entries:
            if not entry.name.startswith(name):
                continue
            path = f"{folder}/{entry.name}"
            if entry.is_file():
                yield path, entry.stat().st_size
            elif entry.is_dir():
                seen = entry.stat()
                if (key := (seen.st_dev, seen.st_ino)) not in above:
                    yield from _below(path, "", above | {key})
            else:
                _report_left_out(path)


@functools.cache  # each host lists the same folders
def _report_left_out(path: str) -> None:
    _log.warning("%s is %s, so it is left out", path, irregular(path) or "not a regular file")


def open_regular(path: str) -> io.FileIO:
    """Open a regular file for reading, unbuffered; refuse a FIFO, which may block for ever.

    Raises:
        OSError: It is not a regular file, or cannot be read.
    """
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise OSError(errno.EINVAL, "is not a regular file", path)
    return io.FileIO(fd)


def copy(source: str, target: str) -> None:
    """Copy a regular file, sharing its bytes if the file system can; an incomplete copy is removed."""
    with open_regular(source) as read:
        write = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o666)
        try:
            _pour(read.fileno(), write)
        except OSError:
            os.unlink(target)
            raise
        finally:
            os.close(write)


def _pour(read: int, write: int) -> None:
    """Copy from one descriptor to the other until the end."""
    try:
        while os.copy_file_range(read, write, _CHUNK_BYTES):
            pass
    except OSError as error:
        if error.errno not in _NO_RANGE:
            raise
        while os.sendfile(write, read, None, _CHUNK_BYTES):
            pass


def publish(source: str, target: str) -> None:
    """Copy a file atomically, even if the copying process is killed."""
    folder = Path(target).parent
    folder.mkdir(parents=True, exist_ok=True)
    with open_regular(source) as read:
        try:
            write = os.open(folder, os.O_TMPFILE | os.O_WRONLY | os.O_CLOEXEC, 0o666)
        except OSError as error:
            if error.errno not in _NO_TMPFILE:
                raise
            # Unnamed files are unsupported, as on NFS: a killed copy leaves a temporary file behind.
            with _replacing(target) as passing, open(passing, "xb", buffering=0) as named:
                _pour(read.fileno(), named.fileno())
            return
        try:
            _pour(read.fileno(), write)
            # Python calls linkat(2), which alone follows the link in /proc, only with a folder's descriptor.
            give_name = functools.partial(os.link, f"/proc/self/fd/{write}", src_dir_fd=write, follow_symlinks=True)
            try:
                give_name(target)
            except FileExistsError:
                with _replacing(target) as passing:
                    give_name(passing)
        finally:
            os.close(write)


@contextlib.contextmanager
def _replacing(target: str) -> Iterator[str]:
    """Yield a name beside `target` for a new file, which then replaces it, or is removed on an error."""
    folder, name = os.path.split(target)
    passing = f"{folder}/.{name[:200]}.{secrets.token_hex(4)}"
    try:
        yield passing
        os.replace(passing, target)
    finally:
        Path(passing).unlink(missing_ok=True)
