"""The control loop of one job: it polls the nodes and executes the commands of the state machine.

A backend passes its kind of `Fleet` and of `Cluster`: where nodes come from, and when the job may have them.
"""

import logging
import os
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from launcher import timeline
from launcher.causes import Failure, to_data
from launcher.common import redaction
from launcher.common.problems import ProblemsFound
from launcher.common.texts import counted, signal_name
from launcher.model.failure import in_one_line
from launcher.model.job_spec import JobState
from launcher.operator import failures
from launcher.operator.event_log import EventWriter
from launcher.operator.fleet import Fleet
from launcher.operator.hang_detector import DoneStep, HangDetector, StepReader
from launcher.operator.job_request import JobRequest, take_request
from launcher.operator.snapshot import Attempt, Snapshot, publish, stop_reason
from launcher.operator.stacks import SlowJob
from launcher.operator.state_machine import advance, begin
from launcher.operator.stop_signals import Interrupts
from launcher.operator.types import (
    Cause,
    Command,
    DropNodes,
    Event,
    Fault,
    KillNodes,
    MachineState,
    Observation,
    Phase,
    RecordStart,
    Report,
    SpawnNodes,
    StartWorkers,
    StopWorkers,
)
from launcher.operator.worker_logs import count_logs_as, explain

EXIT_FAILED = 3

POLL_INTERVAL_S = 0.25
"""Between two polls of agents that train; they poll their workers every 0.1 s."""

TRANSITION_INTERVAL_S = 0.05
"""Between two polls while the job waits for its agents."""


_log = logging.getLogger("operator")


def start_log() -> None:
    """Let this process log on its standard error, without secrets."""
    redaction.install()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s: %(message)s")
    # At its own level, httpx logs every request.
    logging.getLogger("httpx").setLevel(logging.WARNING)


class FolderRemoved(Exception):
    """The job's folder was removed while it ran, so nothing more can be recorded."""


class Cluster(ABC):
    """What the job may have: its capacity, and the sizes that users request.

    Args:
        sizes: Every number of nodes the job may have.
        requested: Maximum nodes that a user requested; None for no limit.
    """

    def __init__(self, run_dir: Path, sizes: Sequence[int], requested: int | None):
        self.requested = requested
        self._run_dir = run_dir
        self._sizes = sizes

    @property
    @abstractmethod
    def capacity(self) -> int:
        """Nodes the job may have now."""

    @property
    @abstractmethod
    def is_stuck(self) -> bool:
        """Whether the capacity can only change if the job trains or a user requests another size."""

    @property
    def unfired(self) -> tuple[str, ...]:
        """Events of a scenario that have not happened."""
        return ()

    def take_request(self) -> int | None:
        """Return the size requested since the last call; apply it if it is one of the job's sizes."""
        asked = take_request(self._run_dir)
        if asked in self._sizes:
            self.requested = asked
        return asked

    def _limited(self, available: int) -> int:
        return available if self.requested is None else min(available, self.requested)


MEMORY_FILE = "operator.json"
"""In the run folder: what the next operator needs to know."""


@dataclass(frozen=True, slots=True)
class Memory:
    """The knowledge of an operator that the next one cannot observe again.

    Args:
        launched: Launch of the job, in seconds since the epoch.
        reported_attempt: Newest attempt whose first step is logged.
        requested: Size that a user requested; None for any.
        interrupts: Number of signals that requested the end of the job, and the last of them.
        oom_kills: Counter of the cgroup at the launch.
    """

    launched: float
    machine: MachineState
    snapshot: Snapshot
    reported_attempt: int
    requested: int | None
    interrupts: tuple[int, int] = (0, 0)
    oom_kills: int = 0


