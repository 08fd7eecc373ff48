"""HyperPod on EKS: one ConfigMap with the configurations, one HyperPodPyTorchJob.

Source of fields and variables: the HyperPod training operator's published job model and the LLMFT image's
interface; each is listed with its recipe key in docs/manifest.md.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from launcher.environment import plain_variables, secret_variables
from launcher.families import interface
from launcher.problems import Problem, fail
from launcher.render import render_yaml
from launcher.scales import get
from launcher.specs import Bundle, JobHandle, JobSpec, JobStatus

CONFIG_MAP_LIMIT = 1 << 20
"""Bytes a ConfigMap may hold. Source: Kubernetes, ConfigMaps, Motivation."""

_EVAL_PERIOD_S = 3600
"""Window in which restarts are counted, required beside scaleUpSnoozeTimeInSeconds. Our own choice."""

_MULTI_NODE_ENV = {
    "NCCL_SOCKET_IFNAME": "^lo,docker0,veth_def_agent",
    "NCCL_IGNORE_DISABLED_P2P": "1",
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1",
    "TORCH_DIST_INIT_BARRIER": "1",
    "CUDA_DEVICE_MAX_CONNECTIONS": "1",
}
"""What a job of several nodes needs. Source: the LLMFT image's interface."""


class KubernetesBackend:
    """Renders manifests. Submission is still to come; `kubectl apply -f` takes them as they are."""

    name: ClassVar[str] = "k8s"

    def check(self, job: JobSpec) -> tuple[Problem, ...]:
        """Return what the image lacks: a start command."""
        if interface(job.model_type).image_command(job) or job.settings.command:
            return ()
        return (
            Problem(
                "E311",
                "cluster.command",
                "this recipe's image has no start command of its own",
                remedy="cluster.command=[word, word]",
            ),
        )

    def render(self, job: JobSpec, configs: Mapping[str, str]) -> dict[str, str]:
        """Return the ConfigMap and the job.

        Raises:
            ProblemsFound: The configurations are larger than a ConfigMap may be.
        """
        size = sum(len(text.encode()) for text in configs.values())
        if size > CONFIG_MAP_LIMIT:
            raise fail(
                "E312",
                "recipes",
                f"the configurations are {size} bytes, a ConfigMap holds {CONFIG_MAP_LIMIT}",
                remedy="fewer sizes in scale_config, or shorter values",
            )
        common = {"job": job, "labels": _labels(job)}
        return {
            "manifests/configmap.yaml": render_yaml("kubernetes/configmap.yaml.j2", configs=configs, **common),
            "manifests/job.yaml": render_yaml(
                "kubernetes/job.yaml.j2",
                settings=job.settings,
                elastic=job.elastic,
                parts=_parts(job),
                annotations=job.settings.annotations or {},
                command=_command(job),
                env=_env(job),
                affinity=_affinity(job.settings.label_selector),
                run_policy=_run_policy(job),
                limits=_limits(job),
                security_context=_security_context(job),
                **common,
            ),
        }

    def submit(self, bundle: Bundle) -> JobHandle:
        """Refuse: submission is still to come."""
        raise fail(
            "E904",
            "cluster",
            "submitting to Kubernetes is not yet supported; the bundle is complete",
            value="k8s",
            remedy=f"kubectl apply -f {bundle.directory}/manifests, or dry_run=true to stop here",
        )

    def status(self, handle: JobHandle) -> JobStatus:
        """Refuse: nothing was submitted."""
        raise fail("E904", handle.job_name, "following a Kubernetes job is not yet supported")

    def logs(self, handle: JobHandle, *, follow: bool) -> Iterator[str]:
        """Refuse: nothing was submitted."""
        raise fail("E904", handle.job_name, "following a Kubernetes job is not yet supported")

    def cancel(self, handle: JobHandle) -> None:
        """Refuse: nothing was submitted."""
        raise fail("E904", handle.job_name, "cancelling a Kubernetes job is not yet supported")


@dataclass(frozen=True, slots=True)
class _Part:
    """One replicaSpec: pods of one priority. `max_replicas` None leaves their number fixed."""

    name: str
    replicas: int
    max_replicas: int | None
    priority_class: str | None


