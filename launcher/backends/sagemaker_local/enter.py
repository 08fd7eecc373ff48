"""Replaces ssh for mpirun between a job's hosts: `python enter.py HOST COMMAND...`. Standard library only.

The command joins the namespaces of the host's program. Source: OpenMPI FAQ, Running jobs under rsh/ssh; nsenter(1).
"""

import os
import sys
import time
from pathlib import Path

ENV_HOSTS_DIR = "RECIPES_HOSTS_DIR"
"""Environment variable of mpirun: the parent of the hosts' folders."""

_PATIENCE_S = 30.0
_POLL_S = 0.02


def words(host: str, line: str) -> tuple[str, ...]:
    """Return the arguments that run a shell line on a host, as soon as the host exists."""
    pid = Path(os.environ[ENV_HOSTS_DIR], host, "pid")
    deadline = time.monotonic() + _PATIENCE_S
    while not pid.exists():
        if time.monotonic() > deadline:
            raise TimeoutError(f"{host} has not started within {_PATIENCE_S:g} s")
        time.sleep(_POLL_S)
    joined = ("nsenter", "--target", pid.read_text().strip(), "--mount", "--uts")
    return (*joined, "sh", "-c", f"cd /opt/ml/code; {line}")


if __name__ == "__main__":
    found = words(sys.argv[1], " ".join(sys.argv[2:]))
    os.execvp(found[0], found)
