"""What cluster=k8s is: HyperPod on EKS."""

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from launcher.model.backend import Backend, BackendDescription, MemoryKeeper
from launcher.model.cluster_options import options_of
from launcher.model.job_spec import JobSpec

if TYPE_CHECKING:
    from launcher.backends.kubernetes.job_options import Settings
    from launcher.model.checked_recipe import CheckedRecipe


class KubernetesDescription(BackendDescription["Settings"]):
    """Describes jobs of the HyperPod training operator, or of Kubeflow's."""

    name: ClassVar[str] = "k8s"
    choice: ClassVar[str] = "k8s"
    cluster_types: ClassVar[tuple[str, ...]] = ("k8s",)
    title: ClassVar[str] = "HyperPod on EKS"
    rule_modules: ClassVar[tuple[str, ...]] = (
        "launcher.backends.kubernetes.job_rules",
        "launcher.backends.kubernetes.pod_rules",
        "launcher.backends.kubernetes.operator_rules",
        "launcher.backends.kubernetes.recipe_rules",
        "launcher.backends.kubernetes.security",
        "launcher.backends.kubernetes.stopping",
    )
    resizes_jobs: ClassVar[bool] = True
    has_pods: ClassVar[bool] = True
    memory_tier: ClassVar[MemoryKeeper | None] = MemoryKeeper.SERVICE
    has_bundle: ClassVar[bool] = False
    secret_sources: ClassVar[tuple[str, ...]] = ("secretKeyRef",)
    url_keys: ClassVar[tuple[str, ...]] = (
        *("container", "cluster.command"),
        *("cluster.annotations.", "cluster.custom_labels."),
    )
    instance_use: ClassVar[str | None] = "hyperpod"

    def load(self) -> Backend:
        """Return what runs jobs on a cluster."""
        from launcher.backends.kubernetes.backend import BACKEND

        return BACKEND

    def options(self) -> type["Settings"]:
        """Return the model of the `cluster` section."""
        from launcher.backends.kubernetes.job_options import Settings

        return Settings

    def job_kind(self, job: JobSpec) -> str:
        """Return the kind of the custom resource."""
        return (
            "HyperPodPyTorchJob"
            if options_of(job, self.options()).use_hyperpod_pytorch_job
            else "Kubeflow PyTorchJob"
        )

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

    def secret_values(self, checked: "CheckedRecipe") -> Iterator[tuple[str, Mapping[str, Any]]]:
        """Yield annotations and labels."""
        for name in ("annotations", "custom_labels"):
            yield f"cluster.{name}", getattr(options_of(checked, self.options()), name) or {}

    def replaces_program(self, options: "Settings") -> bool:
        """Return whether the section has a command."""
        return bool(options.command)

    def secret_words(self, checked: "CheckedRecipe") -> Iterator[tuple[str, Sequence[str]]]:
        """Yield the start command."""
        yield "cluster.command", options_of(checked, self.options()).command or ()


DESCRIPTION = KubernetesDescription()
