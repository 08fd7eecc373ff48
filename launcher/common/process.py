"""How a process of ours begins and ends: without a traceback, whoever interrupts it or stops reading its output.

Imports nothing of ours, so that it is in force while the rest is imported.
"""

import errno
import io
import os
import select
import signal
import sys
from collections.abc import Callable

USER_ERROR, INTERRUPTED, PIPE_CLOSED = 2, 130, 141
"""Exit codes beside 0, 1 (our own fault, with a traceback) and 3 (the job failed).

Source: Bash manual, Exit Status: 128 and the signal's number.
"""


OUTPUT = "<output>"
"""File name of errors in writing standard output or standard error; those in writing a file have none."""


def begin() -> None:
    """Let Ctrl-C end the process at once while it has done nothing, and any text be printed on any terminal.

    A KeyboardInterrupt in the middle of an import would be a traceback, or be swallowed by the module's own handlers.
    """
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # not where it is ignored, as behind nohup
        signal.signal(signal.SIGINT, _end_at_once)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # None if the process was started with it closed
            stream.reconfigure(errors="backslashreplace")


def allow_clean_up() -> None:
    """Let Ctrl-C raise KeyboardInterrupt from here on: something is about to be written or submitted."""
    if signal.getsignal(signal.SIGINT) is _end_at_once:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def ended(program: Callable[[], int]) -> int:
    """Return the exit code of a program, also where Ctrl-C ends it or nobody reads its output."""
    try:
        code = program()
        sys.stdout.flush()
        return code
    except KeyboardInterrupt as interrupt:
        return 128 + getattr(interrupt, "signum", signal.SIGINT)  # an Interrupted has one
    except BrokenPipeError:
        return _unread()
    except OSError as error:
        return _unwritten(error)


def refuse_unread() -> None:
    """Raise BrokenPipeError if nobody reads standard output any more: logging passes over such an error."""
    poll = select.poll()
    poll.register(sys.stdout.fileno(), 0)
    if any(event & select.POLLERR for _, event in poll.poll(0)):
        raise BrokenPipeError


def leave(code: int) -> None:
    """End the process. Ctrl-C no longer changes how."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _end_at_once)
    sys.exit(code)


def _end_at_once(_signum: int, _frame: object) -> None:
    os._exit(INTERRUPTED)


def _unread() -> int:
    """Drop what is still to be flushed where nobody reads it; return the exit code for that."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except BrokenPipeError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
    return PIPE_CLOSED


def _unwritten(error: OSError) -> int:
    """Name an output that cannot be written, such as a file on a full disk; anything else is raised again."""
    if error.filename not in (None, OUTPUT) or error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EIO):
        raise error
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for what is still to be flushed
    print(f"the output cannot be written: {error.strerror}", file=sys.stderr)
    return USER_ERROR
