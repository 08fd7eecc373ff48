"""Which pod runs which ranks, and which rank wrote a line. Pure."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from launcher.model.job_spec import LogSelection

_TEE = re.compile(r"\[[a-zA-Z_]+(\d+)\]:")
"""Prefix of a worker's line in a node's log. Source: torch.distributed.elastic, tail_log: `[default0]:`."""


@dataclass(frozen=True, slots=True)
class Places:
    """Which pod runs which ranks. A pod's place is its number, counted over all replica specs in order.

    Args:
        job: The job's name.
        parts: Name and largest size of each replica spec, in order.
        nproc_per_node: Ranks of a pod.
    """

    job: str
    parts: Sequence[tuple[str, int]]
    nproc_per_node: int

    @classmethod
    def of(cls, job: Mapping[str, Any]) -> "Places":
        """Read the places from a job's manifest."""
        spec = job["spec"]
        if kubeflow := spec.get("pytorchReplicaSpecs"):
            parts = [(name.lower(), part.get("replicas", 1)) for name, part in kubeflow.items()]
        else:
            parts = [
                (part["name"], part.get("maxReplicas", part.get("replicas", 0))) for part in spec["replicaSpecs"]
            ]
        nproc = str(spec.get("nprocPerNode", "1"))
        return cls(job["metadata"]["name"], parts, int(nproc) if nproc.isdigit() else 1)

    @property
    def num_ranks(self) -> int:
        return sum(count for _, count in self.parts) * self.nproc_per_node

    def place(self, pod: str) -> int | None:
        """Return a pod's place; None if its name does not contain it."""
        before = 0
        for name, count in self.parts:
            if match := re.match(rf"{re.escape(self.job)}-{re.escape(name)}-(\d+)(?:-|$)", pod):
                return before + int(match[1])
            before += count
        return None


@dataclass(frozen=True, slots=True)
class Filter:
    """Which lines of a pod are selected, and how they are printed."""

    selection: LogSelection
    places: Places

    def wants(self, pod: str) -> bool:
        """Return whether a pod runs a selected rank."""
        place, ranks = self.places.place(pod), self.selection.ranks
        if place is None:
            return ranks is None
        nproc = self.places.nproc_per_node
        return ranks is None or any(place * nproc <= rank < (place + 1) * nproc for rank in ranks)

    def printer(self, pod: str) -> Callable[[str], str | None]:
        """Return a function that returns a pod's line in printed form; None if it belongs to another rank."""
        nproc, place = self.places.nproc_per_node, self.places.place(pod)
        if place is None:
            return lambda text: f"{pod} | {text}"
        first, has_prefixes, ranks = place * nproc, self.selection.has_prefixes, self.selection.ranks
        whole = f"{first}-{first + nproc - 1}" if nproc > 1 else str(first)

        def shown(text: str) -> str | None:
            mark = _TEE.match(text)
            rank = first + int(mark[1]) if mark else first if nproc == 1 else None
            if rank is not None and ranks is not None and rank not in ranks:
                return None
            return f"rank {whole if rank is None else rank} | {text}" if has_prefixes else text

        return shown
