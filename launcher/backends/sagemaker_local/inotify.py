"""Wait until other processes open or close a file. Linux only. Source: inotify(7)."""

import ctypes
import os

OPENED = 0x20
READER_CLOSED = 0x10
"""IN_OPEN and IN_CLOSE_NOWRITE. Source: linux/inotify.h."""

_EVENTS_BYTES = 4096


class Watch:
    """Events of one file since the watch was created.

    Args:
        path: The file's path.
        events: The events to watch.

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
        try:
            while os.read(self.fd, _EVENTS_BYTES):
                pass
        except BlockingIOError:
            return

    def close(self) -> None:
        """Stop watching."""
        os.close(self.fd)

    def _checked(self, result: int) -> int:
        if result < 0:
            raise OSError(ctypes.get_errno(), "the kernel refuses to watch a file")
        return result
