"""The process that plays the HyperPod operator on this machine, for one job.

    python -m launcher.backends.local.operator [--parent PID] BUNDLE_DIR

SIGTERM, SIGINT or SIGHUP stops the job as its recipe says; a second one stops it at once. Exit status:
0 the job succeeded, 3 it failed, 128 + N it was stopped by signal N.
"""

import argparse
import contextlib
import logging
import os
import signal
import sys
import time
from pathlib import Path
from typing import IO

from launcher.backends.local import handover, rehearsal
from launcher.backends.local.cluster_sim import ClusterSim
from launcher.backends.local.control_loop import (
    END_SIGNALS,
    EXIT_FAILED,
    POLL_INTERVAL_S,
    FolderRemoved,
    Interrupts,
    Operator,
    RestartRequested,
)
from launcher.backends.local.event_writer import Events
from launcher.backends.local.fleet import Fleet
from launcher.backends.local.handover import Handover
from launcher.backends.local.job_request import JobRequest, read_job_request
from launcher.backends.local.processes import end_with_parent
from launcher.backends.local.scenario import read_scenario
from launcher.common import os_errors, redaction
from launcher.common.job_lock import JobAlreadyRunning, inherited_lock, lock
from launcher.common.names import RUN_DIR

EXIT_BUSY = 4

_log = logging.getLogger("operator")


def main(argv: list[str] | None = None) -> int:
    """Run the job of a bundle; return the exit status."""
    parser = argparse.ArgumentParser(prog="operator", description="Run a bundle's job on this machine.")
    parser.add_argument("--parent", type=int, help="pid to end with")
    parser.add_argument(
        "--take-over", type=int, metavar="FD", help="go on with the job whose lock is this descriptor"
    )
    parser.add_argument("--after", type=float, default=0.0, metavar="SECONDS", help="only then")
    parser.add_argument("bundle_dir", type=Path)
    args = parser.parse_args(argv)
    redaction.install()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s: %(message)s")
    # httpx tells of every request at this level.
    logging.getLogger("httpx").setLevel(logging.WARNING)
    interrupts = Interrupts()
    interrupts.listen()
    # Held back since the operator before this one wrote down what it knew.
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
            _rest(args.after, interrupts)
            return _run(bundle_dir, lock_file, interrupts, handover.read(run_dir))
    except JobAlreadyRunning as error:
        _log.error("%s", error)
        return EXIT_BUSY


def _run(bundle_dir: Path, lock_file: IO[bytes], interrupts: Interrupts, known: Handover | None = None) -> int:
    run_dir = bundle_dir / RUN_DIR
    operator = None
    exit_code = None
    try:
        with Fleet(bundle_dir, run_dir, lock_file) as fleet:
            job = read_job_request(bundle_dir)
            if known:
                fleet.adopt(known.nodes, known.warm_pid)
            else:
                fleet.warm_up()
            cluster = _build_cluster(bundle_dir, job, known)
            operator = Operator(run_dir, job, fleet, cluster, interrupts, known)
            try:
                exit_code = operator.run()
            except RestartRequested as away:
                signal.pthread_sigmask(signal.SIG_BLOCK, END_SIGNALS)
                handover.write(run_dir, operator.handover())
                _replace_operator(bundle_dir, lock_file, away)
    except (FolderRemoved, FileNotFoundError) as error:
        # Nothing can be published; whoever submitted the job sees the folder's absence, and this process's end.
        if operator is None or not operator.is_folder_removed:
            raise
        _log.error("the job was ended: %s", error)
        exit_code = EXIT_FAILED
    except OSError as error:
        if operator is None or os_errors.environmental(error) is None:
            raise
        _publish_os_error(operator, run_dir, error)
        exit_code = EXIT_FAILED
    finally:
        if operator and exit_code is None:
            operator.fail("the operator failed; its log says why")
    return exit_code


def _publish_os_error(operator: Operator, run_dir: Path, error: OSError) -> None:
    """Publish, as far as that is possible, that the operating system refused what the operator had to write."""
    reason, remedy = os_errors.described(error, error.filename or run_dir)
    _log.error("the job was ended: %s", reason)
    with contextlib.suppress(OSError):
        operator.fail(f"{reason}, so the job was ended; {remedy}, then: recipes launch {run_dir.parent}")


def _build_cluster(bundle_dir: Path, job: JobRequest, known: Handover | None) -> ClusterSim:
    run_dir = bundle_dir / RUN_DIR
    if known:
        Events(run_dir).add("operator", "the operator is back")
        played = rehearsal.from_json(known.rehearsal) if known.rehearsal else None
        return ClusterSim(run_dir, job, played, known.requested)
    if scenario := read_scenario(bundle_dir):
        return ClusterSim(run_dir, job, rehearsal.begin(scenario), None)
    return ClusterSim(run_dir, job, None, job.initial_nodes)


def _rest(seconds: float, interrupts: Interrupts) -> None:
    until = time.monotonic() + seconds
    while time.monotonic() < until and not interrupts.count:
        time.sleep(POLL_INTERVAL_S)


def _replace_operator(bundle_dir: Path, lock_file: IO[bytes], away: RestartRequested) -> None:
    """Become a new operator, that knows only what is written down. Does not return.

    The process stays the nodes' parent, whose end would end them.
    """
    os.set_inheritable(lock_file.fileno(), True)
    words = [sys.executable, "-m", "launcher.backends.local.operator", "--parent", str(os.getppid())]
    words += ["--take-over", str(lock_file.fileno()), "--after", str(away.down_s), str(bundle_dir)]
    os.execv(sys.executable, words)


if __name__ == "__main__":
    sys.exit(main())
