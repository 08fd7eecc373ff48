"""What the operator is asked to do: the part of `plan.json` that it reads."""

import json
from dataclasses import dataclass
from pathlib import Path

PLAN_FILE = "plan.json"
SCRIPT_FILE = "run.sh"

DEFAULT_GRACEFUL_TIMEOUT_S = 15
"""What the agent waits between SIGUSR1 and SIGKILL when it is not told.

Source: hyperpod_elastic_agent 1.1.3, run.py: --shutdown-timeout.
"""


@dataclass(frozen=True, slots=True)
class Orders:
    """A job as the operator needs it.

    Args:
        job_name: Name of the job.
        nproc_per_node: Worker processes a node.
        initial_nodes: Nodes it starts with.
        sizes: Every number of nodes it may have, ascending.
        graceful_timeout_s: Seconds a stopped worker has to save; None kills workers at once.
    """

    job_name: str
    nproc_per_node: int
    initial_nodes: int
    sizes: tuple[int, ...]
    graceful_timeout_s: int | None


def read_orders(bundle_dir: Path) -> Orders:
    """Return the orders of the job in `bundle_dir`."""
    plan = json.loads((bundle_dir / PLAN_FILE).read_text(encoding="utf-8"))
    elastic = plan["elastic"] or {}
    graceful_timeout_s = None
    if elastic.get("use_graceful_shutdown"):
        graceful_timeout_s = elastic.get("graceful_shutdown_timeout_s") or DEFAULT_GRACEFUL_TIMEOUT_S
    return Orders(
        job_name=plan["job_name"],
        nproc_per_node=plan["nproc_per_node"],
        initial_nodes=plan["initial_nodes"],
        sizes=tuple(sorted(scale["nodes"] for scale in plan["scales"])),
        graceful_timeout_s=graceful_timeout_s,
    )
