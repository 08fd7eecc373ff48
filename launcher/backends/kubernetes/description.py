"""What cluster=k8s is: HyperPod on EKS."""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from launcher.model.backend import Backend, BackendDescription, MemoryKeeper
from launcher.model.capabilities import Clusters, Doctor, Files, Instances, Pods, Programs, Scaling, Secrets
from launcher.model.job_spec import Bundle, JobSpec

if TYPE_CHECKING:
    from launcher.backends.kubernetes.job_options import Settings
    from launcher.model.checked_recipe import CheckedRecipe
    from launcher.model.ray_job import RayJob


class _Files(Files["Settings"]):
    has_bundle: ClassVar[bool] = False


class _Instances(Instances["Settings"]):
    price_use: ClassVar[str | None] = "hyperpod"

    def spot_keys(self, options: "Settings") -> Iterator[tuple[str, object]]:
        """Yield the labels of nodes that select Spot capacity."""
        selector = options.label_selector
        for kind in ("required", "preferred"):
            for label, values in (getattr(selector, kind, None) or {}).items():
                if "capacity" in label.lower() and any("spot" in value.lower() for value in values):
                    yield f"cluster.label_selector.{kind}.{label}", values
        for label, value in (options.node_selector or {}).items():
            if "capacity" in label.lower() and "spot" in value.lower():
                yield f"cluster.node_selector.{label}", value


class _Programs(Programs["Settings"]):
    has_ray: ClassVar[bool] = True
    has_components: ClassVar[bool] = True

    def ray_job(self, bundle: Bundle) -> "RayJob | None":
        """Return the job that the bundle's files describe."""
        from launcher.backends.kubernetes.ray_cluster import ray_job

        return ray_job(bundle)


class _Secrets(Secrets):
    sources: ClassVar[tuple[str, ...]] = ("secretKeyRef",)
    url_keys: ClassVar[tuple[str, ...]] = (
        *("container", "cluster.command"),
        *("cluster.annotations.", "cluster.custom_labels."),
    )

    def values(self, checked: "CheckedRecipe") -> Iterator[tuple[str, Mapping[str, Any]]]:
        """Yield annotations and labels."""
        from launcher.backends.kubernetes.job_options import k8s_options

        for name in ("annotations", "custom_labels"):
            yield f"cluster.{name}", getattr(k8s_options(checked), name) or {}


class KubernetesDescription(BackendDescription["Settings"]):
    """Describes jobs of the HyperPod training operator, or of Kubeflow's."""

    name: ClassVar[str] = "k8s"
    choice: ClassVar[str] = "k8s"
    cluster_types: ClassVar[tuple[str, ...]] = ("k8s",)
    title: ClassVar[str] = "HyperPod on EKS"
    memory_tier: ClassVar[MemoryKeeper | None] = MemoryKeeper.SERVICE
    files: ClassVar[Files[Any]] = _Files()
    instances: ClassVar[Instances[Any] | None] = _Instances()
    programs: ClassVar[Programs[Any]] = _Programs()
    scaling: ClassVar[Scaling | None] = Scaling()
    unread: ClassVar[tuple[str, ...]] = ()
    secrets: ClassVar[Secrets] = _Secrets()

    def load(self) -> Backend:
        """Return what runs jobs on a cluster."""
        from launcher.backends.kubernetes.backend import BACKEND

        return BACKEND

    def pods(self) -> Pods:
        """Return the operations on the pods of a job."""
        from launcher.backends.kubernetes.backend import BACKEND

        return BACKEND

    def clusters(self) -> Clusters:
        """Return the clusters of the kubeconfig."""
        from launcher.backends.kubernetes.clusters import KubernetesClusters

        return KubernetesClusters(self.name)

    def doctor(self) -> Doctor:
        """Return the examination of a cluster by its API."""
        from launcher.backends.kubernetes.doctor import KubernetesDoctor

        return KubernetesDoctor()

    def options(self) -> type["Settings"]:
        """Return the model of the `cluster` section."""
        from launcher.backends.kubernetes.job_options import Settings

        return Settings

    def job_kind(self, job: JobSpec) -> str:
        """Return the kind of the custom resource."""
        from launcher.backends.kubernetes.job_options import KIND_NAMES, kind_of

        return KIND_NAMES[kind_of(job)]


DESCRIPTION = KubernetesDescription()
