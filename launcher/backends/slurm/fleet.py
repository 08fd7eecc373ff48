"""The nodes of an elastic job: a step of srun for each, and calls of their agents over the cluster's network."""

import contextlib
import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from launcher.backends.slurm import programs, run_files
from launcher.backends.slurm.allocation import Host
from launcher.backends.slurm.elastic_options import ElasticRequest
from launcher.operator.agent_calls import AgentCalls
from launcher.operator.agent_client import AgentClient, AgentUnreachable
from launcher.operator.types import GONE, AgentStatus, Cause, Fault, Report, StartWorkers, StopWorkers
from launcher.operator.worker_logs import AGENT_LOG, node_logs

_SHUTDOWN_TIMEOUT_S = 5.0
"""Time for an agent to end after /shutdown; about 1 s seen."""
_END_TIMEOUT_S = 20.0
"""Time for a step to end that is killed; srun waits for a node that is gone."""
_REFUSED_S = 1.0
"""Seconds without a server at the port of an agent that has answered before: its process is gone."""
_POLL_S = 0.05
_MAX_CALLS_AT_ONCE = 32


@dataclass(slots=True)
class Node:
    """A node of the job: the srun of its step, and its agent once that has said where it listens.

    Args:
        index: Its number; never used again.
        host: Where it runs.
        step: The process of srun.
        agent: A client of its agent; None at first.
        address: The address of its agent.
        master_ports: Ports for rank 0's store.
        answered_s: When the agent last answered, or was started; monotonic.
        refused_s: Since when nothing listens at the agent's port; None while it does.
    """

    index: int
    host: Host
    step: "subprocess.Popen[bytes]"
    agent: AgentClient | None = None
    address: str = ""
    master_ports: tuple[int, ...] = ()
    answered_s: float = field(default_factory=time.monotonic)
    refused_s: float | None = None

    @property
    def alive(self) -> bool:
        """Whether its step runs, and its agent, once it has answered, still listens."""
        is_refused = self.refused_s is not None and time.monotonic() - self.refused_s > _REFUSED_S
        return self.step.poll() is None and not is_refused

    def end(self, signum: int) -> None:
        """Ask srun to end the step: SIGTERM is passed on to the tasks, SIGKILL ends srun alone."""
        if self.step.poll() is None:
            self.step.send_signal(signum)

    def close(self) -> None:
        """Release the connection."""
        if self.agent:
            self.agent.close()


