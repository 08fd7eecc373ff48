"""The `cluster` section of cluster=k8s. Spellings are the ones users' scripts already set."""

from collections.abc import Mapping
from typing import Annotated, Literal, Protocol

from pydantic import AfterValidator, Field

from launcher.common.syntax import is_below, place
from launcher.model import family_registry
from launcher.model.base_model import (
    INT32,
    INT64,
    ClusterOptions,
    HasOptions,
    Listed,
    Model,
    NonNegative32,
    Positive32,
    StartCommand,
    default,
    options_of,
)

Values = Annotated[Listed[str], Field(min_length=1)]
Word = Annotated[str, Field(min_length=1)]
Topology = Literal[
    "topology.k8s.aws/ultraserver-id",
    "topology.k8s.aws/network-node-layer-1",
    "topology.k8s.aws/network-node-layer-2",
    "topology.k8s.aws/network-node-layer-3",
]
"""Node labels of the network topology. Source: the HyperPod training job model, topology annotations."""
UserId = Annotated[int, Field(ge=1, le=INT32)]
AnyUserId = Annotated[int, Field(ge=0, le=INT32)]
"""User and group ids. Source: Kubernetes, IsValidUserID of the API's validation."""


class Toleration(Model):
    """A toleration of a node taint by the pods. Source: Kubernetes, Taints and Tolerations."""

    key: Word | None = None
    """The taint's key; left out, with operator Exists, every taint is tolerated."""
    operator: Literal["Exists", "Equal"] | None = None
    """Exists matches any value of the taint, Equal the given one; Kubernetes' default is Equal."""
    value: str | None = None
    """The taint's value; only with Equal."""
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] | None = None
    """The taint's effect; left out, all of them."""
    tolerationSeconds: Annotated[int, Field(ge=0, le=INT64)] | None = None
    """Seconds a pod stays on a node that gets the taint; only with NoExecute."""


class RestartPolicy(Model):
    """How restarts are counted and limited; `elastic_policy.scale_up_snooze_time` is written here too."""

    evalPeriodSeconds: Positive32
    """Seconds of the window in which restarts are counted."""
    maxFullJobRestarts: NonNegative32 | None = None
    """Restarts of the complete job in that window before it fails."""
    numRestartBeforeFullJobRestart: NonNegative32 | None = None
    """Restarts of only the processes in that window before the complete job, pods included, is restarted."""
    maxNumRepeatOffendersToAvoid: NonNegative32 | None = None
    """Maximum number of repeatedly failing nodes that a restart avoids."""


class LogMonitor(Model):
    """A monitor of the processes' log lines that ends a hanging or slow job's attempt.

    Source: the HyperPod elastic agent's log agent, which reads patterns as Python's `re.match` does.
    """

    name: Word
    """Its name in events; unique."""
    logPattern: Word
    """Regular expression from the start of a line (begin with .* to find it anywhere); its first group is the metric.
    """
    expectedStartCutOffInSeconds: Positive32 | None = None
    """Seconds to the first match; after that the job counts as hanging."""
    expectedRecurringFrequencyInSeconds: Positive32 | None = None
    """Seconds between two matches; after that the job counts as hanging."""
    metricThreshold: Annotated[int, Field(ge=-INT32, le=INT32)] | None = None
    """Integer that the metric is compared with. Requires operator."""
    operator: Literal["gt", "gteq", "lt", "lteq", "eq"] | None = None
    """How a slow job's metric compares with metricThreshold: lteq means slow at or below the threshold."""
    metricEvaluationDataPoints: Positive32 | None = None
    """Matches in a row that must be slow before the job counts as slow; 1 when left out."""
    stopPattern: Word | None = None
    """Regular expression of the line after which monitoring ends."""


