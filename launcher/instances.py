"""What each instance type has, from `instances.yaml`."""

from dataclasses import dataclass
from functools import cache
from pathlib import Path

from launcher import yamlio

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
