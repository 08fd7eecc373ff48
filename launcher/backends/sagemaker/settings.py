"""The `cluster` section of cluster=sm_jobs."""

from typing import Any, Literal

from launcher.recipe import Listed, Model


class TensorBoard(Model):
    """Where TensorBoard's logs go."""

    output_path: str | None
    container_logs_path: str | None


class FileSystem(Model):
    """An EFS or FSx for Lustre input."""

    id: str
    type: Literal["EFS", "FSxLustre", "FSx"]
    directory_path: str


class Inputs(Model):
    """Data channels."""

    s3: dict[str, str] | None
    file_system: FileSystem | None


class SmJobs(Model):
    """The keys of a training job, as the published launcher names them."""

    pysdk_launch_executor: bool | str | None
    output_path: str | None
    tensorboard_config: TensorBoard
    wait: bool
    inputs: Inputs
    additional_estimator_kwargs: dict[str, Any] | None
    recipe_overrides: dict[str, Any] | None
    environment: dict[str, str] | None


class Settings(Model):
    """Every key of cluster=sm_jobs."""

    sm_jobs_config: SmJobs
    container_mounts: Listed[str] | None
