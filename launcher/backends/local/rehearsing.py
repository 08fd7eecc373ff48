"""The operator of a job on this machine, with its simulated cluster, and what the next operator needs to know."""

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from pydantic import TypeAdapter

from launcher.backends.local import fault_injection
from launcher.backends.local import rehearsal as rehearsals
from launcher.backends.local.fleet import LocalFleet, NodeAddress
from launcher.backends.local.rehearsal import Happening, Progress, Rehearsal
from launcher.backends.local.scenario import (
    AgentCrash,
    BitRot,
    Hang,
    NodeLoss,
    OperatorRestart,
    SlowSave,
    WorkerCrash,
)
from launcher.common.names import CHECKPOINT_DIR
from launcher.operator.control_loop import Cluster, Memory, Operator
from launcher.operator.hang_detector import DoneStep
from launcher.operator.job_request import JobRequest
from launcher.operator.stop_signals import Interrupts
from launcher.operator.types import Cause, Command, Fault, MachineState, StopWorkers
from launcher.runtime.durable import write_text

_log = logging.getLogger("operator")


MEMORY_FILE = "operator.json"


@dataclass(frozen=True, slots=True)
class Handover:
    """The knowledge of an operator on this machine that the next one cannot observe again.

    Args:
        memory: Of every operator.
        nodes: The addresses of its nodes.
        warm_pid: Of the parent of its warm process; None without one.
        rehearsal: The simulated cluster; None without a scenario.
        slow_save_s: How long the next checkpoint of a graceful stop is delayed.
    """

    memory: Memory
    nodes: tuple[NodeAddress, ...]
    warm_pid: int | None
    rehearsal: Rehearsal | None
    slow_save_s: float


_HANDOVER = TypeAdapter(Handover)


def write_handover(run_dir: Path, memory: Handover) -> None:
    """Save the state for the next operator."""
    write_text(run_dir / MEMORY_FILE, _HANDOVER.dump_json(memory).decode())


def read_handover(run_dir: Path) -> Handover:
    """Return the state saved last."""
    return _HANDOVER.validate_json((run_dir / MEMORY_FILE).read_bytes())


class ClusterSim(Cluster):
    """The simulated cluster. With a scenario a job takes all nodes it can get; without one, those requested.

    Args:
        rehearsal: None without a scenario.
    """

    def __init__(self, run_dir: Path, job: JobRequest, rehearsal: Rehearsal | None, requested: int | None):
        super().__init__(run_dir, job.policy.sizes, requested)
        self.rehearsal = rehearsal

    @property
    def capacity(self) -> int:
        """Nodes the job may have now."""
        return self._limited(self._sizes[-1] if self.rehearsal is None else self.rehearsal.capacity)

    @property
    def is_stuck(self) -> bool:
        """Whether the capacity can only change if the job trains or a user requests another size."""
        return self.rehearsal is not None and rehearsals.is_stuck(self.rehearsal)

    @property
    def unfired(self) -> tuple[str, ...]:
        """Events of the scenario that have not happened."""
        return rehearsals.unfired(self.rehearsal) if self.rehearsal else ()

    def play(self, since_launch_s: float, done: DoneStep, used_nodes: int) -> tuple[Happening, ...]:
        """Apply the due events of the scenario."""
        if self.rehearsal is None:
            return ()
        progress = Progress(since_launch_s, done.step, done.samples)
        self.rehearsal, happenings = rehearsals.advance(self.rehearsal, progress, used_nodes)
        return happenings


class RestartRequested(Exception):
    """The operator must be restarted after some seconds, like a pod of its own would be."""

    def __init__(self, down_s: float):
        super().__init__(f"restarted after {down_s:g} s")
        self.down_s = down_s


