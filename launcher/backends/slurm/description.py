"""Describes cluster=slurm: a batch script, and one task on each node, which starts the processes."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from launcher.model.backend import Backend, BackendDescription, LaunchMode
from launcher.model.capabilities import Doctor, Files, Programs, Queue, Scaling, Secrets
from launcher.model.job_spec import PUBLISHED, Bundle, JobSpec, Trainer

if TYPE_CHECKING:
    from launcher.backends.slurm.options import Settings
    from launcher.model.checked_recipe import CheckedRecipe
    from launcher.model.ray_job import RayJob

_GROWTH = {None: "in place or by a requeue", "in_place": "in place", "requeue": "by a requeue"}


class _Files(Files["Settings"]):
    has_containers: ClassVar[bool] = False
    """A container, if there is one, sees the folders of the file system that it is given."""
    has_revisions: ClassVar[bool] = True

    def in_container(self, options: "Settings", image: str | None) -> bool:
        """Return whether a container runtime starts the processes."""
        from launcher.backends.slurm.options import runtime_of

        return runtime_of(options.container_runtime, image) != "none"

    def are_shared(self, options: "Settings") -> bool:
        """Return whether the job is launched on a login node."""
        return not options.ssh

    def code_folder(self, options: "Settings", trainer: Trainer | None) -> str | None:
        """Return the current folder if a snapshot of it is taken, by default of one's own code on another machine."""
        default = "snapshot" if options.ssh and trainer != PUBLISHED else "folder"
        return "" if (options.code or default) == "snapshot" else None


class _Programs(Programs["Settings"]):
    has_ray: ClassVar[bool] = True
    starts_by_mpi: ClassVar[bool] = True

    def ray_job(self, bundle: Bundle) -> "RayJob | None":
        """Return the job that the bundle's files describe."""
        from launcher.backends.slurm.demand import ray_job

        return ray_job(bundle)


class _Scaling(Scaling):
    resizes_in_place: ClassVar[bool] = True

    def initial_nodes(self, job: JobSpec) -> int | None:
        """Return the largest planned size of an elastic job: it starts on as many nodes as Slurm has for it."""
        return max(point.nodes for point in job.scales) if job.elastic else None

    def start_reason(self, nodes: int) -> str:
        """Return whose nodes an elastic job starts on."""
        from launcher.common.texts import counted

        return f"what Slurm has free, at most {counted(nodes, 'node')}"


class _Secrets(Secrets):
    sources: ClassVar[tuple[str, ...]] = ("env",)

    def words(self, checked: "CheckedRecipe") -> Iterator[tuple[str, Sequence[str]]]:
        """Yield the commands and words that are written into a job's scripts."""
        from launcher.backends.slurm.options import slurm_options

        options = slurm_options(checked)
        docker = options.slurm_docker_cfg
        yield from (("cluster.setup", (line,)) for line in options.setup or ())
        yield from (("cluster.slurm_docker_cfg", (line,)) for line in docker.post_launch_commands or ())
        yield "cluster.slurm_docker_cfg", docker.docker_args or ()
        yield "cluster.srun_args", options.srun_args or ()


class SlurmDescription(BackendDescription["Settings"]):
    """Describes jobs on a Slurm cluster, launched on a login node, or from elsewhere by ssh."""

    name: ClassVar[str] = "slurm"
    choice: ClassVar[str] = "slurm"
    cluster_types: ClassVar[tuple[str, ...]] = ("slurm",)
    title: ClassVar[str] = "Slurm"
    files: ClassVar[Files[Any]] = _Files()
    programs: ClassVar[Programs[Any]] = _Programs()
    scaling: ClassVar[Scaling | None] = _Scaling()
    secrets: ClassVar[Secrets] = _Secrets()

    def load(self) -> Backend:
        """Return the backend that runs jobs on Slurm."""
        from launcher.backends.slurm.backend import BACKEND

        return BACKEND

    def queue(self) -> Queue:
        """Return the operations on jobs that are submitted together."""
        from launcher.backends.slurm.backend import BACKEND

        return BACKEND

    def doctor(self) -> Doctor:
        """Return the examination of a cluster by Slurm's commands."""
        from launcher.backends.slurm.doctor import SlurmDoctor

        return SlurmDoctor()

    def options(self) -> type["Settings"]:
        """Return the model of the `cluster` section."""
        from launcher.backends.slurm.options import Settings

        return Settings

    def job_kind(self, job: JobSpec) -> str:
        """Return the kind of job, and who resizes an elastic one: the vendor's operator does not run on Slurm."""
        if not job.elastic:
            return self.title
        from launcher.backends.slurm.options import slurm_options

        growth = _GROWTH[slurm_options(job).growth]
        return f"Slurm job with this launcher's operator (grows {growth})"

    def launch_mode(self, options: "Settings") -> LaunchMode:
        """Return whether the section requests the files alone."""
        return LaunchMode(is_written_only=options.slurm_create_submission_file_only)


DESCRIPTION = SlurmDescription()
