"""What each instance type has, from `instances.yaml`."""

from dataclasses import dataclass
from functools import cache
from pathlib import Path

from launcher import yamlio

COUNTED_MEMORY_GIB = {"ml.p5.48xlarge": 640}
"""GiB a node counts in a quota, where that is not all it has.

Source: AWS, Using elastic training, Auto-scaling: 8 ml.p5.48xlarge have a quota of 5120Gi.
"""

_REQUESTED_PERCENT = 90
"""Part of a node that pods request together: the kubelet, the system and daemons need the rest, and a pod that
requested all of a node would never be scheduled. Our own choice."""

_RESOURCE = {"gpu": "nvidia.com/gpu", "neuron": "aws.amazon.com/neurondevice", "cpu": None}


@dataclass(frozen=True, slots=True)
class Instance:
    """One instance type.

    Args:
        name: With the `ml.` prefix.
        accelerators: GPUs or Trainium devices; 0 on a CPU instance.
        accelerator_resource: Kubernetes resource name, None on a CPU instance.
        processes: Worker processes the accelerators serve, one a GPU or Neuron core; 0 means any number.
        efa: EFA network devices.
        rdma: Whether they do RDMA.
        vcpus: Virtual CPUs.
        memory_gib: Main memory, in GiB.
    """

    name: str
    accelerators: int
    accelerator_resource: str | None
    processes: int
    efa: int
    rdma: bool
    vcpus: int
    memory_gib: int

    @property
    def counted_memory_gib(self) -> int:
        """Main memory that a node counts in a quota, in GiB."""
        return COUNTED_MEMORY_GIB.get(self.name, self.memory_gib)

    def efa_of(self, accelerators: int) -> int:
        """Return the EFA devices of a pod with so many of the accelerators: its part of the node's, at least one."""
        if not self.efa or not self.accelerators:
            return self.efa
        return max(1, self.efa * accelerators // self.accelerators)


def requested(instance: Instance, accelerators: int, memory_gib: int | None = None) -> dict[str, str]:
    """Return the cpu and memory that a pod requests, so that it leaves the others of its node theirs.

    Args:
        instance: What the node is.
        accelerators: How many of the node's accelerators the pod takes. On a node without any it is the full node.
        memory_gib: Main memory that the node counts in a quota; None takes the usual.

    Returns:
        Kubernetes quantities. The pods of a full node request 90 % of it, and no more memory than it counts.
    """
    part, of = (accelerators, instance.accelerators) if instance.accelerators else (1, 1)
    usable_gib = instance.memory_gib * _REQUESTED_PERCENT // 100
    memory_mib = min(memory_gib or instance.counted_memory_gib, usable_gib) * 1024 * part // of
    cpu_m = instance.vcpus * 10 * _REQUESTED_PERCENT * part // of
    return {"cpu": f"{cpu_m}m", "memory": f"{memory_mib // 1024}Gi" if memory_mib % 1024 == 0 else f"{memory_mib}Mi"}


def canonical(instance_type: str) -> str:
    """Return the name with its `ml.` prefix."""
    return instance_type if instance_type.startswith("ml.") else f"ml.{instance_type}"


@cache
def table() -> dict[str, Instance]:
    """Return every known instance type by its `ml.` name."""
    rows = yamlio.load(Path(__file__).with_name("instances.yaml").read_text(encoding="utf-8"))
    return {
        canonical(name): Instance(canonical(name), count, _RESOURCE[kind], count * per, efa, rdma, vcpus, memory_gib)
        for name, (count, kind, per, efa, rdma, vcpus, memory_gib) in rows.items()
    }
