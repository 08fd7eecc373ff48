"""Ctrl-C and SIGTERM while something is submitted: both end it in the same way, after the clean-up."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from launcher import console

_BOTH = (signal.SIGINT, signal.SIGTERM)


class Interrupted(KeyboardInterrupt):
    """A submission that a signal ended.

    Args:
        signum: The signal.
        is_rolled_back: Whether it is known that nothing of the submission is left.
    """

    def __init__(self, signum: int = signal.SIGINT, *, is_rolled_back: bool = False):
        super().__init__()
        self.signum, self.is_rolled_back = signum, is_rolled_back


def exit_code(interrupt: KeyboardInterrupt) -> int:
    """Return the exit code of a command that a signal ended: 130 or 143.

    Source: Bash manual, Exit Status: 128 and the signal's number.
    """
    return 128 + signum(interrupt)


def signum(interrupt: KeyboardInterrupt) -> int:
    """Return the signal behind an interrupt."""
    return interrupt.signum if isinstance(interrupt, Interrupted) else signal.SIGINT


@contextmanager
def sigterm_as_interrupt() -> Iterator[None]:
    """Let SIGTERM raise Interrupted within the block, as Ctrl-C raises KeyboardInterrupt."""

    def interrupt(number: int, _frame: FrameType | None) -> None:
        raise Interrupted(number)

    with _handled((signal.SIGTERM,), interrupt):
        yield


@contextmanager
def deferred(message: str) -> Iterator[None]:
    """Ignore the first signal within the block, which soon ends by itself; the next one interrupts it.

    Args:
        message: What is printed at the first one.
    """

    def defer(_number: int, _frame: FrameType | None) -> None:
        for each in _BOTH:
            signal.signal(each, signal.default_int_handler)
        console.say(message, stderr=True)

    with _handled(_BOTH, defer):
        yield


@contextmanager
def _handled(signals: tuple[int, ...], handler: object) -> Iterator[None]:
    """Handle signals within the block; outside the main thread, where Python handles none, change nothing."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, handler) for number in signals}
    try:
        yield
    finally:
        for number, old in before.items():
            signal.signal(number, signal.SIG_DFL if old is None else old)
