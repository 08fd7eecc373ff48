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
from launcher.model.following import until
from launcher.operator import control_loop
from launcher.operator.control_loop import (
    EXIT_FAILED,
    POLL_INTERVAL_S,
    FolderRemoved,
)
from launcher.operator.event_log import EventWriter
from launcher.operator.job_request import read_job_request
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
    if known:
        fleet.adopt(known.nodes, known.warm_pid)
        EventWriter(run_dir).add("operator", "the operator is back")
        cluster = ClusterSim(run_dir, job, known.rehearsal, known.memory.requested)
    else:
        fleet.warm_up()
        scenario = read_scenario(bundle_dir)
        played, requested = (rehearsal.begin(scenario), None) if scenario else (None, job.initial_nodes)
        cluster = ClusterSim(run_dir, job, played, requested)
    return RehearsingOperator(run_dir, job, fleet, cluster, interrupts, known)


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
