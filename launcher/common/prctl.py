"""Settings of a process in the Linux kernel. Standard library only.

Source: prctl(2), PR_SET_PDEATHSIG, PR_SET_NAME, PR_SET_CHILD_SUBREAPER.
"""

import ctypes

_SET_PDEATHSIG = 1
_SET_NAME = 15
_SET_CHILD_SUBREAPER = 36


def _prctl(option: int, value: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(option, ctypes.c_ulong(value), 0, 0, 0):
        raise OSError(ctypes.get_errno(), f"prctl({option}) refused")


def adopt_orphans() -> None:
    """Become the parent of every descendant whose own parent ends."""
    _prctl(_SET_CHILD_SUBREAPER, 1)


def signal_at_parents_end(signum: int) -> None:
    """Request a signal for the end of the thread that started this process."""
    _prctl(_SET_PDEATHSIG, signum)


def set_name(name: str) -> None:
    """Set the name in process listings; the kernel keeps 15 bytes of it."""
    text = ctypes.create_string_buffer(name.encode())
    _prctl(_SET_NAME, ctypes.addressof(text))
