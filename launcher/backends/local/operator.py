"""The process that takes the part of the HyperPod operator on this machine, for one job and its simulated cluster.

    python -m launcher.backends.local.operator [--parent PID] BUNDLE_DIR

SIGTERM, SIGINT or SIGHUP stops the job as its recipe specifies; a second one stops it at once. Exit status: 0 the job
succeeded, 3 it failed, 128 + N it was stopped by signal N.
"""

import argparse
import contextlib
import logging
import os
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import IO, NoReturn

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
    read_scenario,
)
from launcher.bundle import store
from launcher.common import os_errors
from launcher.common.locks import JobAlreadyRunning, inherited_lock, lock
from launcher.common.names import CHECKPOINT_DIR, RUN_DIR
from launcher.model.following import until
from launcher.operator import control_loop
from launcher.operator.control_loop import (
    EXIT_FAILED,
    MEMORY_FILE,
    POLL_INTERVAL_S,
    Cluster,
    FolderRemoved,
    Memory,
    Operator,
)
from launcher.operator.event_log import EventWriter
from launcher.operator.hang_detector import DoneStep
from launcher.operator.job_request import JobRequest, read_job_request
from launcher.operator.processes import end_with_parent
from launcher.operator.stop_signals import END_SIGNALS, Interrupts
from launcher.operator.types import Cause, Command, Fault, MachineState, StopWorkers
from launcher.runtime.durable import write_text

EXIT_BUSY = 4

_log = logging.getLogger("operator")


@dataclass(frozen=True, slots=True)
class Handover:
    """The knowledge of an operator on this machine that the next one cannot observe again.

    Args:
        warm_pid: Of the parent of its warm process; None without one.
        rehearsal: None without a scenario.
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
        return self._limited(self._sizes[-1] if self.rehearsal is None else self.rehearsal.capacity)

    @property
    def is_stuck(self) -> bool:
        return self.rehearsal is not None and rehearsals.is_stuck(self.rehearsal)

    @property
    def unfired(self) -> tuple[str, ...]:
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

    def _execute(self, command: Command) -> tuple[Fault, ...]:
        if isinstance(command, StopWorkers) and self._slow_save_s and command.graceful_timeout_s is not None:
            # The scenario asks for a slow checkpoint: rank 0 is suspended during a graceful stop.
            node = self._fleet.pid(command.nodes[0]) if command.nodes else None
            if node and (worker := fault_injection.worker_pid(self._fleet.warm_pid, node, 0)):
                self._frozen = fault_injection.Freezer(worker, self._slow_save_s)
            self._slow_save_s = 0.0
        return super()._execute(command)

    def _before_poll(self, done: DoneStep) -> None:
        """Apply the due events of the scenario."""
        # A job that recovers is entitled to the nodes it had.
        used = max(len(self._machine.nodes + self._machine.warming), self._machine.entitled_nodes)
        for happening in self._cluster.play(time.time() - self._launched, done, used):
            self._apply(happening)

    def _apply(self, happening: Happening) -> None:
        """Record what happens, with a node's number in the logs beside its index in the job; inject its fault."""
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
        if not self._inject(happening):
            self._events.add("scenario", "its target no longer existed", {"fault": True})

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


def main(argv: list[str] | None = None) -> int:
    """Run the job of a bundle; return the exit status."""
    parser = argparse.ArgumentParser(prog="operator", description="Run a bundle's job on this machine.")
    parser.add_argument("--parent", type=int, help="pid to end with")
    parser.add_argument("--take-over", type=int, metavar="FD", help="continue the job whose lock is this descriptor")
    parser.add_argument("--after", type=float, default=0.0, metavar="SECONDS", help="delay")
    parser.add_argument("bundle_dir", type=Path)
    args = parser.parse_args(argv)
    control_loop.start_log()
    store.learn_secrets(args.bundle_dir)
    interrupts = Interrupts()
    interrupts.listen()
    # Blocked since the previous operator saved its state.
    signal.pthread_sigmask(signal.SIG_UNBLOCK, END_SIGNALS)
    if args.parent:
        end_with_parent(args.parent)
    bundle_dir = args.bundle_dir.resolve()
    run_dir = bundle_dir / RUN_DIR
    run_dir.mkdir(exist_ok=True)
    try:
        with lock(run_dir) if args.take_over is None else inherited_lock(args.take_over) as lock_file:
            if args.take_over is None:
                return _run(bundle_dir, lock_file, interrupts)
            until(lambda: bool(interrupts.count), args.after, POLL_INTERVAL_S)
            return _run(bundle_dir, lock_file, interrupts, read_handover(run_dir))
    except JobAlreadyRunning as error:
        _log.error("%s", error)
        return EXIT_BUSY


