"""mpirun over several simulated hosts of this machine: each has its own name, and is reached without ssh.

Run as a program it is what mpirun takes for ssh: `python mpi_hosts.py HOST COMMAND...`.
"""

import dataclasses
import os
import shlex
import sys
from collections.abc import Sequence

from launcher.model.parallelism import mpi
from launcher.model.parallelism.mpi import MpiRun

_INTERFACE = "lo"
_NAMED = 'hostname "$0" && exec sh -c "$1"'


def environment() -> dict[str, str]:
    """Return the variables with which an mpirun line reaches simulated hosts; it is the same line as on real ones.

    Source: OpenMPI FAQ, Running jobs under rsh/ssh (plm_rsh_agent), and Tuning (OMPI_MCA_…).
    """
    return {"OMPI_MCA_plm_rsh_agent": f"{sys.executable} {__file__}"}


def command(run: MpiRun, program: Sequence[str]) -> tuple[str, ...]:
    """Return the words that start a program on every rank of simulated hosts, mpirun being on the first of them."""
    line = mpi.command(dataclasses.replace(run, interface=_INTERFACE), program)
    return on_host(run.hosts[0], shlex.join(line))


def on_host(host: str, line: str) -> tuple[str, ...]:
    """Return the words that run a shell's line under a host's name, which nobody else on this machine sees."""
    as_root = ("-u",) if os.geteuid() == 0 else ("-r", "-u")
    return ("unshare", *as_root, "sh", "-c", _NAMED, host, line)


if __name__ == "__main__":
    words = on_host(sys.argv[1], " ".join(sys.argv[2:]))
    os.execvp(words[0], words)
