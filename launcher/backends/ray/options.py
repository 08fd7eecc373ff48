"""The `cluster` section of cluster=ray."""

from typing import Annotated

from pydantic import AfterValidator, Field

from launcher.model.base_model import (
    ClusterOptions,
    HasOptions,
    Listed,
    NonNegativeInt,
    StartCommand,
    TextForm,
    default,
    options_of,
    server_url,
)

_URL = r"^https?://[^\s/?#]+[^\s?#]*$"

Address = Annotated[
    str,
    TextForm(pattern=_URL, words="a URL such as http://127.0.0.1:8265", max_length=1024),
    AfterValidator(server_url),
]
"""URL of a dashboard. Source: Ray, Ray Jobs Python SDK, JobSubmissionClient: address."""
Amount = Annotated[float, Field(ge=0, le=1e9)]
Amounts = Annotated[dict[Annotated[str, Field(min_length=1)], Amount], Field(max_length=100)]


class Settings(ClusterOptions):
    """Every key of cluster=ray."""

    address: Address | None = default(None, is_required=False)
    """URL of the cluster's dashboard, such as http://127.0.0.1:8265. null takes the variable RAY_ADDRESS when the job
    is submitted."""
    working_dir: Annotated[str, Field(min_length=1)] | None = default(None, is_required=False)
    """Folder of this machine with your code, which is copied to the cluster when the job is submitted, without
    what its .gitignore files name. The program starts in it. null copies the configurations alone."""
    command: StartCommand[str] | None = default(None)
    """Words that replace the family's program; bundle:configs is the folder of the configurations."""
    entrypoint_num_cpus: Amount | None = default(None, is_required=False)
    """CPUs reserved for the driver, beside what it starts. null reserves none: it starts on the head."""
    entrypoint_num_gpus: Amount | None = default(None, is_required=False)
    """GPUs reserved for the driver."""
    entrypoint_memory: NonNegativeInt | None = default(None, is_required=False)
    """Bytes of memory reserved for the driver."""
    entrypoint_resources: Amounts | None = default(None, is_required=False)
    """Custom resources reserved for the driver, such as {driver_node: 1}."""
    container_mounts: Listed[str] | None = default(None)
    """Slurm's key, accepted so that one script works with every cluster; ignored here."""
    autoscaled: bool = default(False)
    """true: the cluster adds nodes for a job, so that too few accelerators are reported and do not refuse it."""


def ray_options(job: HasOptions) -> Settings:
    """Return the options of a checked recipe or a planned job on a Ray cluster."""
    return options_of(job, Settings)
