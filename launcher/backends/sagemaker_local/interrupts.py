"""Requests to stop a job: a signal, or the end of the process that launched it.

Source: fcntl(2), F_SETOWN and O_ASYNC: a pipe whose other end is closed sends SIGIO.
"""

import fcntl
import os
import select
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from launcher.operator.stop_signals import END_SIGNALS

_TICK_S = 0.25
"""Maximum delay of a signal that another thread receives: only the main thread runs its handler."""


class Interrupts:
    """Counts requests to stop, and waits until one arrives or a child has ended. For the main thread.

    Args:
        launcher: Descriptor whose other end the launching process holds; None if there is none.
    """

    def __init__(self, launcher: int | None):
        self.count = 0
        self._launcher = launcher
        self._end: Callable[[], None] | None = None
        self._spared = 0
        self._woken, self._waker = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)

    def listen(self) -> None:
        """Handle signals from now on."""
        signal.set_wakeup_fd(self._waker, warn_on_full_buffer=False)
        for signum in (signal.SIGCHLD, signal.SIGALRM):
            signal.signal(signum, lambda _signum, _frame: None)
        for signum in END_SIGNALS:
            signal.signal(signum, self._take)
        if self._launcher is not None:
            signal.signal(signal.SIGIO, self._look)
            fcntl.fcntl(self._launcher, fcntl.F_SETOWN, os.getpid())
            fcntl.fcntl(self._launcher, fcntl.F_SETFL, fcntl.fcntl(self._launcher, fcntl.F_GETFL) | os.O_ASYNC)

    def rest(self, timeout_s: float) -> None:
        """Return when there is a signal, the launcher has ended, or the time is over."""
        watched = [self._woken] + ([] if self._launcher is None else [self._launcher])
        ready, _, _ = select.select(watched, [], [], max(0.0, timeout_s))
        if self._woken in ready:
            os.read(self._woken, 4096)
        if self._launcher in ready:
            self._launcher = None
            self.count += 1

    @contextmanager
    def at_once(self, end: Callable[[], None], spared: int = 0) -> Iterator[None]:
        """Let a request to stop call `end`, which exits or raises, within the block, whatever is waited for there.

        The first `spared` requests of the job are ignored.
        """
        self._end, self._spared = end, spared
        # The kernel may deliver a signal to another thread while this one waits for a store and does not notice.
        signal.setitimer(signal.ITIMER_REAL, _TICK_S, _TICK_S)
        try:
            self.rest(0)
            self._end_if_requested()
            yield
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            self._end = None

    def _take(self, _signum: int, _frame: FrameType | None) -> None:
        self.count += 1
        self._end_if_requested()

    def _look(self, _signum: int, _frame: FrameType | None) -> None:
        """Call `end` if the launcher has ended within the block; elsewhere `rest` detects that."""
        if self._end:
            self.rest(0)
            self._end_if_requested()

    def _end_if_requested(self) -> None:
        if self._end and self.count > self._spared:
            end, self._end = self._end, None  # another request must not interrupt `end`
            end()