class Operator:
    """One job from its first agent to its last.

    A subclass may act before a poll (`_before_poll`) and after it (`_after_poll`).

    Args:
        known: The knowledge of the previous operator; None for a job that begins.
    """

    def __init__(
        self,
        run_dir: Path,
        job: JobRequest,
        fleet: Fleet[Any],
        cluster: Cluster,
        interrupts: Interrupts,
        known: Memory | None = None,
    ):
        self._run_dir = run_dir
        self._parent = os.getppid()
        self._folder = folder_id(run_dir)
        self._job = job
        self._fleet = fleet
        self._cluster = cluster
        self._interrupts = interrupts
        self._events = EventWriter(run_dir)
        self._failed_commands: tuple[Fault, ...] = ()
        self._answered_s: dict[int, float] = {}
        if known:
            self._launched, self._machine, self._snapshot = known.launched, known.machine, known.snapshot
            self._reported_attempt, self._oom_kills = known.reported_attempt, known.oom_kills
            interrupts.take_over(*known.interrupts)
        else:
            self._launched, self._reported_attempt = time.time(), -1
            self._oom_kills = failures.oom_kills()
            self._snapshot = Snapshot(JobState.PENDING, 0, "starting", 0, os.getpid())
            publish(run_dir, self._snapshot)
            self._machine = self._begin()
        self._steps = StepReader(run_dir, self._launched)
        self._watch = HangDetector(run_dir, job.hang)
        self._late_stop = -1
        self._slow = SlowJob(run_dir, job.nproc_per_node, fleet.request_stacks, self._events)

    def run(self) -> int:
        """Run the job to its end; return the exit status of this process.

        Raises:
            RestartRequested: The scenario restarts the operator.
            FolderRemoved: The run folder was removed or replaced.
        """
        self._publish_phase()
        before = self._machine.phase
        while self._machine.phase is not Phase.ENDED:
            time.sleep(self._pause_s(before))
            before = self._machine.phase
            if self.is_folder_removed:
                raise FolderRemoved(f"{self._run_dir} was removed")
            self._poll()
        return self._end()

    def _pause_s(self, before: Phase) -> float:
        """Return the time until the next poll. The agents that have just stopped are ready for the next start."""
        phase = self._machine.phase
        if before is Phase.STOPPING and phase is Phase.PREPARING:
            return 0.0
        return POLL_INTERVAL_S if phase in (Phase.RUNNING, Phase.WAITING) else TRANSITION_INTERVAL_S

    @property
    def is_folder_removed(self) -> bool:
        """Whether the run folder was removed or replaced."""
        return folder_id(self._run_dir) != self._folder

    def fail(self, message: str) -> None:
        """Publish that the job failed because of the operator, once its nodes are gone."""
        self._publish(JobState.FAILED, 0, message, exit_code=EXIT_FAILED)

    @property
    def memory(self) -> Memory:
        """The knowledge that the next operator needs."""
        return Memory(
            self._launched,
            self._machine,
            self._snapshot,
            self._reported_attempt,
            self._cluster.requested,
            (self._interrupts.count, self._interrupts.signum),
            self._oom_kills,
        )

    def _begin(self) -> MachineState:
        sizes = self._job.policy.sizes
        size = self._job.policy.fit(self._cluster.capacity)
        message = f"launched on {size} of at most {counted(sizes[-1], 'node')}"
        self._events.add("launched", message, {"nodes": size, "sizes": sizes})
        machine, commands = begin(size, self._now_s)
        for command in commands:
            self._execute(command)
        return machine

    def _poll(self) -> None:
        done = self._steps.last()
        if done.attempt > self._reported_attempt:
            self._reported_attempt = done.attempt
            fields = {"attempt": done.attempt, "size": len(self._machine.nodes), "step": done.step}
            self._events.add("running", "", fields)
        if (asked := self._cluster.take_request()) is not None:
            is_refused = asked != self._cluster.requested
            message = f"{counted(asked, 'node')} requested{', which is not a size of this job' if is_refused else ''}"
            self._events.add("request", message, {"nodes": asked})
        self._before_poll(done)
        reports = self._fleet.poll()
        now_s = self._now_s
        observation = Observation(
            now_s,
            self._with_silence(reports, now_s),
            self._interrupts.count,
            self._failed_commands,
            self._cluster.capacity,
            done.step,
            self._cluster.is_stuck,
        )
        hang = self._hang(done, stays=observation.stays())
        observation = replace(observation, hang=hang, lagging=self._slow.lagging_nodes)
        before = self._machine
        self._machine, commands = advance(before, observation, self._job.policy)
        self._failed_commands = tuple(fault for command in commands for fault in self._execute(command))
        if self._machine.phase is not before.phase:
            self._publish_phase()
        self._after_poll()

    @property
    def _now_s(self) -> float:
        """The monotonic clock, without the time for which this process was stopped."""
        return time.monotonic() - self._interrupts.stopped_s

    def _with_silence(self, reports: Mapping[int, Report], now_s: float) -> dict[int, Report]:
        """Return reports with the time since each agent last answered, or was first asked."""
        before = self._answered_s
        self._answered_s = {
            node: now_s if report.status else before.get(node, now_s) for node, report in reports.items()
        }
        return {node: replace(each, silent_s=now_s - self._answered_s[node]) for node, each in reports.items()}

    def _before_poll(self, done: DoneStep) -> None:
        """Bring the cluster up to date: the loss of a node must be observed together with the smaller capacity."""

    def _after_poll(self) -> None:
        """Act after the commands of a poll."""

    def _hang(self, done: DoneStep, *, stays: bool) -> str:
        machine = self._machine
        if not self._snapshot.attempts:
            return ""
        now_s, attempt = self._now_s, self._snapshot.attempts[-1]
        is_stopping = machine.phase is Phase.STOPPING and machine.is_unsaved and self._late_stop != attempt.number
        if machine.phase is not Phase.RUNNING and not is_stopping:
            return ""
        overdue = self._watch.poll(now_s, attempt, done, stays=stays)
        if overdue and is_stopping:  # workers only finish a step: one for which the others wait is replaced at once
            overdue = replace(overdue, is_hang=True)
        message = self._slow.poll(now_s, attempt, overdue)
        if message and is_stopping:  # looked at once: if no rank lags, the agents' own limit decides
            self._late_stop = attempt.number
        return message

    def _execute(self, command: Command) -> tuple[Fault, ...]:
        match command:
            case Event(kind, message, fields, cause_s):
                cause = {} if cause_s is None else {"cause_time": self._time_of(cause_s)}
                self._events.add(kind, f"{message}{self._error_of(kind, fields)}", {**fields, **cause})
            case SpawnNodes(nodes):
                for node in nodes:
                    self._fleet.spawn(node)
            case DropNodes(nodes):
                self._fleet.drop(nodes)
            case KillNodes(nodes):
                self._fleet.kill_nodes(nodes)
            case StopWorkers():
                return self._fleet.stop(command)
            case StartWorkers():
                self._record(Attempt(command.attempt, command.nodes[0], command.nodes, time.time()))
                return self._fleet.start(command)
            case RecordStart(nodes, number, since_s):
                attempt = Attempt(number, nodes[0], nodes, self._time_of(since_s))
                for node in set(nodes) - self._taken_part:
                    count_logs_as(self._run_dir, node, attempt)
                self._record(attempt)
        return ()

    @property
    def _taken_part(self) -> set[int]:
        """Nodes whose workers were started."""
        return {node for attempt in self._snapshot.attempts for node in attempt.nodes}

    def _record(self, attempt: Attempt) -> None:
        self._snapshot = replace(self._snapshot, attempts=(*self._snapshot.attempts, attempt))

    def _time_of(self, moment_s: float) -> float:
        """Return a moment of the job's clock in seconds since the epoch."""
        return time.time() - (self._now_s - moment_s)

    def _error_of(self, kind: str, fields: Mapping[str, object]) -> str:
        """Return the first error of a node's workers that failed before they took part; "" for other events."""
        node = fields.get("node")
        is_of_worker = kind == "fault" and fields["cause"] == Cause.WORKER
        if not is_of_worker or not isinstance(node, int) or node in self._taken_part:
            return ""
        alone = Attempt(0, node, (node,), self._launched)  # the agent counts its starts from 0
        failure = self._find((alone,), ())
        return f": {failure.first_error.text}" if failure else ""

    def _end(self) -> int:
        machine = self._machine
        if machine.verdict is not JobState.FAILED and self._interrupts.count < 2:
            self._fleet.shut_down()
        self._fleet.kill()
        verdict = machine.verdict or JobState.FAILED
        exit_code, message, failure = 0, "completed", None
        if verdict is JobState.FAILED:
            exit_code, failure = EXIT_FAILED, self._find(self._snapshot.attempts, machine.faults)
            rank = failure.first_error.rank if failure else None
            attempts, processes = self._snapshot.attempts, self._job.nproc_per_node
            message = explain(machine.faults, self._run_dir, attempts, processes, rank)
        elif verdict is JobState.CANCELLED:
            exit_code = 128 + self._interrupts.signum
            message = f"stopped by {signal_name(self._interrupts.signum)}"
            if os.getppid() != self._parent:
                message = "stopped, since the process that launched it has ended"
            message = stop_reason(self._run_dir) or message
        for event in self._cluster.unfired:
            self._events.add("unfired", event)
        known = {"failure": to_data(failure)} if failure else {}
        self._events.add("ended", in_one_line(message, failure), {"state": verdict, "exit_code": exit_code, **known})
        if self._interrupts.count < 2:
            # Before the final state, so that the timeline exists once the state is final.
            try:
                timeline.write(self._run_dir)
            except (OSError, ProblemsFound) as error:
                _log.error("no timeline was written: %s", error)
        self._snapshot = replace(self._snapshot, failure=failure)
        self._publish(verdict, 0, message, exit_code=exit_code)
        return exit_code

    def _find(self, attempts: tuple[Attempt, ...], faults: tuple[Fault, ...]) -> Failure | None:
        oom_kills = max(0, failures.oom_kills() - self._oom_kills)
        try:
            return failures.find(self._run_dir, attempts, self._job.nproc_per_node, faults, oom_kills)
        except OSError as error:  # a log that was removed
            _log.error("its logs were not searched for the cause: %s", error)
            return None

    def _publish_phase(self) -> None:
        machine = self._machine
        nodes = len(machine.nodes) if machine.phase is not Phase.WAITING else 0
        state, message = _describe(machine)
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
        return JobState.SCALING, "stopping the workers for their next start"
    message = {
        Phase.SETTLING: "a node failed",
        Phase.STOPPING: "stopping the workers",
        Phase.ENDED: "ending the nodes",
    }
    return JobState.RUNNING, message.get(machine.phase, "training")
