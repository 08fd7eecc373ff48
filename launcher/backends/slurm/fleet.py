"""The steps of an elastic job: one for each node, whose agent is called over the cluster's network, and its guards.

Guards run on other hosts than that of the batch script, and return the job to the queue when that is lost. With
--no-kill, which keeps a job running without a lost node, Slurm keeps it running even without that of its batch
script: without its operator, until its time limit. Seen with Slurm 22.05.
"""

import contextlib
import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from launcher.backends.slurm import programs
from launcher.backends.slurm.allocation import Host
from launcher.backends.slurm.run_files import GUARD_FILE, ElasticRequest, JobFiles
from launcher.common.names import RUN_DIR
from launcher.operator.agent_client import AgentClient, AgentUnreachable
from launcher.operator.fleet import Fleet, Node
from launcher.operator.types import Cause, Fault, Report, StartWorkers
from launcher.operator.worker_logs import AGENT_LOG, node_logs

_END_TIMEOUT_S = 20.0
"""Time for a step to end that is killed; srun waits for a node that is gone."""
_REFUSED_S = 1.0
"""Seconds without a server at the port of an agent that has answered before: its process is gone."""
_MAX_CALLS_AT_ONCE = 32
_MOST_GUARDS = 2
"""Guards of a job: a second one for the case that the batch script's host is lost together with a guard's."""
_GUARD_RETRY_S = 30.0
"""Seconds until a guard that ended by itself is started again: a preemption ends it."""
_GUARD_END_S = 5.0
"""Time for a guard to end; srun waits for a host that is gone."""


@dataclass(slots=True)
class SlurmNode(Node):
    """A node of the job: the srun of its step, and its agent once that has said where it listens.

    srun passes SIGTERM on to the tasks; SIGKILL ends srun alone.

    Args:
        master_ports: For rank 0's store.
        refused_s: Since when nothing listens at the agent's port; None while it does.
    """

    host: Host
    address: str = ""
    master_ports: tuple[int, ...] = ()
    refused_s: float | None = None

    @property
    def alive(self) -> bool:
        """Whether its step runs, and its agent, once it has answered, still listens."""
        is_refused = self.refused_s is not None and time.monotonic() - self.refused_s > _REFUSED_S
        return not self.has_ended and not is_refused

    def heard(self, error: AgentUnreachable | None) -> None:
        """Note since when nothing listens at the port of its agent."""
        if error is None:
            self.refused_s = None
        elif "refused" in str(error):
            self.refused_s = self.refused_s or time.monotonic()