class RunPolicy(Model):
    """Time limits, restarts and monitoring. Times in seconds; the operator's names.

    Source: the HyperPod training job model, runPolicy; AWS, Using the training operator to run jobs.
    """

    activeDeadlineSeconds: Positive32 | None = None
    """Seconds after which the job is terminated, finished or not."""
    startupDeadlineSeconds: Positive32 | None = None
    """Seconds its pods have to start before the job fails."""
    faultDeadlineSeconds: Positive32 | None = None
    """Seconds it has to recover from a fault before it fails."""
    jobMaxRetryCount: NonNegative32 | None = None
    """Restarts over the job's lifetime before it fails; a Kubeflow job's backoffLimit."""
    suspend: bool | None = None
    """true creates the job without starting it. Kueue sets this itself."""
    ttlSecondsAfterFinished: Annotated[int, Field(ge=-1, le=INT32)] | None = None
    """Seconds after which a finished job is removed, with its pods and logs; -1 keeps it. When left out, a
    HyperPodPyTorchJob is kept for a day (86400); a Kubeflow job stays."""
    workloadMode: Word | None = None
    """An option of the operator, passed to it unchanged."""
    restartPolicy: RestartPolicy | None = None
    """How restarts are counted and limited."""
    logMonitoringConfiguration: Annotated[Listed[LogMonitor], Field(min_length=1)] | None = None
    """Monitors of the log that detect a hanging or slow job."""


class HostVolume(Model):
    """A folder of the node, mounted into the pod."""

    volumeName: str
    """Name of the volume in the pod: a DNS label, unique."""
    hostPath: str
    """Folder of the node, an absolute path. Every node must have it."""
    mountPath: str
    """Mount path in the container, an absolute path."""
    readOnly: bool | None = None
    """true mounts it read-only."""


class Claim(Model):
    """A PersistentVolumeClaim, mounted into the pod."""

    claimName: str
    """Name of the PersistentVolumeClaim, in the job's namespace. Many pods mount it: ReadWriteMany."""
    mountPath: str
    """Mount path in the container, an absolute path."""
    readOnly: bool | None = None
    """true mounts it read-only."""


class LabelSelector(Model):
    """Node affinity: `required` labels, and `preferred` ones with a weight each (default 100)."""

    required: dict[str, Values] | None = None
    """Label to allowed values: pods run only on nodes that have one of them for each label."""
    preferred: dict[str, Values] | None = None
    """Label to preferred values: matching nodes are used first."""
    weights: Listed[Annotated[int, Field(ge=1, le=100)]] | None = None
    """Weight of each preferred label, 1 to 100, in their order; default: 100 each."""


_CAPABILITIES = frozenset(
    (
        *("ALL", "AUDIT_CONTROL", "AUDIT_READ", "AUDIT_WRITE", "BLOCK_SUSPEND", "BPF", "CHECKPOINT_RESTORE", "CHOWN"),
        *("DAC_OVERRIDE", "DAC_READ_SEARCH", "FOWNER", "FSETID", "IPC_LOCK", "IPC_OWNER", "KILL", "LEASE"),
        *("LINUX_IMMUTABLE", "MAC_ADMIN", "MAC_OVERRIDE", "MKNOD", "NET_ADMIN", "NET_BIND_SERVICE", "NET_BROADCAST"),
        *("NET_RAW", "PERFMON", "SETFCAP", "SETGID", "SETPCAP", "SETUID", "SYSLOG", "SYS_ADMIN", "SYS_BOOT"),
        *("SYS_CHROOT", "SYS_MODULE", "SYS_NICE", "SYS_PACCT", "SYS_PTRACE", "SYS_RAWIO", "SYS_RESOURCE", "SYS_TIME"),
        *("SYS_TTY_CONFIG", "WAKE_ALARM"),
    )
)
"""Source: capabilities(7). Runtimes refuse to start a container with any other."""


def _capability(name: str) -> str:
    if name not in _CAPABILITIES:
        words = f", such as {near}" if (near := name.upper().removeprefix("CAP_")) in _CAPABILITIES else ""
        raise ValueError(f"should be a capability of Linux without CAP_{words}, or ALL")
    return name


Capability = Annotated[str, AfterValidator(_capability)]


class Capabilities(Model):
    """Single privileges of root. Source: capabilities(7)."""

    add: Listed[Capability] | None = None
    """Capabilities added to the runtime's defaults; they apply only to root."""
    drop: Listed[Capability] | None = None
    """Capabilities that are dropped; the restricted profile requires ALL."""


class Profile(Model):
    """A profile of seccomp or AppArmor."""

    type: Literal["RuntimeDefault", "Localhost", "Unconfined"]
    """RuntimeDefault is the runtime's own profile, Localhost one of the node's, Unconfined none."""
    localhostProfile: str | None = None
    """Name of the node's profile; with type Localhost only."""


