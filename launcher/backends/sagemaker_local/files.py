"""Files of this machine as objects: listed as S3 lists keys, copied within the kernel, published atomically."""

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
_READ = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC
_WRITE = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
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
    except FileNotFoundError:
        return
    except NotADirectoryError:
        return
    found = _below(folder, name, frozenset({(top.st_dev, top.st_ino)}))
    yield from sorted(found)


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
    """Open a regular file for reading, unbuffered.

    Raises:
        OSError: It is not a regular file, or cannot be read.
    """
    return io.FileIO(_descriptor(path))


def _descriptor(path: str) -> int:
    """Open a regular file; refuse a FIFO, which may block for ever."""
    fd = os.open(path, _READ)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise OSError(errno.EINVAL, "is not a regular file", path)
    return fd


def copy(source: str, target: str) -> None:
    """Copy a regular file, sharing its bytes if the file system can; an incomplete copy is removed.

    Raises:
        OSError: Reading or writing fails.
    """
    read = _descriptor(source)
    try:
        write = os.open(target, _WRITE, 0o666)
        try:
            _pour(read, write)
        except OSError:
            os.unlink(target)
            raise
        finally:
            os.close(write)
    finally:
        os.close(read)


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
    """Copy a file atomically, even if the copying process is killed.

    Raises:
        OSError: Reading or writing fails.
    """
    folder = Path(target).parent
    folder.mkdir(parents=True, exist_ok=True)
    with open_regular(source) as read:
        try:
            write = os.open(folder, os.O_TMPFILE | os.O_WRONLY | os.O_CLOEXEC, 0o666)
        except OSError as error:
            if error.errno not in _NO_TMPFILE:
                raise
            _publish_renamed(read.fileno(), target)
            return
        try:
            _pour(read.fileno(), write)
            _give_name(write, target)
        finally:
            os.close(write)


def _publish_renamed(read: int, target: str) -> None:
    """Publish where unnamed files are unsupported, as on NFS: a killed copy leaves a temporary file behind."""
    passing = _passing_name(target)
    try:
        write = os.open(passing, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        try:
            _pour(read, write)
        finally:
            os.close(write)
        os.replace(passing, target)
    finally:
        Path(passing).unlink(missing_ok=True)


def _give_name(fd: int, target: str) -> None:
    """Link an unnamed file as `target`, replacing an existing one. Source: open(2), O_TMPFILE."""
    # Python calls linkat(2), which alone follows the link in /proc, only with a folder's descriptor.
    try:
        os.link(f"/proc/self/fd/{fd}", target, src_dir_fd=fd, follow_symlinks=True)
    except FileExistsError:
        passing = _passing_name(target)
        try:
            os.link(f"/proc/self/fd/{fd}", passing, src_dir_fd=fd, follow_symlinks=True)
            os.replace(passing, target)
        finally:
            Path(passing).unlink(missing_ok=True)


def _passing_name(target: str) -> str:
    folder, name = os.path.split(target)
    return f"{folder}/.{name[:200]}.{secrets.token_hex(4)}"
