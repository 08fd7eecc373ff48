"""The values that fill the templates of a job's manifests, and the start script of its pods.

Source of fields: the HyperPod training job model and the LLMFT image's interface; Kubeflow Training Operator 1.7,
PyTorchJob v1; KubeRay 1.7, RayJob v1. Each is listed with its recipe key in docs/manifest.md.
"""

import functools
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from launcher.backends.kubernetes.api_objects import COMPONENT_LABEL, JOB_LABEL, PRIORITY_LABEL, QUEUE_LABEL
from launcher.backends.kubernetes.job_options import (
    LabelSelector,
    RunPolicy,
    k8s_options,
    kind_of,
)
from launcher.backends.kubernetes.programs import Program
from launcher.backends.kubernetes.security import container_context
from launcher.bundle import container
from launcher.common.names import AGENT_PORT, BASE_CONFIG, CHECKPOINT_LOG, ENV_TORCHRUN_PATIENCE, GRACEFUL_ENV
from launcher.common.problems import Problem
from launcher.common.templating import render_template
from launcher.model.config_tree import get
from launcher.model.environment import SEVERAL_NODES, plain_variables, secret_variables
from launcher.model.family_registry import interface
from launcher.model.instances import EFA, HUGE_PAGES, canonical, requested
from launcher.model.interface import CONFIG_MOUNT, HEAD, SUBMITTER, WORKERS, Role
from launcher.model.job_spec import JobSpec
from launcher.model.start_script import GIT_URL

START_SCRIPT = "start.sh"
"""Name of the start script in a job's ConfigMap."""
AGENT = "hyperpodrun"
_TORCHRUN = "torchrun"

MARGIN_S = 60
"""Seconds that a pod has beyond its workers' time to save.

The agent needs them to notice the request, kill workers that did not save (up to 15 s) and close its server (1 s).
Source: hyperpod_elastic_agent 1.1.3, pcontext. The rest is a margin for a busy node; our own choice.
"""

_EVAL_PERIOD_S = 3600
"""Window in which restarts are counted, required with scaleUpSnoozeTimeInSeconds. Our own choice."""

TTL_S = 86400
"""Seconds that a finished job is kept by default. Our own choice: the operator's default of 0 deletes a job before a
command can see how it ended."""

_SERVED_TTL_S = 3600
"""The same for a job of several programs, of which some may run on beside one that has ended. Our own choice: time to
read how it ended, on nodes that are paid for."""

_EFA_PAGES = "5120Mi"
"""Huge pages of a pod whose workers reach each other by EFA. Source: that of HUGE_PAGES."""

_RAY_VERSION = "2.46.0"
"""Version of Ray in the images of the published RayJobs. Source: their rayVersion."""

_TOPOLOGY = {
    "preferred_topology": "kueue.x-k8s.io/podset-preferred-topology",
    "required_topology": "kueue.x-k8s.io/podset-required-topology",
}
_RESOURCES = {"cpu": "cpu", "hugepages": HUGE_PAGES, "memory": "memory"}


@dataclass(frozen=True, slots=True)
class Part:
    """Pods of one kind and priority. Their number is fixed if `max_replicas` is None."""

    name: str
    replicas: int
    max_replicas: int | None
    spares: int | None
    priority_class: str | None
    container: str = "pytorch"
    command: Sequence[str] | None = None
    """None where the operator starts the container."""
    requests: Mapping[str, Any] = field(default_factory=dict)
    limits: Mapping[str, Any] = field(default_factory=dict)
    node_selector: Mapping[str, str] = field(default_factory=dict)
    affinity: Mapping[str, Any] = field(default_factory=dict)


def is_kubeflow(job: JobSpec) -> bool:
    """Return whether the job is a Kubeflow PyTorchJob."""
    return kind_of(job) == "PyTorchJob"


