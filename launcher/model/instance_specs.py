"""Instance types that a recipe describes: those that the table lacks, and corrections of those that it has."""

from typing import Annotated, Literal

from pydantic import Field

from launcher.model.base_model import Model, PositiveInt

KEY = "recipes.instance_specs"
EXAMPLE = "{name: %s, accelerators: 8, accelerator: gpu, efa_devices: 16, vcpus: 192, memory_gib: 2048}"
"""An item of the key, for a type's name."""


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
