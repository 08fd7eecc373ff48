"""The control loop of one job: it polls the nodes and executes the commands of the state machine."""

import logging
import os
import signal
import time
from dataclasses import replace
from pathlib import Path

from launcher import timeline
from launcher.backends.local import fault_injection
from launcher.backends.local.cluster_sim import ClusterSim
from launcher.backends.local.event_writer import EventWriter
from launcher.backends.local.failure_cause import explain
from launcher.backends.local.fleet import Fleet
from launcher.backends.local.handover import Handover
from launcher.backends.local.hang_detector import HangDetector
from launcher.backends.local.injections import (
    HangWorker,
    KillAgent,
    KillWorker,
    LoseNode,
    RestartOperator,
    RotBits,
    SlowCheckpoint,
)
from launcher.backends.local.job_request import JobRequest
from launcher.backends.local.operator_types import (
    Cause,
    Command,
    DropNodes,
    Event,
    Fault,
    KillNodes,
    MachineState,
    Observation,
    Phase,
    SpawnNodes,
    StartWorkers,
    StopWorkers,
)
from launcher.backends.local.rehearsal import Happening
from launcher.backends.local.snapshot import Attempt, Snapshot, publish
from launcher.backends.local.state_machine import advance, begin
from launcher.backends.local.step_reader import DoneStep, StepReader
from launcher.backends.local.stop_signals import Interrupts
from launcher.common.names import CHECKPOINT_DIR
from launcher.model.job_spec import JobState

EXIT_FAILED = 3

POLL_INTERVAL_S = 0.25
"""Between two polls of agents that train; they poll their workers every 0.1 s."""

TRANSITION_INTERVAL_S = 0.05
"""Between two polls while the job waits for its agents."""


_log = logging.getLogger("operator")


class RestartRequested(Exception):
    """The operator must be restarted, like a pod of its own would be.

    Args:
        down_s: Seconds without an operator.
    """

    def __init__(self, down_s: float):
        super().__init__(f"restarted after {down_s:g} s")
        self.down_s = down_s


class FolderRemoved(Exception):
    """The job's folder was removed while it ran, so nothing more can be recorded."""