class SlurmFleet(Fleet[SlurmNode]):
    """Starts nodes on the hosts of the allocation.

    Args:
        free_host: Returns a host for a new node, given those in use; None if there is none.
        lost: Receives the name of the host of a node that ended by itself.
    """

    _late_signal = signal.SIGKILL  # srun waits for a node that is gone

    def __init__(
        self,
        files: JobFiles,
        free_host: Callable[[frozenset[str]], Host | None],
        lost: Callable[[str], None],
        request: ElasticRequest,
    ):
        super().__init__(_MAX_CALLS_AT_ONCE)
        self._files = files
        self._request = request
        self._free_host = free_host
        self._lost = lost
        self._waiting: list[int] = []

    @property
    def used_hosts(self) -> frozenset[str]:
        """Names of the hosts on which a step runs."""
        return frozenset(node.host.name for node in self._all())

    @property
    def has_term(self) -> bool:
        """Whether any node was sent SIGTERM."""
        return self._files.term(0).parent.exists()

    def spawn(self, index: int) -> None:
        """Start a node with a new number, as soon as a host is free: a node that was killed may still be ending."""
        self._waiting.append(index)
        self._place()

    def _place(self) -> None:
        while self._waiting and (host := self._free_host(self.used_hosts)):
            self._start(self._waiting.pop(0), host)

    def _start(self, index: int, host: Host) -> None:
        logs = node_logs(self._files.bundle_dir / RUN_DIR, index)
        logs.mkdir(parents=True, exist_ok=True)
        self._files.address(index).unlink(missing_ok=True)
        own = [self._request.python or sys.executable, "-m", "launcher.backends.slurm.node"]
        own += [str(self._files.bundle_dir), str(index), host.address]
        options = ["--cpu-bind=none", "--no-kill", "--kill-on-bad-exit=0", "--wait=0", "--unbuffered", "--export=ALL"]
        options += [word.replace("{bundle}", str(self._files.bundle_dir)) for word in self._request.srun_words]
        with (logs / AGENT_LOG).open("ab") as log:
            step = programs.start_step(self._files.job_id, host.name, f"node-{index}", own, options=options, log=log)
        self._nodes[index] = SlurmNode(index, step, None, host)

    def poll(self) -> Mapping[int, Report]:
        self._place()
        return {**super().poll(), **dict.fromkeys(self._waiting, Report(alive=True, status=None))}

    def forsake(self, hosts: Iterable[str]) -> None:
        """Give up the nodes on hosts that the job no longer has."""
        gone = frozenset(hosts)
        self.kill_nodes([node.index for node in self._nodes.values() if node.host.name in gone])

    def kill_nodes(self, indices: Iterable[int]) -> None:
        killed = self._existing(indices)
        for index in killed:
            self._nodes[index].end(signal.SIGTERM)
        self._cancel_steps(killed)
        self._drain(killed, _END_TIMEOUT_S)

    def start(self, command: StartWorkers) -> tuple[Fault, ...]:
        leader = self._nodes.get(command.nodes[0])
        if leader is None or not leader.agent:
            return (Fault(command.nodes[0], Cause.LOST),)
        master = (leader.address, leader.master_ports[command.attempt % len(leader.master_ports)])
        return self._start_all(command, master)

    def request_stacks(self, folder: Path) -> None:
        """Let every worker with a file in a folder append its stack: the process of each node sees the request."""
        self._files.request_stacks(folder)

    def kill(self) -> None:
        if not all(node.has_ended for node in self._all()):
            self._cancel_steps(list(self._nodes))
            for node in self._all():
                node.end(signal.SIGTERM)
            self._wait(_END_TIMEOUT_S)
        for node in self._all():
            node.end(signal.SIGKILL)
            node.close()

    def _existing(self, indices: Iterable[int]) -> list[int]:
        """Return those of some nodes that have a host; the others no longer wait for one."""
        given = list(indices)
        self._waiting = [index for index in self._waiting if index not in given]
        return super()._existing(given)

    def _cancel_steps(self, indices: Iterable[int]) -> None:
        """Let Slurm kill the steps of nodes: a signal to srun gives their tasks time."""
        if names := {f"node-{index}" for index in indices}:
            self._pool.submit(_kill_steps, self._files.job_id, names)

    def _lose(self, index: int) -> None:
        self._lost(self._nodes[index].host.name)
        self.kill_nodes([index])

    def _report_of(self, node: SlurmNode) -> Report:
        self._find_agent(node)
        return super()._report_of(node)

    def _find_agent(self, node: SlurmNode) -> None:
        if node.agent:
            return
        with contextlib.suppress(FileNotFoundError):
            found = json.loads(self._files.address(node.index).read_text(encoding="utf-8"))
            client = AgentClient(found["address"], found["agent_port"])
            try:
                client.status()
            except AgentUnreachable:  # it is starting
                client.close()
                return
            node.address, node.master_ports, node.agent = found["address"], tuple(found["master_ports"]), client


def _kill_steps(job_id: str, names: Collection[str]) -> None:
    found = programs.steps(job_id, f"--name={','.join(names)}") or {}
    if steps := [step for step, name in found.items() if name in names]:
        programs.run("scancel", "--signal=KILL", *steps)


class Guards:
    """The guards of a job."""

    def __init__(self, files: JobFiles):
        self._files = files
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
        late_s = time.monotonic() - _GUARD_RETRY_S
        free = [name for name in hosts if name not in self.hosts and self._started_s.get(name, late_s) <= late_s]
        for name in free[: max(0, _MOST_GUARDS - len(self._steps))]:
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
        command = ["bash", str(self._files.bundle_dir / GUARD_FILE), self._files.job_id]
        options = ("--no-kill", "--kill-on-bad-exit=0")
        return programs.start_step(self._files.job_id, name, "guard", command, options=options)

    def _end(self, name: str) -> None:
        step = self._steps.pop(name)
        step.send_signal(signal.SIGTERM)
        self._ending[name] = (step, time.monotonic() + _GUARD_END_S)

    def _reap(self) -> None:
        self._steps = {name: step for name, step in self._steps.items() if step.poll() is None}
        for name, (step, deadline) in list(self._ending.items()):
            if step.poll() is not None:
                del self._ending[name]
            elif time.monotonic() > deadline:  # srun waits for a host that is gone
                step.kill()
