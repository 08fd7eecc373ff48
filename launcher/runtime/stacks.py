"""The stack of this process on request: at a signal, faulthandler appends it to a file of the run folder.

faulthandler writes in the handler of the signal, in C: a process that waits in a collective, or that holds the
interpreter's lock, answers too. py-spy would need ptrace, which most containers and many nodes forbid.
"""

import faulthandler
import os
import signal
from pathlib import Path

from launcher.common import names
from launcher.runtime import startup_timing

STACK_SIGNAL = signal.SIGRTMIN + 6
"""Not one of the named signals: agents, Slurm and users' scripts use those."""

_open_files: list[int] = []


def stacks_folder(run_dir: Path, attempt: int) -> Path:
    """Return the folder of the stacks of one start of the workers."""
    return run_dir / names.STACKS_DIR / f"attempt-{attempt}"


def stack_file(folder: Path, rank: int) -> Path:
    """Return the file of a rank, whose first line ends with the number of its process."""
    return folder / f"rank-{rank}.txt"


def write_stack_on_signal(rank: int) -> None:
    """Let this process append the stacks of its threads to its file at each STACK_SIGNAL.

    Nothing happens where the job has no run folder, or where that cannot be written: training does not depend on it.
    """
    if names.ENV_RUN_DIR not in os.environ:
        return
    path = stack_file(stacks_folder(names.run_dir(), startup_timing.attempt()), rank)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        # Appended to: the sender of the signal notes there that a process is stopped.
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC, 0o644)
        os.write(descriptor, f"rank {rank}, process {os.getpid()}\n".encode())
    except OSError:
        return
    faulthandler.register(STACK_SIGNAL, file=descriptor, all_threads=True)
    for earlier in _open_files:  # of attempts before in this process
        os.close(earlier)
    _open_files[:] = [descriptor]
