"""The `cluster` section of cluster=sm_jobs."""

from typing import Any, Literal

from launcher.recipe import Listed, Model


class TensorBoard(Model):
    """Where TensorBoard's logs go."""

    output_path: str | None
    """s3:// folder that receives TensorBoard's logs."""
    container_logs_path: str | None
    """Where the training writes them inside the container."""


class FileSystem(Model):
    """An EFS or FSx for Lustre input."""

    id: str
    """The file system's id, fs-…."""
    type: Literal["EFS", "FSxLustre", "FSx"]
    """EFS, or FSx for Lustre by either name."""
    directory_path: str
    """Folder on it that holds the data."""


class Inputs(Model):
    """Data channels."""

    s3: dict[str, str] | None
    """Channel name to s3:// folder; the container sees each under /opt/ml/input/data/<channel>."""
    file_system: FileSystem | None
    """A file system in place of S3."""


class SmJobs(Model):
    """The keys of a training job, as the published launcher names them."""

    pysdk_launch_executor: bool | str | None
    """The published launcher's choice of how the SDK starts; accepted, nothing reads it yet."""
    output_path: str | None
    """s3:// folder that receives the model and other results."""
    tensorboard_config: TensorBoard
    """Where TensorBoard's logs go."""
    wait: bool
    """true follows the job until it has ended."""
    inputs: Inputs
    """Where the data comes from."""
    additional_estimator_kwargs: dict[str, Any] | None
    """Further arguments of the SDK's estimator, e.g. max_run in seconds."""
    recipe_overrides: dict[str, Any] | None
    """Recipe keys that hold for this cluster only."""
    environment: dict[str, str] | None
    """Variables of the container, beside env_vars."""


class Settings(Model):
    """Every key of cluster=sm_jobs."""

    sm_jobs_config: SmJobs
    """The training job's own keys."""
    container_mounts: Listed[str] | None
    """Slurm's key, accepted so that one script serves every cluster; nothing reads it here."""
