"""The nodes of one job: processes that each hold an agent, and calls of all agents at once.

Where a node comes from, and how everything on it ends at once, is the business of a backend's subclass.
"""

import signal
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from subprocess import Popen
from typing import Generic, Self, TypeVar

from launcher.model.following import until
from launcher.operator.agent_client import AgentClient, AgentUnreachable, CommandIgnored
from launcher.operator.processes import AdoptedProcess
from launcher.operator.stacks import request_stacks
from launcher.operator.stop_signals import leave_to_main_thread
from launcher.operator.types import GONE, Cause, Fault, Report, StartWorkers, StopWorkers

SHUTDOWN_TIMEOUT_S = 5.0
"""How long an agent may take to end after /shutdown; about 1 s seen."""
POLL_S = 0.05
Process = Popen[bytes] | AdoptedProcess
Call = Callable[[AgentClient], None]


@dataclass(slots=True)
class Node:
    """A node of the job. Its number is never used again.

    Args:
        process: Ends with everything on the node.
        agent: A client of its agent; None until it is known where that listens.
    """

    index: int
    process: Process
    agent: AgentClient | None

    @property
    def has_ended(self) -> bool:
        """Whether its process has ended."""
        return self.process.poll() is not None

    @property
    def alive(self) -> bool:
        """Whether it counts as a node of the job."""
        return not self.has_ended

    def heard(self, error: AgentUnreachable | None) -> None:
        """Note that its agent answered, or why it did not."""

    def end(self, signum: int) -> None:
        """Send its process a signal."""
        if not self.has_ended:
            self.process.send_signal(signum)

    def close(self) -> None:
        """Release the connection."""
        if self.agent:
            self.agent.close()


N = TypeVar("N", bound=Node)


class Fleet(ABC, Generic[N]):
    """Starts nodes, calls all of their agents at once, and ends all nodes on exit."""

    _late_signal: int = signal.SIGTERM
    """Sent to the process of a node that does not end in time."""

    def __init__(self, at_once: int):
        self._nodes: dict[int, N] = {}
        self._draining: list[tuple[N, float]] = []
        self._pool = ThreadPoolExecutor(at_once, thread_name_prefix="agent-call", initializer=leave_to_main_thread)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.kill()
        self._pool.shutdown(cancel_futures=True)

    @abstractmethod
    def spawn(self, index: int) -> None:
        """Start a node with a new number; its agent is ready some seconds later."""

    @abstractmethod
    def kill_nodes(self, indices: Iterable[int]) -> None:
        """Kill everything on these nodes at once."""

    @abstractmethod
    def start(self, command: StartWorkers) -> tuple[Fault, ...]:
        """Start workers; return a fault for each node on which that failed."""

    @abstractmethod
    def kill(self) -> None:
        """End every node with all of its processes."""

    def request_stacks(self, folder: Path) -> None:
        """Let every worker with a file in a folder append its stack, or a note that it is stopped."""
        request_stacks(folder)

    def poll(self) -> Mapping[int, Report]:
        """Return a report of every node."""
        asked = list(self._nodes.values())
        reports = dict(zip((node.index for node in asked), self._pool.map(self._report_of, asked), strict=True))
        self._reap()
        return reports

    def stop(self, command: StopWorkers) -> tuple[Fault, ...]:
        """Stop the workers of all nodes of `command` at once; return a fault for each node on which that failed."""

        def notify(node: int, agent: AgentClient) -> None:
            agent.notify(command.notice_to(node))

        def stop(agent: AgentClient) -> None:
            agent.stop(command.graceful_timeout_s, command.notice)

        # All of them first: ranks stop together, and all have to know what for. Those that fail do so again.
        self._call({node: partial(notify, node) for node in command.nodes})
        return self._call(dict.fromkeys(command.nodes, stop))

    def drop(self, indices: Iterable[int]) -> None:
        """Shut down the agents of these nodes; `poll` ends those that do not exit."""
        dropped = self._existing(indices)
        self._call(dict.fromkeys(dropped, AgentClient.shutdown))
        self._drain(dropped, SHUTDOWN_TIMEOUT_S)

    def shut_down(self) -> None:
        """Shut down every agent, and wait for its node."""
        self._call(dict.fromkeys(self._nodes, AgentClient.shutdown))
        self._wait(SHUTDOWN_TIMEOUT_S)

    def _start_all(self, command: StartWorkers, master: tuple[str, int]) -> tuple[Fault, ...]:
        """Start workers, whose rank 0 has its store at an address and port."""

        there = [self._nodes.get(node) for node in command.nodes]
        hosts = [node.agent.host if node and node.agent else "" for node in there]

        def call(rank: int, agent: AgentClient) -> None:
            agent.start(rank, hosts, command.attempt, master, command.progress)

        return self._call({node: partial(call, rank) for rank, node in enumerate(command.nodes)})

    def _call(self, calls: Mapping[int, Call]) -> tuple[Fault, ...]:
        """Call agents of nodes; return a fault for each node on which that failed."""

        def call_one(index: int, call: Call) -> Fault | None:
            node = self._nodes.get(index)
            if node is None or not node.alive or node.agent is None:
                return Fault(index, Cause.LOST)
            try:
                call(node.agent)
            except (AgentUnreachable, CommandIgnored) as error:
                return Fault(index, Cause.DISOBEDIENT, str(error))
            return None

        return tuple(fault for fault in self._pool.map(call_one, calls, calls.values()) if fault)

    def _existing(self, indices: Iterable[int]) -> list[int]:
        return [index for index in indices if index in self._nodes]

    def _all(self) -> list[N]:
        return [*self._nodes.values(), *(node for node, _ in self._draining)]

    def _report_of(self, node: N) -> Report:
        if not node.alive:
            return GONE
        status = error = None
        if node.agent:
            try:
                status = node.agent.status()
            except AgentUnreachable as unreachable:
                error = unreachable
            node.heard(error)
        return Report(node.alive, status)

    def _drain(self, indices: Iterable[int], timeout_s: float) -> None:
        deadline = time.monotonic() + timeout_s
        self._draining += [(self._nodes.pop(index), deadline) for index in indices]

    def _lose(self, index: int) -> None:
        """Release what is left of a node that ended by itself."""
        self._nodes.pop(index).close()

    def _reap(self) -> None:
        for index in [index for index, node in self._nodes.items() if not node.alive]:
            self._lose(index)
        draining, self._draining = self._draining, []
        for node, deadline in draining:
            if node.has_ended:
                node.close()
                continue
            if time.monotonic() > deadline:
                node.end(self._late_signal)
            self._draining.append((node, deadline))

    def _wait(self, timeout_s: float) -> None:
        until(lambda: all(node.has_ended for node in self._all()), timeout_s, POLL_S)
