"""The request to the operator: the part of `plan.json` that it reads, and sizes requested while the job runs."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from launcher.common.names import COLLECTIVE_TIMEOUT_S, DEFAULT_GRACEFUL_TIMEOUT_S
from launcher.common.problems import fail
from launcher.model.following import refuse_unplanned_sizes
from launcher.operator.types import Policy

PLAN_FILE = "plan.json"
SCRIPT_FILE = "run.sh"
LOCAL_FILE = "local.json"
"""In a local bundle: when the job counts as hanging, and where its checkpoints are."""

REQUEST_FILE = "scale.json"
"""In the run folder: the requested size, until the operator has read it."""


def collective_timeout_s(text: str | None) -> float:
    """Return how long a collective may take by a worker's variable RECIPES_COLLECTIVE_TIMEOUT; None if it has none.

    A value that the workers refuse gives the default.
    """
    try:
        timeout_s = float(text or COLLECTIVE_TIMEOUT_S)
    except ValueError:
        return COLLECTIVE_TIMEOUT_S
    return timeout_s if timeout_s > 0 else COLLECTIVE_TIMEOUT_S


@dataclass(frozen=True, slots=True)
class HangLimits:
    """When a job counts as hanging.

    Args:
        start_cut_off_s: Seconds to the first step, and for a checkpoint; None to derive them from earlier ones.
        recurring_s: Seconds between two steps; None to derive it from earlier steps.
        stop_pattern: Regular expression of the line of rank 0 that ends the watch; None for none.
        other_work_s: Seconds for announced work that is neither a step nor a checkpoint: an evaluation, an export,
            the script's work after its last step. None for no limit: only the user knows how long these take.
        watches_start: Whether to watch for the first step, too: a user's script may report none.
        collective_timeout_s: Minimum of the derived limits: within it, the job itself reports a rank that is missing.
    """

    start_cut_off_s: float | None = None
    recurring_s: float | None = None
    stop_pattern: str | None = None
    other_work_s: float | None = None
    watches_start: bool = True
    collective_timeout_s: float = COLLECTIVE_TIMEOUT_S


@dataclass(frozen=True, slots=True)
class JobRequest:
    """A job, as far as the operator needs it.

    Args:
        checkpoints: Folder of its checkpoints; None for the one under the run folder.
    """

    job_name: str
    nproc_per_node: int
    initial_nodes: int
    policy: Policy
    hang: HangLimits = HangLimits()
    checkpoints: Path | None = None


def read_job_request(bundle_dir: Path) -> JobRequest:
    """Return the request of the job in `bundle_dir`.

    Raises:
        ProblemsFound: It lacks a file of a bundle, or one is damaged (E703).
    """
    with _read(bundle_dir, PLAN_FILE) as plan:
        elastic = plan["elastic"] or {}
        graceful_timeout_s = None
        if elastic.get("use_graceful_shutdown"):
            graceful_timeout_s = elastic.get("graceful_shutdown_timeout_s") or DEFAULT_GRACEFUL_TIMEOUT_S
        planned = JobRequest(
            job_name=plan["job_name"],
            nproc_per_node=plan["nproc_per_node"],
            initial_nodes=plan["initial_nodes"],
            policy=Policy(
                sizes=tuple(sorted(scale["nodes"] for scale in plan["scales"])),
                graceful_timeout_s=graceful_timeout_s,
                scaling_timeout_s=elastic.get("scaling_timeout_s") or 0,
                faulty_timeout_s=elastic.get("faulty_timeout_s") or 0,
                snooze_s=elastic.get("scale_up_snooze_s") or 0,
            ),
        )
    if not (bundle_dir / LOCAL_FILE).exists():  # a bundle of an earlier version, or of Slurm, has none
        return planned
    with _read(bundle_dir, LOCAL_FILE) as local:
        checkpoints = Path(local["checkpoints"]) if local["checkpoints"] else None
        return replace(planned, hang=HangLimits(**local["hang"]), checkpoints=checkpoints)


@contextmanager
def _read(bundle_dir: Path, name: str) -> Iterator[Any]:
    """Yield what a file of a bundle holds; one that is absent or not as it was written is a Problem of the block."""
    try:
        yield json.loads((bundle_dir / name).read_text(encoding="utf-8"))
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        reason = f"cannot be read: {error.strerror}" if isinstance(error, OSError) else "is damaged"
        raise fail("E703", str(bundle_dir), f"is not a bundle directory: {name} {reason}") from error


def local_json(hang: HangLimits, checkpoints: str | None) -> str:
    """Return the text of LOCAL_FILE."""
    return json.dumps({"hang": asdict(hang), "checkpoints": checkpoints}, indent=2) + "\n"


def refuse_unplanned_size(bundle_dir: Path, num_nodes: int, min_nodes: int | None) -> None:
    """Raise a Problem if a job's plan does not have a size; the least one is always the plan's.

    Raises:
        ProblemsFound: The plan has no such size (E413).
    """
    sizes = read_job_request(bundle_dir).policy.sizes
    refuse_unplanned_sizes(sizes, nodes=num_nodes)
    if min_nodes not in (None, sizes[0]):
        message = "this job may always shrink to its plan's smallest size"
        raise fail("E413", "min_nodes", message, value=min_nodes, allowed=str(sizes[0]))


def size_request(num_nodes: int) -> str:
    """Return the text of REQUEST_FILE, with which the operator of a running job is asked for another size."""
    return json.dumps({"nodes": num_nodes})


def take_request(run_dir: Path) -> int | None:
    """Return the size requested since the last call, or None; 0 for a request that is not valid."""
    taken = run_dir / f".{REQUEST_FILE}.taken"
    try:
        # Moved before it is read: a request written meanwhile is the next one.
        (run_dir / REQUEST_FILE).replace(taken)
    except FileNotFoundError:
        return None
    try:
        return int(json.loads(taken.read_text(encoding="utf-8"))["nodes"])
    except (ValueError, KeyError, TypeError):
        return 0
