"""Says in words why a job failed: which rank fell first, and what it wrote last."""

from dataclasses import dataclass
from pathlib import Path

from launcher.backends.local.operator_types import Cause, Fault
from launcher.backends.local.snapshot import Attempt
from launcher.backends.local.worker_exits import FailedWorker, failed_workers
from launcher.backends.local.worker_logs import AGENT_LOG, node_logs, tail, worker_log


@dataclass(frozen=True, slots=True)
class _Fall:
    """A failed worker and the place of its last words."""

    node: int
    worker: FailedWorker
    stderr: Path | None

    @property
    def last_word_s(self) -> float:
        return self.stderr.stat().st_mtime if self.stderr else 0.0


def explain(faults: tuple[Fault, ...], run_dir: Path, attempts: tuple[Attempt, ...], nproc_per_node: int) -> str:
    """Return why a job with these `faults` failed.

    A worker's failure takes its peers down through the collectives they share. The one whose stderr was
    written to earliest is taken for the cause: the others wrote when they missed it.
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
        return "failed, and no agent says why"
    attempt = attempts[-1]
    falls = [
        _Fall(fault.node, worker, worker_log(run_dir, attempt, fault.node, worker.local_rank, "stderr.log"))
        for fault in faults
        for worker in failed_workers(fault.detail)
    ]
    if not falls:
        return _join(f"node {faults[0].node}: {faults[0].cause}", faults[0].detail)
    first = min(falls, key=lambda fall: fall.last_word_s)
    rank = attempt.nodes.index(first.node) * nproc_per_node + first.worker.local_rank
    head = f"rank {rank} (node {first.node}, local rank {first.worker.local_rank})"
    return _join(f"{head} {first.worker}", tail(first.stderr))


def _join(head: str, *parts: str) -> str:
    told = [part.strip() for part in parts if part.strip()]
    return "\n".join([f"{head}:" if told else head, *told])
