"""Guards of an elastic job: steps on other hosts than that of the batch script, which return the job to the queue.

With --no-kill, which keeps a job running without a lost node, Slurm keeps it running even without that of its batch
script: without its operator, until its time limit. Seen with Slurm 22.05.
"""

import signal
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

from launcher.backends.slurm import programs
from launcher.backends.slurm.elastic_options import GUARD_FILE

_MOST = 2
"""Guards of a job: a second one for the case that the batch script's host is lost together with a guard's."""
_RETRY_S = 30.0
"""Seconds until a guard that ended by itself is started again: a preemption ends it."""
_END_TIMEOUT_S = 5.0


class Guards:
    """The guards of a job.

    Args:
        bundle_dir: Holds the script of a guard.
        job_id: Of the Slurm job.
    """

    def __init__(self, bundle_dir: Path, job_id: str):
        self._bundle_dir = bundle_dir
        self._job_id = job_id
        self._steps: dict[str, subprocess.Popen[bytes]] = {}
        self._ending: dict[str, tuple[subprocess.Popen[bytes], float]] = {}
        self._started_s: dict[str, float] = {}

    @property
    def hosts(self) -> frozenset[str]:
        """Names of the hosts on which a guard runs."""
        return frozenset((*self._steps, *self._ending))

    def tick(self, hosts: Sequence[str]) -> None:
        """Keep guards on two of these hosts, and on no other ones."""
        self._reap()
        for name in [name for name in self._steps if name not in hosts]:
            self._end(name)
        late_s = time.monotonic() - _RETRY_S
        free = [name for name in hosts if name not in self.hosts and self._started_s.get(name, late_s) <= late_s]
        for name in free[: max(0, _MOST - len(self._steps))]:
            self._steps[name] = self._start(name)

    def close(self) -> None:
        """End all guards."""
        for name in list(self._steps):
            self._end(name)
        while self._ending:
            self._reap()
            time.sleep(0.05)

    def _start(self, name: str) -> "subprocess.Popen[bytes]":
        self._started_s[name] = time.monotonic()
        command = ["bash", str(self._bundle_dir / GUARD_FILE), self._job_id]
        options = ("--no-kill", "--kill-on-bad-exit=0")
        return programs.start_step(self._job_id, name, "guard", command, options=options)

    def _end(self, name: str) -> None:
        step = self._steps.pop(name)
        step.send_signal(signal.SIGTERM)
        self._ending[name] = (step, time.monotonic() + _END_TIMEOUT_S)

    def _reap(self) -> None:
        self._steps = {name: step for name, step in self._steps.items() if step.poll() is None}
        for name, (step, deadline) in list(self._ending.items()):
            if step.poll() is not None:
                del self._ending[name]
            elif time.monotonic() > deadline:  # srun waits for a host that is gone
                step.kill()
