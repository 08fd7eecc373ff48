"""Signals that end a command: Ctrl-C, SIGTERM and SIGHUP end it in the same way, and so does a lost reader."""

import contextlib
import os
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import TYPE_CHECKING

from launcher.common import console
from launcher.common.process import mute_lost_streams
from launcher.common.texts import signal_name

if TYPE_CHECKING:
    import subprocess

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interrupted(KeyboardInterrupt):
    """A command that a signal ended.

    Args:
        signum: The signal.
        is_rolled_back: Whether a submission is known to have left nothing behind.
    """

    def __init__(self, signum: int = signal.SIGINT, *, is_rolled_back: bool = False):
        super().__init__()
        self.signum, self.is_rolled_back = signum, is_rolled_back


def exit_code(interrupt: KeyboardInterrupt) -> int:
    """Return the exit code of a command that a signal ended: 130 for Ctrl-C, 143, 129 or 141.

    Source: Bash manual, Exit Status: 128 and the signal's number.
    """
    return 128 + signum(interrupt)


def signum(interrupt: KeyboardInterrupt) -> int:
    """Return the signal behind an interrupt."""
    return interrupt.signum if isinstance(interrupt, Interrupted) else signal.SIGINT


def name(interrupt: KeyboardInterrupt) -> str:
    """Return the user's name of the signal behind an interrupt."""
    number = signum(interrupt)
    return "Ctrl-C" if number == signal.SIGINT else signal_name(number)


@contextlib.contextmanager
def signals_as_interrupts() -> Iterator[list[int]]:
    """Make SIGTERM and SIGHUP raise Interrupted within the block, as Ctrl-C raises KeyboardInterrupt.

    A signal that is ignored, as under nohup, stays ignored. Yields the signals received so far.
    """
    taken: list[int] = []

    def interrupt(number: int, frame: FrameType | None) -> None:
        taken.append(number)
        _raise(number, frame)

    with _handled((signal.SIGTERM, signal.SIGHUP), interrupt):
        yield taken


@contextlib.contextmanager
def deferred(message: str) -> Iterator[list[int]]:
    """Defer the first signal within the block, which ends soon anyway; the next one interrupts it.

    Yields the signals received so far.

    Args:
        message: Printed at the first signal.
    """
    taken: list[int] = []

    def defer(number: int, _frame: FrameType | None) -> None:
        taken.append(number)
        for each in _SIGNALS:
            if signal.getsignal(each) is defer:
                signal.signal(each, _raise)
        mute_lost_streams()
        console.say(message, stderr=True)

    with _handled(_SIGNALS, defer):
        yield taken


def _raise(number: int, _frame: FrameType | None) -> None:
    mute_lost_streams()
    raise Interrupted(number)


@contextlib.contextmanager
def _handled(signals: tuple[int, ...], handler: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    """Handle signals within the block, except ignored ones.

    Outside the main thread, where Python cannot handle signals, nothing changes.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    active = [number for number in signals if signal.getsignal(number) is not signal.SIG_IGN]
    before = {number: signal.signal(number, handler) for number in active}
    try:
        yield
    finally:
        for number, old in before.items():
            signal.signal(number, signal.SIG_DFL if old is None else old)


def reap(child: "subprocess.Popen[bytes]") -> None:
    """Wait for the end of a child process, which has its return code then, unless a signal took that from it.

    Not by `Popen.wait`: a signal whose handler raises within `Popen.poll` may leave the lock taken that both need.
    """
    with contextlib.suppress(ChildProcessError):  # it was reaped before
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        if child.poll() is None:
            os.waitpid(child.pid, 0)
