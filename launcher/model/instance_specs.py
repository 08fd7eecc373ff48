"""Instance types that a recipe describes: those that the table lacks, and corrections of those that it has."""

from collections.abc import Iterable
from dataclasses import replace
from typing import Annotated, Any, Literal

from pydantic import Field

from launcher.model.base_model import Model, PositiveInt
from launcher.model.instances import RESOURCES, Instance, canonical, table

KEY = "recipes.instance_specs"
EXAMPLE = "{name: %s, accelerators: 8, accelerator: gpu, efa_devices: 16, vcpus: 192, memory_gib: 2048}"
"""An item of the key, for a type's name."""
_NEEDED = ("accelerators", "vcpus", "memory_gib")


class InstanceSpec(Model):
    """Resources of an instance type that the launcher's table lacks, or corrections of one that it has."""

    name: Annotated[str, Field(pattern=r"^[a-z0-9-]+(\.[a-z0-9-]+){1,2}$")]
    """The type, with or without ml."""
    accelerators: Annotated[int, Field(ge=0, le=1024)] | None = None
    """GPUs or Trainium chips of an instance; 0 on a CPU instance. Required, as vcpus and memory_gib are, unless the
    table has the type."""
    accelerator: Literal["gpu", "neuron"] | None = None
    """Kind of accelerator: it determines the requested Kubernetes resource. Required with accelerators."""
    processes: Annotated[int, Field(ge=0, le=4096)] | None = None
    """Maximum worker processes of an instance, such as one for each logical Neuron core. Default: one for each
    accelerator."""
    efa_devices: Annotated[int, Field(ge=0, le=1024)] | None = None
    """EFA network devices of an instance. Default: none."""
    vcpus: PositiveInt | None = None
    """Virtual CPUs of an instance."""
    memory_gib: PositiveInt | None = None
    """Main memory of an instance, in GiB."""
    architecture: Literal["x86_64", "arm64"] | None = None
    """Instruction set that the image must be built for."""


def find(instance_type: object, specs: Iterable[InstanceSpec] | None = ()) -> Instance | None:
    """Return an instance type; None if the table lacks it and no description of it is complete.

    Args:
        instance_type: Its name, with or without `ml.`; a faulty value is not a type.
        specs: The recipe's descriptions.
    """
    found = table().get(canonical(instance_type))
    for spec in specs or ():
        if canonical(spec.name) == canonical(instance_type):
            return found if missing(spec) else _described(spec, found)
    return found


def missing(spec: InstanceSpec) -> list[str]:
    """Return the keys that a description lacks. For a type of the table, it only needs the differences."""
    known = table().get(canonical(spec.name))
    needed = () if known else _NEEDED
    if spec.accelerators and not (known and known.accelerator_resource):
        needed = (*needed, "accelerator")
    return [key for key in needed if getattr(spec, key) is None]


def _described(spec: InstanceSpec, known: Instance | None) -> Instance:
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
    found = replace(base, **{key: value for key, value in given.items() if value is not None})
    return found if found.accelerators else replace(found, accelerator_resource=None)
