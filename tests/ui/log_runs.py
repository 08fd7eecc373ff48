"""Log files of jobs on this machine, as their agents write them."""

import json
import os
import time

from launcher.model.job_spec import JobState
from launcher.operator.snapshot import Attempt, Snapshot, publish

PROCESSES = 2
"""Of a node."""


def log_path(folder, attempt, node, local_rank, stream):
    """Return the log file of a worker in a job's folder."""
    return (
        folder / "run" / "logs" / f"node-{node}" / "job_x" / f"attempt_{attempt}" / str(local_rank) / f"{stream}.log"
    )


def a_run(folder, attempts, *, text=None, state=JobState.SUCCEEDED, failure=None, begun=None, replaces=False):
    """Write the state of a job and the logs of its attempts, each given by its nodes in the order of their ranks.

    Args:
        text: Of every file; None for a line that names its worker.
        begun: When the first attempt began; an hour ago by default.
        replaces: Whether files of earlier attempts are written anew.
    """
    plan = json.loads((folder / "plan.json").read_text())
    plan |= {"job_name": folder.name, "nproc_per_node": PROCESSES, "elastic": None}
    plan["scales"] = [{"nodes": nodes} for nodes in (1, 2, 3)]
    (folder / "plan.json").write_text(json.dumps(plan))
    begun = time.time() - 3600 if begun is None else begun
    started = tuple(Attempt(number, nodes[0], nodes, begun + 60 * number) for number, nodes in enumerate(attempts))
    for attempt in started:
        for rank in range(PROCESSES * len(attempt.nodes)):
            for stream in ("stdout", "stderr"):
                path = log_path(folder, attempt.number, attempt.nodes[rank // PROCESSES], rank % PROCESSES, stream)
                if replaces or not path.exists():
                    path.parent.mkdir(parents=True, exist_ok=True)
                    own = f"{stream} of rank {rank} in attempt {attempt.number}\n"
                    path.write_text(own if text is None else text)
                    os.utime(path, (attempt.started + 1, attempt.started + 1))
    last = started[-1].number if started else 0
    publish(folder / "run", Snapshot(state, 0, "", last, os.getpid(), 0, started, failure))