class SeLinuxOptions(Model):
    """The container's SELinux label."""

    user: str | None = None
    """User part of the label."""
    role: str | None = None
    """Role part of the label."""
    type: str | None = None
    """Type part of the label."""
    level: str | None = None
    """Level part of the label."""


class SecurityContext(Model):
    """A container's privileges, by the API's own names. Source: Kubernetes API, SecurityContext."""

    allowPrivilegeEscalation: bool | None = None
    """Whether a process may gain more privileges than its parent."""
    appArmorProfile: Profile | None = None
    """AppArmor profile; requires Kubernetes 1.30."""
    capabilities: Capabilities | None = None
    """Capabilities that are added and dropped."""
    privileged: bool | None = None
    """true gives the container all privileges of root on its node."""
    procMount: Literal["Default"] | None = None
    """How /proc is mounted. Unmasked needs a user namespace, which these pods do not have."""
    readOnlyRootFilesystem: bool | None = None
    """true mounts the image's files read-only."""
    runAsGroup: AnyUserId | None = None
    """Group id of the container's processes."""
    runAsNonRoot: bool | None = None
    """true refuses to start the container as root."""
    runAsUser: AnyUserId | None = None
    """User id of the container's processes."""
    seLinuxOptions: SeLinuxOptions | None = None
    """SELinux label of the container."""
    seccompProfile: Profile | None = None
    """Profile of allowed system calls."""


