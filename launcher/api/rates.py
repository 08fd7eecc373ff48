"""What a job that runs costs per hour, from the dated prices and the size that it has now."""

import contextlib
import functools
from pathlib import Path
from typing import NamedTuple

from pydantic import ValidationError

from launcher.api.job_index import IndexedJob
from launcher.bundle import store
from launcher.common.problems import ProblemsFound
from launcher.job_store import prices
from launcher.model.backend_registry import described
from launcher.model.instances import canonical


class Rate(NamedTuple):
    """The price of one node of a job per hour."""

    per_hour: float
    currency: str

    def text(self, node_hours: float) -> str:
        """Return the price of a number of hours of a node, for people."""
        return f"{self.per_hour * node_hours:,.2f} {self.currency}"


def rate(row: IndexedJob) -> Rate | None:
    """Return the price of a node of a job; None if nothing is paid, or the price is unknown."""
    if row.record is None or row.instance_type is None:
        return None
    return _rate(row.folder, row.record.digest, row.record.handle.backend, row.instance_type)


@functools.lru_cache(maxsize=2000)
def _rate(folder: Path, digest: str, backend: str, instance_type: str) -> Rate | None:
    """Return the price of a node of the bundle in a folder, whose digest changes with its content."""
    description = described(backend)
    instances, name = description.instances, canonical(instance_type)
    if description.runs_here or instances is None:
        return None
    with contextlib.suppress(ProblemsFound, ValidationError, OSError, KeyError):  # no longer complete
        options = description.options().model_validate(store.config_of(store.read(folder)[0])["cluster"])
        known = prices.shipped(instances.price_use)
        # of several types, or of those that the service chooses, the plan's own type tells nothing
        if not (instances.chosen_by_service(options) or instances.groups(options)) and name in known.per_hour:
            return Rate(known.per_hour[name], known.currency)
    return None
