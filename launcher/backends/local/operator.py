"""The HyperPod operator's part on this machine: drives the agents of one job to its end.

    python -m launcher.backends.local.operator [--parent PID] BUNDLE_DIR

SIGTERM, SIGINT or SIGHUP stops the job as its recipe says; a second one stops it at once. Exit status:
0 the job succeeded, 3 it failed, 128 + N it was stopped by signal N.
"""

import argparse
import logging
import os
import signal
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType

from launcher.backends.local.course import Course, Fault, Order, Phase, Sight, StartWorkers, advance
from launcher.backends.local.explain import explain
from launcher.backends.local.fleet import Fleet
from launcher.backends.local.orders import Orders, read_orders
from launcher.backends.local.processes import end_with_parent
from launcher.backends.local.state import Attempt, JobAlreadyRunning, Snapshot, lock, publish
from launcher.contract import RUN_DIR
from launcher.specs import JobState

EXIT_FAILED = 3
EXIT_BUSY = 4

LOOK_INTERVAL_S = 0.25
"""Between two looks at the agents, which themselves look at their workers every 0.1 s."""

_log = logging.getLogger("operator")

_STATES = {
    Phase.PREPARING: (JobState.PENDING, "waiting for the agents to be ready"),
    Phase.RUNNING: (JobState.RUNNING, "training"),
    Phase.SETTLING: (JobState.RUNNING, "a node failed"),
    Phase.STOPPING: (JobState.RUNNING, "stopping the workers"),
    Phase.ENDED: (JobState.RUNNING, "ending the nodes"),
}


@dataclass(slots=True)
class Interrupts:
    """Counts the signals that ask for the end of the job."""

    count: int = 0
    signum: int = 0

    def listen(self) -> None:
        """Take SIGTERM, SIGINT and SIGHUP from now on."""
        for signum in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(signum, self._take)

    def _take(self, signum: int, _frame: FrameType | None) -> None:
        self.count += 1
        self.signum = signum


class Operator:
    """One job from its first agent to its last.

    Args:
        run_dir: Where the job writes.
        orders: What is asked for.
        fleet: Its nodes.
        interrupts: Signals so far.
    """

    def __init__(self, run_dir: Path, orders: Orders, fleet: Fleet, interrupts: Interrupts):
        self._run_dir = run_dir
        self._orders = orders
        self._fleet = fleet
        self._interrupts = interrupts
        self._snapshot = Snapshot(JobState.PENDING, 0, "starting", 0, os.getpid())
        publish(run_dir, self._snapshot)

    def run(self) -> int:
        """Run the job to its end; return the exit status of this process."""
        nodes = tuple(range(self._orders.initial_nodes))
        for node in nodes:
            self._fleet.spawn(node)
        course = Course(Phase.PREPARING, nodes, 0, time.monotonic(), self._orders.graceful_timeout_s)
        self._tell(course)
        refusals: tuple[Fault, ...] = ()
        while course.phase is not Phase.ENDED:
            time.sleep(LOOK_INTERVAL_S)
            reports = self._fleet.look()
            sight = Sight(time.monotonic(), reports, self._interrupts.count, refusals)
            before = course.phase
            course, order_list = advance(course, sight)
            refusals = tuple(fault for order in order_list for fault in self._carry_out(order))
            if course.phase is not before:
                self._tell(course)
        return self._end(course)

    def fail(self, message: str) -> None:
        """Publish that the job failed for a reason of the operator's own, once its nodes are gone."""
        self._say(JobState.FAILED, 0, message, exit_code=EXIT_FAILED)

    def _carry_out(self, order: Order) -> tuple[Fault, ...]:
        if not isinstance(order, StartWorkers):
            return self._fleet.stop(order)
        attempt = Attempt(order.attempt, order.nodes[0], order.nodes, time.time())
        self._snapshot = replace(self._snapshot, attempts=(*self._snapshot.attempts, attempt))
        return self._fleet.start(order)

    def _end(self, course: Course) -> int:
        if course.verdict is not JobState.FAILED and self._interrupts.count < 2:
            self._fleet.shut_down()
        self._fleet.kill()
        verdict = course.verdict or JobState.FAILED
        exit_code, message = 0, "completed"
        if verdict is JobState.FAILED:
            exit_code = EXIT_FAILED
            message = explain(course.faults, self._run_dir, self._snapshot.attempts, self._orders.nproc_per_node)
        elif verdict is JobState.CANCELLED:
            exit_code = 128 + self._interrupts.signum
            message = f"stopped by {signal.Signals(self._interrupts.signum).name}"
        self._say(verdict, 0, message, exit_code=exit_code)
        return exit_code

    def _tell(self, course: Course) -> None:
        state, message = _STATES[course.phase]
        self._say(state, len(course.nodes), message, attempt=course.attempt)

    def _say(self, state: JobState, nodes: int, message: str, **others: int) -> None:
        self._snapshot = replace(self._snapshot, state=state, nodes=nodes, message=message, **others)
        publish(self._run_dir, self._snapshot)
        _log.info("%s: %s", state, message)


def main(argv: list[str] | None = None) -> int:
    """Run the job of a bundle; return the exit status."""
    parser = argparse.ArgumentParser(prog="operator", description="Run a bundle's job on this machine.")
    parser.add_argument("--parent", type=int, help="pid to end with")
    parser.add_argument("bundle_dir", type=Path)
    args = parser.parse_args(argv)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s: %(message)s")
    # httpx tells of every request at this level.
    logging.getLogger("httpx").setLevel(logging.WARNING)
    interrupts = Interrupts()
    interrupts.listen()
    if args.parent:
        end_with_parent(args.parent)
    try:
        return _run_bundle(args.bundle_dir.resolve(), interrupts)
    except JobAlreadyRunning as error:
        _log.error("%s", error)
        return EXIT_BUSY


def _run_bundle(bundle_dir: Path, interrupts: Interrupts) -> int:
    run_dir = bundle_dir / RUN_DIR
    run_dir.mkdir(exist_ok=True)
    with lock(run_dir) as lock_file:
        operator = None
        exit_code = None
        try:
            with Fleet(bundle_dir, run_dir, lock_file) as fleet:
                operator = Operator(run_dir, read_orders(bundle_dir), fleet, interrupts)
                exit_code = operator.run()
        finally:
            if operator and exit_code is None:
                operator.fail("the operator failed; its log says why")
    return exit_code


if __name__ == "__main__":
    sys.exit(main())
