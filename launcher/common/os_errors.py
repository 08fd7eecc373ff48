"""Errors of the operating system as path, reason and remedy instead of an error number."""

import contextlib
import errno
import os
import resource
from collections.abc import Iterator
from pathlib import Path

from launcher.common.problems import Problem, ProblemsFound, fail
from launcher.common.process import OUTPUT
from launcher.common.texts import size_text

_ELSEWHERE = "choose a writable location"
_MAKE_ROOM = "make room there, or choose a location on another disk"
_REASONS: dict[int, tuple[str, str]] = {
    errno.ENOSPC: ("the disk is full", _MAKE_ROOM),
    errno.EDQUOT: ("your disk quota is exhausted", _MAKE_ROOM),
    errno.EFBIG: ("a file would exceed the size that this process may write", "raise the limit: ulimit -f unlimited"),
    errno.EROFS: ("the file system is read-only", _ELSEWHERE),
    errno.EACCES: ("permission denied", f"{_ELSEWHERE}, or change the permissions"),
    errno.EPERM: ("the operation is not permitted", _ELSEWHERE),
    errno.ENOTDIR: ("a part of this path is not a folder", _ELSEWHERE),
    errno.EISDIR: ("is a folder, but must be a file", _ELSEWHERE),
    errno.ENOENT: ("does not exist and cannot be created", _ELSEWHERE),
    errno.ELOOP: ("a link in this path points back to itself", "remove the link"),
    errno.ENAMETOOLONG: ("a name in this path is too long", "choose a shorter name"),
    errno.EMFILE: ("this process has too many open files", "raise the limit: ulimit -n 65536"),
    errno.ENFILE: ("this machine has too many open files", "end other programs, or raise fs.file-max"),
    errno.EAGAIN: (
        "this user or machine has too many processes",
        "end other programs, or raise the limit: ulimit -u",
    ),
    errno.ENOMEM: ("this machine is out of memory", "end other programs"),
    errno.EIO: ("the device reports an input/output error", "check the device: dmesg"),
    errno.ESTALE: ("the network file system has lost this file", "mount it again"),
    errno.ENOTCONN: ("the network file system is not connected", "mount it again"),
    errno.ETXTBSY: ("the file is being executed", "end the program that runs it"),
}
"""Reason and remedy by errno. Source: errno(3), open(2), write(2), mkdir(2), fork(2)."""
_ENVIRONMENT = frozenset(_REASONS) - {errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.EAGAIN}
"""Errors that are never caused by a bug in this program, wherever they are raised."""
_PROBE_BYTES = 65_536
"""More than one block of any file system."""


def described(error: OSError, path: Path | str | None = None) -> tuple[str, str | None]:
    """Return an error's description, which begins with its path, and its remedy.

    Args:
        path: The intended path, if the error's own is only a detail.
    """
    place = path if path is not None else error.filename
    reason, remedy = _REASONS.get(error.errno or 0, (error.strerror or str(error), None))
    if place is None:
        return reason, remedy
    if error.errno == errno.EEXIST:
        reason, remedy = _in_the_way(Path(os.fsdecode(place))), _ELSEWHERE
    elif error.errno == errno.ENOSPC:
        reason += _free(Path(os.fsdecode(place)))
    return f"{os.fsdecode(place)}: {reason}", remedy


def refused(code: str, where: str, error: OSError, path: Path | str | None = None) -> ProblemsFound:
    """Return an error as a Problem of the key or the file that caused it."""
    message, remedy = described(error, path)
    return fail(code, where, message, remedy=remedy)


@contextlib.contextmanager
def refusing(code: str, where: str, path: Path) -> Iterator[None]:
    """Raise an error within the block as a Problem of a key or a file.

    Args:
        path: The intended path; the error's own is only a detail.
    """
    try:
        yield
    except OSError as error:
        raise refused(code, where, error, path) from error


def environmental(error: OSError) -> Problem | None:
    """Return an unexpected error as a Problem (E719); None if it may be a bug in this program."""
    if error.errno not in _ENVIRONMENT or error.filename == OUTPUT:  # `process.ended` reports errors of the output
        return None
    message, remedy = described(error)
    return Problem("E719", "operating system", message, remedy=remedy)


def written(folder: Path) -> OSError | None:
    """Try to write a file in `folder` and remove it; return the error, or None if that works."""
    probe = folder / f".probe-{os.getpid()}"
    try:
        try:
            with probe.open("wb") as file:
                file.write(bytes(_PROBE_BYTES))
                os.fsync(file.fileno())
        finally:
            probe.unlink(missing_ok=True)
    except OSError as error:
        return error
    return None


def limited(path: Path) -> OSError | None:
    """Return an error if a file, or one with its name as a prefix, has reached the process's file size limit."""
    limit, _ = resource.getrlimit(resource.RLIMIT_FSIZE)
    sizes = [each.stat().st_size for each in path.parent.glob(f"{path.name}*")]
    if limit == resource.RLIM_INFINITY or max(sizes, default=0) + _PROBE_BYTES < limit:
        return None
    return OSError(errno.EFBIG, os.strerror(errno.EFBIG), str(path))


def _in_the_way(path: Path) -> str:
    found = next((each for each in (path, *path.parents) if os.path.lexists(each)), path)
    if found.is_symlink() and not found.exists():
        return f"{found} is a link to {found.readlink()}, which does not exist"
    return f"{found} exists and is not a folder" if not found.is_dir() else f"{found} exists"


def _free(path: Path) -> str:
    """Return the free space on the disk of a path, as a suffix to the reason; "" if unknown."""
    try:
        disk = os.statvfs(next(each for each in (path, *path.parents) if each.exists()))
    except (OSError, StopIteration):
        return ""
    if disk.f_files and not disk.f_favail:
        return f" (now 0 of {disk.f_files} files free)"
    free, total = (blocks * disk.f_frsize for blocks in (disk.f_bavail, disk.f_blocks))
    return f" (now {size_text(free)} of {size_text(total)} free)"
