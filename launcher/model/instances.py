"""The resources of each instance type, from `instances.csv`. Prices are in `launcher.job_store.prices`."""

from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from launcher.model.recipe import InstanceSpec

SPECS = "recipes.instance_specs"
"""Key of the types that a recipe describes."""
SPEC_EXAMPLE = "{name: %s, accelerators: 8, accelerator: gpu, efa_devices: 16, vcpus: 192, memory_gib: 2048}"
"""An item of the key, for a type's name."""

INSTANCE_LABELS = ("beta.kubernetes.io/instance-type", "node.kubernetes.io/instance-type")
"""Labels of a node that name its type. Source: Kubernetes, Well-Known Labels, Annotations and Taints."""

COUNTED_MEMORY_GIB = {"ml.p5.48xlarge": 640}
"""GiB that a node counts in a quota, if less than all of its memory.

Source: AWS, Using elastic training, Auto-scaling: 8 ml.p5.48xlarge have a quota of 5120Gi.
"""

_REQUESTED_PERCENT = 90
"""Part of a node that pods request together: the kubelet, the system and daemons need the rest, and a pod that
requested all of a node would never be scheduled. Our own choice."""

RESOURCES = {"gpu": "nvidia.com/gpu", "neuron": "aws.amazon.com/neurondevice", "cpu": None}
"""Kubernetes resource of each kind of accelerator. Source: device plugins of NVIDIA and AWS Neuron."""
EFA, HUGE_PAGES = "vpc.amazonaws.com/efa", "hugepages-2Mi"
"""Kubernetes resources of EFA devices, and of huge pages.

Source: AWS, Run machine learning training on Amazon EKS with Elastic Fabric Adapter.
"""

_NEEDED = ("accelerators", "vcpus", "memory_gib")
"""Keys that a description of a type needs which the table lacks."""

_RDMA = {"yes": True, "no": False, "unknown": None}


class Instance(NamedTuple):
    """One instance type; the values of accelerators are empty on a CPU instance."""

    name: str
    """With the `ml.` prefix."""
    accelerators: int
    """GPUs or Trainium devices."""
    accelerator_resource: str | None
    """Kubernetes resource name."""
    processes: int
    """Worker processes for the accelerators, one per GPU or Neuron core; 0 means any number."""
    efa: int
    """EFA network devices."""
    gpudirect_rdma: bool | None
    """Whether they reach accelerator memory without the host's; None if unknown."""
    vcpus: int
    memory_gib: int
    """Main memory, rounded down."""
    accelerator: str = ""
    """Name of each accelerator."""
    accelerator_memory_gib: float = 0
    """Memory of each."""
    network_gbps: float | None = None
    """Baseline of its network; None if unknown."""
    nvme_gb: int = 0
    """Instance store, 0 for none."""
    architecture: str = ""
    """`x86_64` or `arm64`; "" if unknown."""
    use: tuple[str, ...] = ()
    """Where SageMaker offers it: `training`, `hyperpod`, both, or neither for one that a recipe describes."""

    @property
    def counted_memory_gib(self) -> int:
        """Main memory that a node counts in a quota, in GiB."""
        return COUNTED_MEMORY_GIB.get(self.name, self.memory_gib)

    def efa_of(self, accelerators: int) -> int:
        """Return the EFA devices of a pod with that many accelerators: its share of the node's, at least one.

        A pod without accelerators gets none: its ranks communicate by gloo, over TCP.
        """
        if not self.efa or not self.accelerators:
            return 0
        return max(1, self.efa * accelerators // self.accelerators)


def requested(instance: Instance, accelerators: int, memory_gib: int | None = None) -> dict[str, str]:
    """Return the cpu and memory, as quantities of Kubernetes, that a pod requests of its node.

    The pods of a full node request 90 % of it, and no more memory than it counts in a quota: `memory_gib`, if that is
    not the default. A node without accelerators is used completely.
    """
    part, of = (accelerators, instance.accelerators) if instance.accelerators else (1, 1)
    usable_gib = instance.memory_gib * _REQUESTED_PERCENT // 100
    memory_mib = min(memory_gib or instance.counted_memory_gib, usable_gib) * 1024 * part // of
    cpu_m = instance.vcpus * 10 * _REQUESTED_PERCENT * part // of
    return {"cpu": f"{cpu_m}m", "memory": f"{memory_mib // 1024}Gi" if memory_mib % 1024 == 0 else f"{memory_mib}Mi"}


def canonical(instance_type: object) -> str:
    """Return the name with its `ml.` prefix; of a value that is not a text, which a check reports, its text."""
    name = str(instance_type)
    return name if name.startswith("ml.") else f"ml.{name}"


@cache
def table() -> dict[str, Instance]:
    """Return every known instance type by its `ml.` name, in the order of the API's enumerations."""
    text = Path(__file__).with_name("instances.csv").read_text(encoding="utf-8")
    head, *lines = (line for line in text.splitlines() if not line.startswith("#"))
    most = head.count(",")
    return {(row := _row(line.split(",", most))).name: row for line in lines}


def _row(fields: list[str]) -> Instance:
    name, use, vcpus, memory, count, accelerator, each_gib, processes, efa, rdma, gbps, nvme, arch, *_ = fields
    kind = "neuron" if accelerator.startswith("AWS") else "gpu" if accelerator else "cpu"
    return Instance(
        name=f"ml.{name}",
        accelerators=int(count),
        accelerator_resource=RESOURCES[kind],
        processes=int(processes),
        efa=int(efa),
        gpudirect_rdma=_RDMA[rdma],
        vcpus=int(vcpus),
        memory_gib=int(float(memory)),
        accelerator=accelerator,
        accelerator_memory_gib=float(each_gib or 0),
        network_gbps=float(gbps) if gbps else None,
        nvme_gb=int(nvme),
        architecture=arch,
        use=tuple(use.split("+")),
    )


def find(instance_type: object, specs: Iterable["InstanceSpec"] | None = ()) -> Instance | None:
    """Return an instance type, by its name with or without `ml.`, as the table or a recipe's description has it.

    None if the table lacks it and no description of it is complete, or if the value is faulty.
    """
    found = table().get(canonical(instance_type))
    for spec in specs or ():
        if canonical(spec.name) == canonical(instance_type):
            return found if missing(spec) else _described(spec, found)
    return found


def missing(spec: "InstanceSpec") -> list[str]:
    """Return the keys that a description lacks. For a type of the table, it only needs the differences."""
    known = table().get(canonical(spec.name))
    needed = () if known else _NEEDED
    if spec.accelerators and not (known and known.accelerator_resource):
        needed = (*needed, "accelerator")
    return [key for key in needed if getattr(spec, key) is None]


def _described(spec: "InstanceSpec", known: Instance | None) -> Instance:
    base = known or Instance(canonical(spec.name), 0, None, 0, 0, None, 0, 0)
    per_device = base.processes // base.accelerators if base.accelerators else 1
    counted = None if spec.accelerators is None else spec.accelerators * per_device
    given: dict[str, Any] = {
        "accelerators": spec.accelerators,
        "accelerator_resource": spec.accelerator and RESOURCES[spec.accelerator],
        "processes": counted if spec.processes is None else spec.processes,
        "efa": spec.efa_devices,
        "vcpus": spec.vcpus,
        "memory_gib": spec.memory_gib,
        "architecture": spec.architecture,
    }
    found = base._replace(**{key: value for key, value in given.items() if value is not None})
    return found if found.accelerators else found._replace(accelerator_resource=None)
