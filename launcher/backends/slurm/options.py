"""The `cluster` section of cluster=slurm."""

from launcher.model.base_model import Listed, Model, NonNegativeInt, default
from launcher.model.cluster_options import ClusterOptions


class SlurmDocker(Model):
    """How srun starts a container."""

    docker_args: Listed[str] | None = default(None)
    """Words added to docker run on each node."""
    post_launch_commands: Listed[str] | None = default(None)
    """Shell commands inside the container, before training."""


class Settings(ClusterOptions):
    """Every key of cluster=slurm."""

    exclusive: bool = default(True)
    """true allocates nodes exclusively; false lets other jobs share them."""
    mem: NonNegativeInt = default(0)
    """Memory per node in MiB; 0 takes all of it."""
    job_name_prefix: str = default("sagemaker-")
    """Prefix of the job's name in Slurm's queue."""
    slurm_create_submission_file_only: bool = default(False)
    """true writes the batch script without submitting it."""
    stderr_to_stdout: bool = default(True)
    """true writes one log of both streams; false separates errors."""
    srun_args: Listed[str] | None = default(None)
    """Words added to srun."""
    slurm_docker_cfg: SlurmDocker
    """How nodes that run containers with docker start them."""
    container_mounts: Listed[str] | None = default(None)
    """Paths of the node that are mounted at the same path in the container, such as data on a shared file system."""