class RehearsingOperator(Operator):
    """Plays a scenario while it runs the job.

    Args:
        known: The state of the previous operator; the fleet has adopted its nodes already.
    """

    _fleet: LocalFleet
    _cluster: ClusterSim

    def __init__(
        self,
        run_dir: Path,
        job: JobRequest,
        fleet: LocalFleet,
        cluster: ClusterSim,
        interrupts: Interrupts,
        known: Handover | None = None,
    ):
        self._frozen: fault_injection.Freezer | None = None
        self._slow_save_s = known.slow_save_s if known else 0.0
        self._away: OperatorRestart | None = None
        super().__init__(run_dir, job, fleet, cluster, interrupts, known.memory if known else None)

    def handover(self) -> Handover:
        """Return the state that the next operator needs."""
        return Handover(
            self.memory, self._fleet.addresses(), self._fleet.warm_pid, self._cluster.rehearsal, self._slow_save_s
        )

    def _begin(self) -> MachineState:
        happenings = self._cluster.play(0.0, DoneStep(), 0)
        machine = super()._begin()
        for happening in happenings:
            self._apply(happening)
        return machine

    def _after_poll(self) -> None:
        if self._frozen and self._frozen.thaw():
            self._frozen = None
        # Not while a command is being repeated or a worker is suspended: the next operator would not know of it.
        if self._away and not (self._interrupts.count or self._failed_commands or self._frozen):
            raise RestartRequested(self._away.down)

    def _unfired(self) -> tuple[str, ...]:
        return self._cluster.unfired

    def _execute(self, command: Command) -> tuple[Fault, ...]:
        if isinstance(command, StopWorkers):
            self._freeze(command)
        return super()._execute(command)

    def _before_poll(self, done: DoneStep) -> None:
        """Apply the due events of the scenario."""
        # A job that recovers is entitled to the nodes it had.
        used = max(len(self._machine.nodes + self._machine.warming), self._machine.entitled_nodes)
        for happening in self._cluster.play(time.time() - self._launched, done, used):
            self._apply(happening)

    def _apply(self, happening: Happening) -> None:
        self._record_happening(happening)
        if not self._inject(happening):
            self._events.add("scenario", "its target no longer existed", {"fault": True})

    def _record_happening(self, happening: Happening) -> None:
        """Record it; a node's index in the job is given together with its number in the logs."""
        message = happening.message
        fields: dict[str, object] = {"fault": False}
        match happening.fault:
            case AgentCrash(node=place) | NodeLoss(node=place):
                node = self._node(place)
                message += f" (number {node} in the logs)" if node != place else ""
                fields = {"fault": True, "node": node}
            case WorkerCrash(rank=rank):
                fields = {"fault": True, "node": self._node(rank // self._job.nproc_per_node)}
            case Hang():  # noticed later, by the hang detector
                fields = {"fault": True, "leads_to": Cause.HANG}
            case BitRot():  # noticed later, at a restart
                fields = {"fault": True, "leads_to": ""}
        self._events.add("scenario", message, fields)
        _log.info("%s", message)

    def _inject(self, happening: Happening) -> bool:
        """Inject a fault, if there is one; return False if its target no longer exists."""
        match happening.fault:
            case WorkerCrash(rank=rank):
                return self._hit_worker(fault_injection.kill_worker, rank)
            case Hang(rank=rank):
                return self._hit_worker(fault_injection.hang_worker, rank)
            case BitRot(num_bytes=num_bytes):
                folder = self._job.checkpoints or self._run_dir / CHECKPOINT_DIR
                return fault_injection.damage_checkpoint(folder, num_bytes)
            case AgentCrash(node=place):
                pid = self._fleet.pid(self._node(place))
                return pid is not None and fault_injection.kill_agent(pid)
            case NodeLoss(node=place):
                return self._fleet.lose(self._node(place))
            case SlowSave(seconds=seconds):
                self._slow_save_s = seconds
            case OperatorRestart():
                self._away = happening.fault
        return True

    def _hit_worker(self, hit: Callable[[int | None, int, int], bool], rank: int) -> bool:
        pid = self._fleet.pid(self._node(rank // self._job.nproc_per_node))
        return pid is not None and hit(self._fleet.warm_pid, pid, rank)

    def _node(self, place: int) -> int:
        nodes = self._machine.nodes + self._machine.warming
        return nodes[place] if place < len(nodes) else -1

    def _freeze(self, command: StopWorkers) -> None:
        """Suspend rank 0 during a graceful stop if the scenario asks for a slow checkpoint."""
        if not self._slow_save_s or command.graceful_timeout_s is None:
            return
        node = self._fleet.pid(command.nodes[0]) if command.nodes else None
        worker = fault_injection.worker_pid(self._fleet.warm_pid, node, 0) if node else None
        if worker:
            self._frozen = fault_injection.Freezer(worker, self._slow_save_s)
        self._slow_save_s = 0.0