def values(job: JobSpec, program: Program) -> dict[str, Any]:
    """Return the values for a program's templates; labels and annotations are those of its objects and pods."""
    settings, needs = k8s_options(job), program.role.pod_needs(job)
    queue = {QUEUE_LABEL: settings.queue_name, PRIORITY_LABEL: settings.workload_priority_class}
    topology = {name: getattr(settings, key) for key, name in _TOPOLOGY.items()}
    identity = {JOB_LABEL: job.name, **({COMPONENT_LABEL: program.component.name} if program.component else {})}
    return {
        "job": job,
        "program": program,
        "identity": identity,
        "settings": settings,
        "restart_policy": "Always" if program.is_service else settings.restartPolicy,
        "needs": needs,
        "is_on_node_network": is_on_node_network(job),
        "nproc_per_node": None if interface(job).starts_itself else job.nproc_per_node,
        "agent_port": AGENT_PORT if kind_of(job) == "HyperPodPyTorchJob" else None,
        "elastic": job.elastic,
        "parts": parts(job, program),
        "labels": {"app": job.name, **(settings.custom_labels or {}), **_given(queue), **identity},
        "annotations": {**(settings.annotations or {}), **_given(topology)},
        "env": env(job, program.role),
        "tolerations": [
            *needs.tolerations,
            *(each.model_dump(exclude_none=True) for each in settings.tolerations or ()),
        ],
        "run_policy": _POLICIES[kind_of(job)](job, program),
        "checkpoint_log": str(CHECKPOINT_LOG) if get(job.scales[0].config, "checkpointing.memory") else None,
        "entrypoint": entrypoint(job),
        "ray_version": _RAY_VERSION,
        "init_context": container_context(job),
        "security_context": container_context(job, is_privileged=needs.is_privileged),
        # Of a pod: its workers' time for a last checkpoint. Source: Kubernetes, Pod Lifecycle: Termination of Pods.
        "grace_period_s": job.save_timeout_s + MARGIN_S,
    }


