"""The simulated nodes of one job: their processes, ports and agents."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Self

import psutil

from launcher.common import prctl
from launcher.common.names import ENV_LAUNCH_ID, ENV_WARM_SOCKET, WARM_MODULE
from launcher.model.following import until
from launcher.operator.agent_client import AgentClient
from launcher.operator.fleet import POLL_S, SHUTDOWN_TIMEOUT_S, Fleet, Node, Process
from launcher.operator.job_request import SCRIPT_FILE
from launcher.operator.processes import (
    KILL_TIMEOUT_S,
    LOOPBACK,
    AdoptedProcess,
    kill_descendants,
    kill_strays,
    kill_tree,
    port_of,
    remove_dead_nodes,
    remove_node_folder,
    reserve_port,
)
from launcher.operator.types import Fault, Report, StartWorkers, StopWorkers
from launcher.operator.worker_logs import AGENT_LOG, WARM_LOG, node_logs
from launcher.runtime.warm_client import ANSWER_TIMEOUT_S, answers

_MAX_CALLS_AT_ONCE = 16


@dataclass(slots=True)
class LocalNode(Node):
    """A simulated node: its process holds everything below it.

    Args:
        reservation: Keeps the agent's port; None for a node that a previous operator started.
    """

    agent: AgentClient
    reservation: socket.socket | None

    def close(self) -> None:
        """Release the connection and the port, and remove leftovers of a killed node."""
        remove_node_folder(self.process.pid)
        self.agent.close()
        if self.reservation:
            self.reservation.close()


@dataclass(frozen=True, slots=True)
class NodeAddress:
    """A node for the next operator: pid of its process, port of its agent, body of the agent's last /start."""

    index: int
    pid: int
    port: int
    started: dict[str, Any] | None = None


class LocalFleet(Fleet[LocalNode]):
    """Starts simulated nodes.

    The kernel signals nodes when the *thread* that started them ends, so `spawn` must run on the main thread.

    Args:
        lock: An open file that every node inherits.
    """

    def __init__(self, bundle_dir: Path, run_dir: Path, lock: IO[bytes]):
        super().__init__(_MAX_CALLS_AT_ONCE)
        self._bundle_dir = bundle_dir
        self._run_dir = run_dir
        self._lock = lock
        # A restarted operator remains the same process.
        self._launch_id = f"{os.getpid()}-{psutil.Process().create_time():.2f}"
        self._warm: Process | None = None
        self._master: socket.socket | None = None

    def __enter__(self) -> Self:
        prctl.adopt_orphans()
        return self

    def __exit__(self, *_exception: object) -> None:
        super().__exit__()
        for node in self._all():
            node.close()
        remove_dead_nodes()
        if self._master:
            self._master.close()

    @property
    def warm_pid(self) -> int | None:
        """The pid of the parent of this job's warm process and its forks; None without one."""
        return self._warm.pid if self._warm else None

    def warm_up(self) -> None:
        """Start the warm process of this job, if its script has one."""
        script = self._bundle_dir / SCRIPT_FILE
        if WARM_MODULE in script.read_text(encoding="utf-8"):
            self._warm = self._run_script("warm", self._warm_socket, self._run_dir / WARM_LOG)

    def _end_hung_warm(self) -> None:
        """Kill a warm process that hangs: new workers would wait for it, and its forks would keep running."""
        warm = self._warm
        if warm and warm.poll() is None and _has_imported(warm.pid) and not answers(self._warm_socket):
            self._kill_and_await(warm)

    def addresses(self) -> tuple[NodeAddress, ...]:
        """Return the addresses of all nodes, for the next operator."""
        nodes = self._nodes.values()
        return tuple(NodeAddress(each.index, each.process.pid, each.agent.port, each.agent.started) for each in nodes)

    def adopt(self, addresses: Iterable[NodeAddress], warm_pid: int | None) -> None:
        """Take over nodes and the warm process, children of this process already."""
        self._warm = AdoptedProcess(warm_pid) if warm_pid else None
        for address in addresses:
            agent = AgentClient(LOOPBACK, address.port, address.started)
            self._nodes[address.index] = LocalNode(address.index, AdoptedProcess(address.pid), agent, None)

    def pid(self, index: int) -> int | None:
        """Return the pid of a node's process; None if the node does not exist."""
        node = self._nodes.get(index)
        return node.process.pid if node and node.alive else None

    def spawn(self, index: int) -> None:
        reservation = reserve_port()
        port = port_of(reservation)
        logs = node_logs(self._run_dir, index)
        logs.mkdir(parents=True, exist_ok=True)
        process = self._run_script(str(index), str(port), logs / AGENT_LOG)
        self._nodes[index] = LocalNode(index, process, AgentClient(LOOPBACK, port), reservation)

    def poll(self) -> Mapping[int, Report]:
        """Return a report of every node; kill processes that a dead node left behind."""
        reports = super().poll()
        nodes = [node.process for node in self._all()]
        kill_strays(process.pid for process in ([*nodes, self._warm] if self._warm else nodes))
        return reports

    def kill_nodes(self, indices: Iterable[int]) -> None:
        killed = self._existing(indices)
        for index in killed:
            kill_tree(self._nodes[index].process.pid)
        self._drain(killed, SHUTDOWN_TIMEOUT_S)

    def lose(self, index: int) -> bool:
        """Kill everything on a node and wait until it is gone, as in a power failure; return whether it existed."""
        pid = self.pid(index)
        if pid is None:
            return False
        self._kill_and_await(self._nodes[index].process)
        return True

    def _kill_and_await(self, process: Process) -> None:
        kill_tree(process.pid)
        until(lambda: process.poll() is not None, KILL_TIMEOUT_S, POLL_S / 10)

    def start(self, command: StartWorkers) -> tuple[Fault, ...]:
        self._end_hung_warm()
        if self._warm and self._warm.poll() is not None:
            self.warm_up()
        if self._master:
            self._master.close()
        self._master = reserve_port()
        master = (LOOPBACK, port_of(self._master))
        return self._start_all(command, master)

    def stop(self, command: StopWorkers) -> tuple[Fault, ...]:
        faults = super().stop(command)
        if command.graceful_timeout_s is None:
            self._end_hung_warm()
        return faults

    def kill(self) -> None:
        for node in self._all():
            node.end(signal.SIGTERM)
        self._wait(KILL_TIMEOUT_S)
        kill_descendants()

    @property
    def _warm_socket(self) -> str:
        return f"recipes-warm-{self._launch_id}"

    def _run_script(self, what: str, where: str, log_file: Path) -> subprocess.Popen[bytes]:
        """Run the bundle's script in a process that ends with this one, together with its descendants."""
        own = [sys.executable, "-m", "launcher.backends.local.node", "--parent", str(os.getpid()), "--"]
        names = {ENV_LAUNCH_ID: self._launch_id, ENV_WARM_SOCKET: self._warm_socket if self._warm else ""}
        with log_file.open("ab") as log:
            return subprocess.Popen(
                [*own, "bash", str(self._bundle_dir / SCRIPT_FILE), what, where],
                env={**os.environ, "PYTHON": sys.executable, **names},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                pass_fds=(self._lock.fileno(),),
            )


def _has_imported(warm_pid: int) -> bool:
    """Return whether a warm process should answer by now: it has forks, or had time to import everything."""
    try:
        holder = psutil.Process(warm_pid)
        has_forks = len(holder.children(recursive=True)) > 1
        return has_forks or time.time() - holder.create_time() > ANSWER_TIMEOUT_S
    except psutil.Error:
        return False