def _parts(job: JobSpec) -> tuple[_Part, ...]:
    """Return the job's replicaSpecs: one, or a base and an elastic part of different priorities.

    Source: AWS, Using elastic training in Amazon SageMaker HyperPod, Preemption by high priority job.
    """
    elastic = job.elastic
    if elastic is None or elastic.preemption is None:
        most = elastic.max_nodes if elastic else None
        return (_Part("pods", job.initial_nodes, most, job.settings.priority_class_name),)
    base, classes = elastic.min_nodes, elastic.preemption
    beyond = job.initial_nodes - base
    return (
        _Part("base", base, None, classes.base_priority_class),
        _Part("elastic", beyond, elastic.max_nodes - base, classes.elastic_priority_class),
    )


def _labels(job: JobSpec) -> dict[str, str]:
    settings = job.settings
    queue = {
        "kueue.x-k8s.io/queue-name": settings.queue_name,
        "kueue.x-k8s.io/priority-class": settings.workload_priority_class,
    }
    return {"app": job.name, **(settings.custom_labels or {}), **{k: v for k, v in queue.items() if v}}


def _command(job: JobSpec) -> list[str]:
    return list(job.settings.command or interface(job.model_type).image_command(job))


def _env(job: JobSpec) -> list[dict[str, Any]]:
    """Return the container's variables; a user's own wins over ours of the same name.

    A secret comes before what refers to it: Kubernetes expands `$(NAME)` from earlier entries only.
    """
    plain = interface(job.model_type).image_env(job)
    if job.max_nodes > 1:
        plain |= _MULTI_NODE_ENV
        if job.resources.efa:
            plain["FI_PROVIDER"] = "efa"
    if job.elastic and job.elastic.use_graceful_shutdown:
        plain["HYPERPOD_SIGNAL_COORDINATION"] = "distributed"
    variables = secret_variables(job.config) | plain | plain_variables(job.config)
    return [_env_entry(name, value) for name, value in variables.items()]


def _env_entry(name: str, value: str | Mapping[str, Any]) -> dict[str, Any]:
    if isinstance(value, Mapping):
        return {"name": name, "valueFrom": {"secretKeyRef": dict(value["secretKeyRef"])}}
    return {"name": name, "value": value}


def _limits(job: JobSpec) -> dict[str, Any]:
    resources, extra = job.resources, get(job.config, "recipes.resources") or {}
    limits = {}
    if resources.accelerators:
        limits[resources.accelerator_resource] = resources.accelerators
    if resources.efa and job.max_nodes > 1:
        limits["vpc.amazonaws.com/efa"] = resources.efa
    names = {"hugepages": "hugepages-2Mi", "memory": "memory"}
    return limits | {names[key]: value for key, value in extra.items() if value is not None}


def _run_policy(job: JobSpec) -> dict[str, Any]:
    policy: dict[str, Any] = {}
    if job.settings.cleanPodPolicy:
        policy["cleanPodPolicy"] = job.settings.cleanPodPolicy
    if job.elastic and job.elastic.scale_up_snooze_s is not None:
        policy["restartPolicy"] = {
            "evalPeriodSeconds": _EVAL_PERIOD_S,
            "scaleUpSnoozeTimeInSeconds": job.elastic.scale_up_snooze_s,
        }
    return policy


def _affinity(selector: Any) -> dict[str, Any]:
    if selector is None:
        return {}

    def term(key: str, values: list[str]) -> dict[str, Any]:
        return {"key": key, "operator": "In", "values": values}

    affinity: dict[str, Any] = {}
    if selector.required:
        terms = [{"matchExpressions": [term(key, values) for key, values in selector.required.items()]}]
        affinity["requiredDuringSchedulingIgnoredDuringExecution"] = {"nodeSelectorTerms": terms}
    if selector.preferred:
        weights = selector.weights or [100] * len(selector.preferred)
        affinity["preferredDuringSchedulingIgnoredDuringExecution"] = [
            {"weight": weight, "preference": {"matchExpressions": [term(key, values)]}}
            for weight, (key, values) in zip(weights, selector.preferred.items(), strict=True)
        ]
    return {"nodeAffinity": affinity} if affinity else {}


def _security_context(job: JobSpec) -> dict[str, Any]:
    """Return the user's own, or the least that the published image and EFA run with."""
    if job.settings.security_context:
        return dict(job.settings.security_context)
    capabilities: dict[str, list[str]] = {
        "drop": ["ALL"],
        "add": ["CHOWN", "DAC_OVERRIDE", "FOWNER", "SETGID", "SETUID"],
    }
    if job.resources.efa and job.max_nodes > 1:
        capabilities["add"].append("IPC_LOCK")  # EFA registers memory
    return {
        "allowPrivilegeEscalation": False,
        "capabilities": capabilities,
        "seccompProfile": {"type": "RuntimeDefault"},
    }


BACKEND = KubernetesBackend()