class SlurmFleet:
    """Starts nodes on the hosts of the allocation, calls all of their agents at once, and ends all nodes on exit.

    Args:
        bundle_dir: Holds the script of the agents.
        run_dir: Where nodes write.
        job_id: Of the Slurm job.
        free_host: Returns a host for a new node, given those in use; None if there is none.
        lost: Receives the name of the host of a node that ended by itself.
        request: Further words of srun, and the Python of the nodes.
    """

    def __init__(
        self,
        bundle_dir: Path,
        run_dir: Path,
        job_id: str,
        free_host: Callable[[frozenset[str]], Host | None],
        lost: Callable[[str], None],
        request: ElasticRequest,
    ):
        self._request = request
        self._bundle_dir = bundle_dir
        self._run_dir = run_dir
        self._job_id = job_id
        self._free_host = free_host
        self._lost = lost
        self._nodes: dict[int, Node] = {}
        self._waiting: list[int] = []
        self._draining: list[tuple[Node, float]] = []
        self._calls = AgentCalls(self._agent, _MAX_CALLS_AT_ONCE)

    def __enter__(self) -> "SlurmFleet":
        return self

    def __exit__(self, *_exception: object) -> None:
        self.kill()
        self._calls.close()

    @property
    def used_hosts(self) -> frozenset[str]:
        """Names of the hosts on which a step runs."""
        return frozenset(node.host.name for node in self._all())

    @property
    def has_term(self) -> bool:
        """Whether any node was sent SIGTERM."""
        return run_files.term_file(self._bundle_dir, self._job_id, 0).parent.exists()

    def spawn(self, index: int) -> None:
        """Start a node with a new number, as soon as a host is free: a node that was killed may still be ending."""
        self._waiting.append(index)
        self._place()

    def _place(self) -> None:
        while self._waiting and (host := self._free_host(self.used_hosts)):
            self._start(self._waiting.pop(0), host)

    def _start(self, index: int, host: Host) -> None:
        logs = node_logs(self._run_dir, index)
        logs.mkdir(parents=True, exist_ok=True)
        run_files.address_file(self._bundle_dir, self._job_id, index).unlink(missing_ok=True)
        own = [self._request.python or sys.executable, "-m", "launcher.backends.slurm.node"]
        own += [str(self._bundle_dir), str(index), host.address]
        options = ["--cpu-bind=none", "--no-kill", "--kill-on-bad-exit=0", "--wait=0", "--unbuffered", "--export=ALL"]
        options += self._srun_words()
        with (logs / AGENT_LOG).open("ab") as log:
            step = programs.start_step(self._job_id, host.name, f"node-{index}", own, options=options, log=log)
        self._nodes[index] = Node(index, host, step)

    def poll(self) -> Mapping[int, Report]:
        """Return a report of every node."""
        self._place()
        asked = list(self._nodes.values())
        reports = dict(zip((node.index for node in asked), self._calls.map(self._report_of, asked), strict=True))
        self._reap()
        return {**reports, **dict.fromkeys(self._waiting, Report(alive=True, status=None))}

    def forsake(self, hosts: Iterable[str]) -> None:
        """Give up the nodes on hosts that the job no longer has."""
        gone = frozenset(hosts)
        self.kill_nodes([node.index for node in self._nodes.values() if node.host.name in gone])

    def drop(self, indices: Iterable[int]) -> None:
        """Shut down the agents of these nodes; `poll` ends those that do not exit."""
        dropped = self._placed(indices)
        self._calls.shut_down(dropped)
        self._drain(dropped, _SHUTDOWN_TIMEOUT_S)

    def kill_nodes(self, indices: Iterable[int]) -> None:
        """End everything on these nodes."""
        killed = self._placed(indices)
        for index in killed:
            self._nodes[index].end(signal.SIGTERM)
        self._cancel_steps(killed)
        self._drain(killed, _END_TIMEOUT_S)

    def start(self, command: StartWorkers) -> tuple[Fault, ...]:
        """Start workers on the nodes of `command`; return a fault for each node on which that failed."""
        leader = self._nodes.get(command.nodes[0])
        if leader is None or not leader.agent:
            return (Fault(command.nodes[0], Cause.LOST),)
        master = (leader.address, leader.master_ports[command.attempt % len(leader.master_ports)])
        return self._calls.start(command, master)

    def stop(self, command: StopWorkers) -> tuple[Fault, ...]:
        """Stop the workers of all nodes of `command` at once; return a fault for each node on which that failed."""
        return self._calls.stop(command)

    def request_stacks(self, folder: Path) -> None:
        """Let every worker with a file in a folder append its stack: the process of each node sees the request."""
        run_files.request_stacks(self._bundle_dir, self._job_id, folder)

    def shut_down(self) -> None:
        """Shut down every agent, and wait for its step."""
        self._calls.shut_down(self._nodes)
        self._wait(_SHUTDOWN_TIMEOUT_S)

    def kill(self) -> None:
        """End every node with all of its processes."""
        if any(node.step.poll() is None for node in self._all()):
            self._cancel_steps(list(self._nodes))
            for node in self._all():
                node.end(signal.SIGTERM)
            self._wait(_END_TIMEOUT_S)
        for node in self._all():
            node.end(signal.SIGKILL)
            node.close()

    def _srun_words(self) -> list[str]:
        return [word.replace("{bundle}", str(self._bundle_dir)) for word in self._request.srun_words]

    def _placed(self, indices: Iterable[int]) -> list[int]:
        """Return those of some nodes that have a host; the others no longer wait for one."""
        given = list(indices)
        self._waiting = [index for index in self._waiting if index not in given]
        return [index for index in given if index in self._nodes]

    def _cancel_steps(self, indices: Iterable[int]) -> None:
        """Let Slurm kill the steps of nodes: a signal to srun gives their tasks time."""
        if names := {f"node-{index}" for index in indices}:
            self._calls.later(partial(_kill_steps, self._job_id, names))

    def _all(self) -> Iterator[Node]:
        yield from self._nodes.values()
        yield from (node for node, _ in self._draining)

    def _agent(self, index: int) -> AgentClient | None:
        node = self._nodes.get(index)
        return node.agent if node and node.alive else None

    def _drain(self, indices: Iterable[int], timeout_s: float) -> None:
        deadline = time.monotonic() + timeout_s
        self._draining += [(self._nodes.pop(index), deadline) for index in indices]

    def _reap(self) -> None:
        for index in [index for index, node in self._nodes.items() if not node.alive]:
            node = self._nodes.pop(index)
            self._lost(node.host.name)
            node.end(signal.SIGTERM)
            self._cancel_steps([index])
            self._draining.append((node, time.monotonic() + _END_TIMEOUT_S))
        left = []
        for node, deadline in self._draining:
            if node.step.poll() is not None:
                node.close()
                continue
            if time.monotonic() > deadline:  # srun waits for a node that is gone
                node.end(signal.SIGKILL)
            left.append((node, deadline))
        self._draining = left

    def _report_of(self, node: Node) -> Report:
        self._find_agent(node)
        if not node.alive:
            return GONE
        now_s = time.monotonic()
        status: AgentStatus | None = None
        if node.agent:
            try:
                status = node.agent.status()
                node.answered_s, node.refused_s = now_s, None
            except AgentUnreachable as error:
                if "refused" in str(error):
                    node.refused_s = node.refused_s or now_s
        return Report(node.alive, status, time.monotonic() - node.answered_s)

    def _find_agent(self, node: Node) -> None:
        if node.agent:
            return
        file = run_files.address_file(self._bundle_dir, self._job_id, node.index)
        with contextlib.suppress(FileNotFoundError):
            found = json.loads(file.read_text(encoding="utf-8"))
            client = AgentClient(found["address"], found["agent_port"])
            try:
                client.status()
            except AgentUnreachable:  # it is starting
                client.close()
                return
            node.address, node.master_ports, node.agent = found["address"], tuple(found["master_ports"]), client

    def _wait(self, timeout_s: float) -> None:
        deadline = time.monotonic() + timeout_s
        while any(node.step.poll() is None for node in self._all()) and time.monotonic() < deadline:
            time.sleep(_POLL_S)


def _kill_steps(job_id: str, names: Collection[str]) -> None:
    words = ("squeue", "--steps", f"--jobs={job_id}", f"--name={','.join(names)}", "--noheader", "--format=%i %j")
    rows = (line.split() for line in programs.run(*words).out.splitlines())
    if steps := [row[0] for row in rows if row[-1] in names]:
        programs.run("scancel", "--signal=KILL", *steps)