class Settings(ClusterOptions):
    """Every key of cluster=k8s."""

    pullPolicy: Literal["Always", "IfNotPresent", "Never"] = default("Always")
    """When a node pulls the image: Always detects a moved tag, IfNotPresent starts faster, Never requires it there.
    """
    restartPolicy: Literal["Always", "OnFailure", "Never"] = default("Never")
    """Whether the kubelet restarts a finished container. Leave Never: the training operator restarts jobs."""
    namespace: str = default("default")
    """Namespace of the job, its ConfigMap, Secrets and claims. A team's is hyperpod-ns-<team>."""
    kube_context: str | None = default(None)
    """Context of the kubeconfig for the submission; null for the current one."""
    custom_labels: dict[str, str] | None = default(None)
    """Further labels of the job and its pods, e.g. for cost reports."""
    annotations: dict[str, str] | None = default(None)
    """Annotations of the job and its pods."""
    service_account_name: str | None = default(None)
    """Service account of the pods; its token is mounted only if one is named. Needed for access to S3 by IAM roles.
    """
    priority_class_name: str | None = default(None)
    """PriorityClass of the pods, which must exist. Exclusive with elastic_policy.preemption."""
    workload_priority_class: str | None = default(None)
    """Kueue's WorkloadPriorityClass: order in the queue and preemption; separate from the pods' own priority.
    Task governance names it <class>-priority."""
    queue_name: str | None = default(None)
    """Kueue LocalQueue that admits the job, e.g. hyperpod-ns-<team>-localqueue; null bypasses Kueue."""
    request_node_share: bool = default(True)
    """true requests for each pod the same share of its node's processors and memory as of the accelerators, unless
    recipes.resources sets them. false requests neither: for a queue that covers neither."""
    volumes: Listed[HostVolume] | None = default(None)
    """Folders of the nodes to mount, e.g. FSx for Lustre or local NVMe."""
    persistent_volume_claims: Listed[Claim] | None = default(None)
    """Claims to mount. On the command line also +cluster.persistent_volume_claims.0.claimName=…"""
    label_selector: LabelSelector | None = default(None)
    """Nodes that the pods may or should run on, beyond the instance type."""
    preferred_topology: Topology | None = default(None)
    """Topology constraint that Kueue prefers: a node label that the pods should have in common. Needs queue_name."""
    required_topology: Topology | None = default(None)
    """Topology constraint that Kueue requires: a node label that the pods must have in common. Exclusive with
    preferred_topology."""
    node_selector: dict[str, str] | None = default(None)
    """Further labels that a node must have beside its instance type, such as one that health checks set:
    {sagemaker.amazonaws.com/deep-health-check-status: Passed}."""
    instance_type_label: Literal["beta.kubernetes.io/instance-type", "node.kubernetes.io/instance-type"] = default(
        "beta.kubernetes.io/instance-type"
    )
    """Node label that holds the instance type. HyperPod's nodes have both; others may have only the second."""
    tolerations: Listed[Toleration] | None = default(None)
    """Tolerations of node taints by the pods."""
    spares: NonNegative32 | None = default(None)
    """Pods beyond the job's nodes that Kueue reserves, ready to replace a failed one. Needs queue_name; with two
    priorities they belong to the base part."""
    run_policy: RunPolicy | None = default(None)
    """Deadlines, retries, restarts, removal and log monitoring, by the operator's own names."""
    cleanPodPolicy: Literal["All", "OnlyComplete", "Running", "None"] | None = default(None)
    """Which pods are removed when the job has ended; null leaves the operator's default. None keeps them for
    inspection. OnlyComplete is a HyperPodPyTorchJob's, Running a Kubeflow job's."""
    use_hyperpod_pytorch_job: bool = default(True)
    """true creates a HyperPodPyTorchJob, which elastic jobs need. false creates a Kubeflow PyTorchJob of fixed size,
    in which torchrun starts the workers."""
    hostNetwork: bool | None = default(None)
    """true puts pods on the node's network, where their ports may collide. Leave null unless the network requires
    it."""
    cpu_instance_type: str | Listed[str] | None = default(None)
    """Instance types that the submitter of a Ray job prefers, since it needs no accelerator; other jobs have none."""
    runtime: Literal["image", "launcher"] = default("image")
    """How the container starts: image, like the recipe's published image; launcher, like an image that recipes
    container built, with your code and this launcher's runtime."""
    command: StartCommand[Word] | None = default(None)
    """Words that replace the image's start command, or the program of a Ray job. The variables that the command would
    read are still set."""
    security_context: SecurityContext | None = default(None)
    """Replaces the container's complete securityContext, which by default satisfies the restricted profile."""
    run_as_root: bool | None = default(None)
    """true lets the container run as root, with the capabilities to write to mounted folders; false refuses to start
    it as root. null follows the family's published image."""
    run_as_user: UserId | None = default(None)
    """User id the container runs as, overriding its image's. Required if the image's user is root or a name."""
    fs_group: UserId | None = default(None)
    """Group id that gets write access to mounted claims."""
    container_mounts: Listed[str] | None = default(None)
    """Slurm's key, accepted so that one script works with every cluster; ignored here."""

    @property
    def mounts(self) -> tuple[HostVolume | Claim, ...]:
        """The folders and claims that are mounted into the container."""
        return (*(self.volumes or ()), *(self.persistent_volume_claims or ()))

    def mount_of(self, path: str) -> HostVolume | Claim | None:
        """Return the innermost mount that holds an absolute path; None if only the image has it."""
        above = (each for each in self.mounts if is_below(path, each.mountPath))
        return max(above, key=lambda each: len(place(each.mountPath)), default=None)

    def keeps(self, path: str) -> bool:
        """Return whether a path is on a mount that the pods can write to: others lose it with the pod."""
        mount = self.mount_of(path)
        return mount is not None and not mount.readOnly


class HasKind(HasOptions, family_registry.Started, Protocol):
    """A checked recipe or a planned job."""


JobKind = Literal["HyperPodPyTorchJob", "PyTorchJob", "RayJob"]
KIND_NAMES: Mapping[JobKind, str] = {
    "HyperPodPyTorchJob": "HyperPodPyTorchJob",
    "PyTorchJob": "Kubeflow PyTorchJob",
    "RayJob": "RayJob",
}


def kind_of(job: HasKind) -> JobKind:
    """Return the kind of the custom resource, which follows from the program unless the options can choose.

    A program that its image starts has no agent of the HyperPod operator.
    """
    family = family_registry.interface(job)
    if family.is_ray:
        return "RayJob"
    if family.starts_itself:
        return "PyTorchJob"
    return "HyperPodPyTorchJob" if k8s_options(job).use_hyperpod_pytorch_job else "PyTorchJob"


def k8s_options(job: HasOptions) -> Settings:
    """Return the options of a checked recipe or a planned job on Kubernetes."""
    return options_of(job, Settings)
