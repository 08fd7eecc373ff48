"""What cluster=ray is: a Ray cluster that runs already, and takes jobs at its dashboard."""

from typing import TYPE_CHECKING, Any, ClassVar

from launcher.model.backend import Backend, BackendDescription
from launcher.model.capabilities import OF_PODS, Doctor, Files, Instances, Programs, Scaling, Secrets
from launcher.model.job_spec import Bundle, Trainer

if TYPE_CHECKING:
    from launcher.backends.ray.options import Settings
    from launcher.model.ray_job import RayJob


class _Files(Files["Settings"]):
    has_bundle: ClassVar[bool] = False

    def code_folder(self, options: "Settings", trainer: Trainer | None) -> str | None:
        """Return the driver's working directory."""
        return options.working_dir


class _Programs(Programs["Settings"]):
    has_ray: ClassVar[bool] = True

    def ray_job(self, bundle: Bundle) -> "RayJob":
        """Return the job that a bundle requests."""
        from launcher.backends.ray.submit import ray_job

        return ray_job(bundle)


class _Secrets(Secrets):
    sources: ClassVar[tuple[str, ...]] = ("env",)
    url_keys: ClassVar[tuple[str, ...]] = ("cluster.command",)


class RayDescription(BackendDescription["Settings"]):
    """Describes jobs of a Ray cluster, whose nodes are what they are: an instance type has no effect."""

    name: ClassVar[str] = "ray"
    choice: ClassVar[str] = "ray"
    cluster_types: ClassVar[tuple[str, ...]] = ("ray",)
    title: ClassVar[str] = "an existing Ray cluster"
    files: ClassVar[Files[Any]] = _Files()
    instances: ClassVar[Instances[Any] | None] = None
    programs: ClassVar[Programs[Any]] = _Programs()
    scaling: ClassVar[Scaling | None] = None
    secrets: ClassVar[Secrets] = _Secrets()
    unread: ClassVar[tuple[str, ...]] = (*OF_PODS, "container")

    def load(self) -> Backend:
        """Return what runs jobs on a Ray cluster."""
        from launcher.backends.ray.backend import BACKEND

        return BACKEND

    def doctor(self) -> Doctor:
        """Return the examination of a cluster by its dashboard."""
        from launcher.backends.ray.doctor import RayDoctor

        return RayDoctor()

    def options(self) -> type["Settings"]:
        """Return the model of the `cluster` section."""
        from launcher.backends.ray.options import Settings

        return Settings


DESCRIPTION = RayDescription()
