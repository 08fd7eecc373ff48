"""The `cluster` section of cluster=slurm."""

from launcher.recipe import Listed, Model, NonNegativeInt


class SlurmDocker(Model):
    """How srun starts a container."""

    docker_args: Listed[str] | None
    post_launch_commands: Listed[str] | None


class Settings(Model):
    """Every key of cluster=slurm."""

    exclusive: bool
    mem: NonNegativeInt
    job_name_prefix: str
    slurm_create_submission_file_only: bool
    stderr_to_stdout: bool
    srun_args: Listed[str] | None
    slurm_docker_cfg: SlurmDocker
    container_mounts: Listed[str] | None
