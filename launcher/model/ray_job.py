"""A Ray job for its rehearsal on this machine: its cluster as the bundle has it, and what its program reserves."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

CPU, GPU = "CPU", "GPU"
"""Ray's names of processors and accelerators. Source: Ray, Resources: Physical Resources and Logical Resources."""


class Driver(NamedTuple):
    """The program of a job, where the submitting machine has it."""

    command: str
    """Shell command that starts it, in the folder that `gather` has filled."""
    env: Mapping[str, str]
    gather: Callable[[Path], None]
    """Puts the job's code and configurations into a new folder."""


class RayJob(NamedTuple):
    """The Ray cluster of a job, as its bundle has it. A node without a number of CPUs has those of its machine."""

    head: Mapping[str, int]
    """Resources of the head by Ray's names."""
    workers: tuple[Mapping[str, int], ...]
    source: str
    """Where these numbers are: a file of the bundle, or the key that they follow."""
    words: tuple[str, ...]
    """The program's start command; none if it is the family's own."""
    driver: Driver | None = None
    """None where only the image has the program."""

    @property
    def nodes(self) -> tuple[Mapping[str, int], ...]:
        """The head, then the workers."""
        return (self.head, *self.workers)


class Pool(NamedTuple):
    """Accelerators that a program reserves: one placement group on each node, a bundle for each process."""

    name: str
    nodes: int
    processes: int
    """Of each node."""
    bundle: Mapping[str, int]
    """Resources of one process by Ray's names."""
    size: str
    """The keys of the two numbers, with their values."""

    @property
    def per_node(self) -> Mapping[str, int]:
        """Resources that one node must have free."""
        return {name: amount * self.processes for name, amount in self.bundle.items()}


class ResourceCheck(NamedTuple):
    """What a Ray program needs of its cluster before it starts its actors."""

    pools: tuple[Pool, ...]
    strategy: str
    """Of the placement groups. Source: Ray, Placement Groups: Placement Strategy."""
    driver_cpus: int
    """CPUs of the actor that runs the program's main loop."""
    next_step: str
    """The program's next step, which a rehearsal cannot make: why it stops here."""
    source: str
    """The program's own code that this check follows."""

    @property
    def accelerators(self) -> int:
        """Accelerators of all pools."""
        return sum(pool.nodes * pool.per_node.get(GPU, 0) for pool in self.pools)
