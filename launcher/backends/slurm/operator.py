"""The operator of an elastic job: the batch script becomes this process, which runs the job on what Slurm gives it.

    python -m launcher.backends.slurm.operator BUNDLE

The state machine is that of every operator. Nodes come from `allocation`. Before Slurm takes all of them, for a job
of higher priority or at the time limit, the workers save and stop, and the job returns to the queue. The next start
of the batch script continues with what this one has saved. Exit status: 0 the job succeeded or returns to the queue,
3 it failed, 74 it failed and the disk of its folder is full, 128 + N it was stopped by signal N.

SIGINT and SIGHUP stop the job for good. SIGTERM does so too, unless Slurm says that the job is preempted. SIGUSR1 is
the time limit.
"""

import contextlib
import errno
import logging
import os
import re
import shutil
import signal
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType

from pydantic import TypeAdapter

from launcher.backends.slurm import allocation, programs
from launcher.backends.slurm.allocation import Allocation
from launcher.backends.slurm.fleet import Guards, SlurmFleet
from launcher.backends.slurm.place import grows_in_place
from launcher.backends.slurm.run_files import (
    AGENT_FILE,
    ELASTIC_FILE,
    EXIT_CODE,
    RELEASE_FILE,
    SIZE_BEFORE_GROWTH,
    ElasticRequest,
    JobFiles,
    read_request,
)
from launcher.backends.slurm.states import TERM_CODE, UNWRITABLE
from launcher.common import os_errors
from launcher.common.names import ENTRYPOINT, ENV_COLLECTIVE_TIMEOUT, RUN_DIR
from launcher.common.texts import counted
from launcher.model.following import until
from launcher.model.job_spec import JobState
from launcher.operator import control_loop
from launcher.operator.control_loop import EXIT_FAILED, MEMORY_FILE, POLL_INTERVAL_S, FolderRemoved, Memory, Operator
from launcher.operator.event_log import EventWriter
from launcher.operator.hang_detector import DoneStep
from launcher.operator.job_request import HangLimits, JobRequest, collective_timeout_s, read_job_request
from launcher.operator.stop_signals import Interrupts
from launcher.operator.types import MachineState, Phase
from launcher.runtime.durable import write_text

_PREEMPTED, _TIME_LIMIT, _TO_GROW = "a job of higher priority takes its nodes", "its time limit is near", "to grow"
_RETURNS = -1
"""In place of the exit status of a job that returns to the queue."""
_NO_GROWTH_S = 600.0
"""Time without a further attempt after a requeue that brought no more nodes."""
_END_PATIENCE_S = 600.0
"""Time for which a job that returns to the queue waits for its end by Slurm: the rest of a grace period."""

_log = logging.getLogger("operator")
_MEMORY = TypeAdapter(Memory)


class LeaveRequested(Exception):
    """The job has stopped its workers and returns to the queue."""


@dataclass(slots=True)
class SlurmSignals:
    """Counts what Slurm sends to the batch script: SIGTERM, and SIGUSR1 before the time limit.

    Args:
        note: Gets an exit code at SIGTERM: SIGKILL may follow before the operator has published more.
    """

    note: Path
    terms: int = 0
    limits: int = 0

    def listen(self) -> None:
        """Handle SIGTERM and SIGUSR1 from now on."""
        signal.signal(signal.SIGTERM, self._take_term)
        signal.signal(signal.SIGUSR1, self._take_limit)

    def _take_term(self, _signum: int, _frame: FrameType | None) -> None:
        self.terms += 1
        with contextlib.suppress(OSError):
            self.note.write_text(f"{TERM_CODE}\n", encoding="ascii")

    def _take_limit(self, _signum: int, _frame: FrameType | None) -> None:
        self.limits += 1


