"""Explains why a job failed: the rank that failed first, and its last output."""

from dataclasses import dataclass
from pathlib import Path

from launcher.operator.snapshot import Attempt
from launcher.operator.types import Cause, Fault
from launcher.operator.worker_exits import FailedWorker, failed_workers
from launcher.operator.worker_logs import AGENT_LOG, node_logs, tail, worker_log


@dataclass(frozen=True, slots=True)
class _Failure:
    """A failed worker and the file of its last output."""

    node: int
    worker: FailedWorker
    stderr: Path | None

    @property
    def last_output_s(self) -> float:
        return self.stderr.stat().st_mtime if self.stderr else 0.0


def explain(faults: tuple[Fault, ...], run_dir: Path, attempts: tuple[Attempt, ...], nproc_per_node: int) -> str:
    """Return why a job with these `faults` failed.

    A worker's failure makes its peers fail in their shared collectives. The worker whose stderr was written earliest
    is taken as the cause: the others wrote theirs when they lost it.
    """
    lost = [fault for fault in faults if fault.cause is not Cause.WORKER]
    if lost:
        # The workers of other nodes fail because this one is gone.
        fault = lost[0]
        if fault.cause is Cause.NO_CAPACITY:
            return f"{fault.cause}"
        if fault.cause is Cause.HANG:
            return f"{fault}"
        log = tail(node_logs(run_dir, fault.node) / AGENT_LOG)
        return _join(f"node {fault.node}: {fault.cause}", fault.detail, log)
    if not faults or not attempts:
        return "failed, and no agent reported why"
    attempt = attempts[-1]
    failures = [
        _Failure(fault.node, worker, worker_log(run_dir, attempt, fault.node, worker.local_rank, "stderr.log"))
        for fault in faults
        for worker in failed_workers(fault.detail)
    ]
    if not failures:
        return _join(f"node {faults[0].node}: {faults[0].cause}", faults[0].detail)
    first = min(failures, key=lambda failure: failure.last_output_s)
    rank = attempt.nodes.index(first.node) * nproc_per_node + first.worker.local_rank
    head = f"rank {rank} (node {first.node}, local rank {first.worker.local_rank})"
    return _join(f"{head} {first.worker}", tail(first.stderr))


def _join(head: str, *parts: str) -> str:
    found = [part.strip() for part in parts if part.strip()]
    return "\n".join([f"{head}:" if found else head, *found])