def _run(bundle_dir: Path, lock_file: IO[bytes], interrupts: Interrupts, known: Handover | None = None) -> int:
    run_dir = bundle_dir / RUN_DIR
    operator: RehearsingOperator | None = None
    with contextlib.ExitStack() as on_error:
        try:
            with LocalFleet(bundle_dir, run_dir, lock_file) as fleet:
                operator = _make_operator(bundle_dir, fleet, interrupts, known)
                # After the fleet: a failure is published once all nodes are gone.
                on_error.callback(operator.fail, "the operator failed; see its log")
                try:
                    exit_code = operator.run()
                except RestartRequested as restart:
                    signal.pthread_sigmask(signal.SIG_BLOCK, END_SIGNALS)
                    write_handover(run_dir, operator.handover())
                    _replace_operator(bundle_dir, lock_file, restart.down_s)
        except (FolderRemoved, FileNotFoundError) as error:
            # Nothing can be published; the submitting process notices the missing folder and this exit.
            if operator is None or not operator.is_folder_removed:
                raise
            _log.error("the job was ended: %s", error)
            exit_code = EXIT_FAILED
        except OSError as error:
            if operator is None or os_errors.environmental(error) is None:
                raise
            # It refused a write of the operator, and may refuse this one.
            reason, remedy = os_errors.described(error, error.filename or run_dir)
            _log.error("the job was ended: %s", reason)
            with contextlib.suppress(OSError):
                operator.fail(f"{reason}, so the job was ended; {remedy}, then: recipes launch {run_dir.parent}")
            exit_code = EXIT_FAILED
        on_error.pop_all()
    return exit_code


def _make_operator(
    bundle_dir: Path, fleet: LocalFleet, interrupts: Interrupts, known: Handover | None
) -> RehearsingOperator:
    run_dir, job = bundle_dir / RUN_DIR, read_job_request(bundle_dir)
    share_cores(job)
    if known:
        fleet.adopt(known.nodes, known.warm_pid)
        EventWriter(run_dir).add("operator", "the operator is back")
        cluster = ClusterSim(run_dir, job, known.rehearsal, known.memory.requested)
    else:
        fleet.warm_up()
        scenario = read_scenario(bundle_dir)
        played, requested = (rehearsals.begin(scenario), None) if scenario else (None, job.initial_nodes)
        cluster = ClusterSim(run_dir, job, played, requested)
    return RehearsingOperator(run_dir, job, fleet, cluster, interrupts, known)


def share_cores(job: JobRequest) -> None:
    """Divide this machine's cores among nodes of one rank, unless the environment says how many threads each has.

    PyTorch starts a thread for each core in every process; the agent bounds them only for several ranks of a node.
    """
    nodes = job.policy.sizes[-1]
    if job.nproc_per_node == 1 and nodes > 1:
        os.environ.setdefault("OMP_NUM_THREADS", str(max(1, len(os.sched_getaffinity(0)) // nodes)))


def _replace_operator(bundle_dir: Path, lock_file: IO[bytes], down_s: float) -> NoReturn:
    """Become a new operator that knows only the saved state. Does not return.

    The process must remain: it is the parent of the nodes, and the kernel kills them with their parent.
    """
    os.set_inheritable(lock_file.fileno(), True)
    args = [sys.executable, "-m", "launcher.backends.local.operator", "--parent", str(os.getppid())]
    args += ["--take-over", str(lock_file.fileno()), "--after", str(down_s), str(bundle_dir)]
    os.execv(sys.executable, args)


if __name__ == "__main__":
    sys.exit(main())