class SlurmOperator(Operator):
    """Runs a job on its allocation, and leaves that in time.

    Args:
        guards: Watch the host of this process.
        interrupts: Signals that end the job.
        signals: Signals of Slurm.
        known: The knowledge of the operator before the job was requeued; None for a job that begins.
    """

    _fleet: SlurmFleet
    _cluster: Allocation

    def __init__(
        self,
        run_dir: Path,
        job: JobRequest,
        fleet: SlurmFleet,
        cluster: Allocation,
        guards: Guards,
        interrupts: Interrupts,
        signals: SlurmSignals,
        known: Memory | None,
    ):
        self._guards = guards
        self._signals = signals
        self._seen_terms = 0
        self._is_warned = self._is_own_term = False
        self._warned_s = 0.0
        self._saved: tuple[Phase, int, int, int | None] | None = None
        self._first_step: int | None = None
        super().__init__(run_dir, job, fleet, cluster, interrupts, known)

    def _before_poll(self, done: DoneStep) -> None:
        if self._first_step is None:
            self._first_step = done.step
        used = self._fleet.used_hosts
        self._fleet.forsake(self._cluster.tick(used | self._guards.hosts))
        self._guards.tick([host.name for host in self._cluster.view.hosts[1:] if host.name in used])
        self._heed_signals(done)
        self._consider_requeue(done)

    def _after_poll(self) -> None:
        machine = self._machine
        now = (machine.phase, machine.attempt, self._reported_attempt, self._cluster.requested)
        if now != self._saved:
            self._saved = now
            write_text(self._run_dir / MEMORY_FILE, _MEMORY.dump_json(self.memory).decode())
        if self._cluster.leaving and machine.phase is Phase.WAITING:
            raise LeaveRequested(self._cluster.leaving)

    def _heed_signals(self, done: DoneStep) -> None:
        """Leave before Slurm takes the nodes; end the job if a user cancels it."""
        terms = self._signals.terms
        if terms > self._seen_terms or (self._fleet.has_term and not self._is_warned):
            self._is_warned, self._is_own_term = True, terms > self._seen_terms
            self._seen_terms, self._warned_s = terms, time.monotonic()
            self._cluster.look_now()
        if self._is_warned and self._cluster.seen_s >= self._warned_s:
            if self._cluster.view.is_preempted:
                self.leave(_PREEMPTED)
            elif self._is_own_term and not self._cluster.leaving:
                self._is_own_term = False
                self._interrupts.take_over(1, signal.SIGTERM)
        # Without a step since its start, the job would come back for ever.
        if self._signals.limits and done.step > (self._first_step or 0):
            self.leave(_TIME_LIMIT)

    def _consider_requeue(self, done: DoneStep) -> None:
        """Leave to grow where Slurm adds no nodes to a running job, under the conditions of every scale-up."""
        since_s, policy, machine = self._cluster.idle_since_s, self._job.policy, self._machine
        if since_s is None or self._cluster.leaving or machine.phase is not Phase.RUNNING:
            return
        is_stable = time.monotonic() - since_s >= policy.scaling_timeout_s
        if is_stable and self._now_s - machine.since_s >= policy.snooze_s and done.step > (self._first_step or 0):
            self.leave(_TO_GROW)

    def leave(self, reason: str) -> None:
        """Let the job stop its workers, as the recipe says, and return to the queue."""
        if not self._cluster.leaving:
            self._cluster.leaving = reason
            self._events.add("operator", f"the job returns to the queue: {reason}")

    def publish_return(self) -> None:
        """Publish that the job returns to the queue, once its nodes are gone."""
        self._publish(JobState.PENDING, 0, f"returns to the queue: {self._cluster.leaving}")


def main(argv: list[str] | None = None) -> int:
    """Run the job of a bundle on the allocation of this batch script; return the exit status."""
    (bundle,) = map(Path, sys.argv[1:] if argv is None else argv)
    control_loop.start_log()
    bundle = bundle.resolve()
    with contextlib.suppress(ImportError):  # without PyYAML, only variables with a secret's name are masked
        from launcher.bundle import store

        store.learn_secrets(bundle)
    files = JobFiles(bundle, os.environ["SLURM_JOB_ID"])
    interrupts, signals = Interrupts(), SlurmSignals(files.folder / EXIT_CODE)
    interrupts.listen()
    signals.listen()
    try:
        code = _run(files, interrupts, signals)
        return UNWRITABLE if code == EXIT_FAILED and _is_full(os_errors.written(bundle / RUN_DIR)) else code
    except OSError as error:
        if os_errors.environmental(error) is None:
            raise
        reason, remedy = os_errors.described(error, error.filename or bundle)
        _log.error("the job was ended: %s; %s, then: recipes launch %s", reason, remedy, bundle)
        return UNWRITABLE if _is_full(error) else EXIT_FAILED


def _is_full(error: OSError | None) -> bool:
    return error is not None and error.errno in (errno.ENOSPC, errno.EDQUOT)


