"""Describes cluster=slurm: a batch script, and one task on each node, which starts the processes."""

from typing import TYPE_CHECKING, ClassVar

from launcher.model.backend import Backend, BackendDescription

if TYPE_CHECKING:
    from launcher.backends.slurm.options import Settings


class SlurmDescription(BackendDescription["Settings"]):
    """Describes jobs of fixed size on a Slurm cluster, launched on a login node, or from elsewhere by ssh."""

    name: ClassVar[str] = "slurm"
    choice: ClassVar[str] = "slurm"
    cluster_types: ClassVar[tuple[str, ...]] = ("slurm",)
    title: ClassVar[str] = "Slurm"
    rule_modules: ClassVar[tuple[str, ...]] = ("launcher.backends.slurm.job_rules",)
    has_containers: ClassVar[bool] = False
    """A container, if there is one, sees the folders of the file system that it is given."""
    places_code: ClassVar[bool] = True
    secret_sources: ClassVar[tuple[str, ...]] = ("env",)

    def load(self) -> Backend:
        """Return the backend that runs jobs on Slurm."""
        from launcher.backends.slurm.backend import BACKEND

        return BACKEND

    def options(self) -> type["Settings"]:
        """Return the model of the `cluster` section."""
        from launcher.backends.slurm.options import Settings

        return Settings

    def shares_files(self, options: "Settings") -> bool:
        """Return whether the job is launched on a login node."""
        return not options.ssh

    def writes_only(self, options: "Settings") -> bool:
        """Return whether the section requests the files alone."""
        return options.slurm_create_submission_file_only


DESCRIPTION = SlurmDescription()
