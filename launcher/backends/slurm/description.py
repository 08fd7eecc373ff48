"""Describes cluster=slurm: its keys are checked, so that scripts of the published launcher are accepted."""

from typing import TYPE_CHECKING, ClassVar

from launcher.model.backend import BackendDescription

if TYPE_CHECKING:
    from launcher.backends.slurm.options import Settings


class SlurmDescription(BackendDescription["Settings"]):
    """Describes jobs on a Slurm cluster, which cannot be launched yet."""

    name: ClassVar[str] = "slurm"
    choice: ClassVar[str] = "slurm"
    cluster_types: ClassVar[tuple[str, ...]] = ("slurm",)
    title: ClassVar[str] = "Slurm"

    def options(self) -> type["Settings"]:
        """Return the model of the `cluster` section."""
        from launcher.backends.slurm.options import Settings

        return Settings


DESCRIPTION = SlurmDescription()