def _run(files: JobFiles, interrupts: Interrupts, signals: SlurmSignals) -> int:
    bundle, job_id, run_dir = files.bundle_dir, files.job_id, files.bundle_dir / RUN_DIR
    job = _job_request(bundle)
    request = read_request((bundle / ELASTIC_FILE).read_text(encoding="utf-8"))
    while (view := allocation.look(job_id, {})) is None:  # the controller does not answer yet
        time.sleep(POLL_INTERVAL_S)
    known = _known(run_dir, view)
    shutil.rmtree(files.term(0).parent, ignore_errors=True)  # of the time before a requeue
    cluster = Allocation(
        run_dir,
        job_id,
        job.policy,
        request.options,
        view,
        EventWriter(run_dir),
        in_place=grows_in_place(request.growth),
        requested=known.requested if known else None,
    )
    if len(view.hosts) <= (files.number(SIZE_BEFORE_GROWTH) or 0):
        cluster.postpone(_NO_GROWTH_S)
    with (
        contextlib.closing(cluster),
        contextlib.closing(Guards(files)) as guards,
        contextlib.ExitStack() as on_error,
    ):
        with SlurmFleet(files, cluster.free_host, cluster.suspect, request) as fleet:
            operator = SlurmOperator(run_dir, job, fleet, cluster, guards, interrupts, signals, known)
            # A failure is published once all nodes are gone.
            on_error.callback(operator.fail, "the operator failed; see its log")
            exit_code = _run_to_end(operator, fleet, request)
        on_error.pop_all()
    if exit_code == _RETURNS:
        if cluster.leaving == _TO_GROW:
            files.note_growth(len(cluster.view.hosts))
        return _return_to_queue(bundle, job_id, signals)
    if exit_code > 128:  # Slurm should call it cancelled, too
        programs.run("scancel", job_id)
    return exit_code


def _run_to_end(operator: SlurmOperator, fleet: SlurmFleet, request: ElasticRequest) -> int:
    """Run the job; return its exit status, or _RETURNS once nothing of it runs."""
    try:
        return operator.run()
    except FolderRemoved as error:
        _log.error("the job was ended: %s", error)
        return EXIT_FAILED
    except LeaveRequested as leaving:
        fleet.shut_down()
        fleet.kill()
        if request.requeues:
            operator.publish_return()
            return _RETURNS
        operator.fail(f"ended: {leaving}; with cluster.requeue=true it would return to the queue")
        return EXIT_FAILED


def _job_request(bundle: Path) -> JobRequest:
    script = (bundle / AGENT_FILE).read_text(encoding="utf-8")
    # What the script of the agents exports.
    found = re.search(rf"^\s*export {ENV_COLLECTIVE_TIMEOUT}=[\"']?([0-9.]+)", script, re.MULTILINE)
    limits = HangLimits(
        watches_start=ENTRYPOINT in script, collective_timeout_s=collective_timeout_s(found[1] if found else None)
    )
    return replace(read_job_request(bundle), hang=limits)


def _known(run_dir: Path, view: allocation.View) -> Memory | None:
    """Return what the operator before a requeue knew, for the nodes of now; None for a job that begins."""
    try:
        known = _MEMORY.validate_json((run_dir / MEMORY_FILE).read_bytes())
    except FileNotFoundError:
        return None
    before = known.machine
    attempt = before.attempt if before.phase is Phase.WAITING and not before.nodes else before.attempt + 1
    EventWriter(run_dir).add("operator", f"the job is back, on {counted(len(view.hosts), 'node')} of Slurm")
    machine = MachineState(
        Phase.WAITING,
        (),
        attempt,
        time.monotonic(),
        new_node=before.new_node,
        fault_step=before.fault_step,
        faults_without_progress=before.faults_without_progress,
    )
    return replace(known, machine=machine, interrupts=(0, 0))


def _return_to_queue(bundle: Path, job_id: str, signals: SlurmSignals) -> int:
    """Requeue the job, unless Slurm does so, and wait for the end of this script: its own exit would end the job."""
    attempt = os.environ.get("SLURM_RESTART_COUNT", "0")
    answer = programs.run("sbatch", "--parsable", RELEASE_FILE, job_id, attempt, folder=bundle)
    if answer.code:
        _log.warning("the job waits for two minutes before it may start again: %s", answer.error)
    answer = programs.run("scontrol", "requeue", job_id)
    if answer.code:
        _log.warning("scontrol requeue: %s", answer.error)
    seen = signals.terms
    until(lambda: signals.terms != seen, _END_PATIENCE_S, POLL_INTERVAL_S)
    return 0


if __name__ == "__main__":
    sys.exit(main())
