"""What an elastic job needs to know of its `cluster` section, and whether its cluster lets a running job grow."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from launcher.backends.slurm.place import HERE, Place
from launcher.backends.slurm.recent import configured
from launcher.operator.job_request import DEFAULT_GRACEFUL_TIMEOUT_S

ELASTIC_FILE, RELEASE_FILE, GUARD_FILE = "slurm/elastic.json", "slurm/release.sh", "slurm/guard.sh"
GUARD_INTERVAL_S = 15
"""Seconds between two looks of a guard at its job."""
_LIMIT_MARGIN_S = 90
"""Seconds before the time limit, beyond the workers' own time to save. Slurm 22.05 was seen to signal 30 s late."""
_SAME = (
    *("partition", "account", "qos", "constraint", "exclude", "reservation", "gres", "gpus-per-node"),
    *("mem", "mem-per-cpu", "mem-per-gpu"),
)
"""Options that a request for more nodes has in common with the job."""


@dataclass(frozen=True, slots=True)
class ElasticRequest:
    """What the operator of an elastic job reads of its bundle, beside the plan.

    Args:
        options: Options of a request for more nodes.
        srun_words: Words added to the srun of each node.
        python: Python of the nodes; None for the one of the batch script.
        requeues: Whether the job returns to the queue when its nodes are taken.
        growth: How it gets more nodes: in_place or requeue; None for what the cluster allows.
    """

    options: tuple[str, ...]
    srun_words: tuple[str, ...]
    python: str | None
    requeues: bool
    growth: str | None

    def is_grown_in_place(self, place: Place = HERE) -> bool:
        """Return whether a running job gets more nodes: as it says, or as the cluster at a place allows."""
        return grows_in_place(place) if self.growth is None else self.growth == "in_place"

    def text(self) -> str:
        """Return the text of ELASTIC_FILE."""
        return json.dumps(asdict(self), indent=2) + "\n"


def notice_s(graceful_timeout_s: int | None) -> int:
    """Return how many seconds before its time limit an elastic job stops to save.

    Args:
        graceful_timeout_s: The recipe's time for a last checkpoint; None for the agent's default.
    """
    return (graceful_timeout_s or DEFAULT_GRACEFUL_TIMEOUT_S) + _LIMIT_MARGIN_S


def read_request(text: str) -> ElasticRequest:
    """Return the request in the text of ELASTIC_FILE."""
    fields = json.loads(text)
    return ElasticRequest(**{**fields, **{name: tuple(fields[name]) for name in ("options", "srun_words")}})


def is_elastic(bundle_dir: Path) -> bool:
    """Return whether a bundle's job is elastic."""
    return (bundle_dir / ELASTIC_FILE).exists()


def grows_in_place(place: Place = HERE) -> bool:
    """Return whether the cluster at a place adds nodes to a running job.

    Source: salloc(1), --dependency=expand; slurm.conf(5), permit_job_expansion; an expansion needs accounting by
    slurmdbd, seen with Slurm 22.05.
    """
    is_accounted = "slurmdbd" in configured("AccountingStorageType", place)
    return is_accounted and "permit_job_expansion" in configured("SchedulerParameters", place)


def request_options(options: Sequence[str]) -> tuple[str, ...]:
    """Return those of a job's options that a request for more of its nodes has, too."""
    return tuple(option for option in options if option.removeprefix("--").partition("=")[0] in _SAME)
