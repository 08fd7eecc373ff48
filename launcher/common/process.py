"""Start and end of a process: no traceback when it is interrupted or its output is no longer read.

Imports no other module of the launcher, so that it takes effect before they are imported.
"""

import errno
import os
import select
import signal
import sys
import threading
from collections.abc import Callable
from io import TextIOWrapper

USER_ERROR, INTERRUPTED, PIPE_CLOSED = 2, 130, 141
"""Exit codes other than 0, 1 (a bug, with a traceback) and 3 (the job failed).

Source: Bash manual, Exit Status: 128 and the signal's number.
"""

OUTPUT = "<output>"
"""File name in errors of writing standard output or standard error; errors of writing a file have none."""

_LOST = select.POLLERR | select.POLLHUP
"""Events of a pipe without a reader, and of a terminal that was closed.

Source: poll(2); Linux, tty_io.c, hung_up_tty_poll.
"""


def begin() -> None:
    """Let Ctrl-C end the process immediately until `allow_clean_up`, and replace unprintable characters in output.

    A KeyboardInterrupt during an import would print a traceback, or be swallowed by the imported module.
    """
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # nohup and others ignore it, which stays
        signal.signal(signal.SIGINT, _end_at_once)
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # the parent process closed it, as with `2>&-`
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115 - open to the end
        if isinstance(stream := getattr(sys, name), TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def allow_clean_up() -> None:
    """Let Ctrl-C raise KeyboardInterrupt from here on: something is about to be written or submitted.

    Only the main thread may, and only it is interrupted: a thread of a server leaves that to the server.
    """
    is_main = threading.current_thread() is threading.main_thread()
    if is_main and signal.getsignal(signal.SIGINT) is _end_at_once:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def ended(program: Callable[[], int]) -> int:
    """Run a program and return its exit code, also when Ctrl-C ends it or its output is no longer read."""
    try:
        code = program()
        sys.stdout.flush()
        return code
    except KeyboardInterrupt as interrupt:
        return 128 + getattr(interrupt, "signum", signal.SIGINT)  # an Interrupted has one
    except BrokenPipeError:
        mute_lost_streams()
        return PIPE_CLOSED
    except OSError as error:
        # Only output that cannot be written, such as a file on a full disk.
        if error.filename not in (None, OUTPUT) or error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EIO):
            raise
        _mute(sys.stdout.fileno())  # pending output would fail again
        print(f"the output cannot be written: {error.strerror}", file=sys.stderr)
        return USER_ERROR


def check_output_is_read() -> None:
    """Raise BrokenPipeError if standard output has lost its reader: logging ignores that error."""
    if _is_lost(sys.stdout.fileno()):
        raise BrokenPipeError


def mute_lost_streams() -> None:
    """Discard further output to a closed terminal, or to a pipe whose reader has ended."""
    for stream in (sys.stdout, sys.stderr):
        try:
            descriptor = stream.fileno()
            is_lost = _is_lost(descriptor)
        except (AttributeError, ValueError, OSError):  # replaced or closed
            continue
        if is_lost:
            _mute(descriptor)


def _is_lost(descriptor: int) -> bool:
    poll = select.poll()
    poll.register(descriptor, 0)
    return any(events & _LOST for _, events in poll.poll(0))


def _mute(descriptor: int) -> None:
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, descriptor)
    os.close(nowhere)


def leave(code: int) -> None:
    """End the process; Ctrl-C no longer changes the exit code."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _end_at_once)
    sys.exit(code)


def _end_at_once(_signum: int, _frame: object) -> None:
    os._exit(INTERRUPTED)