class Operator:
    """One job from its first agent to its last.

    Args:
        run_dir: Of the job.
        job: The part of the plan that the operator needs.
        fleet: Its nodes.
        cluster: The simulated cluster.
        interrupts: Signals so far.
        known: The state of the previous operator; the fleet has adopted its nodes already.
    """

    def __init__(
        self,
        run_dir: Path,
        job: JobRequest,
        fleet: Fleet,
        cluster: ClusterSim,
        interrupts: Interrupts,
        known: Handover | None = None,
    ):
        self._run_dir = run_dir
        self._folder = folder_id(run_dir)
        self._job = job
        self._fleet = fleet
        self._cluster = cluster
        self._interrupts = interrupts
        self._events = EventWriter(run_dir)
        self._failed_commands: tuple[Fault, ...] = ()
        self._frozen: fault_injection.Freezer | None = None
        self._slow_save_s = 0.0
        self._away: RestartOperator | None = None
        if known:
            self._launched, self._machine, self._snapshot = known.launched, known.machine, known.snapshot
            self._reported_attempt, self._slow_save_s = known.reported_attempt, known.slow_save_s
            interrupts.take_over(*known.interrupts)
        else:
            self._launched, self._reported_attempt = time.time(), -1
            self._snapshot = Snapshot(JobState.PENDING, 0, "starting", 0, os.getpid())
            publish(run_dir, self._snapshot)
            self._machine = self._begin()
        self._steps = StepReader(run_dir, self._launched)
        self._watch = HangDetector(run_dir, job.hang)

    def run(self) -> int:
        """Run the job to its end; return the exit status of this process.

        Raises:
            RestartRequested: The scenario restarts the operator.
            FolderRemoved: The run folder was removed or replaced.
        """
        self._publish_phase()
        while self._machine.phase is not Phase.ENDED:
            calm = self._machine.phase in (Phase.RUNNING, Phase.WAITING)
            time.sleep(POLL_INTERVAL_S if calm else TRANSITION_INTERVAL_S)
            if self.is_folder_removed:
                raise FolderRemoved(f"{self._run_dir} was removed")
            self._poll()
        return self._end()

    @property
    def is_folder_removed(self) -> bool:
        """Whether the run folder was removed or replaced."""
        return folder_id(self._run_dir) != self._folder

    def fail(self, message: str) -> None:
        """Publish that the job failed because of the operator, once its nodes are gone."""
        self._publish(JobState.FAILED, 0, message, exit_code=EXIT_FAILED)

    def handover(self) -> Handover:
        """Return the state that the next operator needs."""
        return Handover(
            self._launched,
            self._machine,
            self._snapshot,
            self._fleet.addresses(),
            self._fleet.warm_pid,
            self._reported_attempt,
            self._cluster.requested,
            self._cluster.dump(),
            self._slow_save_s,
            (self._interrupts.count, self._interrupts.signum),
        )

    def _begin(self) -> MachineState:
        happenings = self._cluster.play(0.0, DoneStep(), 0)
        sizes = self._job.policy.sizes
        size = self._job.policy.fit(self._cluster.capacity)
        message = f"launched on {size} of at most {sizes[-1]} nodes"
        self._events.add("launched", message, {"nodes": size, "sizes": sizes})
        for happening in happenings:
            self._apply(happening)
        machine, commands = begin(size, time.monotonic())
        for command in commands:
            self._execute(command)
        return machine

    def _poll(self) -> None:
        """Poll once, and execute the commands that follow."""
        done = self._steps.last()
        self._record_first_step(done)
        self._play(done)
        # After the scenario: the loss of a node must be observed together with the smaller capacity.
        reports = self._fleet.poll()
        if self._frozen and self._frozen.thaw():
            self._frozen = None
        observation = Observation(
            time.monotonic(),
            reports,
            self._interrupts.count,
            self._failed_commands,
            self._cluster.capacity,
            done.step,
            self._cluster.is_stuck,
            self._hang(done),
        )
        before = self._machine
        self._machine, commands = advance(before, observation, self._job.policy)
        self._failed_commands = tuple(fault for command in commands for fault in self._execute(command))
        if self._machine.phase is not before.phase:
            self._publish_phase()
        # Not while a command is being repeated or a worker is suspended: the next operator would not know of it.
        if self._away and not (self._interrupts.count or self._failed_commands or self._frozen):
            raise RestartRequested(self._away.down_s)

    def _hang(self, done: DoneStep) -> str:
        if self._machine.phase is not Phase.RUNNING or not self._snapshot.attempts:
            return ""
        return self._watch.poll(time.monotonic(), self._snapshot.attempts[-1], done)

    def _record_first_step(self, done: DoneStep) -> None:
        if done.attempt > self._reported_attempt:
            self._reported_attempt = done.attempt
            size = len(self._machine.nodes)
            self._events.add("running", "", {"attempt": done.attempt, "size": size, "step": done.step})

    def _play(self, done: DoneStep) -> None:
        """Apply a requested size and the due events of the scenario."""
        if (asked := self._cluster.take_request()) is not None:
            message = f"{asked} node{'' if asked == 1 else 's'} requested"
            if asked != self._cluster.requested:
                message += ", which is not a size of this job"
            self._events.add("request", message, {"nodes": asked})
        # A job that recovers is entitled to the nodes it had.
        used = max(len(self._machine.nodes + self._machine.warming), self._machine.entitled_nodes)
        for happening in self._cluster.play(time.time() - self._launched, done, used):
            self._apply(happening)

    def _apply(self, happening: Happening) -> None:
        self._record_happening(happening)
        if isinstance(happening.fault, RestartOperator):
            self._away = happening.fault
        else:
            self._inject(happening)

    def _record_happening(self, happening: Happening) -> None:
        """Record it; a node's index in the job is given together with its number in the logs."""
        message = happening.message
        hit: int | None = None
        match happening.fault:
            case KillAgent(place) | LoseNode(place):
                hit = self._node(place)
                message += f" (number {hit} in the logs)" if hit != place else ""
            case KillWorker(rank):
                hit = self._node(rank // self._job.nproc_per_node)
        fields: dict[str, object] = {"fault": False} if hit is None else {"fault": True, "node": hit}
        if isinstance(happening.fault, HangWorker | RotBits):  # noticed later: by the hang detector, or at a restart
            fields = {"fault": True, "leads_to": Cause.HANG if isinstance(happening.fault, HangWorker) else ""}
        self._events.add("scenario", message, fields)
        _log.info("%s", message)

    def _inject(self, happening: Happening) -> None:
        match happening.fault:
            case KillWorker(rank) | HangWorker(rank):
                done = self._hit_worker(happening.fault, rank)
            case RotBits(num_bytes):
                folder = self._job.checkpoints or self._run_dir / CHECKPOINT_DIR
                done = fault_injection.damage_checkpoint(folder, num_bytes)
            case KillAgent(place):
                pid = self._fleet.pid(self._node(place))
                done = pid is not None and fault_injection.kill_agent(pid)
            case LoseNode(place):
                done = self._fleet.lose(self._node(place))
            case SlowCheckpoint(seconds):
                self._slow_save_s, done = seconds, True
            case _:
                done = True
        if not done:
            self._events.add("scenario", "its target no longer existed", {"fault": True})

    def _hit_worker(self, fault: KillWorker | HangWorker, rank: int) -> bool:
        hit = fault_injection.kill_worker if isinstance(fault, KillWorker) else fault_injection.hang_worker
        pid = self._fleet.pid(self._node(rank // self._job.nproc_per_node))
        return pid is not None and hit(self._fleet.warm_pid, pid, rank)

    def _node(self, place: int) -> int:
        nodes = self._machine.nodes + self._machine.warming
        return nodes[place] if place < len(nodes) else -1

    def _execute(self, command: Command) -> tuple[Fault, ...]:
        match command:
            case Event(kind, message, fields, cause_s):
                cause = {} if cause_s is None else {"cause_time": time.time() - (time.monotonic() - cause_s)}
                self._events.add(kind, message, {**fields, **cause})
            case SpawnNodes(nodes):
                for node in nodes:
                    self._fleet.spawn(node)
            case DropNodes(nodes):
                self._fleet.drop(nodes)
            case KillNodes(nodes):
                self._fleet.kill_nodes(nodes)
            case StopWorkers():
                self._freeze(command)
                return self._fleet.stop(command)
            case StartWorkers():
                attempt = Attempt(command.attempt, command.nodes[0], command.nodes, time.time())
                self._snapshot = replace(self._snapshot, attempts=(*self._snapshot.attempts, attempt))
                return self._fleet.start(command)
        return ()

    def _freeze(self, command: StopWorkers) -> None:
        """Suspend rank 0 during a graceful stop if the scenario asks for a slow checkpoint."""
        if not self._slow_save_s or command.graceful_timeout_s is None:
            return
        node = self._fleet.pid(command.nodes[0]) if command.nodes else None
        worker = fault_injection.worker_pid(self._fleet.warm_pid, node, 0) if node else None
        if worker:
            self._frozen = fault_injection.Freezer(worker, self._slow_save_s)
        self._slow_save_s = 0.0

    def _end(self) -> int:
        machine = self._machine
        if machine.verdict is not JobState.FAILED and self._interrupts.count < 2:
            self._fleet.shut_down()
        self._fleet.kill()
        verdict = machine.verdict or JobState.FAILED
        exit_code, message = 0, "completed"
        if verdict is JobState.FAILED:
            exit_code = EXIT_FAILED
            message = explain(machine.faults, self._run_dir, self._snapshot.attempts, self._job.nproc_per_node)
        elif verdict is JobState.CANCELLED:
            exit_code = 128 + self._interrupts.signum
            message = f"stopped by {signal.Signals(self._interrupts.signum).name}"
        for event in self._cluster.unfired:
            self._events.add("unfired", event)
        # Later lines may be output of a worker, which does not belong into the event log.
        first_line = message.splitlines()[0]
        self._events.add("ended", first_line, {"state": verdict, "exit_code": exit_code})
        if self._interrupts.count < 2:
            self._report()
        self._publish(verdict, 0, message, exit_code=exit_code)
        return exit_code

    def _report(self) -> None:
        """Write the timeline before the final state, so that it exists once the state is final."""
        try:
            timeline.write(self._run_dir)
        except OSError as error:
            _log.error("no timeline was written: %s", error)

    def _publish_phase(self) -> None:
        machine = self._machine
        state, message = _describe(machine)
        nodes = len(machine.nodes) if machine.phase is not Phase.WAITING else 0
        self._publish(state, nodes, message)

    def _publish(self, state: JobState, nodes: int, message: str, exit_code: int | None = None) -> None:
        attempt = self._machine.attempt if exit_code is None else self._snapshot.attempt
        self._snapshot = replace(
            self._snapshot, state=state, nodes=nodes, message=message, attempt=attempt, exit_code=exit_code
        )
        publish(self._run_dir, self._snapshot)
        _log.info("%s: %s", state, message)


def folder_id(folder: Path) -> tuple[int, int] | None:
    """Return the identity of a folder, whatever its name; None if it does not exist."""
    try:
        found = folder.stat()
    except FileNotFoundError:
        return None
    return found.st_dev, found.st_ino


def _describe(machine: MachineState) -> tuple[JobState, str]:
    if machine.phase is Phase.PREPARING:
        state = JobState.SCALING if machine.attempt else JobState.PENDING
        return state, "waiting for the agents to be ready"
    if machine.phase is Phase.WAITING:
        if machine.fault_since_s is None:
            return JobState.PENDING, "waiting for nodes"
        return JobState.SCALING, "waiting for a lost node to come back"
    if machine.phase is Phase.STOPPING and not machine.verdict:
        return JobState.SCALING, "stopping the workers to restart them"
    message = {
        Phase.SETTLING: "a node failed",
        Phase.STOPPING: "stopping the workers",
        Phase.ENDED: "ending the nodes",
    }
    return JobState.RUNNING, message.get(machine.phase, "training")
