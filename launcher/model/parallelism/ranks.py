"""Placement of a model-parallel job's ranks, and the groups that hold a replica or the same partition. Pure.

Source: Amazon SageMaker Python SDK, Required SageMaker Python SDK parameters, Ranking Basics, and Placement Strategy
with Tensor Parallelism.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

from launcher.model.parallelism.smp import ORDERS


def host_names(num_hosts: int) -> tuple[str, ...]:
    """Return the hosts of a training job in the order that ranks follow: algo-10 comes before algo-2.

    Source: Amazon SageMaker, How Amazon SageMaker Provides Training Information, Distributed Training Configuration:
    hosts are sorted as strings.
    """
    return tuple(sorted(f"algo-{number}" for number in range(1, num_hosts + 1)))


@dataclass(frozen=True, slots=True)
class Rank:
    """One process of a job.

    Args:
        rank: Rank over all hosts, from 0.
        host: Name of its host.
        local_rank: On its host, from 0; the device it uses.
        mp_group: Number of the replica it is a part of.
        mp_rank: Its index in that replica.
        dp_group: Number of the group whose members hold the same partition.
        dp_rank: Its index in that group.
        rdp_rank: Coordinate D, over replicas.
        pp_rank: Coordinate P, over partitions.
        tp_rank: Coordinate T, over the slices of a tensor.
    """

    rank: int
    host: str
    local_rank: int
    mp_group: int
    mp_rank: int
    dp_group: int
    dp_rank: int
    rdp_rank: int
    pp_rank: int
    tp_rank: int


@dataclass(frozen=True)
class Placement:
    """A job's ranks over its hosts.

    Args:
        hosts: Host names, in the order of the job's resource configuration.
        processes_per_host: Processes of each host.
        partitions: Pipeline parallel degree.
        tensor: Tensor parallel degree; `len(hosts) · processes_per_host` is a multiple of `partitions · tensor`.
        strategy: cluster, spread, or an order of the letters D, P and T, the last over neighbouring ranks.
    """

    hosts: tuple[str, ...]
    processes_per_host: int
    partitions: int = 1
    tensor: int = 1
    strategy: str = "cluster"

    def __post_init__(self) -> None:
        assert sorted(self.order) == ["D", "P", "T"], self.strategy
        assert self.world_size % (self.partitions * self.tensor) == 0, self.world_size

    @property
    def order(self) -> str:
        """The strategy as an order of D, P and T."""
        return ORDERS.get(self.strategy, self.strategy)

    @property
    def world_size(self) -> int:
        """Number of ranks over all hosts."""
        return len(self.hosts) * self.processes_per_host

    @property
    def replicas(self) -> int:
        """Complete copies of the model."""
        return self.world_size // (self.partitions * self.tensor)

    def host_of(self, rank: int) -> str:
        """Return the host of a rank; mpirun fills one host's slots after another.

        Source: mpirun(1), --map-by slot.
        """
        return self.hosts[rank // self.processes_per_host]

    @cached_property
    def ranks(self) -> tuple[Rank, ...]:
        """Every rank, ascending."""
        mp_rank, dp_rank = (
            {rank: place for group in groups for place, rank in enumerate(group)}
            for groups in (self.mp_groups, self.dp_groups)
        )
        found = []
        for rank in range(self.world_size):
            where = (rank, self.host_of(rank), rank % self.processes_per_host)
            at = self._coordinates(rank)
            groups = (at["D"], mp_rank[rank], at["P"], dp_rank[rank])
            found.append(Rank(*where, *groups, at["D"], at["P"], at["T"]))
        return tuple(found)

    @cached_property
    def mp_groups(self) -> tuple[tuple[int, ...], ...]:
        """Ranks of each replica, `(replicas, partitions · tensor)`."""
        return self._grouped("D", self.replicas)

    @cached_property
    def dp_groups(self) -> tuple[tuple[int, ...], ...]:
        """Ranks that hold the same partition, `(partitions, replicas · tensor)`."""
        return self._grouped("P", self.partitions)

    def _coordinates(self, rank: int) -> dict[str, int]:
        """Return the D, P and T of a rank; the last letter of the order changes first."""
        sizes = {"D": self.replicas, "P": self.partitions, "T": self.tensor}
        found = {}
        for letter in reversed(self.order):
            rank, found[letter] = divmod(rank, sizes[letter])
        return found

    def _grouped(self, letter: str, count: int) -> tuple[tuple[int, ...], ...]:
        groups: list[list[int]] = [[] for _ in range(count)]
        for rank in range(self.world_size):
            groups[self._coordinates(rank)[letter]].append(rank)
        return tuple(map(tuple, groups))


def columns(placement: Placement) -> tuple[str, ...]:
    """Return the displayed values of a rank; coordinates of tensor parallelism only if it is used."""
    plain = ("rank", "host", "local_rank", "mp_group", "mp_rank", "dp_group", "dp_rank")
    return (*plain, "rdp_rank", "pp_rank", "tp_rank") if placement.tensor > 1 else plain


def spans(ranks: Sequence[int]) -> str:
    """Return ascending ranks as text: `0-3`, `0, 4`, or `0, 4, … 28` if many have equal distances."""
    step = ranks[1] - ranks[0] if len(ranks) > 2 else 0
    if not step or any(after - before != step for before, after in pairwise(ranks)):
        return ", ".join(map(str, ranks))
    if step == 1:
        return f"{ranks[0]}-{ranks[-1]}"
    return ", ".join(map(str, ranks)) if len(ranks) < 5 else f"{ranks[0]}, {ranks[1]}, … {ranks[-1]}"
