"""What a job requests: of a partition the least that it can run with, to be compared with limits; for Ray. Pure."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from launcher.backends.slurm.rendering import JOB_FILE
from launcher.backends.slurm.requests import Request
from launcher.backends.slurm.run_files import RAY_FILE
from launcher.backends.slurm.sbatch_options import by_name, gres_amounts, header_of, mebibytes, minutes
from launcher.model import instances
from launcher.model.config_tree import get
from launcher.model.job_spec import Bundle
from launcher.model.ray_job import CPU, GPU, RayJob

NODES = ("recipes.trainer.num_nodes", "recipes.training_cfg.run.nodes")
_PLAIN = frozenset(
    (
        *("job-name", "nodes", "exclusive", "mem", "partition", "account", "qos", "time", "dependency", "mail-type"),
        *("mail-user", "signal", "requeue", "no-requeue", "open-mode", "comment", "output", "error", "hold", "begin"),
        *("no-kill", "kill-on-invalid-dep", "nice", "wckey", "verbose", "array"),
    )
)
"""Options that do not restrict which nodes of a partition a job can run on."""
_DEFAULT_MIB = 1.0
"""The least that a cluster's default for shared nodes may be."""


@dataclass(frozen=True, slots=True)
class Demand:
    """What a job requests.

    Args:
        nodes_key: Key of its number of nodes.
        nodes: The smallest number of nodes that it can run on.
        most_nodes: The largest number of nodes that it requests.
        time: `cluster.time`.
        minutes: The shortest time limit that it accepts; None for the partition's default, infinity for none.
        is_exclusive: Whether it gets whole nodes.
        memory_mib: Per node, in MiB; 0 for all of it.
        gres: Generic resources per node, by name.
        is_plain: Whether only the number of nodes and the partition decide which nodes it can run on.
        cpus: Per node, unless it gets whole nodes.
    """

    nodes_key: str
    nodes: int
    most_nodes: int
    time: object
    minutes: float | None
    is_exclusive: bool
    memory_mib: float
    gres: Mapping[str, int]
    is_plain: bool
    cpus: int
    memory_key: str

    def least(self, name: str, nodes: Sequence[Mapping[str, float]], count: int) -> float:
        """Return the least of a resource, memory in MiB, that it takes of a number of nodes.

        Args:
            name: The resource's name in limits, such as cpu, mem or gres/gpu.
            nodes: What each node of the partition has.
        """
        asked = {"node": 1, "cpu": self.cpus, "mem": self.memory_mib}.get(name, self.gres.get(name, 0))
        takes_all = self.memory_mib == 0 if name == "mem" else self.is_exclusive and name != "node"
        if not takes_all:
            return asked * count
        return sum(sorted(max(asked, node.get(name, 0)) for node in nodes)[:count])


def demand_of(request: Request) -> Demand:
    """Return what the job, or each job of an array, requests."""
    config = request.config
    given = by_name((*header_of(request.text), *request.words))
    span = [int(number) for number in re.findall("[0-9]+", given["nodes"])]
    cpus = _cpus(given)
    gpus = f"gpu:{given['gpus-per-node']}" if "gpus-per-node" in given else ""
    gres = gres_amounts(f"{given.get('gres', '')},{gpus}")
    # Slurm may start the job with the limit of the option time-min.
    limit = minutes(given.get("time-min") or config["cluster"].get("time"))
    memory_key, memory_mib = _memory(given, cpus, gres.get("gres/gpu", 0))
    return Demand(
        nodes_key(config),
        min(int(scale["nodes"]) for scale in request.bundles[0].plan["scales"]),
        max(span),
        config["cluster"].get("time"),
        float("inf") if limit == 0 else limit,
        is_exclusive="exclusive" in given and "oversubscribe" not in given,
        memory_mib=memory_mib,
        gres=gres,
        is_plain=_PLAIN.issuperset(given) and memory_mib == 0,
        cpus=cpus,
        memory_key=memory_key,
    )


def nodes_key(config: Mapping[str, Any]) -> str:
    """Return the key of the number of nodes."""
    return next(key for key in reversed(NODES) if get(config, key) is not None)


def _memory(given: Mapping[str, str], cpus: int, gpus: int) -> tuple[str, float]:
    """Return the key of the memory that options request, and the least of it per node, in MiB; 0 for all of it."""
    for name, count in (("mem-per-cpu", cpus), ("mem-per-gpu", gpus)):
        if name in given:
            return f"cluster.{name.replace('-', '_')}", mebibytes(given[name]) * max(count, 1)
    return "cluster.mem", mebibytes(given["mem"]) if "mem" in given else _DEFAULT_MIB


def _cpus(given: Mapping[str, str]) -> int:
    """Return the CPUs per node that options request."""
    return int(given.get("ntasks-per-node", 1)) * int(given.get("cpus-per-task", 1))


def ray_job(bundle: Bundle) -> RayJob | None:
    """Return the Ray cluster of a bundle's job, whose first node is the head, too; None if it has none."""
    if RAY_FILE not in bundle.files:
        return None
    given = by_name(header_of(bundle.files[JOB_FILE]))
    devices = re.search(r"--num-gpus=(\d+)", bundle.files[RAY_FILE])
    instance = instances.find(bundle.plan["instance_type"])
    node = {GPU: int(devices[1]) if devices else 0}
    if "exclusive" not in given:
        node[CPU] = _cpus(given)
    elif instance:
        node[CPU] = instance.vcpus
    return RayJob(node, (node,) * (int(given["nodes"]) - 1), f"{JOB_FILE} and {RAY_FILE}", ())
