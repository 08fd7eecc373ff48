"""The process that takes the part of the HyperPod operator on this machine, for one job.

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
from pathlib import Path
from typing import IO, NoReturn

from launcher.backends.local import rehearsal
from launcher.backends.local.fleet import LocalFleet
from launcher.backends.local.rehearsing import (
    ClusterSim,
    Handover,
    RehearsingOperator,
    RestartRequested,
    read_handover,
    write_handover,
)
from launcher.backends.local.scenario import read_scenario
from launcher.common import os_errors
from launcher.common.job_lock import JobAlreadyRunning, inherited_lock, lock
from launcher.common.names import RUN_DIR
from launcher.operator import control_loop
from launcher.operator.control_loop import (
    EXIT_FAILED,
    POLL_INTERVAL_S,
    FolderRemoved,
)
from launcher.operator.event_log import EventWriter
from launcher.operator.job_request import JobRequest, read_job_request
from launcher.operator.processes import end_with_parent
from launcher.operator.stop_signals import END_SIGNALS, Interrupts

EXIT_BUSY = 4

_log = logging.getLogger("operator")


def main(argv: list[str] | None = None) -> int:
    """Run the job of a bundle; return the exit status."""
    parser = argparse.ArgumentParser(prog="operator", description="Run a bundle's job on this machine.")
    parser.add_argument("--parent", type=int, help="pid to end with")
    parser.add_argument("--take-over", type=int, metavar="FD", help="continue the job whose lock is this descriptor")
    parser.add_argument("--after", type=float, default=0.0, metavar="SECONDS", help="delay")
    parser.add_argument("bundle_dir", type=Path)
    args = parser.parse_args(argv)
    control_loop.start_log()
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
            _delay(args.after, interrupts)
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
                exit_code = _run_or_replace(operator, bundle_dir, lock_file)
        except (FolderRemoved, FileNotFoundError) as error:
            # Nothing can be published; the submitting process notices the missing folder and this exit.
            if operator is None or not operator.is_folder_removed:
                raise
            _log.error("the job was ended: %s", error)
            exit_code = EXIT_FAILED
        except OSError as error:
            if operator is None or os_errors.environmental(error) is None:
                raise
            _publish_os_error(operator, run_dir, error)
            exit_code = EXIT_FAILED
        on_error.pop_all()
    return exit_code


def _make_operator(
    bundle_dir: Path, fleet: LocalFleet, interrupts: Interrupts, known: Handover | None
) -> RehearsingOperator:
    job = read_job_request(bundle_dir)
    if known:
        fleet.adopt(known.nodes, known.warm_pid)
    else:
        fleet.warm_up()
    cluster = _build_cluster(bundle_dir, job, known)
    return RehearsingOperator(bundle_dir / RUN_DIR, job, fleet, cluster, interrupts, known)


def _run_or_replace(operator: RehearsingOperator, bundle_dir: Path, lock_file: IO[bytes]) -> int:
    """Run the job to its end and return the exit status, or become the next operator."""
    try:
        return operator.run()
    except RestartRequested as restart:
        signal.pthread_sigmask(signal.SIG_BLOCK, END_SIGNALS)
        write_handover(bundle_dir / RUN_DIR, operator.handover())
        _replace_operator(bundle_dir, lock_file, restart)


def _publish_os_error(operator: RehearsingOperator, run_dir: Path, error: OSError) -> None:
    """Publish, if possible, that the operating system refused a write of the operator."""
    reason, remedy = os_errors.described(error, error.filename or run_dir)
    _log.error("the job was ended: %s", reason)
    with contextlib.suppress(OSError):
        operator.fail(f"{reason}, so the job was ended; {remedy}, then: recipes launch {run_dir.parent}")


def _build_cluster(bundle_dir: Path, job: JobRequest, known: Handover | None) -> ClusterSim:
    run_dir = bundle_dir / RUN_DIR
    if known:
        EventWriter(run_dir).add("operator", "the operator is back")
        return ClusterSim(run_dir, job, known.rehearsal, known.memory.requested)
    if scenario := read_scenario(bundle_dir):
        return ClusterSim(run_dir, job, rehearsal.begin(scenario), None)
    return ClusterSim(run_dir, job, None, job.initial_nodes)


def _delay(seconds: float, interrupts: Interrupts) -> None:
    until = time.monotonic() + seconds
    while time.monotonic() < until and not interrupts.count:
        time.sleep(POLL_INTERVAL_S)


def _replace_operator(bundle_dir: Path, lock_file: IO[bytes], restart: RestartRequested) -> NoReturn:
    """Become a new operator that knows only the saved state. Does not return.

    The process must remain: it is the parent of the nodes, and the kernel kills them with their parent.
    """
    os.set_inheritable(lock_file.fileno(), True)
    args = [sys.executable, "-m", "launcher.backends.local.operator", "--parent", str(os.getppid())]
    args += ["--take-over", str(lock_file.fileno()), "--after", str(restart.down_s), str(bundle_dir)]
    os.execv(sys.executable, args)


if __name__ == "__main__":
    sys.exit(main())
