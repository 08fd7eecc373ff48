"""The `cluster` section of cluster=k8s. Spellings are the ones users' scripts already set."""

from typing import Annotated, Any, Literal

from pydantic import Field

from launcher.recipe import Listed, Model

Values = Annotated[Listed[str], Field(min_length=1)]
Word = Annotated[str, Field(min_length=1)]


class HostVolume(Model):
    """A folder of the node, mounted into the pod."""

    volumeName: str
    hostPath: str
    mountPath: str


class Claim(Model):
    """A PersistentVolumeClaim, mounted into the pod."""

    claimName: str
    mountPath: str


class LabelSelector(Model):
    """Node affinity: `required` labels, and `preferred` ones with a weight each (default 100)."""

    required: dict[str, Values] | None = None
    preferred: dict[str, Values] | None = None
    weights: Listed[Annotated[int, Field(ge=1, le=100)]] | None = None


class Settings(Model):
    """Every key of cluster=k8s."""

    pullPolicy: Literal["Always", "IfNotPresent", "Never"]
    restartPolicy: Literal["Always", "OnFailure", "Never"]
    namespace: str
    kube_context: str | None
    custom_labels: dict[str, str] | None
    annotations: dict[str, str] | None
    service_account_name: str | None
    priority_class_name: str | None
    workload_priority_class: str | None
    queue_name: str | None
    volumes: Listed[HostVolume] | None
    persistent_volume_claims: Listed[Claim] | None
    label_selector: LabelSelector | None
    cleanPodPolicy: Literal["All", "OnlyComplete", "None"] | None
    use_hyperpod_pytorch_job: bool
    hostNetwork: bool | None
    cpu_instance_type: str | Listed[str] | None
    command: Listed[Word] | None
    security_context: dict[str, Any] | None
    container_mounts: Listed[str] | None
