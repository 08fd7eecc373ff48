"""The `cluster` section of cluster=local with contract=sagemaker: a training job's keys, and where its stores are."""

from typing import Annotated, Literal

from pydantic import Field

from launcher.backends.sagemaker.training_options import SmJobs
from launcher.model.base_model import Listed
from launcher.model.cluster_options import ClusterOptions

_NAME = "[A-Za-z0-9](-*[A-Za-z0-9])*"
_URL = rf"^https?://({_NAME}(\.{_NAME})*|\[[0-9A-Fa-f:]+\])(:[0-9]{{1,5}})?(/|$)"
"""A URL without a user. Source: RFC 1123, 2.1, which botocore holds names to: no underscore."""

_FileSystem = Annotated[str, Field(pattern=r"^fs-[0-9a-f]{8,}(/.*)?$")]


class Settings(ClusterOptions):
    """Every key of cluster=local with cluster.contract=sagemaker."""

    contract: Literal["sagemaker"]
    """Whose container contract the job runs under."""
    sm_jobs_config: SmJobs
    """The keys of cluster=sm_jobs. Here output_path, inputs and checkpoints may be file:///folder too."""
    s3_endpoint: Annotated[str, Field(pattern=_URL)] | None
    """Where S3 answers, such as http://127.0.0.1:9000; AWS when null."""
    file_systems: dict[_FileSystem, Annotated[str, Field(pattern=r"^/")]] | None
    """{fs-…: folder of this machine that stands for that file system}; fs-…/folder stands for a part of one."""
    command: None
    """The agent's words, which no training job has: see sm_jobs_config.container_entrypoint."""
    container_mounts: Listed[str] | None
    """Slurm's key, accepted so that one script serves every cluster; nothing reads it here."""
