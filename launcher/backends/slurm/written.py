"""Which files of a run folder are copied from a cluster to follow a job."""

from collections.abc import Sequence
from dataclasses import dataclass

from launcher.backends.slurm.run_files import EXIT_CODE, STDERR, STDOUT
from launcher.common.names import (
    CHECKPOINTS_FILE,
    EVENTS_FILE,
    LOG_DIR,
    METRICS_FILE,
    STACKS_DIR,
    STARTS_FILE,
    TAGS_FILE,
    TIMELINE,
)
from launcher.operator.snapshot import STATE_FILE, Attempt

_SHOWN = (METRICS_FILE, STARTS_FILE, TAGS_FILE, CHECKPOINTS_FILE, EVENTS_FILE)
_REPORT = tuple(f"{TIMELINE}{end}" for end in (".txt", ".json", ".svg"))


@dataclass(frozen=True, slots=True)
class Wanted:
    """Files of a run folder.

    Args:
        places: Files and folders in which they are.
        patterns: Their paths; a * is any part of a path.
    """

    places: tuple[str, ...]
    patterns: tuple[str, ...]


def of_job(job_id: str, ranks: tuple[int, ...] | None, processes: int) -> Wanted:
    """Return the files that show how a job of fixed size is doing, and the logs of some ranks.

    Args:
        job_id: The job's id.
        ranks: The ranks; None for all.
        processes: Worker processes per node.
    """
    own = f"slurm/{job_id}"
    files = (*_batch_logs(job_id), *_SHOWN)
    places = ["*"] if ranks is None else [f"node-{rank // processes}/*/{rank % processes}" for rank in ranks]
    logs = [f"{own}/{LOG_DIR}/attempt-*/{place}/{name}" for place in places for name in (STDOUT, STDERR)]
    return Wanted((own, *files), (*files, f"{own}/events.jsonl", f"{own}/{EXIT_CODE}", *logs))


def of_operator(job_id: str, *, has_ended: bool) -> Wanted:
    """Return the files that show how an elastic job is doing.

    Args:
        job_id: The job's id.
        has_ended: Whether the report on its sizes is complete.
    """
    noted = f"slurm/{job_id}/{EXIT_CODE}"
    files = (*_batch_logs(job_id), *_SHOWN, STATE_FILE, *((*_REPORT, noted) if has_ended else ()))
    return Wanted((*files, STACKS_DIR), (*files, f"{STACKS_DIR}/*"))


def of_attempts(attempts: Sequence[Attempt], ranks: tuple[int, ...] | None, processes: int, name: str) -> Wanted:
    """Return the events of an elastic job, and the logs of some ranks.

    Args:
        attempts: Starts of its workers.
        ranks: The ranks; None for all.
        processes: Worker processes per node.
        name: STDOUT or STDERR.
    """
    if ranks is None:
        return Wanted((EVENTS_FILE, LOG_DIR), (EVENTS_FILE, f"{LOG_DIR}/node-*/*/attempt_*/*/{name}"))
    nodes, logs = set[str](), list[str]()
    for attempt in attempts:
        for rank in ranks:
            place, local_rank = divmod(rank, processes)
            if place < len(attempt.nodes):
                node = f"{LOG_DIR}/node-{attempt.nodes[place]}"
                nodes.add(node)
                logs.append(f"{node}/*/attempt_{attempt.number}/{local_rank}/{name}")
    return Wanted((EVENTS_FILE, *sorted(nodes)), (EVENTS_FILE, *logs))


def _batch_logs(job_id: str) -> tuple[str, str]:
    return f"slurm-{job_id}.log", f"slurm-{job_id}.err"