def _given(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values that are not None."""
    return {name: value for name, value in values.items() if value is not None}


def parts(job: JobSpec, program: Program) -> tuple[Part, ...]:
    """Return a program's replicaSpecs: one, or a base and an elastic part of different priorities.

    A Kubeflow job has a master and the other workers.

    Source: AWS, Using elastic training in Amazon SageMaker HyperPod, Preemption by high priority job; Kubeflow,
    PyTorchJob: one Master at most.
    """
    elastic, settings = job.elastic, k8s_options(job)
    if kind_of(job) == "RayJob":
        return _ray_parts(job)
    # The user's own command is unchanged, any other wrapped in the start script.
    wrapped = ["/bin/bash", f"{CONFIG_MOUNT}/{START_SCRIPT}", *_program(job)]
    command = settings.command or (wrapped if has_start_script(job) else None)
    pods = functools.partial(
        Part,
        command=command,
        requests=requests(job),
        limits=limits(job),
        node_selector=node_selector(job),
        affinity=affinity(settings.label_selector),
    )
    priority = settings.priority_class_name
    if program.is_service:
        # An API server of 1.20 applies only texts as quantities in a kind of its own.
        part = pods("pods", program.nodes, None, None, priority)
        return (replace(part, requests=_as_texts(part.requests), limits=_as_texts(part.limits)),)
    if is_kubeflow(job):
        master, workers = pods("Master", 1, None, None, priority), program.nodes - 1
        return (master, pods("Worker", workers, None, None, priority)) if workers else (master,)
    if elastic is None or elastic.preemption is None:
        most = elastic.max_nodes if elastic else None
        return (pods("pods", job.initial_nodes, most, settings.spares, priority),)
    base, classes = elastic.min_nodes, elastic.preemption
    beyond = job.initial_nodes - base
    return (
        pods("base", base, None, settings.spares, classes.base_priority_class),
        pods("elastic", beyond, elastic.max_nodes - base, None, classes.elastic_priority_class),
    )


def _as_texts(amounts: Mapping[str, Any]) -> dict[str, str]:
    return {name: str(amount) for name, amount in amounts.items()}


def _ray_parts(job: JobSpec) -> tuple[Part, ...]:
    """Return head, workers and submitter of a Ray job, whose containers KubeRay's operator starts.

    The head runs the job's program without accelerators, beside the workers on nodes of their type.

    Source: KubeRay, RayJob: K8sJobMode; the published RayJobs of verl.
    """
    settings, family = k8s_options(job), interface(job)
    head, workers, submitter = (family.role(name) for name in (HEAD, WORKERS, SUBMITTER))
    cpu_types = settings.cpu_instance_type or []
    cpu_types = [canonical(each) for each in ([cpu_types] if isinstance(cpu_types, str) else cpu_types)]
    near = LabelSelector(preferred={settings.instance_type_label: cpu_types}) if cpu_types else None

    def pods(role: Role, nodes: int, own: Mapping[str, Any]) -> Part:
        return Part(
            *(role.name, nodes, None, None, settings.priority_class_name),
            container=f"ray-{role.name}",
            requests={**own, **role.requests(job)},
            limits={**own, **role.limits(job)},
            node_selector=node_selector(job),
            affinity=affinity(settings.label_selector),
        )

    devices = limits(job)
    if job.resources.efa and workers.nodes(job) > 1:
        devices.setdefault(HUGE_PAGES, _EFA_PAGES)
    any_node = settings.node_selector or {}
    return (
        pods(head, 1, {}),
        pods(workers, workers.nodes(job), devices),
        replace(pods(submitter, 1, {}), node_selector=any_node, affinity=affinity(near)),
    )


def entrypoint(job: JobSpec) -> str | None:
    """Return the command line that a Ray job's head runs, the user's own or the family's; None for other jobs."""
    if kind_of(job) != "RayJob":
        return None
    return shlex.join(k8s_options(job).command or _program(job))


def node_selector(job: JobSpec) -> dict[str, str]:
    """Return the labels of the nodes that a job's pods run on: the instance type, and the user's own."""
    settings, instance_type = k8s_options(job), job.resources.instance_type
    node: dict[str, str] = {settings.instance_type_label: instance_type} if instance_type else {}
    return {**node, **interface(job).workers.pod_needs(job).node_labels, **(settings.node_selector or {})}


def is_on_node_network(job: JobSpec) -> bool:
    """Return whether pods use the network of their node: as the user sets, else as the program needs."""
    own = k8s_options(job).hostNetwork
    return interface(job).workers.pod_needs(job).is_on_node_network if own is None else own


def has_start_script(job: JobSpec) -> bool:
    """Return whether pods have the start script: not those of Ray, or those whose image starts its own program."""
    is_image_s_own = interface(job).starts_itself and not k8s_options(job).command
    return kind_of(job) != "RayJob" and not is_image_s_own


def start_script(job: JobSpec) -> str:
    """Return the start script of the pods, which forwards SIGTERM; a user's own command may call it too.

    Source: kill(2), Notes: process 1 receives only the signals that it handles.
    """
    log = image_log(job)
    return render_template(
        "kubernetes/start.sh.j2",
        stops_agent=not is_kubeflow(job) and job.elastic is not None and job.elastic.use_graceful_shutdown,
        save_timeout_s=job.save_timeout_s,
        port=AGENT_PORT,
        log=log if log and k8s_options(job).keeps(log) else None,
    )


def image_log(job: JobSpec) -> str | None:
    """Return the file that receives the output of the published image's start command; None for other commands."""
    is_image_command = not k8s_options(job).command and not container.is_own(job)
    return interface(job).workers.image_log if is_image_command else None


def _program(job: JobSpec) -> list[str]:
    """Return the program that the image starts; none if its own entry point does.

    Without the HyperPod operator, torchrun replaces its agent.
    """
    family = interface(job)
    if family.is_ray:
        return list(family.role(SUBMITTER).program(job))
    own = container.command(job) if container.is_own(job) else None
    args = [*map(_literal, own or family.workers.image_command(job))]
    if not is_kubeflow(job) or not (own or args[:1] == [AGENT]):
        return args
    return [*_torchrun(job), *map(_literal, family.container_program(job))]


def unread_scripts(job: JobSpec) -> tuple[Problem, ...]:
    """Return a Problem for each command before or after training that nothing in the container would run."""
    given = [key for key in ("pre_script", "post_script") if get(job.config, f"recipes.{key}")]
    names = {entry["name"] for entry in env(job, interface(job).workers)}
    program = (_program(job) or ["its program"])[0]
    is_direct = not k8s_options(job).command and (kind_of(job) == "RayJob" or program == _TORCHRUN)
    return tuple(
        Problem(
            "E322",
            f"recipes.{key}",
            f"nothing runs it: the container starts {program} itself",
            remedy="put the commands into cluster.command, or use an image that recipes container made",
        )
        for key in given
        if is_direct or f"{key.upper()}_COMMANDS" not in names
    )


def _torchrun(job: JobSpec) -> list[str]:
    """Return torchrun with the rank of each pod, from variables that Kubeflow's operator sets.

    Source: Kubeflow Training Operator, PyTorchJob: MASTER_ADDR, MASTER_PORT and RANK of every replica.
    """
    return [
        _TORCHRUN,
        f"--nnodes={job.initial_nodes}",
        f"--nproc-per-node={job.nproc_per_node}",
        "--node-rank=$(RANK)",
        "--master-addr=$(MASTER_ADDR)",
        "--master-port=$(MASTER_PORT)",
    ]


def env(job: JobSpec, role: Role) -> list[dict[str, Any]]:
    """Return the container's variables; the user's own override ours.

    Secrets come first: Kubernetes expands `$(NAME)` from earlier entries only.
    """
    family = interface(job)
    plain = (container.env(job) if container.is_own(job) else role.image_env(job)) | role.env(job)
    if family.config_variable:
        plain[family.config_variable] = f"{CONFIG_MOUNT}/{BASE_CONFIG}"
    if is_kubeflow(job) and not family.starts_itself:
        plain[ENV_TORCHRUN_PATIENCE] = str(job.save_timeout_s)
    if job.max_nodes > 1 and not family.starts_itself:
        plain |= SEVERAL_NODES
        if job.resources.efa:
            plain["FI_PROVIDER"] = "efa"
    if job.elastic and job.elastic.use_graceful_shutdown:
        plain |= GRACEFUL_ENV
    texts = {name: _literal(text) for name, text in plain.items()}
    if GIT_URL in texts:
        texts[GIT_URL] = texts[GIT_URL].replace("$$(GIT_TOKEN)", "$(GIT_TOKEN)", 1)
    texts |= {name: _literal(text) for name, text in plain_variables(job.config).items()}
    return [_env_entry(name, value) for name, value in (secret_variables(job.config) | texts).items()]


def _literal(text: str) -> str:
    """Return a text that arrives as it is: in variables and arguments, `$(NAME)` and `$$` would be replaced.

    Source: Kubernetes API, Container: args and EnvVar: value.
    """
    return re.sub(r"\$(?=[$(])", "$$", text)


def _env_entry(name: str, value: str | Mapping[str, Any]) -> dict[str, Any]:
    if isinstance(value, Mapping):
        return {"name": name, "valueFrom": {"secretKeyRef": dict(value["secretKeyRef"])}}
    return {"name": name, "value": value}


def requests(job: JobSpec) -> dict[str, Any]:
    """Return a pod's requests: its limits, what its recipe names, its share of the node's processors and memory.

    The share has no limits: a pod may use free memory for its data and checkpoints, and a limit on processors
    would only slow it down. A pod without accelerators requests none: its share of a node is unknown.
    """
    found = limits(job) | _extra(job)
    instance = job.resources.instance
    if instance is None or not k8s_options(job).request_node_share or not job.resources.accelerators:
        return found
    share = requested(instance, job.resources.accelerators)
    return found | {name: text for name, text in share.items() if name not in found}


def limits(job: JobSpec) -> dict[str, Any]:
    """Return a pod's limits, which it requests too."""
    resources = job.resources
    found: dict[str, Any] = {}
    if resources.accelerators and resources.accelerator_resource:
        found[resources.accelerator_resource] = resources.accelerators
    if resources.efa and job.max_nodes > 1:
        found[EFA] = resources.efa
    is_free = interface(job).memory_is_minimum
    return found | {name: value for name, value in _extra(job).items() if not (is_free and name == "memory")}


def _extra(job: JobSpec) -> dict[str, Any]:
    """Return what the recipe itself asks of a pod beyond its devices."""
    extra = get(job.config, "recipes.resources") or {}
    return {_RESOURCES[key]: value for key, value in extra.items() if value is not None}


def _run_policy(job: JobSpec, _program: Program) -> dict[str, Any]:
    settings = k8s_options(job)
    policy = _given({"ttlSecondsAfterFinished": TTL_S, "cleanPodPolicy": settings.cleanPodPolicy})
    policy |= (settings.run_policy or RunPolicy()).model_dump(exclude_none=True)
    if job.elastic and job.elastic.scale_up_snooze_s is not None:
        restarts = policy.get("restartPolicy", {"evalPeriodSeconds": _EVAL_PERIOD_S})
        policy["restartPolicy"] = restarts | {"scaleUpSnoozeTimeInSeconds": job.elastic.scale_up_snooze_s}
    return policy


def _kubeflow_policy(job: JobSpec, program: Program) -> dict[str, Any]:
    """Return Kubeflow's runPolicy. Its jobs are kept unless a time is given, so -1 is omitted.

    A job of several programs is removed after a time by default, and the others with it: they may hold their nodes.
    """
    own = k8s_options(job).run_policy or RunPolicy()
    ttl = own.ttlSecondsAfterFinished
    if program.component and ttl is None:
        ttl = _SERVED_TTL_S
    return _given(
        {
            "cleanPodPolicy": k8s_options(job).cleanPodPolicy,
            "activeDeadlineSeconds": own.activeDeadlineSeconds,
            "backoffLimit": own.jobMaxRetryCount,
            "suspend": own.suspend,
            "ttlSecondsAfterFinished": None if ttl == -1 or program.ending else ttl,
        }
    )


def _ray_policy(job: JobSpec, _program: Program) -> dict[str, Any]:
    """Return the fields of a RayJob that bound its life. A retry starts a new Ray cluster.

    Source: KubeRay, RayJob: ttlSecondsAfterFinished needs shutdownAfterJobFinishes, as Kueue does.
    """
    own = k8s_options(job).run_policy or RunPolicy()
    ttl = TTL_S if own.ttlSecondsAfterFinished is None else own.ttlSecondsAfterFinished
    return _given(
        {
            "shutdownAfterJobFinishes": ttl != -1,
            "ttlSecondsAfterFinished": None if ttl == -1 else ttl,
            "activeDeadlineSeconds": own.activeDeadlineSeconds,
            "backoffLimit": own.jobMaxRetryCount,
            "preRunningDeadlineSeconds": own.startupDeadlineSeconds,
            "suspend": own.suspend,
        }
    )


def affinity(selector: LabelSelector | None) -> dict[str, Any]:
    """Return the node affinity that a selector stands for."""
    if selector is None:
        return {}

    def term(key: str, values: list[str]) -> dict[str, Any]:
        return {"key": key, "operator": "In", "values": values}

    found: dict[str, Any] = {}
    if selector.required:
        terms = [{"matchExpressions": [term(key, values) for key, values in selector.required.items()]}]
        found["requiredDuringSchedulingIgnoredDuringExecution"] = {"nodeSelectorTerms": terms}
    if selector.preferred:
        weights = selector.weights or [100] * len(selector.preferred)
        found["preferredDuringSchedulingIgnoredDuringExecution"] = [
            {"weight": weight, "preference": {"matchExpressions": [term(key, values)]}}
            for weight, (key, values) in zip(weights, selector.preferred.items(), strict=True)
        ]
    return {"nodeAffinity": found} if found else {}


_POLICIES: Mapping[str, Callable[[JobSpec, Program], dict[str, Any]]] = {
    "HyperPodPyTorchJob": _run_policy,
    "PyTorchJob": _kubeflow_policy,
    "RayJob": _ray_policy,
}
